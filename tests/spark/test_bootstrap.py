"""A DataFrame of Spark becomes a state of a store."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.errors import DuplicateKeyError, InvalidArgumentError, NullKeyError
from statestore.interop.flink_plans import bootstrap_flink_state, read_flink_plan
from tests.interop.flink.goldens import FOLDER


def test_a_dataframe_becomes_a_state(spark: SparkSession, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    frame = spark.range(100).selectExpr("id AS k", "id * 2 AS v")
    made = store.bootstrap("u", "s", frame, key="k", max_parallelism=8)
    assert (made.rows, made.new_checkpoint_id) == (100, 1)
    assert store.restore(parallelism=2).keyed("u", "s").to_spark().count() == 100
    with pytest.raises(InvalidArgumentError, match="checked only while they are written"):
        store.bootstrap("u", "more", frame, key="k", dry_run=True)


def test_a_dataframe_is_not_taken_for_a_state_of_a_flink_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    plan = read_flink_plan(str(FOLDER / "2.3_plan.json"))
    frame = spark.range(2).selectExpr("'a' AS user_id", "'b' AS city")
    with pytest.raises(InvalidArgumentError, match="cannot be a DataFrame of Spark: write them as"):
        bootstrap_flink_state(store, plan, "7_join", "right-records", frame)


def test_rows_that_no_state_can_have_are_named(spark: SparkSession, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    nulls = spark.range(4).selectExpr("nullif(id, 2) AS k", "id AS v")
    with pytest.raises(NullKeyError, match=r"1 row .*such as {'k': None, 'v': 2}") as caught:
        store.bootstrap("u", "s", nulls, key="k", max_parallelism=8)
    assert (caught.value.rows, len(caught.value.examples)) == (1, 1)
    twice = spark.range(8).selectExpr("id % 4 AS k", "id AS v")
    with pytest.raises(DuplicateKeyError, match=r"same identity \{'k': "):
        store.bootstrap("u", "s", twice, key="k", max_parallelism=8)
    assert store.checkpoints() == ()
