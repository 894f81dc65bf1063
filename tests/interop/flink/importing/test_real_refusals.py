"""Unsupported state of real Flink is refused by name, or dropped on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.interop.flink import FlinkOperator, open_savepoint, show_savepoint
from statestore.interop.flink.read.refusals import Refused
from tests.servers.flink import Flink

pytestmark = [pytest.mark.flink, pytest.mark.long]
NEWEST = "2.3.0"
HEAP_TIMERS = {
    "state.backend.type": "rocksdb",
    "state.backend.rocksdb.timer-service.factory": "HEAP",
    "execution.checkpointing.incremental": "true",
}
STEP = {"events": "60", "parallelism": "2"}


def of_async(place: str, *drop: Refused) -> FlinkOperator:
    return open_savepoint(place, drop=drop).operator("async")


def test_asynchronous_state_of_forst(tmp_path: Path) -> None:
    """Its backend writes no canonical savepoint. Native ones have raw state without timers."""
    step = {"do": "savepoint", "to": str(tmp_path), "format": "NATIVE"}
    flink = Flink(NEWEST, "golden.Async", "async")
    (place,) = flink.run([STEP | step | {"state.backend.type": "forst"}])
    for drop in ((), (Refused.RAW,)):
        problem = of_async(place, *drop).problem
        assert "state 'last' of the asynchronous API (V2)" in str(problem)
    dropped = of_async(place, *Refused)
    assert (dropped.problem, list(dropped.entries())) == (None, [])
    assert {state.kind for state in dropped.states} == {"timers"}


def test_timers_on_the_heap_with_rocksdb(tmp_path: Path) -> None:
    """A native savepoint loses these timers, and a checkpoint contains them as raw state."""
    step = {"do": "savepoint", "to": str(tmp_path / "s"), "format": "NATIVE"}
    (place,) = Flink(NEWEST).run([STEP | step | HEAP_TIMERS])
    shown = {operator.uid: operator for operator in show_savepoint(place).operators}
    for uid in ("sums", "lists", "sessions"):
        assert (
            shown[uid]
            .warnings[0]
            .startswith("the timers of its windows are missing because they were on")
        )
    for uid in ("kinds", "by_long", "by_tuple"):
        assert (
            shown[uid].warnings[0].startswith("it has no timers; if the job has timers on the heap")
        )
    assert shown["parts"].warnings == ()
