"""Reads keyed state from files into Spark: in full without a shuffle, or the rows of many keys."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from statestore.format.manifest import KeyedEntry
from statestore.format.slices import ReadSlices
from statestore.layers.merge import drop_expired, read_state
from statestore.restore.key_set_lookup import RowCache, WantedKeys, bytes_to_read, rows_of_keys
from statestore.spark.cached_rows import coalesce_small, collect_if_small, collect_single_partition
from statestore.spark.compat import arrow_schema_of
from statestore.spark.hashing import column_of
from statestore.spark.state_writer import frame_of, spark_schema
from statestore.spark.tasks import map_in_arrow, numbers
from statestore.spark.workers import warm_up_worker
from statestore.storage import Storage

__all__ = [
    "FORMAT",
    "KeysInUse",
    "Read",
    "collect_if_few",
    "dataframe",
    "dataframe_of_keys",
    "keys_in_use",
    "register",
]


# A full read: exactly ``parallelism`` Spark partitions, and no shuffle.
#
# :func:`dataframe` maps a range of ``parallelism`` numbers, one per Spark partition. Task i opens
# the files of subtask i and passes their Arrow batches to the JVM, if possible on a host that has
# local copies of them. :func:`register` offers the same as ``spark.read.format("keyed_state")``,
# without a choice of host. (Spark's own sources ``statestore`` and ``state-metadata`` read Spark's
# checkpoints, not this project's.)


FORMAT = "keyed_state"


@dataclass(frozen=True)
class Read:
    """A resolved read of ``keyed_state``: the state, and the slices that each subtask reads."""

    storage: Storage
    entry: KeyedEntry
    per_subtask: tuple[ReadSlices, ...]
    verify: bool
    now_ms: int | None = None


def dataframe(
    spark: SparkSession,
    storage: Storage,
    entry: KeyedEntry,
    per_subtask: Sequence[ReadSlices],
    *,
    hosts: Sequence[str] = (),
    verify: bool = False,
    now_ms: int | None = None,
) -> DataFrame:
    """Return a DataFrame whose Spark partition i holds the rows of ``per_subtask[i]``, in order.

    Rows that have expired by ``now_ms`` are left out; all tasks use the same clock. ``hosts[i]`` is
    the preferred host of partition i, empty for any host; see :mod:`statestore.spark.tasks`.
    """
    schema = spark_schema(entry.state.schema)
    arrow = arrow_schema_of(schema)
    parallelism = len(per_subtask)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                reads = per_subtask[subtask]
                for rows in read_state(storage, entry, reads, verify=verify, now_ms=now_ms):
                    yield rows.cast(arrow)

    return numbers(spark, parallelism, hosts).mapInArrow(read, schema)


@dataclass
class SubtaskPartition(InputPartition):
    """One subtask's files, as Spark sends them to the task that reads them."""

    storage: Storage
    entry: KeyedEntry
    reads: ReadSlices

    def __init__(self, storage: Storage, entry: KeyedEntry, reads: ReadSlices) -> None:
        """Keep the arguments; a task gets only its own subtask's reads."""
        self.storage, self.entry, self.reads = storage, entry, reads


class SubtaskReader(DataSourceReader):
    """Plans on the driver, reads in the tasks; see ``pyspark.sql.datasource``."""

    def __init__(self, read: Read) -> None:
        """Keep the resolved read."""
        self._read, self._verify, self._now_ms = read, read.verify, read.now_ms
        self._arrow = arrow_schema_of(spark_schema(read.entry.state.schema))

    def partitions(self) -> Sequence[InputPartition]:
        """Return one input partition per subtask, in order. Called on the driver, once."""
        read = self._read
        return [SubtaskPartition(read.storage, read.entry, reads) for reads in read.per_subtask]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a subtask's rows. Called on an executor, once per Spark partition."""
        warm_up_worker()
        assert isinstance(partition, SubtaskPartition)
        storage, entry, reads = partition.storage, partition.entry, partition.reads
        verify, now_ms = self._verify, self._now_ms
        for rows in read_state(storage, entry, reads, verify=verify, now_ms=now_ms):
            yield rows.cast(self._arrow)


def register(spark: SparkSession, resolve: Callable[[Mapping[str, str]], Read]) -> None:
    """Register ``spark.read.format("keyed_state")`` with a session.

    ``resolve`` turns the options into a read.
    """

    class KeyedStateDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> StructType:
            warm_up_worker()  # Spark also plans in workers
            return spark_schema(resolve(self.options).entry.state.schema)

        def reader(self, schema: StructType) -> DataSourceReader:
            warm_up_worker()
            return SubtaskReader(resolve(self.options))

    spark.dataSource.register(KeyedStateDataSource)


# The rows of many keys as a DataFrame: each task searches the key groups of its own subtask.
#
# A Spark Python worker runs many tasks, and caches decoded files for the next ones. If little is
# read, or if it can be cached, the driver reads and caches it itself. Starting a job and using its
# workers would take longer.


_FEW_KEYS_BYTES = 8 * 2**20
_FEW_READ_BYTES = 16 * 2**20
_BYTES_OF_ONE_THREAD = 2**20
_THREADS = 4


