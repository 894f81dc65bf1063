"""How the rows of one of Spark's stores are the rows of a keyed state, and back.

Spark's row is a struct ``key`` and a struct ``value``. Their fields become columns: those of the
shuffle key are the key, structs among them field by field; the one that tells rows of a shuffle key
apart is the entry; the value's are columns as they are. Names that a table cannot have twice get a
number. A store with a field that has no column form (an interval, a variant, an array as a key) is
kept as Spark's own bytes, beside the hash that says whose row each is: it can be moved and rescaled
as any other, and not be edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.interop.spark.rows import encoded
from statestore.spark.compat import in_partitions
from statestore.spark.structs import (
    KEY_BYTES,
    NO_KEY,
    SHUFFLE_HASH,
    TAKEN,
    VALUE_BYTES,
    Leaf,
    at_leaf,
    fields_of,
    is_column,
    is_key,
    is_void,
    key_leaves,
    named,
    no_column_form,
    numbered,
    owner_of,
    rebuilt,
)

__all__ = ["KEY_BYTES", "NO_KEY", "SHUFFLE_HASH", "VALUE_BYTES", "StoreColumns"]


@dataclass(frozen=True)
class StoreColumns:
    """The columns of one store. ``entry`` is the field of its key that is not shuffled by."""

    key: T.StructType
    value: T.StructType
    entry: str | None = None

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Why the rows are kept as Spark's bytes; empty where they have columns."""
        keys = (one for one in self.key if not is_key(one))
        values = (one for one in self.value if not (is_column(one.dataType) or is_void(one)))
        return (*no_column_form(keys, "key"), *no_column_form(values, "value"))

    @property
    def is_typed(self) -> bool:
        """Whether the rows have columns, and not Spark's bytes."""
        return not self.problems

    @cached_property
    def key_columns(self) -> list[str]:
        """The columns that rows are hashed and found by."""
        if not self.is_typed:
            return [KEY_BYTES]
        return [leaf.name for leaf in self._key if leaf.place[0] != self._entry] or [NO_KEY]

    @cached_property
    def entry_columns(self) -> list[str]:
        """The columns that tell rows of one key apart; none where there is one row a key."""
        return [leaf.name for leaf in self._key if self.is_typed and leaf.place[0] == self._entry]

    def to_state(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Return ``others`` and the columns of a state, of rows with ``key`` and ``value``."""
        if not self.is_typed:
            shuffled = self._shuffled()
            hashed = F.hash(*shuffled) if shuffled else F.lit(0)
            return encoded(rows.select(*others, hashed.alias(SHUFFLE_HASH), "key", "value"))
        key = F.col("key").cast(numbered(self.key, deep=True))
        value = F.col("value").cast(numbered(self.value))
        return rows.select(
            *others,
            *([F.lit(0).alias(NO_KEY)] if NO_KEY in self.key_columns else []),
            *(at_leaf(key, leaf).alias(leaf.name) for leaf in self._key),
            *(at_leaf(value, leaf).alias(leaf.name) for leaf in self._value),
        )

    def to_bytes(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Return a state's rows as Spark's bytes, in as many Spark partitions as Spark's state has.

        The columns are ``key_bytes`` and ``value_bytes``; Spark partition i has the rows of state
        partition i, where Spark looks for them. Rows without a key have one partition.
        """
        partitions = self.partitions(partitions)
        if not self.is_typed:
            placed = in_partitions(rows, partitions, self.owner(partitions))
            return placed.select(KEY_BYTES, VALUE_BYTES)
        structs = self.to_structs(rows, self.owner(partitions).alias("owner"))
        return encoded(in_partitions(structs, partitions, F.col("owner"))).select(
            KEY_BYTES, VALUE_BYTES
        )

    def to_structs(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Return ``others``, ``key`` and ``value`` as Spark has them, of a typed state's rows."""
        key = F.struct(*rebuilt(self.key, (), self._key))
        value = F.struct(*rebuilt(self.value, (), self._value))
        return rows.select(*others, key.alias("key"), value.alias("value"))

    def partitions(self, shuffled: int) -> int:
        """Return how many partitions Spark's state has where a shuffle has so many."""
        return 1 if all(map(is_void, self.key)) else shuffled

    def owner(self, partitions: int) -> Column:
        """Return the state partition that a row of the state belongs to."""
        partitions = self.partitions(partitions)
        if not self.is_typed:
            return F.pmod(F.col(SHUFFLE_HASH), F.lit(partitions))
        fields = rebuilt(self.key, (), self._key)
        return owner_of([one for at, one in enumerate(fields) if at != self._entry], partitions)

    def owner_in_spark(self, partitions: int) -> Column:
        """Return the same of a row as Spark's reader has it."""
        return owner_of(self._shuffled(), self.partitions(partitions))

    def _shuffled(self) -> list[Column]:
        fields = fields_of("key", self.key)
        return [one for at, one in enumerate(fields) if at != self._entry]

    @cached_property
    def _entry(self) -> int | None:
        return None if self.entry is None else self.key.names.index(self.entry)

    @cached_property
    def _key(self) -> tuple[Leaf, ...]:
        return tuple(named(key_leaves(self.key), taken=TAKEN))

    @cached_property
    def _value(self) -> tuple[Leaf, ...]:
        fields = ((one.name, (at,), False) for at, one in enumerate(self.value) if not is_void(one))
        return tuple(named(fields, taken=(*TAKEN, *(leaf.name for leaf in self._key))))
