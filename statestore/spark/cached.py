"""Rows in Spark's cache: how many there are is known there, and few are taken to the driver.

Of rows that were not computed yet Spark only guesses, and what a function of Python makes of some
it takes for as much as went in: only what lies in the cache is believed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["few_cached", "many_cached", "rows_cached"]

_SAME_ROWS = frozenset({"Project", "SubqueryAlias"})
_FEWER_ROWS = _SAME_ROWS | {"Filter"}


class _Cached(NamedTuple):
    """What is cached: rows, their bytes with all columns, and Spark partitions; and what Spark
    takes a row of the cache, and one of the DataFrame, for.
    """

    rows: int
    size_bytes: int
    partitions: int
    stored_width: int
    width: int


def rows_cached(df: DataFrame) -> int | None:
    """Return how many rows there are when Spark's cache has them all, else None; starts no job."""
    found = _cached(df, _SAME_ROWS)
    return None if found is None else found.rows


def few_cached(df: DataFrame, most_bytes: int) -> pa.Table | None:
    """Return rows in this process when Spark's cache has them, or more of which they are some.

    None when those have more bytes, in the cache or by the types of ``df``. It takes one job, of
    the JVM alone: no Python worker is started for it.
    """
    found = _cached(df, _FEWER_ROWS)
    if found is None:
        return None
    if max(found.size_bytes, found.rows * found.width) > most_bytes:
        return None
    return df.toArrow().cast(to_arrow_schema(df.schema, timezone="UTC"))


def many_cached(df: DataFrame, most_bytes: int) -> bool:
    """Return whether Spark's cache has so many rows that some partition of them has more bytes, as
    far as it is known; starts no job.

    Of the columns that were cached those of ``df`` count by the part that their types have.
    """
    found = _cached(df, _SAME_ROWS)
    if found is None:
        return False
    part = min(found.width / max(found.stored_width, 1), 1)
    return found.size_bytes * part > most_bytes * found.partitions


def _cached(df: DataFrame, steps: frozenset[str]) -> _Cached | None:
    """Return what is cached of a DataFrame; None when there is more than these steps between them,
    or Spark does not tell.
    """
    frame: Any = getattr(df, "_jdf", None)
    if frame is None:  # Spark Connect
        return None
    try:
        plan = frame.queryExecution().withCachedData()
        width = plan.schema().defaultSize()
        while plan.nodeName() in steps:
            plan = plan.child()
        if plan.nodeName() != "InMemoryRelation":
            return None
        cache = plan.cacheBuilder()
        if not cache.isCachedColumnBuffersLoaded():
            return None
        return _Cached(
            rows=cache.materializedRowCount(),
            size_bytes=cache.materializedSizeInBytes(),
            partitions=cache.cachedColumnBuffers().getNumPartitions(),
            stored_width=plan.schema().defaultSize(),
            width=width,
        )
    except Py4JError:  # some hosted Sparks forbid calls into the JVM
        return None
