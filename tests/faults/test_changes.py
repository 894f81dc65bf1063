"""Incremental snapshots and compactions that any fault interrupts at any storage call: I4, I5, I6,
I10.
"""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from statestore.errors import CorruptionError, StorageError
from statestore.format.layers import CompactionRule
from statestore.format.names import manifest_path
from statestore.storage import LocalStorage, Storage
from statestore.store import StateStore
from statestore.testing.faults import Call, Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, data_files, steps, with_every_call
from tests.support.stores import values_in

pytestmark = pytest.mark.slow

BASE = {f"u{i}": i for i in range(6)}
STATES = {1: BASE, 2: BASE | {"u1": 10}, 3: {k: v for k, v in BASE.items() if k != "u2"}}
RULES = {"compact": None, "changes": None, "folded": CompactionRule(share=0, most_share=0)}
CASES = [
    *((FaultKind.ERROR, what) for what in RULES),
    pytest.param(FaultKind.ANSWER_LOST, "compact", marks=pytest.mark.long),
    (FaultKind.TRUNCATED, "folded"),
]


def over(storage: Storage, what: str) -> StateStore:
    return StateStore.open(storage, table_format="parquet", compaction=RULES[what])


def rows(state: dict[str, int]) -> list[dict[str, object]]:
    return [{"k": k, "v": v} for k, v in state.items()]


def run(storage: Storage, what: str) -> None:
    """Take the next checkpoint, from changes or by a compaction of the last one."""
    store = over(storage, what)
    if what == "compact":
        store.maintenance.compact(everything=True)
        return
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes_against("u", "s", rows(STATES[3]), base=1, key="k")


@pytest.fixture(scope="module")
def layered(memory: Path) -> Path:
    """A store with a full checkpoint and an incremental one."""
    folder = memory / "layered"
    store = over(LocalStorage(str(folder)), "changes")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows(BASE), key="k", max_parallelism=2, layout="ranged")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", [{"k": "u1", "v": 10}], key="k")
    return folder


def whole(folder: Path, what: str) -> tuple[int, ...]:
    """Assert that every visible checkpoint has its rows; return the ids."""
    store = over(LocalStorage(str(folder)), what)
    wanted = STATES | ({3: STATES[2]} if what == "compact" else {})
    for number in store.checkpoints():
        assert values_in(store, checkpoint=number, verify=True) == wanted[min(number, 3)]
    assert store.maintenance.verify("all", deep=True).is_intact
    return store.checkpoints()


def is_commit(call: Call) -> bool:
    return (call.operation, call.name) == ("put_if_absent", manifest_path(3))


@pytest.mark.long_cases("FaultKind.ERROR-compact-steps", "FaultKind.ERROR-folded-steps")
@with_every_call
@pytest.mark.parametrize(("kind", "what"), CASES)
def test_no_failed_call_leaves_a_partially_visible_checkpoint(
    layered: Path, fast_path: Path, kind: FaultKind, what: str, every_call: bool
) -> None:
    """Earlier checkpoints are intact, the new one is complete or invisible, and a retry
    succeeds.
    """

    def attempt(storage: Storage) -> None:
        run(storage, what)

    counted = copy_of(layered, fast_path / "counted")
    calls = calls_of(LocalStorage(str(counted)), attempt)
    (commit,) = [call.number for call in calls if is_commit(call)]
    struck = 0
    for call in steps(calls, every_call):
        fault = Fault(call.number, kind)
        if not fault.strikes(call):
            continue
        struck += 1
        folder = copy_of(layered, fast_path / "store")
        before = data_files(folder)
        # The writer deletes leftover files after the commit. If a delete fails, gc deletes them
        # later.
        fails = call.number <= commit or call.operation != "delete"
        expected = pytest.raises((StorageError, CorruptionError)) if fails else nullcontext()
        with expected:
            attempt(FaultyStorage(LocalStorage(str(folder)), fault))
        visible = whole(folder, what)
        assert visible in ((1, 2), (1, 2, 3)), call
        # After the commit call the manifest may exist, so its files stay.
        if call.number < commit and call.operation != "open_write":
            assert data_files(folder) == before, call
        attempt(LocalStorage(str(folder)))
        assert whole(folder, what)[-1] >= visible[-1]
    assert struck > 0
    shutil.rmtree(fast_path / "store")
