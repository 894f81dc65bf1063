"""Map the rows of one of Spark's state stores to rows of a keyed state, and back.

A row in Spark has a struct ``key`` and a struct ``value``. Their fields become columns:

- The fields of the shuffle key become the key columns; nested structs are flattened.
- The field that distinguishes rows with the same shuffle key becomes the entry column.
- The fields of the value become value columns without changes.

Duplicate names get a number. Some types have no column type: an interval, a variant, or an array as
a key. A store with such a field is kept as Spark's own bytes, with a hash that determines the
partition of each row. Such a state can be moved and rescaled, but not edited.

The store of a transformWithState has several column families, and so has that of a join in state
format 3. Spark's reader returns each of their rows as bytes, with the grouping key of the row. The
fields of the grouping key become the key of the state. Three columns distinguish the rows of a
grouping key: the family, the bytes of the row's own key, and a position. The position is necessary
because a list has several rows with the same key, in a significant order.

The rows of families are read-only. A state with a TTL also has its expiration times in other
families, and a list has its length there. A change in one family alone would make the others wrong.
Users change the states of the variables instead, from which :mod:`.stores` rebuilds all families.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from statestore.format.names import RESERVED_COLUMNS
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
from statestore.spark.tasks import map_in_arrow
from statestore.spark.workers import warm_up_worker


@dataclass(frozen=True)
class StoreColumns:
    """The columns of one store; ``entry`` is the key field that is not part of the shuffle key."""

    key: T.StructType
    value: T.StructType
    entry: str | None = None

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """The reasons why rows are kept as Spark's bytes; empty if they have columns."""
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
        """Return the number of state partitions of a query with ``shuffled`` shuffle partitions."""
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


FAMILY, GROUPING_KEY, POSITION = "column_family_name", "partition_key", "position"
OWNER = "owner"
_TAKEN = (*RESERVED_COLUMNS, KEY_BYTES, VALUE_BYTES, SHUFFLE_HASH, NO_KEY, FAMILY, POSITION)
_READ_ONLY = (
    "its column families depend on each other, so they are read-only; the variables of a "
    "transformWithState have states of their own, which can be changed"
)


@dataclass(frozen=True)
class FamilyColumns:
    """The columns of all families of a store, whose rows are grouped by ``key``."""

    key: T.StructType

    is_typed = False
    value = T.StructType([T.StructField(name, T.BinaryType()) for name in (KEY_BYTES, VALUE_BYTES)])
    problems = (_READ_ONLY,)

    @cached_property
    def key_columns(self) -> list[str]:
        """The columns by which rows are hashed and found, or a hash if a key has no column type."""
        if not self._has_columns:
            return [SHUFFLE_HASH]
        return [leaf.name for leaf in self._leaves] or [NO_KEY]

    @property
    def entry_columns(self) -> list[str]:
        """The columns that distinguish rows of one key."""
        return [FAMILY, KEY_BYTES, POSITION]

    def to_state(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Convert rows of Spark's reader to ``others`` and the columns of a state."""
        if self._has_columns:
            key = F.col(GROUPING_KEY).cast(number_fields(self.key, deep=True))
            keys = [leaf_value(key, leaf).alias(leaf.name) for leaf in self._leaves]
        else:
            keys = [F.hash(*fields_of(GROUPING_KEY, self.key)).alias(SHUFFLE_HASH)]
        return _add_positions(
            rows.select(
                *others, *(keys or [F.lit(0).alias(NO_KEY)]), FAMILY, KEY_BYTES, VALUE_BYTES
            )
        )

    def to_bytes(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Convert a state's rows back to Spark's bytes, in one Spark partition per state partition.
        The rows of a list are in its order: the first row starts the list, and the others append.
        """
        return self.partition_by_owner(rows.withColumn(OWNER, self.owner(partitions)), partitions)

    def move(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Convert rows of Spark's reader to the form of :meth:`to_bytes`."""
        return self.to_bytes(self.to_state(rows), partitions)

    def partition_by_owner(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Return rows with a column ``owner`` in the order of :meth:`to_bytes`."""
        partitioned = in_partitions(rows, self.partitions(partitions), F.col(OWNER))
        in_order = partitioned.sortWithinPartitions(FAMILY, KEY_BYTES, POSITION)
        return in_order.select(KEY_BYTES, VALUE_BYTES, FAMILY)

    def partitions(self, shuffled: int) -> int:
        """Return the number of state partitions of a query with ``shuffled`` shuffle partitions."""
        return 1 if all(map(is_void, self.key)) else shuffled

    def owner(self, partitions: int) -> Column:
        """Return the state partition of a row of the state."""
        if not self._has_columns:
            return F.pmod(F.col(SHUFFLE_HASH), F.lit(self.partitions(partitions)))
        return owner_of(rebuild_fields(self.key, (), self._leaves), self.partitions(partitions))

    def owner_in_spark(self, partitions: int) -> Column:
        """Return the state partition of a row in the form of Spark's reader."""
        return owner_of(fields_of(GROUPING_KEY, self.key), self.partitions(partitions))

    @cached_property
    def _has_columns(self) -> bool:
        return all(map(is_key, self.key))

    @cached_property
    def _leaves(self) -> tuple[Leaf, ...]:
        return tuple(name_leaves(key_leaves(self.key), taken=_TAKEN))


def _add_positions(rows: DataFrame) -> DataFrame:
    """Number the rows of each key of a family, in the order in which they arrive.

    Spark's reader returns all rows of a key consecutively, because they are one value in RocksDB.
    So no sort is needed, and the numbers are deterministic.
    """
    position = T.StructField(POSITION, T.IntegerType(), nullable=False)
    *first, value = rows.schema.fields
    return map_in_arrow(rows, _number_rows, T.StructType([*first, position, value]))


def _number_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    warm_up_worker()
    last, position = None, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        *first, family, key, value = batch.columns
        is_new = np.ones(batch.num_rows, bool)
        same = (pc.equal(column[1:], column[:-1]) for column in (family, key))
        is_new[1:] = ~np.logical_and(*(column.to_numpy(zero_copy_only=False) for column in same))
        is_new[0] = (family[0], key[0]) != last
        indexes = np.arange(batch.num_rows)
        # Rows before the first new key continue the numbering of the previous batch.
        group_starts = np.maximum.accumulate(np.where(is_new, indexes, -1))
        positions = indexes - np.where(group_starts < 0, -1 - position, group_starts)
        last, position = (family[-1], key[-1]), int(positions[-1])
        names = [*batch.schema.names[:-1], POSITION, batch.schema.names[-1]]
        columns = [*first, family, key, pa.array(positions, pa.int32()), value]
        yield pa.RecordBatch.from_arrays(columns, names=names)
