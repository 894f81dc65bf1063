"""Is a query's state what it should be? Read back by Spark's own reader, with every row's place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statestore.files.digest import rows_digest
from statestore.format.digest import RowSet, combine
from statestore.interop.spark.columns import StoreColumns
from statestore.spark.tasks import map_in_arrow, settle

__all__ = ["Seen", "seen_in_spark"]

_OUTCOME = pa.schema(
    {
        "partition": pa.int32(),
        "rows": pa.int64(),
        "digest": pa.string(),
        "misplaced": pa.int64(),
    }
)
_AS_SPARK_SAYS = "partition int, rows long, digest string, misplaced long"


@dataclass(frozen=True)
class Seen:
    """The rows of a store, how many each partition has, and how many lie where Spark looks for
    others.
    """

    contents: RowSet
    rows: Mapping[int, int]
    misplaced: int


def seen_in_spark(rows: DataFrame, columns: StoreColumns, partitions: int) -> Seen:
    """Read all rows of a store, as Spark's reader has them.

    Spark itself does not notice rows in a wrong partition: it finds no state for their keys.
    """
    partition = F.col("partition_id")
    misplaced = partition != columns.owner_in_spark(partitions)
    found = map_in_arrow(columns.to_state(rows, partition, misplaced), _look, _AS_SPARK_SAYS)
    counts: dict[int, int] = {}
    digest = wrong = 0
    for row in found.collect():
        counts[row.partition] = counts.get(row.partition, 0) + row.rows
        digest = combine((digest, int(row.digest)))
        wrong += row.misplaced
    return Seen(RowSet(sum(counts.values()), digest), counts, wrong)


def _look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count and digest the rows of each batch, which are of one partition of the state."""
    settle()
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
