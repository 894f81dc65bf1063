"""A salvage that is interrupted at any storage call: I4, I10."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from statestore.errors import StateStoreError
from statestore.format.state import Layout
from statestore.storage import LocalStorage
from statestore.store import StateStore
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, data_files, rows_of, steps, with_every_call

pytestmark = pytest.mark.slow

DAMAGED = 2
IN_EACH_RUN = {
    (FaultKind.ERROR, Layout.RANGED),
    (FaultKind.ANSWER_WRONG, Layout.RANGED),
    (FaultKind.TRUNCATED, Layout.PARTITIONED),
}


def over(storage: Any, layout: str = "partitioned") -> StateStore:
    return StateStore.open(storage, table_format="parquet", layout=layout)


def make_damaged(folder: Path, layout: str) -> None:
    """Take two checkpoints, and damage a file of each kind in the second: one byte or the whole
    file.
    """
    store = over(LocalStorage(str(folder)), layout)
    for number in (1, 2):
        rows = [{"user": f"u{i}", "n": i * number} for i in range(12)]
        with store.snapshot(parallelism=1) as checkpoint:
            for name in ("totals", "others"):
                checkpoint.write_keyed("users", name, rows, key="user", max_parallelism=2)
            checkpoint.write_union("source", "offsets", [[{"offset": number}]])
            checkpoint.write_split("source", "splits", [[{"split": number}]])
    for entry in store.checkpoint(DAMAGED).manifest.entries:
        file = folder / entry.table.path / entry.handles[0].path
        raw = file.read_bytes()
        if entry.state.name in ("totals", "offsets"):
            file.write_bytes(raw[:-1])
        elif entry.state.name == "others":  # its rows are readable and are rewritten
            file.write_bytes(raw.replace(b"parquet-cpp-arrow", b"parquet-cpp-arroz"))


def content(store: StateStore, checkpoint: int) -> Any:
    """Return the rows of all states, and check the digests."""
    restored = store.restore(checkpoint=checkpoint, parallelism=1, verify=True)
    keyed = [rows_of(restored.keyed("users", name).to_arrow(0)) for name in ("totals", "others")]
    names = ("offsets", "splits")
    return keyed, [restored.operator_state("source", name).per_old_subtask() for name in names]


@pytest.mark.long_cases("FaultKind.ANSWER_WRONG-ranged-steps")
@with_every_call
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        pytest.param(kind, layout, marks=[] if (kind, layout) in IN_EACH_RUN else pytest.mark.long)
        for kind in FaultKind
        if kind is not FaultKind.KILLED
        for layout in Layout
    ],
)
def test_a_salvage_that_failed_at_any_call_can_be_run_again(
    fast_path: Path, layout: Layout, kind: FaultKind, every_call: bool
) -> None:
    """I10: existing checkpoints are unchanged, a visible checkpoint is complete, and a second run
    of the command succeeds.
    """
    base = fast_path / "base"
    make_damaged(base, layout)
    before = data_files(base)
    counted = copy_of(base, fast_path / "counted")
    done = LocalStorage(str(counted))
    calls = calls_of(
        done, lambda storage: over(storage).maintenance.salvage(DAMAGED, from_older=True)
    )
    right = content(over(done), 3)
    assert right[1] == [[[{"offset": 1}]], [[{"split": 2}]]]
    for call in steps(calls, every_call):
        fault = Fault(call.number, kind, kind is FaultKind.DISCONNECTED)
        if not fault.strikes(call):
            continue
        folder = copy_of(base, fast_path / "copy")
        storage = FaultyStorage(LocalStorage(str(folder)), fault)
        with suppress(StateStoreError):  # a truncated file is found before the commit
            over(storage).maintenance.salvage(DAMAGED, from_older=True)
        found = data_files(folder)
        assert {name: found[name] for name in before} == before, call
        again = over(LocalStorage(str(folder)))
        for number in again.checkpoints()[2:]:
            assert content(again, number) == right, call
        new = again.maintenance.salvage(DAMAGED, from_older=True).new_checkpoint_id
        assert new is not None
        assert content(again, new) == right, call
