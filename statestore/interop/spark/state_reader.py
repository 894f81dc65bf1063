"""Read a query's state with Spark's own reader, to import or verify it, and digest its rows.

Spark does not check the files of a location that describe its operators and settings, so wrong ones
are replaced for Spark. Nothing is written to the location, whose query may be running. Instead
Spark reads it through Hadoop's ViewFs, which joins several folders under one URL: the location, and
a temporary folder with the replacements. Only Spark's driver reads these, so this folder can be
local.

The rows of a store are counted and digested before and after they are written. There are three
digests. Each is computed in the same way on both sides of a comparison:

- of the state's columns, in Arrow, as in a manifest. It covers every kind of store;
- of the state's columns, in the JVM, for tables that have no manifest. A row of columns is encoded
  as an UnsafeRow;
- of the bytes of Spark's keys and values, for rows that never become columns.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    MissingDependencyError,
    StorageError,
)
from statestore.format.digest import RowSet, combine
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.location import FORMAT_VERSION, CheckpointLocation
from statestore.interop.spark.operator_reader import Operator, rewrite_description, schema_folder
from statestore.interop.spark.parts import Columns
from statestore.interop.spark.rows import encode_rows
from statestore.rows.digests import rows_digest
from statestore.spark.bucket_access import configure_storage_access
from statestore.spark.compat import COMMAND_INSTEAD, INSTALLED, refuse_connect
from statestore.spark.error_cause import SPARK_ERRORS, describe_cause, is_damage
from statestore.spark.hashing import column_of
from statestore.spark.session_settings import session_settings
from statestore.spark.structs import KEY_BYTES, VALUE_BYTES
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
    return _digest_structs(
        rows.select(*_partition_and_misplaced(columns, partitions), "key", "value")
    )


def observe_columns(rows: DataFrame, columns: Columns, partitions: int) -> ObservedState:
    """Read all rows of a store as :func:`observe_state` does, with the digest of observe_table."""
    assert isinstance(columns, StoreColumns)
    assert columns.is_typed
    state = columns.to_state(rows, *_partition_and_misplaced(columns, partitions))
    return _digest_structs(_as_structs(state, columns))


def observe_table(state: DataFrame, columns: StoreColumns) -> RowSet:
    """Count and digest the rows of a typed state in the JVM. A row is encoded as one of Spark's."""
    named = (column_of(name) for name in columns.state_schema.names)
    unplaced = state.select(F.spark_partition_id(), F.lit(0), *named)
    return _digest_structs(_as_structs(unplaced, columns)).contents


def _partition_and_misplaced(columns: StoreColumns, partitions: int) -> tuple[Column, Column]:
    """Return a row's partition, and 1 if the row belongs to another partition, otherwise 0."""
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


_FIRST_WITH_STATE_IDS, _FIRST_WITH_NAMED_OFFSETS, _FIRST_WITH_FAMILIES = (4, 1), (4, 2), (4, 2)
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
        operators: the operators of the location, empty if their descriptions are correct.

    Yields:
        The URL with which Spark must read.

    Raises:
        InvalidArgumentError: for a session of Spark Connect, which lacks the necessary access.
        MissingDependencyError: if this Spark is older than a format of the location.
        DamagedFileError: if a file that Spark reads within the block is missing or damaged.
        StorageError: if Spark fails within the block for any other reason.
    """
    refuse_connect(spark, "reading the state of a query", COMMAND_INSTEAD)
    _refuse_newer_format(location, batch, operators)
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
            _described_location(spark, location, batch, operators) as url,
        ):
            yield url
    except SPARK_ERRORS as error:
        what, cause = f"micro-batch {batch} in {location.url}", describe_cause(error)
        if is_damage(error):
            raise DamagedFileError(
                f"Spark cannot read the state of {what}: a file of it is missing or damaged. "
                f"Choose an older intact micro-batch (Spark reports {cause})"
            ) from error
        raise StorageError(
            f"Spark failed while it processed the state of {what}, and reported no damaged file: "
            f"{cause}. Remove this cause, and repeat the command"
        ) from error


def _refuse_newer_format(
    location: CheckpointLocation, batch: int, operators: Sequence[Operator]
) -> None:
    formats = {
        "version 2 of the offset log": location.plan(batch).sources is not None
        and INSTALLED < _FIRST_WITH_NAMED_OFFSETS,
        "version 2 of the checkpoint format": location.commit(batch).version > 1
        and INSTALLED < _FIRST_WITH_STATE_IDS,
        **{
            f"column families of operator {operator.number} ({operator.name})": INSTALLED
            < _FIRST_WITH_FAMILIES
            for operator in operators
            if operator.has_families
        },
    }
    for name, is_newer in formats.items():
        if is_newer:
            raise MissingDependencyError(
                f"{location.url} has {name}, which the state reader of Spark {pyspark.__version__} "
                "does not support; use Spark 4.2 or later"
            )


@contextmanager
def _described_location(
    spark: SparkSession, location: CheckpointLocation, batch: int, operators: Sequence[Operator]
) -> Iterator[str]:
    """Yield a URL with which Spark can read all operators of a micro-batch within a block."""
    name = f"statestore-{uuid4().hex}"
    url = f"viewfs://{name}"
    files = dict(pair for operator in operators for pair in _list_replaced(operator, url))
    partitions = [store.partitions for operator in operators for store in operator.stores]
    if partitions:
        files |= location.corrected_plan(batch, max(partitions))
    if not files:
        yield location.spark_url
        return
    table = f"fs.viewfs.mounttable.{name}"
    with TemporaryDirectory(prefix="statestore-") as root:
        links = {f"{table}.linkFallback": location.spark_url}
        for file, content in files.items():
            path = Path(root, file)
            path.parent.mkdir(parents=True)
            path.write_bytes(content)
            folder = re.sub("(_metadata|offsets)/.*", r"\1", file)
            links[f"{table}.link./{folder}"] = f"file://{root}/{folder}"
        with session_settings(spark, links):
            try:
                yield f"{url}/"
            finally:
                _close_file_system(spark, url)


def _list_replaced(operator: Operator, url: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the files that Spark must read instead of the stored ones."""
    yield from operator.corrections.items()
    if operator.moved_from is not None:
        folder = schema_folder(url, operator.number)
        yield operator.metadata, rewrite_description(operator.description, folder)


def _close_file_system(spark: SparkSession, url: str) -> None:
    """Remove the file system of a URL from Hadoop's cache, which would keep it forever."""
    session: Any = spark
    conf = session._jsparkSession.sessionState().newHadoopConf()
    session._jvm.org.apache.hadoop.fs.Path(f"{url}/").getFileSystem(conf).close()
