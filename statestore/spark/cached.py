"""Rows in Spark's cache: how many there are is known there, and few are taken to the driver.

Of rows that were not computed yet Spark only guesses, and what a function of Python makes of some
it takes for as much as went in: only what lies in the cache, or came from the driver, is believed.
What is filtered, united or added up of such rows is no more than they are, as long as no expression
makes longer values of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

__all__ = ["compute", "few_cached", "many_cached", "rows_cached"]

_SAME_ROWS = frozenset({"Project", "SubqueryAlias"})
_FEWER_ROWS = _SAME_ROWS.union(
    ("Aggregate", "Deduplicate", "Distinct", "Filter", "LocalRelation", "Union", "Window")
)
_MAKING = {
    "Project": "projectList",
    "Aggregate": "aggregateExpressions",
    "Window": "windowExpressions",
}
_OF_ANY_LENGTH = frozenset({"string", "binary", "array", "map", "struct", "variant"})


class _Cached(NamedTuple):
    """What is known of rows: their number and bytes, the Spark partitions that they are cached in,
    and what Spark takes one of them for.
    """

    rows: int
    size_bytes: int
    partitions: int
    width: int


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
    return None if found is None else found[0].rows


def few_cached(df: DataFrame, most_bytes: int) -> pa.Table | None:
    """Return rows in this process when Spark's cache has them, or more of which they are some.

    None when those have more bytes, in the cache or by the types of ``df``, or when an expression
    may have made longer values of them. It takes one job, of the JVM alone: no Python worker is
    started for it, but for functions of Python in ``df``.
    """
    found = _cached(df, _FEWER_ROWS, making=False)
    if found is None:
        return None
    known, width = found
    if max(known.size_bytes, known.rows * width) > most_bytes:
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
    known, width = found
    part = min(width / max(known.width, 1), 1)
    return known.size_bytes * part > most_bytes * known.partitions


def _cached(
    df: DataFrame, steps: frozenset[str], *, making: bool = True
) -> tuple[_Cached, int] | None:
    """Return what is known of the rows that a DataFrame is made of, and what Spark takes one of its
    own for.

    None when there is more than these steps between them, when one is ``making`` values of any
    length unless that may be, or when Spark does not tell.
    """
    frame: Any = getattr(df, "_jdf", None)
    if frame is None:  # Spark Connect
        return None
    try:
        plan = frame.queryExecution().withCachedData()
        found = _known(plan, steps, making)
        return None if found is None else (found, plan.schema().defaultSize())
    except Py4JError:  # some hosted Sparks forbid calls into the JVM
        return None


def _known(plan: Any, steps: frozenset[str], making: bool) -> _Cached | None:
    """Return what is known of the rows below these steps of a plan, None where of some nothing."""
    name = plan.nodeName()
    if name == "InMemoryRelation":
        cache = plan.cacheBuilder()
        if not cache.isCachedColumnBuffersLoaded():
            return None
        # The bytes are those of the values, before the cache has compressed them.
        return _Cached(
            cache.materializedRowCount(),
            cache.materializedSizeInBytes(),
            cache.cachedColumnBuffers().getNumPartitions(),
            plan.schema().defaultSize(),
        )
    if name not in steps or not (making or _makes_none_longer(plan, name)):
        return None
    if name == "LocalRelation":
        rows, width = plan.data().size(), plan.schema().defaultSize()
        return _Cached(rows, rows * width, 1, width)
    children = plan.children()
    below = [_known(children.apply(at), steps, making) for at in range(children.size())]
    known = [one for one in below if one is not None]
    if len(known) < len(below):
        return None
    rows, sizes, partitions, widths = zip(*known, strict=True)
    return _Cached(sum(rows), sum(sizes), sum(partitions), max(widths))


def _makes_none_longer(plan: Any, name: str) -> bool:
    """Return whether all values of any length in what a step makes are columns as they were, or
    texts of what has a length.
    """
    if name not in _MAKING:
        return True
    made = getattr(plan, _MAKING[name])()
    for at in range(made.size()):
        one = made.apply(at)
        if not _is_of_any_length(one):
            continue
        inner = one.child() if _class_of(one) == "Alias" else one
        if _class_of(inner) == "Cast" and not _is_of_any_length(inner.child()):
            continue  # a number as a text is short
        if _class_of(inner) != "AttributeReference":
            return False
    return True


def _is_of_any_length(expression: Any) -> bool:
    return expression.dataType().typeName() in _OF_ANY_LENGTH


def _class_of(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())
