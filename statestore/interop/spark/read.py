"""The rows of a query's state, by Spark's own reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statestore.errors import DamagedFileError, InvalidArgumentError
from statestore.interop.spark.columns import StoreColumns
from statestore.interop.spark.location import CheckpointLocation, Operator
from statestore.interop.spark.operators import kind_of
from statestore.spark.session import hand_on

__all__ = ["columns_of", "reading", "session_with", "stored_rows"]

_FORMAT_VERSION = "spark.sql.streaming.stateStore.checkpointFormatVersion"


@contextmanager
def reading(spark: SparkSession, location: CheckpointLocation, batch: int) -> Iterator[None]:
    """Let Spark read the state of a micro-batch within a block.

    Raises:
        InvalidArgumentError: for a session of Spark Connect, which has no access to what is needed.
        DamagedFileError: when Spark cannot read a file that the block asks for.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidArgumentError(
            "a session of Spark Connect cannot read a query's state: use a session of Spark "
            "Classic, as statestore.spark_session() gives one"
        )
    hand_on(spark, location.storage)
    _ = spark.streams  # begins what Spark's reader asks for the places of state stores
    version = str(location.commit(batch).version)
    try:
        with session_with(spark, {_FORMAT_VERSION: version}):
            yield
    except (PySparkException, Py4JJavaError) as error:
        reason = next(filter(str.strip, str(error).splitlines()), "no reason given")
        raise DamagedFileError(
            f"Spark cannot read the state of micro-batch {batch} in {location.url}: {reason}. A "
            "file of it is missing or damaged; name an older micro-batch that is whole"
        ) from error


@contextmanager
def session_with(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """Give a session other settings within a block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def stored_rows(
    spark: SparkSession, url: str, batch: int, operator: Operator, store: str
) -> DataFrame:
    """Return the rows of a store: the structs ``key`` and ``value``, and ``partition_id``."""
    return (
        spark.read.format("statestore")
        .option("path", url)
        .option("batchId", batch)
        .option("operatorId", operator.number)
        .option("storeName", store)
        .load()
    )


def columns_of(rows: DataFrame, operator: Operator, store: str) -> StoreColumns:
    """Return how a store's rows are columns of a state."""
    kind = kind_of(operator)
    key, value = rows.schema["key"].dataType, rows.schema["value"].dataType
    assert kind is not None
    assert isinstance(key, StructType)
    assert isinstance(value, StructType)
    return StoreColumns(key, value, kind.entry(store))
