"""Read DataFrames as a source's settings say, and write them as a sink's settings say.

If Spark rejects a setting (no such path, unknown column, invalid SQL, an existing target), a
SettingsError of one sentence names the state. Errors while rows are read or written remain Spark's
own errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jobs.places import SinkSettings, SourceSettings, SparkSettings
from statestore.errors import SettingsError
from statestore.extras import needs_extra
from statestore.format.names import KEY_GROUP
from statestore.format.state import POSITION, SUBTASK

with needs_extra("spark", "this job"):
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkContext
    from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
    from pyspark.logger import PySparkLogger
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType

    from statestore.spark.session import spark_session

__all__ = [
    "element_rows",
    "exists",
    "keyed_rows",
    "read",
    "refuse_existing",
    "session",
    "settings_errors",
    "write",
]

_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
_GROUP = "statestore_group_"


def session(
    settings: SparkSettings, *, app_name: str, delta: bool, s3: bool = False
) -> SparkSession:
    """Return the running Spark session (spark-submit's), or start one with these settings.

    With ``s3``, the started session reads and writes ``s3a://``. A session that has ended, with or
    without its JVM, does not count as running: the next attempt gets a new one. Raises
    MissingDependencyError when Java is missing, or when Delta is missing and ``delta`` is True.
    """
    _drop_ended_session()
    return spark_session(
        app_name=app_name,
        master=settings.master,
        table_format="delta" if delta else "parquet",
        driver_memory=settings.driver_memory,
        extra_conf=settings.conf,
        s3=s3,
    )


@contextmanager
def settings_errors(what: str) -> Iterator[None]:
    """Turn an error of Spark's analysis in this block into a SettingsError that names ``what``."""
    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    was_disabled, log.disabled = log.disabled, True  # it logs the JVM's stack trace
    try:
        yield
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        raise SettingsError(f"{what}: Spark rejected the settings: {_first_line(error)}") from error
    except Py4JJavaError as error:
        # PySpark has no Python class for this error.
        problem = str(error.java_exception.getMessage())
        if not problem.startswith("[DATA_SOURCE_NOT_FOUND]"):
            raise
        raise SettingsError(
            f"{what}: Spark rejected the settings: {_first_line(problem)}"
        ) from error
    finally:
        log.disabled = was_disabled


def read(spark: SparkSession, source: SourceSettings) -> DataFrame:
    """Return a source's rows: read, filtered by ``where``, grouped, then mapped by ``select``."""
    reader = spark.read.options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    if source.format is not None:
        reader = reader.format(source.format)
    rows = reader.load(source.path) if source.table is None else reader.table(source.table)
    if source.where is not None:
        rows = rows.where(source.where)
    if source.group_by:
        return _group_rows(rows, source)
    return rows.selectExpr(*source.select) if source.select else rows


def _group_rows(rows: DataFrame, source: SourceSettings) -> DataFrame:
    """Return one row per group, with the columns of ``select`` and no others, as GROUP BY does."""
    # agg returns the grouping columns first, even columns that select does not name.
    groups = [F.expr(sql).alias(f"{_GROUP}{index}") for index, sql in enumerate(source.group_by)]
    grouped = rows.groupBy(*groups).agg(*map(F.expr, source.select))
    return grouped.drop(*(name for name in grouped.columns if name.startswith(_GROUP)))


def keyed_rows(rows: DataFrame, *, per_subtask: bool) -> DataFrame:
    """Return the stored rows of a restored keyed state, optionally with their ``subtask``.

    Raises SettingsError when the state itself has a column of that name.
    """
    rows = rows.drop(KEY_GROUP)
    if not per_subtask:
        return rows
    if SUBTASK in (name.lower() for name in rows.columns):
        raise SettingsError(
            f"the state already has a column {SUBTASK!r}, so it cannot be written by subtask; "
            "set per_subtask = false"
        )
    # Spark partition i of a restored state is subtask i.
    return rows.withColumn(SUBTASK, F.spark_partition_id())


def element_rows(
    spark: SparkSession, schema: dict[str, Any], per_subtask: Sequence[Sequence[dict[str, Any]]]
) -> DataFrame:
    """Return operator state, in one Spark partition: ``subtask``, ``position``, the elements."""
    place = [StructField(SUBTASK, IntegerType()), StructField(POSITION, LongType())]
    columns = StructType([*place, *StructType.fromJson(schema).fields])
    rows = [
        {SUBTASK: subtask, POSITION: position, **element}
        for subtask, elements in enumerate(per_subtask)
        for position, element in enumerate(elements)
    ]
    return spark.createDataFrame(rows, columns).coalesce(1)


def refuse_existing(spark: SparkSession, sink: SinkSettings, what: str) -> None:
    """Raise SettingsError when the sink already exists and its mode does not allow that."""
    if sink.mode == "error" and exists(spark, sink):
        raise SettingsError(
            f"{what}: {sink.place} already exists; choose another path or table, or set mode "
            "to overwrite, append or ignore"
        )


def exists(spark: SparkSession, sink: SinkSettings) -> bool:
    """Return whether a sink's table or path exists; False for a sink that has neither."""
    if sink.table is not None:
        return spark.catalog.tableExists(sink.table)
    if sink.path is None:
        return False
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(sink.path)
    return bool(path.getFileSystem(spark._jsc.hadoopConfiguration()).exists(path))


def write(rows: DataFrame, sink: SinkSettings) -> None:
    """Write rows to a sink; with ``per_subtask``, one directory for each value of ``subtask``.

    Rows are not shuffled. A subtask without rows has no directory.
    """
    writer = rows.write.mode(sink.mode)
    if sink.format is not None:
        writer = writer.format(sink.format)
    if sink.per_subtask:
        # A session may overwrite only the directories that get rows ("dynamic"). Directories of
        # an earlier, larger parallelism would then stay and be read as state.
        writer = writer.partitionBy(SUBTASK).option("partitionOverwriteMode", "static")
    writer = writer.options(**sink.options)
    with _disable_sort(rows.sparkSession):
        if sink.table is not None:
            writer.saveAsTable(sink.table)
        else:
            writer.save(sink.path)


def _drop_ended_session() -> None:
    """Drop a Spark session that has ended; otherwise PySpark would keep returning it."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        return
    try:
        if context._jsc.sc().isStopped():
            SparkSession.builder.getOrCreate().stop()
    except (OSError, Py4JError):  # no answer: the JVM has ended and cannot be stopped
        SparkSession._instantiatedSession = None
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None


def _first_line(problem: object) -> str:
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)


@contextmanager
def _disable_sort(spark: SparkSession) -> Iterator[None]:
    """Keep Spark from sorting each Spark partition by ``subtask`` before it writes directories.

    The column has one value per Spark partition. The sort would buffer, and perhaps spill, the
    whole subtask for nothing.
    """
    before = spark.conf.get(_WRITERS)
    spark.conf.set(_WRITERS, "1")
    try:
        yield
    finally:
        spark.conf.set(_WRITERS, before or "0")
