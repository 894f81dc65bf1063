"""Drawn jobs: what real Flink restores is the same before and after an import and an export."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statestore.interop.flink import SavepointHints, export_savepoint, import_savepoint
from statestore.jobgraph.operators import operator_id
from statestore.store import StateStore
from tests.interop.flink.drawn import FEATURES, VALUE_NAMES, Cluster, Move, State, moves
from tests.interop.flink.test_real_flink import NEWEST, OLDER, comparable, read
from tests.servers.flink import Flink
from tests.servers.flink_server import FlinkServer, flink_server

pytestmark = pytest.mark.flink
FEW, EACH = 3, 7
MANY = EACH * len(VALUE_NAMES)
"""The draws of a version in ``make nightly``."""
# The fixtures of the test are the same for all its examples.
SHARED = settings(
    deadline=None, print_blob=True, suppress_health_check=[*HealthCheck], database=None
)


class Draws:
    """A server, and how often each feature was drawn for it."""

    def __init__(self, server: FlinkServer) -> None:
        self.server, self.count, self.features = server, 0, Counter[str]()

    def add(self, move: Move) -> None:
        """Count a move that passed."""
        self.count += 1
        self.features.update(set(move.features()))

    def check(self) -> None:
        """Check that a whole run drew each feature."""
        assert self.features.keys() <= FEATURES
        if self.count >= MANY:
            assert not FEATURES - self.features.keys(), self.features


@contextmanager
def draws(version: str, folder: Path) -> Iterator[Draws]:
    """Run a version of Flink for the draws of a module."""
    with flink_server(Flink(version), folder) as server:
        drawn = Draws(server)
        yield drawn
    drawn.check()


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Draws]:
    """Run the newest version of Flink."""
    with draws(NEWEST, tmp_path_factory.mktemp("newest")) as drawn:
        yield drawn


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Draws]:
    """Run the oldest version of Flink."""
    with draws(OLDER, tmp_path_factory.mktemp("older")) as drawn:
        yield drawn


@pytest.mark.long
@given(move=moves())
@settings(SHARED, max_examples=FEW)
def test_flink_restores_drawn_state(newest: Draws, move: Move) -> None:
    check(newest, move)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("forced", VALUE_NAMES)
@given(data=st.data())
@settings(SHARED, max_examples=EACH)
def test_flink_restores_many_drawn_states(newest: Draws, forced: str, data: st.DataObject) -> None:
    check(newest, data.draw(moves(forced)))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("forced", VALUE_NAMES)
@given(data=st.data())
@settings(SHARED, max_examples=EACH)
def test_flink_1_restores_many_drawn_states(older: Draws, forced: str, data: st.DataObject) -> None:
    check(older, data.draw(moves(forced)))


def check(drawn: Draws, move: Move) -> None:
    """Let Flink write a savepoint, move it, and compare what Flink restores from both."""
    folder = Path(mkdtemp(prefix="drawn-"))
    try:
        _check(drawn.server, move, folder)
    finally:
        shutil.rmtree(folder)
    drawn.add(move)


def _check(server: FlinkServer, move: Move, folder: Path) -> None:
    plan = folder / "plan.json"
    plan.write_text(json.dumps(move.plan()))
    size = max(len(operator.events) for operator in move.operators)
    step = _words(move.before) | {"do": "savepoint", "plan": str(plan), "to": str(folder)}
    written = server.run(step | {"events": str(size), "format": move.format})
    assert written is not None
    store = StateStore.open(str(folder / "store"))
    moved = str(folder / "moved")
    server.start(_dump(move, written, move.before, folder))
    try:
        _move(move, written, store, moved)
    finally:
        server.finish()
    rows = read(folder / "rows.jsonl")
    _compare_ttl(move, rows, store)
    server.run(_dump(move, moved, move.after, folder))
    assert comparable(_living(move, read(folder / "rows.jsonl"))) == comparable(_living(move, rows))
    # Each operator has at least its key's values or timers if an event has any.
    has_rows = any(
        any(value is not None for value in event.values)
        or event.event_timers
        or event.processing_timers
        for operator in move.operators
        for event in operator.events
    )
    assert any(row["operator"] != "numbers" for row in rows) == has_rows


def _move(move: Move, savepoint: str, store: StateStore, moved: str) -> None:
    """Import a savepoint, and export it to the folder ``moved``."""
    ttl = {
        f"{operator.uid}/{state.name}": timedelta(milliseconds=state.ttl.millis)
        for operator in move.operators
        for state in operator.states
        if state.ttl is not None and state.ttl.in_store
    }
    # Savepoints of Flink 1 have no uids.
    uids = {operator_id(operator.uid): operator.uid for operator in move.operators}
    imported = import_savepoint(savepoint, store, hints=SavepointHints(uids=uids, ttl=ttl or None))
    # Keys without a column form are imported as bytes, and must be exported all the same.
    assert imported.left_out == ()
    export_savepoint(
        store, moved, parallelism=move.written, max_parallelism=move.after.max_parallelism
    )


def _dump(move: Move, savepoint: str, cluster: Cluster, folder: Path) -> dict[str, str]:
    """Return the step that writes the rows that Flink restores from a savepoint."""
    step = _words(cluster) | {"do": "dump", "plan": str(folder / "plan.json"), "from": savepoint}
    return step | {"to": str(folder / "rows.jsonl"), "operators": str(len(move.operators))}


def _living(move: Move, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows of drawn operators without keys of which all has expired."""
    kinds = {
        (operator.uid, state.name): state.kind
        for operator in move.operators
        for state in operator.states
        if state.ttl is not None and state.ttl.shows == "living"
    }
    for row in rows:
        if row["operator"] == "numbers":
            continue
        kind = kinds.get((row["operator"], row.get("state", "")))
        has_items = kind in ("list", "map")
        if kind is None or (row["value"] is not None and (row["value"] or not has_items)):
            yield row


def _compare_ttl(move: Move, rows: list[dict[str, Any]], store: StateStore) -> None:
    """Compare the times of last access, and the number of living rows, with the store's rows."""
    restored = store.restore()
    for operator in move.operators:
        for state in operator.states:
            if state.ttl is None:
                continue
            items = [*_items(rows, operator.uid, state)]
            table = restored.keyed(operator.uid, state.name)
            if state.ttl.shows == "times":
                times = Counter(table.to_arrow()["last_access"].to_pylist())
                assert times == Counter(item["time"] for item in items)
            elif state.ttl.in_store:
                assert len(table.to_arrow()) == len(items)


def _items(rows: Iterable[Mapping[str, Any]], uid: str, state: State) -> Iterator[Any]:
    """Yield the values of a state in a dump: elements of a list, values of a map's entries."""
    for row in rows:
        if (row["operator"], row.get("state")) != (uid, state.name):
            continue
        value = row["value"]
        if state.kind == "list":
            yield from value
        elif state.kind == "map":
            yield from (item for _, item in value)
        elif value is not None:
            yield value


def _words(cluster: Cluster) -> dict[str, str]:
    return {
        "state.backend.type": cluster.backend,
        "parallelism": str(cluster.parallelism),
        "max": str(cluster.max_parallelism),
    }
