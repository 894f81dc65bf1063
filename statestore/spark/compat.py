"""The supported versions of Spark, and their differences. No other module checks the version.

Spark 4.0 to 4.3 are supported. The type ``TIME``, ``repartitionById`` and Arrow functions of
columns need 4.1, and names of streaming sources need 4.2. The functions that convert a schema have
other parameters since 4.2, and the internal ``LogicalRDD`` has another parameter since 4.3.

A session of Spark Connect, and the package ``pyspark-client``, give this process no access to a
JVM. :func:`has_jvm` is the only test for it.

This module also converts schemas between Arrow's and Spark's types. Timestamps with a zone are
stored in UTC; timestamps without a zone stay unchanged.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema, to_arrow_type

from statestore.errors import InvalidArgumentError, MissingDependencyError
from statestore.keys.arrow_java import absorb, finish
from statestore.spark.session_settings import session_settings


def _error_of_py4j(name: str) -> Any:
    """Return an error class of py4j, or one that nothing raises: pyspark-client has no py4j."""
    try:
        return getattr(import_module("py4j.protocol"), name)
    except ImportError:
        return type(name, (Exception,), {})


Py4JError: Final[Any] = _error_of_py4j("Py4JError")
"""The error of a call into the JVM."""

Py4JJavaError: Final[Any] = _error_of_py4j("Py4JJavaError")
"""An exception of the JVM."""

OLDEST: Final[tuple[int, int]] = (4, 0)
NEWEST_WITH_DELTA: Final[tuple[int, int]] = (4, 2)


def _version_numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


INSTALLED: Final[tuple[int, int]] = _version_numbers(pyspark.__version__)
"""The major and minor version of the installed Spark."""

HAS_NAMED_SOURCES: Final = INSTALLED >= (4, 2)
"""Whether the sources of a streaming query can have names (``readStream.name(…)``)."""

HAS_REPARTITION_BY_ID: Final = INSTALLED >= (4, 1)
"""Whether rows can be sent to a Spark partition by its number."""

HAS_ARROW_COLUMNS: Final = INSTALLED >= (4, 1)
"""Whether a column can be a function of other columns that takes and returns Arrow arrays."""

TIME_TYPES: Final[tuple[type[T.DataType], ...]] = (T.TimeType,) if INSTALLED >= (4, 1) else ()
"""Spark's type for a time of day; empty before 4.1."""


def refuse_old_spark() -> None:
    """Raise MissingDependencyError unless the installed Spark is supported."""
    if INSTALLED < OLDEST:
        raise MissingDependencyError(
            f"statestore requires Spark {OLDEST[0]}.{OLDEST[1]} or later, but this is "
            f"{pyspark.__version__}. Without Spark, a store can be read and written with Arrow"
        )


def has_delta() -> bool:
    """Return whether Delta's package is installed and has a jar for the installed Spark."""
    return INSTALLED <= NEWEST_WITH_DELTA and find_spec("delta") is not None


def refuse_without_delta() -> None:
    """Raise MissingDependencyError if Delta has no jar for the installed Spark."""
    if INSTALLED > NEWEST_WITH_DELTA:
        raise MissingDependencyError(
            f"Delta has no jar for Spark {pyspark.__version__}, only for Spark "
            f"{NEWEST_WITH_DELTA[0]}.{NEWEST_WITH_DELTA[1]} and earlier: use "
            'spark_session(table_format="parquet"). A store keeps its Delta tables without '
            'the jar, and Spark reads them with format("keyed_state")'
        )


COMMAND_INSTEAD: Final = (
    "use 'statestore spark' where Java is installed and SPARK_REMOTE is not set, which starts its "
    "own Spark"
)
"""What replaces an operation on the state of Spark's own queries in a session of Spark Connect."""


def has_jvm(owner: Any) -> bool:
    """Return whether this process can call the JVM of a session or a DataFrame.

    False for Spark Connect. Its server computes plans, and its executors run Python functions, but
    neither RDDs nor expressions that call Java methods may be available.
    """
    return not type(owner).__module__.startswith("pyspark.sql.connect")


def refuse_connect(owner: Any, what: str, instead: str) -> None:
    """Refuse an operation that Spark Connect does not support.

    Args:
        owner: a session or a DataFrame.
        what: the operation, as the subject of a sentence.
        instead: what the caller can do in a session of Spark Connect, as an order.

    Raises:
        InvalidArgumentError: the session is one of Spark Connect, which has no JVM in this process.
    """
    if not has_jvm(owner):
        raise InvalidArgumentError(
            f"{what} requires a Spark Classic session, but this session uses Spark Connect: "
            f"{instead}, or run the job with spark-submit, without .remote(…)"
        )


