"""A new query over a Delta table begins with the version that its options name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import UnsupportedTypeError
from statestore.interop.spark.bootstrap_location import bootstrap_location
from statestore.interop.spark.planned_query import plan_query
from tests.interop.spark.queries import texts

VERSIONS = 4


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Delta table with one file in each version."""
    path = tmp_path_factory.mktemp("delta") / "table"
    for version in range(VERSIONS):
        rows = spark.range(20).selectExpr(f"id % {version + 2} as k", f"id + {version} as v")
        rows.coalesce(1).write.format("delta").mode("append").save(str(path))
    return path


def sums(spark: SparkSession, table: Path, **options: str) -> DataFrame:
    """Return the count and sum of each key."""
    reader = spark.readStream.format("delta").options(maxFilesPerTrigger="1", **options)
    return reader.load(str(table)).groupBy("k").agg(F.count("*").alias("n"), F.sum("v"))


def run(query: DataFrame, location: Path) -> list[list[str]]:
    """Run a query to the end of its source; return what each micro-batch emitted."""
    emitted: list[list[str]] = []
    started = (
        query.writeStream.outputMode("update")
        .foreachBatch(lambda rows, _number: emitted.append(texts(rows)))
        .option("checkpointLocation", str(location))
        .trigger(availableNow=True)
        .start()
    )
    assert started.awaitTermination(120)
    return emitted


@pytest.mark.long
def test_a_query_starts_at_a_version(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    plan = plan_query(sums(spark, table, startingVersion="2"), output_mode="update")
    history = spark.read.format("delta").option("versionAsOf", 1).load(str(table))
    totals = history.groupBy("k").agg(F.count("*").alias("count"), F.sum("v").alias("sum"))
    bootstrap_location(plan, str(tmp_path / "new"), {"stateStoreSave-0/default": totals})
    new = run(sums(spark, table), tmp_path / "new")
    whole = run(sums(spark, table, startingVersion="0"), tmp_path / "whole")
    assert new == whole[2:]
    assert len(new) == VERSIONS - 2


@pytest.mark.long
@pytest.mark.long_cases("new versions", "a version", "a time")
@pytest.mark.parametrize(
    ("options", "version", "is_snapshot"),
    [
        ({"startingVersion": "1"}, 1, False),
        ({"startingVersion": "latest"}, VERSIONS, False),
        ({"startingTimestamp": "2000-01-01"}, 0, False),
        ({}, VERSIONS - 1, True),
    ],
    ids=["a version", "new versions", "a time", "the whole table"],
)
def test_a_delta_source_tells_where_it_begins(
    spark: SparkSession, table: Path, options: dict[str, str], version: int, is_snapshot: bool
) -> None:
    plan = plan_query(sums(spark, table, **options), output_mode="update")
    begins = json.loads(plan.sources[0].begins)
    assert (begins["reservoirVersion"], begins["isStartingVersion"]) == (version, is_snapshot)


def test_a_source_without_an_interface_is_refused(spark: SparkSession) -> None:
    """Spark makes such a plan for the rows of a micro-batch."""
    rows = spark.range(1).toDF("k")
    plan = rows._jdf.queryExecution()
    frame = spark._jsparkSession.internalCreateDataFrame(plan.toRdd(), rows._jdf.schema(), True)
    query = DataFrame(frame, spark).groupBy("k").count()
    with pytest.raises(UnsupportedTypeError, match="source 0 of the query is a LogicalRDD"):
        plan_query(query, output_mode="update")
