"""DataFrames of a job: the rows that Spark reads from a source, and writes to a sink.

If Spark rejects a setting (no such path, unknown column, invalid SQL, an existing target), a
SettingsError of one sentence names the state. Errors while rows are read or written remain Spark's
own errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from msgspec import field

from statestore.errors import InvalidArgumentError, SettingsError
from statestore.extras import needs_extra
from statestore.format.names import KEY_GROUP, POSITION, SUBTASK
from statestore.settings import SettingsTable

with needs_extra("spark", "this job"):
    from pyspark.errors import (
        AnalysisException,
        IllegalArgumentException,
        ParseException,
        PySparkException,
    )
    from pyspark.logger import PySparkLogger
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.types import IntegerType, LongType, StructField, StructType
    from pyspark.sql.utils import is_remote

    from statestore.spark.compat import Py4JError, Py4JJavaError
    from statestore.spark.session import spark_session

__all__ = [
    "Sink",
    "Source",
    "Spark",
    "element_rows",
    "keyed_rows",
    "session",
    "settings_errors",
]

_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
Options = dict[str, str | int | float | bool]


class Spark(SettingsTable, frozen=True, kw_only=True):
    """The Spark session that plain Python starts; without effect under spark-submit."""

    master: str = "local[*]"
    driver_memory: str | None = None
    conf: dict[str, str] = field(default_factory=dict)


class Source(SettingsTable, frozen=True, kw_only=True):
    """The rows of a state: a format with a path or options, SQL over its rows, or SQL alone.

    In the SQL, ``{source}`` is the table of the rows.
    """

    format: str | None = None
    path: str | None = None
    schema: str | None = None
    options: Options = field(default_factory=dict)
    sql: str | None = None

    def __post_init__(self) -> None:
        """Refuse a source with neither a format nor SQL, and settings without effect."""
        if self.format is None and self.sql is None:
            raise InvalidArgumentError(
                "format is missing; set it, for example to parquet, delta, csv or json, or set sql"
            )
        if self.format is None and (self.path or self.schema or self.options):
            raise InvalidArgumentError(
                "path, schema and options have no effect without format; set format or remove them"
            )

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows; nothing is read yet."""
        rows = self._plan(spark)
        _ = rows.schema  # Spark Connect analyzes a plan only when its columns are asked for
        return rows

    def _plan(self, spark: SparkSession) -> DataFrame:
        if self.format is None:
            return spark.sql(self.sql or "")
        reader = spark.read.format(self.format).options(**self.options)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        rows = reader.load(self.path)
        return rows if self.sql is None else spark.sql(self.sql, source=rows)


class Sink(SettingsTable, frozen=True, kw_only=True):
    """The target of a state: a table, or a format with a path or options.

    With ``per_subtask`` each subtask's rows are in a directory of their own.
    """

    format: str | None = None
    path: str | None = None
    table: str | None = None
    options: Options = field(default_factory=dict)
    mode: Literal["error", "overwrite", "append", "ignore"] = "error"
    per_subtask: bool = True

    def __post_init__(self) -> None:
        """Refuse a sink without a place, or with two places."""
        if self.path is not None and self.table is not None:
            raise InvalidArgumentError("both path and table are set; keep only one")
        if self.path is None and self.table is None and not self.options:
            raise InvalidArgumentError("neither path nor table is set; set one")
        if self.table is None and self.format is None:
            raise InvalidArgumentError(
                "format is missing; set it, for example to parquet, delta, csv or json"
            )

    @property
    def place(self) -> str:
        """The name of the target in messages."""
        return self.path or self.table or f"the {self.format} target"

    def exists(self, spark: SparkSession) -> bool:
        """Return whether the table or path exists; False for a sink that has neither."""
        if self.table is not None:
            return spark.catalog.tableExists(self.table)
        if self.path is None:
            return False
        # The files of any format; their subfolders are no partitions, and the path is no pattern.
        files = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        path = re.sub(r"[\\*?{}\[\]]", r"\\\g<0>", self.path)
        try:
            _ = files.load(path).schema
        except AnalysisException as error:
            if error.getCondition() != "PATH_NOT_FOUND":
                raise
            return False
        return True

    def write(self, rows: DataFrame, mode: str) -> None:
        """Write rows; with ``per_subtask``, one directory for each value of ``subtask``.

        Rows are not shuffled. A subtask without rows has no directory.
        """
        writer = rows.write.mode(mode)
        if self.format is not None:
            writer = writer.format(self.format)
        if self.per_subtask:
            # A session may overwrite only the directories that get rows ("dynamic"). Directories of
            # an earlier, larger parallelism would then stay and be read as state.
            writer = writer.partitionBy(SUBTASK).option("partitionOverwriteMode", "static")
        writer = writer.options(**self.options)
        with _disable_sort(rows.sparkSession):
            if self.table is not None:
                writer.saveAsTable(self.table)
            else:
                writer.save(self.path)


def session(settings: Spark, app_name: str, places: Sequence[Source | Sink]) -> SparkSession:
    """Return the running Spark session (spark-submit's), or start one with these settings.

    It has Delta, and access to ``s3a://``, if one of the places needs it: a store never does. A
    session that has ended, with or without its JVM, does not count as running: the next attempt
    gets a new one. Raises MissingDependencyError when Java or a needed Delta is missing.
    """
    _drop_ended_session()
    return spark_session(
        app_name=app_name,
        master=settings.master,
        table_format="delta" if any(place.format == "delta" for place in places) else "parquet",
        driver_memory=settings.driver_memory,
        extra_conf=settings.conf,
        s3=any((place.path or "").startswith(("s3://", "s3a://")) for place in places),
    )


@contextmanager
def settings_errors(what: str) -> Iterator[None]:
    """Turn an error of Spark's analysis in this block into a SettingsError that names ``what``."""
    log = PySparkLogger.getLogger("SQLQueryContextLogger")
    was_disabled, log.disabled = log.disabled, True  # it logs the JVM's stack trace
    try:
        yield
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        raise _settings_error(what, error) from error
    except (Py4JJavaError, PySparkException) as error:
        # PySpark has no Python class for this error.
        cause = getattr(error, "java_exception", None)
        problem = str(error if cause is None else cause.getMessage())
        if "[DATA_SOURCE_NOT_FOUND]" not in problem:
            raise
        raise _settings_error(what, problem) from error
    finally:
        log.disabled = was_disabled


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


def _settings_error(what: str, problem: object) -> SettingsError:
    first = next(iter(str(problem).strip().splitlines()), type(problem).__name__)
    return SettingsError(f"{what}: Spark rejected the settings: {first}")


def _drop_ended_session() -> None:
    """Drop a Spark session that has ended; otherwise PySpark would keep returning it."""
    if is_remote():  # PySpark itself replaces a session of Spark Connect that has ended
        return
    from pyspark import SparkContext

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
