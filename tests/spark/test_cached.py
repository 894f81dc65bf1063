"""Small DataFrames in Spark's cache: their number of rows, and their collection on the driver."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from statestore.spark import state_writer as write
from statestore.spark.cached_rows import (
    cached_row_count,
    coalesce_small,
    collect_if_small,
    collect_single_partition,
    compute,
    is_known_large,
)
from statestore.spark.state_lookup import collect_if_few
from statestore.spark.state_writer import frame_of

MANY = 2**20


@pytest.fixture
def frame(spark: SparkSession) -> Iterator[DataFrame]:
    """Some rows in two Spark partitions, marked for the cache but not computed."""
    rows = spark.range(0, 100, 1, 2).select("id", (F.col("id") % 7).cast("string").alias("text"))
    yield rows.persist()
    rows.unpersist(blocking=True)


def test_rows_are_counted_and_collected_once_all_are_cached(frame: DataFrame) -> None:
    assert (cached_row_count(frame), collect_if_small(frame, MANY)) == (None, None)
    frame.count()
    assert cached_row_count(frame) == 100
    found = collect_if_small(frame, MANY)
    assert found is not None
    assert sorted(found["id"].to_pylist()) == list(range(100))
    frame.unpersist(blocking=True)
    assert (cached_row_count(frame), collect_if_small(frame, MANY)) == (None, None)


def test_one_cached_partition_of_two_is_not_enough(frame: DataFrame) -> None:
    assert frame.take(1)
    assert (cached_row_count(frame), collect_if_small(frame, MANY)) == (None, None)


def test_filtered_rows_are_collected_without_a_known_count(frame: DataFrame) -> None:
    frame.count()
    some = frame.alias("all").where("id < 10").select(F.col("id").alias("n"), F.lit(1).alias("one"))
    assert cached_row_count(some) is None
    found = collect_if_small(some, MANY)
    assert found is not None
    assert found.sort_by("n").to_pydict() == {"n": list(range(10)), "one": [1] * 10}
    assert cached_row_count(frame.alias("all").select("text")) == 100


def test_results_of_small_inputs_are_collected(spark: SparkSession, frame: DataFrame) -> None:
    """A union with rows of the driver, and aggregates."""
    compute(frame)
    here = spark.createDataFrame(pa.table({"id": [3, 1000], "text": ["0", "6"]}))
    both = frame.union(here)
    sums = both.groupBy("text").agg(F.sum("id").alias("sum"), F.count("*").alias("n"))
    assert (cached_row_count(sums), cached_row_count(both), cached_row_count(here)) == (
        None,
        None,
        None,
    )
    found = collect_if_small(sums.where("sum > 800"), MANY)
    assert found is not None
    assert found.to_pylist() == [{"text": "6", "sum": 1721, "n": 15}]
    last = Window.partitionBy("text").orderBy(F.desc("id"))
    newest = both.withColumn("at", F.row_number().over(last)).where("at = 1").select("id")
    for few, ids in (
        (newest, {98, 99, 93, 94, 95, 96, 1000}),
        (both.select("id").distinct(), {*range(100), 1000}),
        (both.dropDuplicates(["id"]).select("id"), {*range(100), 1000}),
    ):
        found = collect_if_small(few, MANY)
        assert found is not None
        assert sorted(found["id"].to_pylist()) == sorted(ids)
    assert collect_if_small(both, 1) is None
    assert (
        collect_if_small(here.union(spark.range(9).select("id", F.lit("").alias("text"))), MANY)
        is None
    )


def test_a_persisted_frame_is_computed_once(spark: SparkSession, frame: DataFrame) -> None:
    """It takes one job; a frame that is not persisted is not computed."""
    compute(frame)
    assert cached_row_count(frame) == 100
    other = spark.range(7)
    compute(other)
    assert cached_row_count(other) is None


def test_a_result_that_may_exceed_the_cached_rows_is_not_collected(frame: DataFrame) -> None:
    """Spark estimates that a Python function returns about as many bytes as it receives."""
    frame.count()
    for more in (
        frame.mapInArrow(lambda batches: batches, frame.schema),
        frame.select(F.explode(F.sequence(F.lit(0), F.col("id")))),
        frame.crossJoin(frame.select(F.col("id").alias("other"))),
    ):
        assert (cached_row_count(more), collect_if_small(more, MANY)) == (None, None)


def test_many_bytes_are_not_collected(frame: DataFrame) -> None:
    frame.count()
    assert collect_if_small(frame, 1) is None
    numbers = [F.lit(number).alias(f"n{number}") for number in range(300)]
    wide = frame.select(*numbers)  # 1,200 bytes a row that are not in the cache
    assert cached_row_count(wide) == 100
    assert collect_if_small(wide, 100_000) is None
    assert collect_if_small(frame, 100_000) is not None


def test_a_result_that_may_exceed_the_cached_bytes_is_not_collected(frame: DataFrame) -> None:
    """Long texts or lists computed from the rows, or texts that the cache has compressed."""
    frame.count()
    for made in (
        frame.select("id", F.repeat("text", 10_000).alias("wide")),
        frame.select(F.sequence(F.lit(1), F.lit(9)).alias("list")),
        frame.groupBy("text").agg(F.collect_list("id").alias("list")),
    ):
        assert collect_if_small(made, MANY) is None
    assert collect_if_small(frame.select(F.length("text").alias("n"), "text"), MANY) is not None
    same = frame.select(F.repeat(F.lit("x"), 10_000).alias("same")).persist()
    try:
        same.count()
        assert collect_if_small(same, 990_000) is None
        assert collect_if_small(same, 2 * MANY) is not None
    finally:
        same.unpersist()


def test_more_rows_than_the_partitions_may_have_are_known_to_be_many(frame: DataFrame) -> None:
    """Only the requested columns count, in proportion to the size of their types."""
    assert not is_known_large(frame, 1)
    frame.count()
    size = frame._jdf.queryExecution().withCachedData().cacheBuilder().materializedSizeInBytes()
    assert is_known_large(frame, size // 2 - 1)
    assert not is_known_large(frame, size // 2 + 1)
    assert not is_known_large(frame.select("id"), size // 2 - 1)
    assert is_known_large(frame.select("id"), size // 10)
    assert is_known_large(frame.withColumn("one", F.lit(1)), size // 2 - 1)
    assert not is_known_large(frame.where("id < 10"), 1)  # it may have no rows


def test_many_cached_rows_are_not_read(frame: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> DataFrame:
        raise AssertionError("a Python worker was started")

    frame.count()
    monkeypatch.setattr(write, "map_in_arrow", refuse)
    assert write.SparkRows(frame).collect(["id", "text"], 1) is None
    with pytest.raises(AssertionError, match="a Python worker was started"):
        write.SparkRows(frame.where("id < 50")).collect(["id", "text"], 1)


PLAIN = "id long, `a text` string, raw binary, at timestamp, `b``c` double"


def of_rdd(spark: SparkSession, rows: list[Any], schema: str, partitions: int = 1) -> DataFrame:
    """Return rows as ``foreachBatch`` passes them: from an RDD."""
    frame = spark.createDataFrame(rows, schema).coalesce(partitions).persist()
    found = spark.createDataFrame(frame.rdd, frame.schema)
    frame.unpersist()
    return found


def test_few_rows_of_one_partition_are_collected_and_returned_unchanged(
    spark: SparkSession,
) -> None:
    """In one job; with nulls, zeros and NaN."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    rows = [(1, "x" * 256, b"\0", at, float("nan")), (2, None, None, None, -0.0)]
    frame = of_rdd(spark, rows, PLAIN)
    found, table = collect_if_few(frame)
    assert table is not None
    assert table.num_rows == 2
    assert found.schema == frame.schema
    assert repr(found.collect()) == repr(frame.collect())
    assert found.rdd.getNumPartitions() == 1
    assert collect_if_small(found, MANY) is not None


