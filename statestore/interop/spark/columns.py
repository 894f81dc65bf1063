"""Map the rows of one of Spark's state stores to rows of a keyed state, and back.

A row in Spark has a struct ``key`` and a struct ``value``. Their fields become columns:

- The fields of the shuffle key become the key columns; nested structs are flattened.
- The field that distinguishes rows with the same shuffle key becomes the entry column.
- The fields of the value become value columns without changes.

Duplicate names get a number. Some types have no column type: an interval, a variant, or an array as
a key. A store with such a field is kept as Spark's own bytes, with a hash that determines the
partition of each row. Such a state can be moved and rescaled, but not edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.interop.spark.rows import encode_rows
from statestore.spark.compat import in_partitions
from statestore.spark.structs import (
    KEY_BYTES,
    NO_KEY,
    SHUFFLE_HASH,
    TAKEN,
    VALUE_BYTES,
    Leaf,
    fields_of,
    is_column,
    is_key,
    is_void,
    key_leaves,
    leaf_field,
    leaf_value,
    name_leaves,
    no_column_form,
    number_fields,
    owner_of,
    rebuild_fields,
)

__all__ = ["KEY_BYTES", "NO_KEY", "SHUFFLE_HASH", "VALUE_BYTES", "StoreColumns"]


@dataclass(frozen=True)
class StoreColumns:
    """The columns of one store; ``entry`` is the key field that is not part of the shuffle key."""

    key: T.StructType
    value: T.StructType
    entry: str | None = None

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Why the rows are kept as Spark's bytes; empty if they have columns."""
        keys = (field for field in self.key if not is_key(field))
        values = (
            field for field in self.value if not (is_column(field.dataType) or is_void(field))
        )
        return (*no_column_form(keys, "key"), *no_column_form(values, "value"))

    @property
    def is_typed(self) -> bool:
        """Whether the rows have typed columns instead of Spark's bytes."""
        return not self.problems

    @cached_property
    def key_columns(self) -> list[str]:
        """The columns by which rows are hashed and found."""
        if not self.is_typed:
            return [KEY_BYTES]
        return [leaf.name for leaf in self._key if leaf.place[0] != self._entry_index] or [NO_KEY]

    @cached_property
    def entry_columns(self) -> list[str]:
        """The columns that distinguish rows of one key; empty if each key has one row."""
        return [
            leaf.name for leaf in self._key if self.is_typed and leaf.place[0] == self._entry_index
        ]

    @property
    def leaves_of_key(self) -> tuple[Leaf, ...]:
        """The columns of the key, with the places of their values in Spark's struct."""
        return self._key

    @cached_property
    def state_schema(self) -> T.StructType:
        """The columns of a typed state's rows. ``no_key`` is left out, because it has no value."""
        return T.StructType(
            [
                *(leaf_field(self.key, leaf) for leaf in self._key),
                *(leaf_field(self.value, leaf) for leaf in self._value),
            ]
        )

    def to_state(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Convert rows with ``key`` and ``value`` to ``others`` and the columns of a state."""
        if not self.is_typed:
            shuffled = self._shuffle_fields()
            hashed = F.hash(*shuffled) if shuffled else F.lit(0)
            return encode_rows(rows.select(*others, hashed.alias(SHUFFLE_HASH), "key", "value"))
        key = F.col("key").cast(number_fields(self.key, deep=True))
        value = F.col("value").cast(number_fields(self.value))
        return rows.select(
            *others,
            *([F.lit(0).alias(NO_KEY)] if NO_KEY in self.key_columns else []),
            *(leaf_value(key, leaf).alias(leaf.name) for leaf in self._key),
            *(leaf_value(value, leaf).alias(leaf.name) for leaf in self._value),
        )

    def to_bytes(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Convert a state's rows to Spark's bytes, with one Spark partition per state partition.

        The columns are ``key_bytes`` and ``value_bytes``. Spark partition i has the rows of state
        partition i, where Spark looks for them. Rows without a key are in a single partition.
        """
        partitions = self.partitions(partitions)
        if not self.is_typed:
            placed = in_partitions(rows, partitions, self.owner(partitions))
            return placed.select(KEY_BYTES, VALUE_BYTES)
        structs = self.to_structs(rows, self.owner(partitions).alias("owner"))
        return encode_rows(in_partitions(structs, partitions, F.col("owner"))).select(
            KEY_BYTES, VALUE_BYTES
        )

    def encode(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Convert rows of Spark's reader to ``others`` and Spark's bytes."""
        return encode_rows(rows.select(*others, "key", "value"))

    def move(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Convert rows of Spark's reader to the form of :meth:`to_bytes`, without a state."""
        owner = self.owner_in_spark(partitions).alias("owner")
        placed = in_partitions(
            self.encode(rows, owner), self.partitions(partitions), F.col("owner")
        )
        return placed.select(KEY_BYTES, VALUE_BYTES)

    def to_structs(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Convert a typed state's rows to ``others`` and Spark's structs ``key`` and ``value``."""
        key = F.struct(*rebuild_fields(self.key, (), self._key))
        value = F.struct(*rebuild_fields(self.value, (), self._value))
        return rows.select(*others, key.alias("key"), value.alias("value"))

    def partitions(self, shuffled: int) -> int:
        """Return the number of state partitions, for ``shuffled`` shuffle partitions."""
        return 1 if all(map(is_void, self.key)) else shuffled

    def owner(self, partitions: int) -> Column:
        """Return the state partition of a row of the state."""
        partitions = self.partitions(partitions)
        if not self.is_typed:
            return F.pmod(F.col(SHUFFLE_HASH), F.lit(partitions))
        fields = rebuild_fields(self.key, (), self._key)
        return owner_of(
            [field for index, field in enumerate(fields) if index != self._entry_index], partitions
        )

    def owner_in_spark(self, partitions: int) -> Column:
        """Return the state partition of a row in the form of Spark's reader."""
        return owner_of(self._shuffle_fields(), self.partitions(partitions))

    def _shuffle_fields(self) -> list[Column]:
        fields = fields_of("key", self.key)
        return [field for index, field in enumerate(fields) if index != self._entry_index]

    @cached_property
    def _entry_index(self) -> int | None:
        return None if self.entry is None else self.key.names.index(self.entry)

    @cached_property
    def _key(self) -> tuple[Leaf, ...]:
        return tuple(name_leaves(key_leaves(self.key), taken=TAKEN))

    @cached_property
    def _value(self) -> tuple[Leaf, ...]:
        fields = (
            (field.name, (index,), False)
            for index, field in enumerate(self.value)
            if not is_void(field)
        )
        return tuple(name_leaves(fields, taken=(*TAKEN, *(leaf.name for leaf in self._key))))