@dataclass(frozen=True)
class KeysInUse:
    """The keys of some rows, with some repetitions, and the number of rows with a null key."""

    rows: pa.Table
    null_keys: int


def collect_if_few(df: DataFrame) -> tuple[DataFrame, pa.Table | None]:
    """Return rows also as a table if they are few and in one Spark partition.

    Such rows are computed once, and are then rows of the driver. Other rows are returned unchanged,
    with None.
    """
    few = collect_single_partition(df)
    if few is None:
        return df, None
    rows = frame_of(df.sparkSession, few, df.schema)
    return coalesce_small(rows) or rows, few


def keys_in_use(df: DataFrame, key: Sequence[str], rows: pa.Table | None = None) -> KeysInUse:
    """Return the keys of a DataFrame, from ``rows`` if given; otherwise with one job, no shuffle.

    A small number of keys in Spark's cache is returned with repetitions. If there are many, each
    key is returned once per Spark partition.
    """
    if rows is not None and {*key} <= {*rows.column_names}:
        own = rows.select([*key])
        return KeysInUse(own, int(_has_null(own).sum()))
    columns = df.select(*map(column_of, key))
    few = collect_if_small(columns, _FEW_KEYS_BYTES)
    if few is not None:
        return KeysInUse(few, int(_has_null(few).sum()))

    def each_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        for batch in batches:
            nulls = _has_null(batch)
            yield from _drop_duplicates(batch.filter(pa.array(~nulls))).to_batches()
            yield batch.filter(pa.array(nulls))  # all of them, because they are counted

    keys = map_in_arrow(columns, each_once, columns.schema).toArrow()
    return KeysInUse(keys, int(_has_null(keys).sum()))


def _has_null(rows: pa.RecordBatch | pa.Table) -> npt.NDArray[np.bool_]:
    nulls = np.zeros(rows.num_rows, np.bool_)
    for column in rows.columns:
        if column.null_count:
            nulls |= np.asarray(column.is_null())
    return nulls


def _drop_duplicates(batch: pa.RecordBatch) -> pa.Table:
    rows = pa.Table.from_batches([batch])
    try:
        return rows.group_by(rows.column_names).aggregate([])
    except pa.ArrowNotImplementedError:  # Arrow cannot group by this type: keep repetitions
        return rows


def dataframe_of_keys(
    spark: SparkSession,
    storage: Storage,
    entry: KeyedEntry,
    per_subtask: Sequence[ReadSlices],
    keys: pa.Table,
    columns: Sequence[str] | None = None,
    *,
    cache_bytes: int,
    verify: bool = False,
    now_ms: int | None,
) -> DataFrame:
    """Return the rows of some keys, read by one task per subtask, without a shuffle.

    ``columns`` are all columns by default. The driver and each Python worker cache up to
    ``cache_bytes`` of decoded files. If there are few keys, and few bytes to read or space in the
    driver's cache for them, the driver reads the rows now. MissingFileError and DamagedFileError
    are then raised here.
    """
    schema = spark_schema(entry.state.schema)
    if columns is not None:
        schema = StructType([schema[name] for name in columns])
    arrow = arrow_schema_of(schema)
    wanted = WantedKeys.of(keys, entry.state)
    lookup = uuid.uuid4().hex
    per_task = [wanted.of_reads(reads) for reads in per_subtask]

    def rows_of(subtask: int, cache: RowCache | None) -> pa.Table:
        reads, own = per_subtask[subtask], per_task[subtask]
        rows = rows_of_keys(storage, entry, reads, own, cache, verify=verify)
        return drop_expired(rows, entry.state, now_ms).select(arrow.names).cast(arrow)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        cache = _cache(cache_bytes, lookup)
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                yield from rows_of(subtask, cache).to_batches()

    cache = _cache(cache_bytes, lookup)
    size = bytes_to_read(per_subtask, wanted, cache)
    if not _is_for_driver(wanted, size, cache):
        return numbers(spark, len(per_subtask), ()).mapInArrow(read, schema)
    threads = os.cpu_count() or 1 if size > _BYTES_OF_ONE_THREAD else 1
    with ThreadPoolExecutor(min(threads, _THREADS)) as pool:
        parts = pool.map(partial(rows_of, cache=cache), range(len(per_subtask)))
        return frame_of(spark, pa.concat_tables(parts), schema)


def _is_for_driver(wanted: WantedKeys, size: int, cache: RowCache | None) -> bool:
    """Return whether the keys are few, and the bytes to read are few or fit in the cache."""
    few = size <= _FEW_READ_BYTES or (cache is not None and cache.takes(size))
    return few and wanted.rows.nbytes <= _FEW_KEYS_BYTES


def _cache(limit_bytes: int, lookup: str) -> RowCache | None:
    """Return this process's cache, prepared for a lookup; None if the limit is 0."""
    cache = _shared_cache(limit_bytes) if limit_bytes else None
    if cache is not None:
        cache.begin(lookup)
    return cache


@lru_cache(maxsize=4)
def _shared_cache(limit_bytes: int) -> RowCache:
    return RowCache(limit_bytes)
