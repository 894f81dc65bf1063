"""The rows of many keys as a DataFrame: each task looks in the key groups of its own subtask.

A Spark Python worker lives for many tasks, and keeps what it decoded of files for the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from statestore.model.manifest import KeyedEntry
from statestore.model.reads import StateReads
from statestore.storage import Storage
from statestore.table.expiry import unexpired
from statestore.table.key_rows import RowCache, WantedKeys, rows_of_keys
from statestore.table.spark import spark_schema
from statestore.table.spark_locality import numbers
from statestore.table.spark_worker import settle

__all__ = ["dataframe_of_keys"]


def dataframe_of_keys(
    spark: SparkSession,
    storage: Storage,
    entry: KeyedEntry,
    per_subtask: Sequence[StateReads],
    keys: pa.Table,
    *,
    cache_bytes: int,
    now_ms: int | None,
) -> DataFrame:
    """Return the rows that some keys have, read by one task for each subtask; no shuffle.

    Each Python worker holds up to ``cache_bytes`` of what it has decoded.
    """
    schema = spark_schema(entry.state.schema)
    arrow = to_arrow_schema(schema, timezone="UTC")
    wanted = WantedKeys.of(keys, entry.state)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        cache = _cache(cache_bytes)
        for batch in batches:
            for subtask in batch.column(0).to_pylist():
                rows = rows_of_keys(storage, entry, per_subtask[subtask], wanted, cache)
                for part in rows.to_batches():
                    yield unexpired(part, entry.state, now_ms).cast(arrow)

    return numbers(spark, len(per_subtask), ()).mapInArrow(read, schema)


@lru_cache(maxsize=1)
def _cache(limit_bytes: int) -> RowCache:
    """The cache of this worker process."""
    return RowCache(limit_bytes)
