"""Read the rows of a query's state with Spark's own reader, to import or to verify them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import DamagedFileError, InvalidArgumentError, MissingDependencyError
from statestore.format.digest import combine
from statestore.format.rescale_proof import RowSet
from statestore.interop.spark_checkpoints.columns import KEY_BYTES, VALUE_BYTES, StoreColumns
from statestore.interop.spark_checkpoints.location import FORMAT_VERSION, CheckpointLocation
from statestore.interop.spark_checkpoints.operator_reader import Operator
from statestore.interop.spark_checkpoints.parts import Columns
from statestore.interop.spark_checkpoints.view import described_location
from statestore.rows.digests import rows_digest
from statestore.spark.arrow_functions import map_in_arrow
from statestore.spark.bucket_access import configure_storage_access
from statestore.spark.compat import INSTALLED, refuse_connect
from statestore.spark.error_cause import describe_cause
from statestore.spark.session_settings import session_settings
from statestore.spark.workers import warm_up_worker

__all__ = [
    "ObservedState",
    "observe_bytes",
    "observe_state",
    "prepared_session",
]

_FIRST_WITH_STATE_IDS, _FIRST_WITH_NAMED_OFFSETS = (4, 1), (4, 2)
# If this is on, Spark looks up each row of a changelog in RocksDB to count the rows.
_COUNTS = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"


@contextmanager
def prepared_session(
    spark: SparkSession, location: CheckpointLocation, batch: int, operators: Sequence[Operator]
) -> Iterator[str]:
    """Prepare a session so that Spark can read the state of a micro-batch within a block.

    Args:
        spark: the session.
        location: the location.
        batch: a committed micro-batch.
        operators: the operators of the location, or nothing if their descriptions are correct.

    Yields:
        The URL with which Spark must read.

    Raises:
        InvalidArgumentError: for a session of Spark Connect, which lacks the necessary access.
        MissingDependencyError: if this Spark is older than a format of the location.
        DamagedFileError: if Spark cannot read a file within the block.
    """
    refuse_connect(spark, "reading the state of a query")
    _refuse_newer_format(location, batch)
    if set(location.spark_url) & {" ", "%"}:
        raise InvalidArgumentError(
            f"Spark's state reader cannot open {location.url} because it misinterprets spaces "
            "and '%' in the name of a folder. Copy or link the folder to another name"
        )
    configure_storage_access(spark, location.storage)
    _ = spark.streams  # starts the coordinator of state stores, which Spark's reader needs
    settings = {FORMAT_VERSION: str(location.commit(batch).version), _COUNTS: "false"}
    try:
        with (
            session_settings(spark, settings),
            described_location(spark, location, batch, operators) as url,
        ):
            yield url
    except (PySparkException, Py4JJavaError) as error:
        raise DamagedFileError(
            f"Spark cannot read the state of micro-batch {batch} in {location.url}: a file of it "
            "is missing or damaged. Choose an older intact micro-batch (Spark reports "
            f"{describe_cause(error)})"
        ) from error


def _refuse_newer_format(location: CheckpointLocation, batch: int) -> None:
    formats = {
        "version 2 of the offset log": location.plan(batch).sources is not None
        and INSTALLED < _FIRST_WITH_NAMED_OFFSETS,
        "version 2 of the checkpoint format": location.commit(batch).version > 1
        and INSTALLED < _FIRST_WITH_STATE_IDS,
    }
    for name, is_newer in formats.items():
        if is_newer:
            raise MissingDependencyError(
                f"{location.url} has {name}, which the state reader of Spark {pyspark.__version__} "
                "does not support; use Spark 4.2 or later"
            )


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


def observe_bytes(rows: DataFrame, columns: StoreColumns, partitions: int) -> ObservedState:
    """Read all rows of a store as :func:`observe_state` does, with a digest of Spark's bytes.

    It is computed in the JVM, which takes hardly longer than reading. It consists of the exclusive
    or of all hashes, and of the sum of their lower halves, so that it does not depend on the order.
    """
    partition, row_hash = F.col("partition_id"), F.xxhash64(KEY_BYTES, VALUE_BYTES)
    misplaced = (partition != columns.owner_in_spark(partitions)).cast("int")
    outcomes = (
        columns.encode(rows, partition, misplaced.alias("misplaced"))
        .groupBy(partition)
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
