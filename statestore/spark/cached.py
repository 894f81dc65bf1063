"""Rows in Spark's cache: how many there are is known there, and few are taken to the driver.

Of rows that were not computed yet Spark only guesses, and what a function of Python makes of some
it takes for as much as went in: only what lies in the cache is believed, and that only for the
number of rows. Texts are compressed there, and columns may be made of what lies in it: their bytes
are measured.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructType,
    UserDefinedType,
    VariantType,
)

from statestore.spark.hashing import column_of

__all__ = ["few_cached", "rows_cached"]

_SAME_ROWS = frozenset({"Project", "SubqueryAlias"})
_FEWER_ROWS = _SAME_ROWS | {"Filter"}
_UNMEASURED = (ArrayType, MapType, StructType, VariantType, UserDefinedType)


def rows_cached(df: DataFrame) -> int | None:
    """Return how many rows there are when Spark's cache has them all, else None; starts no job."""
    found = _cached(df, _SAME_ROWS)
    return None if found is None else found[0]


def few_cached(df: DataFrame, most_bytes: int) -> pa.Table | None:
    """Return rows in this process when Spark's cache has them, or more of which they are some.

    None when those have more bytes, or have columns of columns, whose bytes Spark cannot tell. It
    takes a job, and one more to measure texts, of the JVM alone: no Python worker is started for
    it.
    """
    found = _cached(df, _FEWER_ROWS)
    if found is None:
        return None
    rows, width = found
    fields = df.schema.fields
    texts = [field.name for field in fields if isinstance(field.dataType, StringType | BinaryType)]
    if rows * width > most_bytes or any(isinstance(f.dataType, _UNMEASURED) for f in fields):
        return None
    if texts and _bytes_of(df, texts) > most_bytes:
        return None
    return df.toArrow().cast(to_arrow_schema(df.schema, timezone="UTC"))


def _bytes_of(df: DataFrame, texts: list[str]) -> int:
    lengths = (F.coalesce(F.octet_length(column_of(name)), F.lit(0)) for name in texts)
    (row,) = df.agg(F.sum(reduce(operator.add, (one.cast("long") for one in lengths)))).collect()
    return int(row[0] or 0)


def _cached(df: DataFrame, steps: frozenset[str]) -> tuple[int, int] | None:
    """Return the rows that are cached, and what Spark takes a row of ``df`` for; None when there is
    more than these steps between them, or Spark does not tell.
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
        return cache.materializedRowCount(), width
    except Py4JError:  # some hosted Sparks forbid calls into the JVM
        return None