_RULES_FOR_EMPTY_PLANS: Final = {
    "spark.sql.optimizer.excludedRules": (
        "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
    ),
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
}
_IN_UTC: Final[dict[str, Any]] = (
    {"timezone": "UTC"} if INSTALLED >= (4, 2) else {"timestamp_utc": True}
)


def arrow_schema_of(schema: T.StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema."""
    return to_arrow_schema(schema, **_IN_UTC)


def arrow_type_of(data_type: T.DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type."""
    return to_arrow_type(data_type, **_IN_UTC)


def schema_of_arrow(schema: pa.Schema) -> T.StructType:
    """Return the Spark schema of an Arrow schema."""
    spark_schema: T.StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return spark_schema


def keep_empty_partitions(spark: SparkSession) -> AbstractContextManager[None]:
    """Let a DataFrame without rows keep the partitions of its :func:`in_partitions` within a block.

    Otherwise Spark replaces it by a plan without partitions, and no task runs for it.
    """
    return session_settings(
        spark,
        {
            name: ",".join(filter(None, (spark.conf.get(name, None), rule)))
            for name, rule in _RULES_FOR_EMPTY_PLANS.items()
        },
    )


def in_partitions(rows: DataFrame, partitions: int, number: Column) -> DataFrame:
    """Return the rows, each in the Spark partition whose number a column gives.

    Spark 4.1 and later have ``repartitionById`` for this. Older versions place a row by the hash of
    a column, so each number is replaced by an integer whose hash falls into that partition.

    Args:
        rows: the rows.
        partitions: the number of Spark partitions of the result.
        number: an integer column; a null counts as 0, other numbers modulo ``partitions``.

    Returns:
        The rows in exactly this many Spark partitions. If there are no rows and the result is
        transformed, only :func:`keep_empty_partitions` keeps the partitions.
    """
    if HAS_REPARTITION_BY_ID:
        return rows.repartitionById(partitions, number)
    # As one text that Spark splits once: an array with a literal per element would take seconds.
    stand_ins = F.split(F.lit(",".join(map(str, _partition_keys(partitions)))), ",").cast(
        "array<int>"
    )
    place = F.pmod(F.coalesce(number.cast("int"), F.lit(0)), F.lit(partitions))
    return rows.repartition(partitions, stand_ins[place])


@lru_cache(maxsize=64)
def _partition_keys(partitions: int) -> tuple[int, ...]:
    """Return for each partition the smallest non-negative integer that Spark's hash places there.

    Spark's ``HashPartitioning`` takes Murmur3 with seed 42 modulo the number of partitions.
    """
    values = np.full(partitions, -1, np.int64)
    begin, count = 0, 16 * partitions + 64
    while (values < 0).any():
        numbers = np.arange(begin, begin + count, dtype=np.uint32)
        seed = np.full(1, 42, np.uint32)
        hashes = finish(absorb(seed, numbers) ^ np.uint32(4)).view(np.int32)
        places, first = np.unique(np.mod(hashes, partitions), return_index=True)
        new = values[places] < 0
        values[places[new]] = begin + first[new]
        begin += count
    return tuple(values.tolist())


def with_fixed_partitions(df: DataFrame) -> tuple[DataFrame, int]:
    """Return a DataFrame with fixed Spark partitions and rows, and the number of its partitions.

    As with ``checkpoint()``, the plan is replaced by its resulting rows, but nothing is stored.
    ``df["a"]`` still names a column of the result.
    """
    session: Any = df.sparkSession
    spark = session._jvm.org.apache.spark.sql
    lying = df._jdf.queryExecution().toRdd()
    logical = _scala_object(spark.execution, "LogicalRDD")
    # Spark 4.3 has a fourth parameter; its default is the behavior of earlier versions.
    more = [getattr(logical, "fromDataset$default$4")()] if INSTALLED >= (4, 3) else []
    plan = logical.fromDataset(lying, df._jdf, False, *more)
    frame = _scala_object(spark.classic, "Dataset").ofRows(session._jsparkSession, plan)
    return DataFrame(frame, session), int(lying.getNumPartitions())


def _scala_object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")


# Every module that needs Spark imports this one: an older version is refused before it is used.
refuse_old_spark()
