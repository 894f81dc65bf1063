"""How all column families of a transformWithState's store are the rows of one state, and back.

Spark gives the bytes of each row, and the grouping key that the row belongs to. The fields of that
key are the key of the state. The family, the bytes of the row's own key and its position tell the
rows of a grouping key apart: a list has several rows with one key, and their order counts.

The rows are read-only. A state with a time to live has its times in other families too, and a list
its length: what somebody wrote into one family alone would make the others wrong. What can be
changed are the states of the variables, of which :mod:`.variables` makes all families anew.
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

from statestore.interop.spark.columns import KEY_BYTES, NO_KEY, SHUFFLE_HASH, VALUE_BYTES
from statestore.spark.compat import in_partitions
from statestore.spark.structs import (
    Leaf,
    at_leaf,
    fields_of,
    is_key,
    is_void,
    key_leaves,
    named,
    numbered,
    owner_of,
    rebuilt,
)
from statestore.spark.tasks import map_in_arrow, settle

__all__ = ["FAMILY", "GROUPING_KEY", "OWNER", "POSITION", "FamilyColumns"]

FAMILY, GROUPING_KEY, POSITION = "column_family_name", "partition_key", "position"
OWNER = "owner"
_TAKEN = ("key_group", KEY_BYTES, VALUE_BYTES, SHUFFLE_HASH, NO_KEY, FAMILY, POSITION)
_READ_ONLY = "Spark keeps counts, times and timers beside the variables: change the states of those"


@dataclass(frozen=True)
class FamilyColumns:
    """The columns of all families of a store, whose rows are grouped by ``key``."""

    key: T.StructType

    is_typed = False
    value = T.StructType([T.StructField(name, T.BinaryType()) for name in (KEY_BYTES, VALUE_BYTES)])
    problems = (_READ_ONLY,)

    @cached_property
    def key_columns(self) -> list[str]:
        """The columns that rows are hashed and found by; a hash of a key with no column form."""
        if not self._has_columns:
            return [SHUFFLE_HASH]
        return [leaf.name for leaf in self._leaves] or [NO_KEY]

    @property
    def entry_columns(self) -> list[str]:
        """The columns that tell rows of one key apart."""
        return [FAMILY, KEY_BYTES, POSITION]

    def to_state(self, rows: DataFrame, *others: Column) -> DataFrame:
        """Return ``others`` and the columns of a state, of rows as Spark's reader has them."""
        if self._has_columns:
            key = F.col(GROUPING_KEY).cast(numbered(self.key, deep=True))
            keys = [at_leaf(key, leaf).alias(leaf.name) for leaf in self._leaves]
        else:
            keys = [F.hash(*fields_of(GROUPING_KEY, self.key)).alias(SHUFFLE_HASH)]
        return _with_positions(
            rows.select(
                *others, *(keys or [F.lit(0).alias(NO_KEY)]), FAMILY, KEY_BYTES, VALUE_BYTES
            )
        )

    def to_bytes(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Return a state's rows as they were, in as many Spark partitions as Spark's state has.

        Rows of a list follow each other in its order: the first begins it, others are added.
        """
        return self.in_place(rows.withColumn(OWNER, self.owner(partitions)), partitions)

    def in_place(self, rows: DataFrame, partitions: int) -> DataFrame:
        """Return rows that say their ``owner``, as :meth:`to_bytes` does."""
        there = in_partitions(rows, self.partitions(partitions), F.col(OWNER))
        in_order = there.sortWithinPartitions(FAMILY, KEY_BYTES, POSITION)
        return in_order.select(KEY_BYTES, VALUE_BYTES, FAMILY)

    def partitions(self, shuffled: int) -> int:
        """Return how many partitions Spark's state has where a shuffle has so many."""
        return 1 if all(map(is_void, self.key)) else shuffled

    def owner(self, partitions: int) -> Column:
        """Return the state partition that a row of the state belongs to."""
        if not self._has_columns:
            return F.pmod(F.col(SHUFFLE_HASH), F.lit(self.partitions(partitions)))
        return owner_of(rebuilt(self.key, (), self._leaves), self.partitions(partitions))

    def owner_in_spark(self, partitions: int) -> Column:
        """Return the same of a row as Spark's reader has it."""
        return owner_of(fields_of(GROUPING_KEY, self.key), self.partitions(partitions))

    @cached_property
    def _has_columns(self) -> bool:
        return all(map(is_key, self.key))

    @cached_property
    def _leaves(self) -> tuple[Leaf, ...]:
        return tuple(named(key_leaves(self.key), taken=_TAKEN))


def _with_positions(rows: DataFrame) -> DataFrame:
    """Number the rows of each key of a family, in the order that they come in.

    Spark's reader has all rows of a key one behind the other, as they are one value of RocksDB. So
    nothing is sorted, and the number is the same whenever the state is.
    """
    position = T.StructField(POSITION, T.IntegerType(), nullable=False)
    *first, value = rows.schema.fields
    return map_in_arrow(rows, _number, T.StructType([*first, position, value]))


def _number(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    settle()
    last, position = None, 0
    for batch in batches:
        if not batch.num_rows:
            continue
        *first, family, key, value = batch.columns
        is_new = np.ones(batch.num_rows, bool)
        same = (pc.equal(one[1:], one[:-1]) for one in (family, key))
        is_new[1:] = ~np.logical_and(*(one.to_numpy(zero_copy_only=False) for one in same))
        is_new[0] = (family[0], key[0]) != last
        at = np.arange(batch.num_rows)
        # Rows before the first new one go on counting where the batch before ended.
        begun = np.maximum.accumulate(np.where(is_new, at, -1))
        positions = at - np.where(begun < 0, -1 - position, begun)
        last, position = (family[-1], key[-1]), int(positions[-1])
        names = [*batch.schema.names[:-1], POSITION, batch.schema.names[-1]]
        columns = [*first, family, key, pa.array(positions, pa.int32()), value]
        yield pa.RecordBatch.from_arrays(columns, names=names)
