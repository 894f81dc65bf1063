"""The size of rows in Spark's cache, and the collection of few rows on the driver.

Spark only guesses the size of rows that were not computed yet. For the output of a Python function
it assumes the size of the input. Only rows that are in the cache, or that came from the driver,
have a known size. Filters, unions and aggregations of such rows do not have more rows, and not more
bytes unless an expression makes values longer.
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
"""Spark coalesces smaller partitions after a shuffle (coalescePartitions.minPartitionSize)."""
_LONG_BYTES = 256
"""The size of rows is unknown before they are collected: longer texts are not collected."""

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
    """The number and bytes of rows, the number of their cached Spark partitions, and Spark's
    estimate of the size of one row.
    """

    rows: int
    size_bytes: int
    partitions: int
    width: int


def compute(df: DataFrame) -> None:
    """Compute a persisted DataFrame into Spark's cache now, with one job.

    If Spark does not permit the call, the rows are computed when they are first needed.
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
    """Return the number of rows if Spark's cache has them all, or None; starts no job."""
    found = _cached(df, _SAME_ROWS)
    return None if found is None else found[0].rows


def few_cached(df: DataFrame, most_bytes: int) -> pa.Table | None:
    """Collect rows in this process if they derive from rows in Spark's cache.

    Return None if the cached rows have more than ``most_bytes``, in the cache or by the types of
    ``df``, or if an expression may have made values longer. It takes one job in the JVM. No Python
    worker is started for it, except for Python functions in ``df``.
    """
    found = _cached(df, _FEWER_ROWS, making=False)
    if found is None:
        return None
    known, width = found
    if max(known.size_bytes, known.rows * width) > most_bytes:
        return None
    return df.toArrow().cast(arrow_schema_of(df.schema))


def in_one_partition(df: DataFrame) -> pa.Table | None:
    """Collect the rows of an RDD in this process if they are few and in one Spark partition.

    Return None otherwise, and for columns whose types Arrow does not represent exactly. It takes
    one job, which collects no more rows than the limit.
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
    """Return plain columns as an Arrow schema, or None if Arrow lacks one of their types."""
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
    """Return some rows without long texts, and a column that marks the rows that had one."""
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
    """Return rows that came from the driver, coalesced to one Spark partition if they are few.

    Combining them with other such rows then needs no shuffle. Return None for other rows.
    """
    found = _cached(df, _OF_DRIVER)
    if found is None:
        return None
    return df.coalesce(1) if _is_few(*found) else df


def say_size(df: DataFrame, rows: int, size_bytes: int) -> None:
    """Record the number and bytes of rows that came from the driver, as the name of their RDD."""
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
    """Return whether Spark's cache has so many rows that some partition has more bytes.

    False if the size is unknown; starts no job. If ``df`` has only some of the cached columns, its
    share of the bytes is estimated from the types.
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
    """Return the known size of the rows that a DataFrame derives from, and its own row width.

    Return None if the plan has steps other than ``steps``, if Spark does not permit the calls, or,
    unless ``making`` is True, if a step may make values longer.
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
    """Return the known size of the rows below these steps of a plan, None if any is unknown."""
    name = plan.nodeName()
    if name == "InMemoryRelation":
        cache = plan.cacheBuilder()
        if not cache.isCachedColumnBuffersLoaded():
            return None
        # The bytes are counted before the cache compresses the values.
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
    """Return whether a step of a plan makes no value longer.

    Its values of variable length must be unchanged columns, or texts of values of fixed length.
    """
    if name not in _MAKING:
        return True
    made = getattr(plan, _MAKING[name])()
    kinds = [field["type"] for field in json.loads(plan.schema().json())["fields"]]
    for at, kind in enumerate(kinds[-made.size() :]):  # a window's results are the last columns
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
