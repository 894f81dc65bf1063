"""What Spark's cache tells of its rows, and when they are taken from there."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.spark import write
from statestore.spark.cached import few_cached, many_cached, rows_cached

MANY = 2**20


@pytest.fixture
def frame(spark: SparkSession) -> Iterator[DataFrame]:
    """Some rows in two Spark partitions, which are to be cached and are not yet."""
    rows = spark.range(0, 100, 1, 2).select("id", (F.col("id") % 7).cast("string").alias("text"))
    yield rows.persist()
    rows.unpersist(blocking=True)


def test_rows_are_known_and_taken_once_all_are_cached(frame: DataFrame) -> None:
    assert (rows_cached(frame), few_cached(frame, MANY)) == (None, None)
    frame.count()
    assert rows_cached(frame) == 100
    found = few_cached(frame, MANY)
    assert found is not None
    assert sorted(found["id"].to_pylist()) == list(range(100))
    frame.unpersist(blocking=True)
    assert (rows_cached(frame), few_cached(frame, MANY)) == (None, None)


def test_one_cached_partition_of_two_tells_nothing(frame: DataFrame) -> None:
    assert frame.take(1)
    assert (rows_cached(frame), few_cached(frame, MANY)) == (None, None)


def test_some_of_the_rows_are_taken_and_their_number_is_not_known(frame: DataFrame) -> None:
    frame.count()
    some = frame.alias("all").where("id < 10").select(F.col("id").alias("n"), F.lit(1).alias("one"))
    assert rows_cached(some) is None
    found = few_cached(some, MANY)
    assert found is not None
    assert found.sort_by("n").to_pydict() == {"n": list(range(10)), "one": [1] * 10}
    assert rows_cached(frame.alias("all").select("text")) == 100


def test_what_may_be_more_than_is_cached_is_left(frame: DataFrame) -> None:
    """By Spark's guess a function of Python returns about as many bytes as it is given."""
    frame.count()
    for more in (
        frame.mapInArrow(lambda batches: batches, frame.schema),
        frame.select(F.explode(F.sequence(F.lit(0), F.col("id")))),
        frame.union(frame),
        frame.crossJoin(frame.select(F.col("id").alias("other"))),
    ):
        assert (rows_cached(more), few_cached(more, MANY)) == (None, None)


def test_many_bytes_are_left_in_the_cache_or_out_of_it(frame: DataFrame) -> None:
    frame.count()
    assert few_cached(frame, 1) is None
    numbers = [F.lit(number).alias(f"n{number}") for number in range(300)]
    wide = frame.select(*numbers)  # 1,200 bytes a row that the cache has not
    assert rows_cached(wide) == 100
    assert few_cached(wide, 100_000) is None
    assert few_cached(frame, 100_000) is not None


def test_what_is_more_than_the_partitions_may_have_is_known_to_be_many(frame: DataFrame) -> None:
    """Of the columns that were cached those that are asked for count, by what their types take."""
    assert not many_cached(frame, 1)
    frame.count()
    size = frame._jdf.queryExecution().withCachedData().cacheBuilder().materializedSizeInBytes()
    assert many_cached(frame, size // 2 - 1)
    assert not many_cached(frame, size // 2 + 1)
    assert not many_cached(frame.select("id"), size // 2 - 1)
    assert many_cached(frame.select("id"), size // 10)
    assert many_cached(frame.withColumn("one", F.lit(1)), size // 2 - 1)
    assert not many_cached(frame.where("id < 10"), 1)  # it may be none


def test_of_many_cached_rows_none_is_looked_at(
    frame: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> DataFrame:
        raise AssertionError("a Python worker was started")

    frame.count()
    monkeypatch.setattr(write, "map_in_arrow", refuse)
    assert write.on_driver(frame, ["id", "text"], 1) is None
    with pytest.raises(AssertionError, match="a Python worker was started"):
        write.on_driver(frame.where("id < 50"), ["id", "text"], 1)


def test_times_come_in_utc_whatever_the_session_says(spark: SparkSession) -> None:
    name = "spark.sql.session.timeZone"
    before = str(spark.conf.get(name))
    frame = spark.range(3).select(F.timestamp_millis(F.col("id")).alias("at")).persist()
    try:
        frame.count()
        spark.conf.set(name, "Europe/Berlin")
        found = few_cached(frame, MANY)
    finally:
        spark.conf.set(name, before)
        frame.unpersist()
    assert found is not None
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")
    assert found.sort_by("at")["at"].cast(pa.int64()).to_pylist() == [0, 1000, 2000]


def test_a_session_that_shows_no_plans_tells_nothing() -> None:
    def refuse() -> None:
        raise Py4JError("queryExecution is not allowed")

    connected: Any = SimpleNamespace()
    guarded: Any = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=refuse))
    for frame in (connected, guarded):
        assert (rows_cached(frame), few_cached(frame, MANY)) == (None, None)
        assert not many_cached(frame, 1)
