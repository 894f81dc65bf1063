"""A ``StatefulProcessor`` on a store behaves as on Spark's own ``transformWithState``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore.streaming import MicroBatch
from statestore.streaming.processor_states import INDEX
from tests.interop.spark.queries import events, settings
from tests.streaming.processors import PROCESSORS
from tests.streaming.spark_runs import (
    RECORDED_FILES,
    Pair,
    is_recorded_in_pandas,
    recorded_run,
)

pytestmark = pytest.mark.spark

FILES = 4
IN_EACH_RUN = ("sessions", "alarms", "once", "funnel", "clocked", "lives", "kinds")
"""Each kind of state, with and without a TTL, each kind of timer, and values of each type."""


@pytest.mark.long_cases("lives", "funnel", "alarms", "clocked", "once", "sessions")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_EACH_RUN else pytest.mark.long)
        for name in PROCESSORS
    ],
)
def test_a_processor_behaves_as_recorded_on_spark(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Compared with a recorded run: each micro-batch's output, and the final states and timers.

    Half of the processors use rows, the others pandas.
    """
    events(tmp_path / "events", 0, RECORDED_FILES)
    pair, golden = Pair(spark, tmp_path, name, is_recorded_in_pandas(name)), recorded_run(name)
    process(pair, golden.planned, golden.emitted)
    assert states_of(pair, golden.planned[-1]) == golden.states


@pytest.mark.long
@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_a_processor_behaves_as_on_spark(
    spark: SparkSession, tmp_path: Path, name: str, pandas: bool
) -> None:
    """After every micro-batch the output, the states and the timers are the same."""
    events(tmp_path / "events", 0, FILES)
    pair = Pair(spark, tmp_path, name, pandas)
    expected = pair.on_spark()
    for batch in pair.planned():
        process(pair, [batch], expected)
        assert states_of(pair, batch) == pair.on_spark_after(batch.number), batch.number


def process(pair: Pair, batches: Iterable[MicroBatch], expected: dict[int, list[str]]) -> None:
    """Process micro-batches at a parallelism that changes each time, and compare their output."""
    query = pair.query()
    with settings(pair.spark, {"spark.sql.session.timeZone": "UTC"}):
        for batch, frame in pair.frames(batches):
            number = batch.number
            replace(query, parallelism=1 + number % 3).process(frame, batch)
            assert pair.emitted.get(number, []) == expected.get(number, []), number


def states_of(pair: Pair, batch: MicroBatch) -> dict[str, list[str]]:
    """Return the states after a micro-batch; the index of the timers must match them."""
    states = pair.states(pair.store, "op", batch.planned_at_ms)
    assert timers(states.pop(INDEX, [])) == timers(states.get("timers", []))
    return states


def timers(rows: list[str]) -> list[tuple[Any, Any]]:
    return sorted((str(row["k"]), row["expiration"]) for row in map(json.loads, rows))
