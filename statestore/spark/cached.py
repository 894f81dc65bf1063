"""Rows in Spark's cache: how many there are is known there, and few are taken to the driver.

Of rows that were not computed yet Spark only guesses, and what a function of Python makes of some
it takes for as much as went in: only what lies in the cache, or came from the driver, is believed.
What is filtered, united or added up of such rows is no more than they are.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["compute", "few_cached", "rows_cached"]

_SAME_ROWS = frozenset({"Project", "SubqueryAlias"})
_FEWER_ROWS = _SAME_ROWS.union(
    ("Aggregate", "Deduplicate", "Distinct", "Filter", "LocalRelation", "Union", "Window")
)


def compute(df: DataFrame) -> None:
    """Bring a persisted DataFrame into Spark's cache now: one job. Where Spark does not let us,
    that happens when its rows are asked for.
    """
    frame: Any = getattr(df, "_jdf", None)
    if frame is None:  # Spark Connect
        return
    try:
        plan = frame.queryExecution().withCachedData()
        if plan.nodeName() == "InMemoryRelation":
            plan.cacheBuilder().cachedColumnBuffers().count()
    except Py4JError:
        return


def rows_cached(df: DataFrame) -> int | None:
    """Return how many rows there are when Spark's cache has them all, else None; starts no job."""
    found = _cached(df, _SAME_ROWS)
    return None if found is None else found[0]


def few_cached(df: DataFrame, most_bytes: int) -> pa.Table | None:
    """Return rows in this process when Spark's cache has them, or more of which they are some.

    None when those have more bytes, in the cache or by the types of ``df``. It takes one job, of
    the JVM alone: no Python worker is started for it, but for functions of Python in ``df``.
    """
    found = _cached(df, _FEWER_ROWS)
    if found is None:
        return None
    rows, size, width = found
    if max(size, rows * width) > most_bytes:
        return None
    return df.toArrow().cast(to_arrow_schema(df.schema, timezone="UTC"))


def _cached(df: DataFrame, steps: frozenset[str]) -> tuple[int, int, int] | None:
    """Return the rows and the bytes that are cached, and what Spark takes a row of ``df`` for; None
    when there is more than these steps between them, or Spark does not tell.
    """
    frame: Any = getattr(df, "_jdf", None)
    if frame is None:  # Spark Connect
        return None
    try:
        plan = frame.queryExecution().withCachedData()
        found = _known(plan, steps)
        return None if found is None else (*found, plan.schema().defaultSize())
    except Py4JError:  # some hosted Sparks forbid calls into the JVM
        return None


def _known(plan: Any, steps: frozenset[str]) -> tuple[int, int] | None:
    """Return the rows and the bytes below these steps of a plan; None where some are not known."""
    name = plan.nodeName()
    if name == "InMemoryRelation":
        cache = plan.cacheBuilder()
        if not cache.isCachedColumnBuffersLoaded():
            return None
        return cache.materializedRowCount(), cache.materializedSizeInBytes()
    if name not in steps:
        return None
    if name == "LocalRelation":
        rows = plan.data().size()
        return rows, rows * plan.schema().defaultSize()
    children = plan.children()
    below = [_known(children.apply(at), steps) for at in range(children.size())]
    known = [one for one in below if one is not None]
    if len(known) < len(below):
        return None
    return sum(rows for rows, _ in known), sum(size for _, size in known)
