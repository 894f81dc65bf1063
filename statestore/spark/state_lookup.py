"""The rows of many keys as a DataFrame: each task searches the key groups of its own subtask.

A Spark Python worker runs many tasks, and caches decoded files for the next ones. If little is
read, or if it can be cached, the driver reads and caches it itself. Starting a job and using its
workers would take longer.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statestore.format.manifest import KeyedEntry
from statestore.format.slices import ReadSlices
from statestore.restore.lookup import RowCache, WantedKeys, bytes_to_read, rows_of_keys
from statestore.spark.cached_rows import coalesce_small, collect_if_small, collect_single_partition
from statestore.spark.compat import arrow_schema_of
from statestore.spark.hashing import column_of
from statestore.spark.state_writer import frame_of, spark_schema
from statestore.spark.tasks import map_in_arrow, numbers
from statestore.spark.workers import warm_up_worker
from statestore.storage import Storage

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
        rows = rows_of_keys(storage, entry, reads, own, cache, verify=verify, now_ms=now_ms)
        return rows.select(arrow.names).cast(arrow)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        cache = _cache(cache_bytes, lookup)
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                yield from rows_of(subtask, cache).to_batches()

    cache = _cache(cache_bytes, lookup)
    size = bytes_to_read(per_subtask, wanted, cache, verify)
    if not _is_for_driver(wanted, size, cache):
        return numbers(spark, len(per_subtask), ()).mapInArrow(read, schema)
    threads = os.cpu_count() or 1 if size > _BYTES_OF_ONE_THREAD else 1
    with ThreadPoolExecutor(min(threads, _THREADS)) as pool:
        parts = pool.map(partial(rows_of, cache=cache), range(len(per_subtask)))
        return frame_of(spark, pa.concat_tables(parts), schema)


def _is_for_driver(wanted: WantedKeys, size: int, cache: RowCache | None) -> bool:
    """Return whether the keys are few, and the bytes to read are few or fit in the cache."""
    few = size <= _FEW_READ_BYTES or (cache is not None and cache.has_room_for(size))
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
