"""A sample of the histories with Spark: DataFrames as input, Spark's and Delta's readers, both
formats.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.fuzz.draws import draw_history
from tests.fuzz.history import Given, History, code
from tests.fuzz.outside import DELTA
from tests.fuzz.run import ALL, Runner, failures
from tests.fuzz.spark import SPARK

pytestmark = pytest.mark.slow

WRITERS = ("spark", "spark", "table", "stream")


def drawn(seed: int) -> History:
    history = draw_history(seed, writers=WRITERS, table_formats=("delta", "parquet"))
    steps = tuple(
        step
        if step.given.writer == "spark" or not hasattr(step, "rows")
        else dataclasses.replace(step, given=Given("spark", step.given.spell))
        for step in history.steps[:2]
    )
    return History(history.shape, steps)


@pytest.mark.long
@pytest.mark.parametrize("share", [1, 6])
def test_spark_agrees_with_a_dictionary(spark: SparkSession, share: int) -> None:
    beside = {name: ALL[name] for name in ("subtasks", "elements")}
    runner = Runner(spark, {**SPARK, **DELTA, **beside})
    found = failures(runner, range(1, 1 + share), drawn)
    for number, history, failure in found.values():
        pytest.fail(f"history {number}:\n{code(history)}\n{failure.text}")
    assert runner.histories == share
    assert runner.reads.keys() == runner.readers.keys()


@pytest.mark.long
def test_a_delta_table_is_read_by_its_path(spark: SparkSession, tmp_path: Path) -> None:
    """The readers of Delta tables compare at least one version: a history with one full snapshot
    has it.
    """
    history = draw_history(3, writers=("spark",), table_formats=("delta",))
    shape = dataclasses.replace(history.shape, ttl_ms=None)
    runner = Runner(spark, {**SPARK, **DELTA})
    runner.run(History(shape, history.steps[:1]), tmp_path)
    assert all(runner.reads[name] for name in DELTA)