@pytest.mark.long
def test_rows_that_may_be_many_are_not_collected(spark: SparkSession) -> None:
    """Many or long rows, several partitions, types that differ in Arrow, and plans above an RDD."""
    for frame in (
        of_rdd(spark, [(1, "x" * 257)], "id long, text string"),
        of_rdd(spark, [(1, b"x" * 257)], "id long, raw binary"),
        of_rdd(spark, [(number,) for number in range(2**17 + 1)], "id long"),
        of_rdd(spark, [("x" * 200, "y" * 200) for _ in range(4000)], "a string, b string"),
        of_rdd(spark, [(1,), (2,)], "id long", partitions=2),
        of_rdd(spark, [(["x"],)], "texts array<string>"),
        of_rdd(spark, [("x",)], "text string collate UTF8_LCASE"),
        of_rdd(spark, [(1, 2)], "a long, b long").toDF("a", "A"),
        spark.range(3),
    ):
        assert collect_single_partition(frame) is None
        assert collect_if_few(frame) == (frame, None)


def test_rows_from_the_driver_have_a_known_count(spark: SparkSession) -> None:
    """A few rows are in one partition, and are collected without a shuffle."""
    few = pa.table({"id": [3, 1000], "text": ["0", "6"]})
    here, there = (coalesce_small(frame_of(spark, few)) for _ in range(2))
    assert here is not None
    assert there is not None
    sums = here.union(there).groupBy("text").agg(F.sum("id").alias("sum"))
    assert "Exchange" not in sums._jdf.queryExecution().executedPlan().toString()
    found = collect_if_small(sums, MANY)
    assert found is not None
    assert found.sort_by("sum")["sum"].to_pylist() == [6, 2000]
    many = frame_of(spark, pa.table({"id": range(200_000)}))
    assert coalesce_small(many) is many
    assert (collect_if_small(many, MANY), cached_row_count(here)) == (None, None)
    assert coalesce_small(spark.range(3)) is None
    none = coalesce_small(frame_of(spark, few.slice(0, 0)))
    assert none is not None
    assert none.collect() == []


