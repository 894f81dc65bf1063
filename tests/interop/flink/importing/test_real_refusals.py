"""Unsupported state of real Flink is refused by name, or dropped on request."""

from __future__ import annotations

from pathlib import Path

import pytest

from statestore.interop.flink import show_savepoint
from tests.servers.flink import Flink

pytestmark = [pytest.mark.flink, pytest.mark.long]
NEWEST = "2.3.0"
HEAP_TIMERS = {
    "state.backend.type": "rocksdb",
    "state.backend.rocksdb.timer-service.factory": "HEAP",
    "execution.checkpointing.incremental": "true",
}
STEP = {"events": "60", "parallelism": "2"}


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
