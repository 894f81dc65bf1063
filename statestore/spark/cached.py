"""Rows in Spark's cache: how many there are is known there, and few are taken to the driver.

Of rows that were not computed yet Spark only guesses, and what a function of Python makes of some
it takes for as much as went in: only what lies in the cache, or came from the driver, is believed.
What is filtered, united or added up of such rows is no more than they are, as long as no expression
makes longer values of them.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from statestore.spark.compat import arrow_schema_of, schema_of_arrow

__all__ = [
    "compute",
    "few_cached",
    "few_of_driver",
    "in_one_partition",
    "many_cached",
    "rows_cached",
    "say_size",
]

_TOGETHER_BYTES = 2**20
"""Of less Spark makes one partition behind an exchange (coalescePartitions.minPartitionSize)."""
_LONG_BYTES = 256
"""What rows have is not known before they are here: longer texts are left where they are."""

_SAME_ROWS = frozenset({"Project", "Repartition", "SubqueryAlias"})
_OF_DRIVER = frozenset({"LocalRelation", "LogicalRDD"})
_FEWER_ROWS = _SAME_ROWS | _OF_DRIVER | {"Aggregate", "Deduplicate", "Distinct", "Filter"}
_FEWER_ROWS |= {"Union", "Window"}
_SIZE = "%d rows of the driver, %d bytes"
_SIZED = re.compile(_SIZE.replace("%d", "([0-9]+)"))
_MAKING = {
    "Project": "projectList",
    "Aggregate": "aggregateExpressions",
    "Window": "windowExpressions",
}
_NESTED = frozenset({"array", "map", "struct", "variant"})
_OF_ANY_LENGTH = _NESTED | {"string", "binary"}


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
    return df.toArrow().cast(arrow_schema_of(df.schema))


def in_one_partition(df: DataFrame) -> pa.Table | None:
    """Return the rows of an RDD in this process when they are few, in one Spark partition, and of
    types that Arrow has as Spark has them; else None. One job, that takes no more than few.
    """
    frame: Any = getattr(df, "_jdf", None)
    if frame is None:  # Spark Connect
        return None
    try:
        plan = frame.queryExecution().analyzed()
        if plan.nodeName() != "LogicalRDD" or plan.rdd().getNumPartitions() != 1:
            return None
        most = _TOGETHER_BYTES // max(plan.schema().defaultSize(), 1)
    except Py4JError:
        return None
    schema = _as_in_arrow(df.schema)
    if schema is None:
        return None
    found = _cut(df, schema, most + 1).toArrow()
    *columns, is_long = found.columns
    if found.num_rows > most or found.nbytes > _TOGETHER_BYTES or pc.any(is_long).as_py():
        return None
    return pa.table(columns, names=schema.names).cast(schema)


def _as_in_arrow(schema: StructType) -> pa.Schema | None:
    """Return plain columns as Arrow has them, None if it has not the same types."""
    names = {name.lower() for name in schema.names}
    kinds = [field.dataType for field in schema]
    if len(names) < len(kinds) or any(kind.typeName() in _NESTED for kind in kinds):
        return None
    try:
        found = arrow_schema_of(schema)
    except PySparkException:
        return None
    same = [one.dataType for one in schema_of_arrow(found)] == kinds
    return found if same else None


def _cut(df: DataFrame, schema: pa.Schema, rows: int) -> DataFrame:
    """Return some rows, long texts left out, and in a column more which rows have such."""
    columns, long = [], ["false"]
    for field in schema:
        name = "`" + field.name.replace("`", "``") + "`"
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            long.append(f"octet_length({name}) > {_LONG_BYTES}")
            columns.append(f"if({long[-1]}, null, {name}) as {name}")
        else:
            columns.append(name)
    other = "_" + max(schema.names, key=len, default="")
    is_long = f"coalesce({' or '.join(long)}, false) as `{other.replace('`', '``')}`"
    return df.selectExpr(*columns, is_long).limit(rows)


def few_of_driver(df: DataFrame) -> DataFrame | None:
    """Return rows that came from the driver, few of them in one Spark partition: what brings them
    together with other such rows needs no exchange. None for others.
    """
    found = _cached(df, _OF_DRIVER)
    if found is None:
        return None
    return df.coalesce(1) if _is_few(*found) else df


def say_size(df: DataFrame, rows: int, size_bytes: int) -> None:
    """Let others know of rows that came from the driver how many they are: Spark keeps them in an
    RDD, whose name says it.
    """
    frame: Any = getattr(df, "_jdf", None)
    if frame is None:  # Spark Connect
        return
    try:
        plan = frame.queryExecution().analyzed()
        if plan.nodeName() == "LogicalRDD":
            plan.rdd().setName(_SIZE % (rows, size_bytes))
    except Py4JError:
        return


def _is_few(known: _Cached, width: int) -> bool:
    return max(known.size_bytes, known.rows * width) <= _TOGETHER_BYTES


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
    if name == "LogicalRDD":
        said = _SIZED.fullmatch(plan.rdd().name() or "")
        if said is None:
            return None
        rows, size = map(int, said.groups())
        return _Cached(rows, size, plan.rdd().getNumPartitions(), plan.schema().defaultSize())
    children = plan.children()
    below = [_known(children.apply(at), steps, making) for at in range(children.size())]
    known = [one for one in below if one is not None]
    if len(known) < len(below):
        return None
    rows, sizes, partitions, widths = zip(*known, strict=True)
    parts = plan.numPartitions() if name == "Repartition" else sum(partitions)
    return _Cached(sum(rows), sum(sizes), parts, max(widths))


def _makes_none_longer(plan: Any, name: str) -> bool:
    """Return whether all values of any length in what a step makes are columns as they were, or
    texts of what has a length.
    """
    if name not in _MAKING:
        return True
    made = getattr(plan, _MAKING[name])()
    kinds = [field["type"] for field in json.loads(plan.schema().json())["fields"]]
    for at, kind in enumerate(kinds[-made.size() :]):  # what a window makes comes last
        if not (isinstance(kind, dict) or kind in _OF_ANY_LENGTH):
            continue
        one = made.apply(at)
        inner = one.child() if one.nodeName() == "Alias" else one
        step = inner.nodeName()
        if step == "Cast" and inner.child().dataType().typeName() not in _OF_ANY_LENGTH:
            continue  # a number as a text is short
        if step != "AttributeReference":
            return False
    return True
