"""The rows of many keys as a DataFrame: each task looks in the key groups of its own subtask.

A Spark Python worker lives for many tasks, and keeps what it decoded of files for the next ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from statestore.files.lookup import RowCache, WantedKeys, rows_of_keys
from statestore.files.merge import unexpired
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import StateReads
from statestore.storage import Storage
from statestore.table.spark import spark_schema
from statestore.table.spark_arrow import map_in_arrow
from statestore.table.spark_hashing import column_of
from statestore.table.spark_locality import numbers
from statestore.table.spark_worker import settle

__all__ = ["KeysInUse", "dataframe_of_keys", "keys_in_use"]


@dataclass(frozen=True)
class KeysInUse:
    """The keys of some rows, repeated here and there, and how many rows have a null in theirs."""

    rows: pa.Table
    null_keys: int


def keys_in_use(df: DataFrame, key: Sequence[str]) -> KeysInUse:
    """Return the keys of a DataFrame, each once for a Spark partition; one job, no shuffle."""
    columns = df.select(*map(column_of, key))

    def each_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        for batch in batches:
            nulls = _with_null(batch)
            yield from _once(batch.filter(pa.array(~nulls))).to_batches()
            yield batch.filter(pa.array(nulls))  # each of them, to be counted

    keys = map_in_arrow(columns, each_once, columns.schema).toArrow()
    return KeysInUse(keys, int(_with_null(keys).sum()))


def _with_null(rows: pa.RecordBatch | pa.Table) -> npt.NDArray[np.bool_]:
    nulls = np.zeros(rows.num_rows, np.bool_)
    for column in rows.columns:
        if column.null_count:
            nulls |= np.asarray(column.is_null())
    return nulls


def _once(batch: pa.RecordBatch) -> pa.Table:
    rows = pa.Table.from_batches([batch])
    try:
        return rows.group_by(rows.column_names).aggregate([])
    except pa.ArrowNotImplementedError:  # keys of a type that Arrow cannot group by: as they are
        return rows


def dataframe_of_keys(
    spark: SparkSession,
    storage: Storage,
    entry: KeyedEntry,
    per_subtask: Sequence[StateReads],
    keys: pa.Table,
    *,
    cache_bytes: int,
    verify: bool = False,
    now_ms: int | None,
) -> DataFrame:
    """Return the rows that some keys have, read by one task for each subtask; no shuffle.

    Each Python worker holds up to ``cache_bytes`` of what it has decoded.
    """
    schema = spark_schema(entry.state.schema)
    arrow = to_arrow_schema(schema, timezone="UTC")
    wanted = WantedKeys.of(keys, entry.state)
    lookup = uuid.uuid4().hex
    per_task = [wanted.of_reads(reads) for reads in per_subtask]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        cache = _cache(cache_bytes)
        if cache is not None:
            cache.begin(lookup)
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                reads, own = per_subtask[subtask], per_task[subtask]
                rows = rows_of_keys(storage, entry, reads, own, cache, verify=verify)
                for part in rows.to_batches():
                    yield unexpired(part, entry.state, now_ms).cast(arrow)

    return numbers(spark, len(per_subtask), ()).mapInArrow(read, schema)


@lru_cache(maxsize=4)
def _cache(limit_bytes: int) -> RowCache | None:
    """The cache of this worker process, None for one that holds nothing."""
    return RowCache(limit_bytes) if limit_bytes else None
