"""Count and digest the rows of one of Spark's stores, before and after it is written.

There are three digests. Each is computed in the same way on both sides of a comparison:

- of the state's columns, in Arrow, as in a manifest. It covers every kind of store;
- of the state's columns, in the JVM, for tables that have no manifest. A row of columns is encoded
  as an UnsafeRow;
- of the bytes of Spark's keys and values, for rows that never become columns.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from statestore.format.digest import combine
from statestore.format.rescale_proof import RowSet
from statestore.interop.spark.columns import KEY_BYTES, VALUE_BYTES, StoreColumns
from statestore.interop.spark.parts import Columns
from statestore.interop.spark.rows import encode_rows
from statestore.rows.digests import rows_digest
from statestore.spark.hashing import column_of
from statestore.spark.tasks import map_in_arrow, number_columns
from statestore.spark.workers import warm_up_worker

_LOWER_HALF, _WORD = 0xFFFF_FFFF, 1 << 64
_OUTCOME = pa.schema(
    {
        "partition": pa.int32(),
        "rows": pa.int64(),
        "digest": pa.string(),
        "misplaced": pa.int64(),
    }
)
_OUTCOME_TYPES = "partition int, rows long, digest string, misplaced long"


@dataclass(frozen=True)
class ObservedState:
    """The rows of a store, the row count by partition, and the number of misplaced rows.

    Spark does not find misplaced rows, because it looks for their keys in another partition.
    """

    contents: RowSet
    rows: Mapping[int, int]
    misplaced: int


Observe = Callable[[DataFrame, Columns, int], ObservedState]
"""Reads all rows of a store: the rows of Spark's reader, the columns, the shuffle partitions."""


def observe_state(rows: DataFrame, columns: Columns, partitions: int) -> ObservedState:
    """Read all rows of a store with Spark's reader, and count and digest them.

    Spark itself does not report rows in a wrong partition. It just finds no state for their keys.
    """
    partition = F.col("partition_id")
    misplaced = partition != columns.owner_in_spark(partitions)
    outcomes = map_in_arrow(
        columns.to_state(rows, partition, misplaced), _digest_batches, _OUTCOME_TYPES
    )
    counts: dict[int, int] = {}
    digest = wrong = 0
    for row in outcomes.collect():
        counts[row.partition] = counts.get(row.partition, 0) + row.rows
        digest = combine((digest, int(row.digest)))
        wrong += row.misplaced
    return ObservedState(RowSet(sum(counts.values()), digest), counts, wrong)


def digest_state(state: DataFrame, columns: StoreColumns) -> RowSet:
    """Count and digest the rows of a typed state before they are written; see observe_state."""
    structs = columns.to_structs(state, columns.owner(1).alias("partition_id"))
    return observe_state(structs, columns, 1).contents


def observe_bytes(rows: DataFrame, columns: Columns, partitions: int) -> ObservedState:
    """Read all rows of a store as :func:`observe_state` does, with a digest of Spark's bytes.

    Rows of column families always have columns, so their digest is that of the columns.
    """
    if not isinstance(columns, StoreColumns):
        return observe_state(rows, columns, partitions)
    return _digest_structs(rows.select(*_placed(columns, partitions), "key", "value"))


def observe_columns(rows: DataFrame, columns: Columns, partitions: int) -> ObservedState:
    """Read all rows of a store as :func:`observe_state` does, with the digest of observe_table."""
    assert isinstance(columns, StoreColumns)
    assert columns.is_typed
    state = columns.to_state(rows, *_placed(columns, partitions))
    return _digest_structs(_as_structs(state, columns))


def observe_table(state: DataFrame, columns: StoreColumns) -> RowSet:
    """Count and digest the rows of a typed state in the JVM. A row is encoded as one of Spark's."""
    named = (column_of(name) for name in columns.state_schema.names)
    unplaced = state.select(F.spark_partition_id(), F.lit(0), *named)
    return _digest_structs(_as_structs(unplaced, columns)).contents


def _placed(columns: StoreColumns, partitions: int) -> tuple[Column, Column]:
    """Return the partition of a row of Spark's reader, and 1 if the row belongs to another one."""
    partition = F.col("partition_id")
    misplaced = partition != columns.owner_in_spark(partitions)
    return partition, misplaced.cast("int").alias("misplaced")


def _as_structs(rows: DataFrame, columns: StoreColumns) -> DataFrame:
    """Put the columns of a state into one struct, in the form of :func:`_digest_structs`.

    The first columns are the partition, and whether the row is misplaced. The columns of the state
    are the last ones, and may have any names.
    """
    numbered = number_columns(rows)
    partition, misplaced, *_ = numbered.columns
    return numbered.select(
        F.col(partition).alias("partition_id"),
        F.col(misplaced).alias("misplaced"),
        F.struct(*numbered.columns[-len(columns.state_schema) :]).alias("key"),
        F.struct(F.lit(0)).alias("value"),
    )


def _digest_structs(rows: DataFrame) -> ObservedState:
    """Count and digest rows with ``partition_id``, ``misplaced``, and the structs of a store.

    The digest of the structs ``key`` and ``value`` is computed in the JVM, which takes hardly
    longer than reading. It consists of the exclusive or of all hashes, and of the sum of their
    lower halves, so that it does not depend on the order.
    """
    row_hash = F.xxhash64(KEY_BYTES, VALUE_BYTES)
    outcomes = (
        encode_rows(rows)
        .groupBy("partition_id")
        .agg(
            F.count("*").alias("rows"),
            F.bit_xor(row_hash).alias("xor"),
            F.sum(row_hash.bitwiseAND(F.lit(_LOWER_HALF))).alias("sum"),
            F.sum("misplaced").alias("misplaced"),
        )
        .collect()
    )
    xor = reduce(operator.xor, (row.xor for row in outcomes), 0) % _WORD
    digest = xor << 64 | sum(row.sum for row in outcomes)
    counts = {row.partition_id: row.rows for row in outcomes}
    wrong = sum(row.misplaced for row in outcomes)
    return ObservedState(RowSet(sum(counts.values()), digest), counts, wrong)


def _digest_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count and digest the rows of each batch; all rows of a batch are in one state partition."""
    warm_up_worker()
    for batch in batches:
        partition, misplaced, *_ = batch.columns
        state = pa.RecordBatch.from_arrays(batch.columns[2:], names=batch.schema.names[2:])
        row = {
            "partition": partition[0].as_py(),
            "rows": batch.num_rows,
            "digest": str(rows_digest(state)),
            "misplaced": pc.sum(misplaced).as_py() or 0,
        }
        yield pa.RecordBatch.from_pylist([row], _OUTCOME)
