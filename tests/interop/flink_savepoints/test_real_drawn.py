"""Drawn jobs: what real Flink restores is the same before and after an import and an export."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings

from statestore.interop.flink_savepoints import export_savepoint, import_savepoint
from statestore.store import StateStore
from tests.interop.flink_savepoints.drawn import Cluster, Move, moves
from tests.interop.flink_savepoints.test_real_flink import NEWEST, OLDER, comparable, read
from tests.servers.flink_server import FlinkServer, flink_server

pytestmark = pytest.mark.flink
FEW, MANY = 3, 200
# The fixtures of the test are the same for all its examples.
SHARED = settings(
    deadline=None, print_blob=True, suppress_health_check=[*HealthCheck], database=None
)


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkServer]:
    """Run the newest version of Flink for all draws of this module."""
    with flink_server(NEWEST, tmp_path_factory.mktemp("newest")) as server:
        yield server


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlinkServer]:
    """Run the oldest version of Flink for all draws of this module."""
    with flink_server(OLDER, tmp_path_factory.mktemp("older")) as server:
        yield server


@given(move=moves())
@settings(SHARED, max_examples=FEW)
def test_flink_restores_drawn_state(newest: FlinkServer, move: Move) -> None:
    check(newest, move)


@pytest.mark.long
@pytest.mark.timeout(3600)
@given(move=moves())
@settings(SHARED, max_examples=MANY)
def test_flink_restores_many_drawn_states(newest: FlinkServer, move: Move) -> None:
    check(newest, move)


@pytest.mark.long
@pytest.mark.timeout(3600)
@given(move=moves())
@settings(SHARED, max_examples=MANY)
def test_flink_1_restores_many_drawn_states(older: FlinkServer, move: Move) -> None:
    check(older, move)


def check(server: FlinkServer, move: Move) -> None:
    """Let Flink write a savepoint, move it, and compare what Flink restores from both."""
    folder = Path(mkdtemp(prefix="drawn-"))
    try:
        plan = folder / "plan.json"
        plan.write_text(json.dumps(move.plan()))
        size = max(len(operator.events) for operator in move.operators)
        step = _words(move.before) | {"do": "savepoint", "plan": str(plan), "to": str(folder)}
        written = server.run(step | {"events": str(size), "format": move.format})
        assert written is not None
        expected = restored(server, move, written, move.before, folder)
        # Each operator has at least its key's values or timers if an event has any.
        has_rows = any(
            any(value is not None for value in event.values)
            or event.event_timers
            or event.processing_timers
            for operator in move.operators
            for event in operator.events
        )
        assert bool(expected) == has_rows
        store = StateStore.open(str(folder / "store"))
        # Keys without a column form are imported as bytes, and must be exported all the same.
        assert import_savepoint(written, store).left_out == ()
        moved = str(folder / "moved")
        export_savepoint(
            store, moved, parallelism=move.written, max_parallelism=move.after.max_parallelism
        )
        assert restored(server, move, moved, move.after, folder) == expected
    finally:
        shutil.rmtree(folder)


def restored(
    server: FlinkServer, move: Move, savepoint: str, cluster: Cluster, folder: Path
) -> Counter[str]:
    """Return the rows that Flink restores from a savepoint, without their key groups."""
    rows = folder / "rows.jsonl"
    step = _words(cluster) | {"do": "dump", "plan": str(folder / "plan.json")}
    step |= {"from": savepoint, "to": str(rows), "operators": str(len(move.operators))}
    server.run(step)
    return comparable(row for row in read(rows) if row["operator"] != "numbers")


def _words(cluster: Cluster) -> dict[str, str]:
    return {
        "state.backend.type": cluster.backend,
        "parallelism": str(cluster.parallelism),
        "max": str(cluster.max_parallelism),
    }
