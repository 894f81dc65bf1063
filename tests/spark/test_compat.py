"""Replacements for features that older versions of Spark lack."""

from __future__ import annotations

import tomllib
from importlib.metadata import requires
from typing import TYPE_CHECKING

import pytest
from pyarrow import RecordBatch
from pyspark.sql import functions as F

from statestore.errors import InvalidArgumentError, MissingDependencyError
from statestore.spark import compat
from statestore.spark.compat import (
    _partition_keys,
    arrow_schema_of,
    has_delta,
    in_partitions,
    keep_empty_partitions,
    refuse_connect,
    refuse_old_spark,
    refuse_without_delta,
    schema_of_arrow,
)
from tests.syntax import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

MOST = 300
RULES = "spark.sql.optimizer.excludedRules"


def test_stand_ins_hash_into_their_partitions(spark: SparkSession) -> None:
    """Spark's own hash confirms it, for each number of partitions up to 300."""
    rows = [
        (partitions, place, stand_in)
        for partitions in range(1, MOST + 1)
        for place, stand_in in enumerate(_partition_keys(partitions))
    ]
    frame = spark.createDataFrame(rows, "partitions int, place int, stand_in int")
    misplaced = frame.where(F.pmod(F.hash("stand_in"), F.col("partitions")) != F.col("place"))
    assert misplaced.count() == 0
    assert len(rows) == MOST * (MOST + 1) // 2


@pytest.mark.parametrize("by_hash", [False, True])
def test_rows_are_in_the_partition_of_their_number(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, by_hash: bool
) -> None:
    """Null counts as 0, and other numbers are taken modulo the number of partitions."""
    if by_hash:
        monkeypatch.setattr(compat, "HAS_REPARTITION_BY_ID", False)
    number = F.when(F.col("id") == 5, None).otherwise(F.col("id") - 3).cast("int")
    placed = in_partitions(spark.range(100, numPartitions=3), 7, number)
    assert placed.rdd.getNumPartitions() == 7
    found = placed.select("id", F.spark_partition_id().alias("place")).collect()
    assert {row.id: row.place for row in found} == {
        at: 0 if at == 5 else (at - 3) % 7 for at in range(100)
    }


def _one_row(_: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    yield RecordBatch.from_pydict({"n": [1]})


@pytest.mark.long_cases("before")
@pytest.mark.parametrize("is_known", [False, True], ids=["when it runs", "before"])
def test_a_frame_without_rows_keeps_its_partitions(spark: SparkSession, is_known: bool) -> None:
    """Each partition has a task, whether or not Spark knows before it runs that no row exists."""
    rows = spark.createDataFrame([], "id long") if is_known else spark.range(9).where("rand() > 1")

    def tasks() -> int:
        placed = in_partitions(rows, 5, F.col("id").cast("int")).sortWithinPartitions("id")
        return placed.mapInArrow(_one_row, "n long").count()

    before = spark.conf.get(RULES, None)
    with keep_empty_partitions(spark):
        assert tasks() == 5
    assert (tasks(), spark.conf.get(RULES, None)) == (0, before)


def test_schemas_survive_the_conversion(spark: SparkSession) -> None:
    columns = "a timestamp, b timestamp_ntz, c array<timestamp>, d decimal(20, 3), e string"
    schema = spark.sql("SELECT 1").to(spark.createDataFrame([], columns).schema).schema
    assert schema_of_arrow(arrow_schema_of(schema)) == schema


def test_a_session_of_spark_connect_is_refused() -> None:
    connected = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(
        InvalidArgumentError,
        match=r"partitioning .* Spark Classic .*: do this, or run the job",
    ):
        refuse_connect(connected, "partitioning a DataFrame", "do this")
    refuse_connect(object(), "anything else", "nothing")


def test_delta_is_available_for_some_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "INSTALLED", compat.NEWEST_WITH_DELTA)
    assert has_delta()
    monkeypatch.setattr(compat, "INSTALLED", (4, 3))
    assert not has_delta()
    with pytest.raises(MissingDependencyError, match="Delta has no jar for Spark"):
        refuse_without_delta()
    monkeypatch.setattr(compat, "INSTALLED", compat.NEWEST_WITH_DELTA)
    monkeypatch.setattr(compat, "find_spec", lambda _: None)
    assert not has_delta()


def test_an_old_spark_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_old_spark()
    monkeypatch.setattr(compat, "INSTALLED", (3, 5))
    with pytest.raises(MissingDependencyError, match=r"requires Spark 4\.0 or later, but this is"):
        refuse_old_spark()


def test_the_extra_for_delta_brings_a_spark_that_has_its_jar() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (needed,) = (text for text in requires("delta-spark") or () if text.startswith("pyspark"))
    bound = needed.removeprefix("pyspark").split(",")[0]
    assert bound.startswith("<=")
    assert f"pyspark{bound}" in extras["optional-dependencies"]["delta-spark"]