def test_the_arrow_batch_size_does_not_matter(spark: SparkSession) -> None:
    """0 means no limit, and a limit of one row would make one Spark partition per row."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = str(spark.conf.get(name))
    for most in ("0", "1"):
        spark.conf.set(name, most)
        try:
            frame = frame_of(spark, pa.table({"id": range(20)}))
            assert spark.conf.get(name) == most
        finally:
            spark.conf.set(name, before)
        assert coalesce_small(frame) is not None
        assert sorted(row.id for row in frame.collect()) == [*range(20)]


def test_timestamps_are_utc_in_any_session_time_zone(spark: SparkSession) -> None:
    name = "spark.sql.session.timeZone"
    before = str(spark.conf.get(name))
    frame = spark.range(3).select(F.timestamp_millis(F.col("id")).alias("at")).persist()
    try:
        frame.count()
        spark.conf.set(name, "Europe/Berlin")
        found = collect_if_small(frame, MANY)
    finally:
        spark.conf.set(name, before)
        frame.unpersist()
    assert found is not None
    assert found.schema.field("at").type == pa.timestamp("us", "UTC")
    assert found.sort_by("at")["at"].cast(pa.int64()).to_pylist() == [0, 1000, 2000]


def test_without_access_to_query_plans_nothing_is_known() -> None:
    def refuse() -> None:
        raise Py4JError("queryExecution is not allowed")

    connected: Any = type("DataFrame", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    guarded: Any = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=refuse))
    for frame in (connected, guarded):
        compute(frame)
        assert (cached_row_count(frame), collect_if_small(frame, MANY)) == (None, None)
        assert not is_known_large(frame, 1)
        assert (collect_single_partition(frame), coalesce_small(frame)) == (None, None)
