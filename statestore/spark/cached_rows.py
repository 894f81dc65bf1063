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
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from statestore.spark.compat import Py4JError, arrow_schema_of, has_jvm, schema_of_arrow

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


class _CachedSize(NamedTuple):
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
    if not has_jvm(df):
        return
    try:
        plan = df._jdf.queryExecution().withCachedData()
        if plan.nodeName() == "InMemoryRelation":
            plan.cacheBuilder().cachedColumnBuffers().count()
    except Py4JError:
        return


def cached_row_count(df: DataFrame) -> int | None:
    """Return the number of rows if Spark's cache has them all, or None; starts no job."""
    cached = _known_size(df, _SAME_ROWS)
    return None if cached is None else cached[0].rows


def collect_if_small(df: DataFrame, most_bytes: int) -> pa.Table | None:
    """Collect rows in this process if they derive from rows in Spark's cache.

    Return None if the cached rows have more than ``most_bytes``, in the cache or by the types of
    ``df``, or if an expression may have made values longer. It takes one job in the JVM. No Python
    worker is started for it, except for Python functions in ``df``.
    """
    cached = _known_size(df, _FEWER_ROWS, making=False)
    if cached is None:
        return None
    known, width = cached
    if max(known.size_bytes, known.rows * width) > most_bytes:
        return None
    return df.toArrow().cast(arrow_schema_of(df.schema))


def collect_single_partition(df: DataFrame) -> pa.Table | None:
    """Collect the rows of an RDD in this process if they are few and in one Spark partition.

    Return None otherwise, and for columns whose types Arrow does not represent exactly. It takes
    one job, which collects no more rows than the limit.
    """
    if not has_jvm(df):
        return None
    try:
        plan = df._jdf.queryExecution().analyzed()
        if plan.nodeName() != "LogicalRDD" or plan.rdd().getNumPartitions() != 1:
            return None
        most = _TOGETHER_BYTES // max(plan.schema().defaultSize(), 1)
    except Py4JError:
        return None
    schema = _plain_arrow_schema(df.schema)
    if schema is None:
        return None
    table = _cut_long_texts(df, schema, most + 1).toArrow()
    *columns, is_long = table.columns
    if table.num_rows > most or table.nbytes > _TOGETHER_BYTES or pc.any(is_long).as_py():
        return None
    return pa.table(columns, names=schema.names).cast(schema)


def _plain_arrow_schema(schema: StructType) -> pa.Schema | None:
    """Return plain columns as an Arrow schema, or None if Arrow lacks one of their types."""
    names = {name.lower() for name in schema.names}
    kinds = [field.dataType for field in schema]
    if len(names) < len(kinds) or any(data_type.typeName() in _NESTED for data_type in kinds):
        return None
    try:
        arrow_schema = arrow_schema_of(schema)
    except PySparkException:
        return None
    same = [field.dataType for field in schema_of_arrow(arrow_schema)] == kinds
    return arrow_schema if same else None


def _cut_long_texts(df: DataFrame, schema: pa.Schema, rows: int) -> DataFrame:
    """Return rows without their long texts, and a column that marks rows with a removed text."""
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


def coalesce_small(df: DataFrame) -> DataFrame | None:
    """Return rows that came from the driver, coalesced to one Spark partition if they are few.

    Combining them with other such rows then needs no shuffle. Return None for other rows.
    """
    cached = _known_size(df, _OF_DRIVER)
    if cached is None:
        return None
    return df.coalesce(1) if _is_few(*cached) else df


def record_size_hint(df: DataFrame, rows: int, size_bytes: int) -> None:
    """Record the number and bytes of rows that came from the driver, as the name of their RDD."""
    if not has_jvm(df):
        return
    try:
        plan = df._jdf.queryExecution().analyzed()
        if plan.nodeName() == "LogicalRDD":
            plan.rdd().setName(_SIZE % (rows, size_bytes))
    except Py4JError:
        return


def _is_few(known: _CachedSize, width: int) -> bool:
    return max(known.size_bytes, known.rows * width) <= _TOGETHER_BYTES


def is_known_large(df: DataFrame, most_bytes: int) -> bool:
    """Return whether Spark's cache has so many rows that some partition has more bytes.

    False if the size is unknown; starts no job. If ``df`` has only some of the cached columns, its
    share of the bytes is estimated from the types.
    """
    cached = _known_size(df, _SAME_ROWS)
    if cached is None:
        return False
    known, width = cached
    part = min(width / max(known.width, 1), 1)
    return known.size_bytes * part > most_bytes * known.partitions


def _known_size(
    df: DataFrame, steps: frozenset[str], *, making: bool = True
) -> tuple[_CachedSize, int] | None:
    """Return the known size of the rows that a DataFrame derives from, and its own row width.

    Return None if the plan has steps other than ``steps``, if Spark does not permit the calls, or,
    unless ``making`` is True, if a step may make values longer.
    """
    if not has_jvm(df):
        return None
    try:
        plan = df._jdf.queryExecution().withCachedData()
        known = _size_of_plan(plan, steps, making)
        return None if known is None else (known, plan.schema().defaultSize())
    except Py4JError:  # some hosted Sparks forbid calls into the JVM
        return None


def _size_of_plan(plan: Any, steps: frozenset[str], making: bool) -> _CachedSize | None:
    """Return the known size of the rows below these steps of a plan, None if any is unknown."""
    name = plan.nodeName()
    if name == "InMemoryRelation":
        cache = plan.cacheBuilder()
        if not cache.isCachedColumnBuffersLoaded():
            return None
        # The bytes are counted before the cache compresses the values.
        return _CachedSize(
            cache.materializedRowCount(),
            cache.materializedSizeInBytes(),
            cache.cachedColumnBuffers().getNumPartitions(),
            plan.schema().defaultSize(),
        )
    if name not in steps or not (making or _keeps_lengths(plan, name)):
        return None
    if name == "LocalRelation":
        rows, width = plan.data().size(), plan.schema().defaultSize()
        return _CachedSize(rows, rows * width, 1, width)
    if name == "LogicalRDD":
        size_name = _SIZED.fullmatch(plan.rdd().name() or "")
        if size_name is None:
            return None
        rows, size = map(int, size_name.groups())
        return _CachedSize(rows, size, plan.rdd().getNumPartitions(), plan.schema().defaultSize())
    children = plan.children()
    below = [
        _size_of_plan(children.apply(index), steps, making) for index in range(children.size())
    ]
    known = [size for size in below if size is not None]
    if len(known) < len(below):
        return None
    rows, sizes, partitions, widths = zip(*known, strict=True)
    parts = plan.numPartitions() if name == "Repartition" else sum(partitions)
    return _CachedSize(sum(rows), sum(sizes), parts, max(widths))


def _keeps_lengths(plan: Any, name: str) -> bool:
    """Return whether a step of a plan makes no value longer.

    Its values of variable length must be unchanged columns, or texts of values of fixed length.
    """
    if name not in _MAKING:
        return True
    results = getattr(plan, _MAKING[name])()
    kinds = [field["type"] for field in json.loads(plan.schema().json())["fields"]]
    for index, length in enumerate(
        kinds[-results.size() :]
    ):  # a window's results are the last columns
        if not (isinstance(length, dict) or length in _OF_ANY_LENGTH):
            continue
        result = results.apply(index)
        inner = result.child() if result.nodeName() == "Alias" else result
        step = inner.nodeName()
        if step == "Cast" and inner.child().dataType().typeName() not in _OF_ANY_LENGTH:
            continue  # a number as a text is short
        if step != "AttributeReference":
            return False
    return True
