"""An edit that any fault interrupts at any storage call: I4, I5, I6, I10."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from statestore.errors import CorruptionError, StorageError
from statestore.format.names import manifest_path
from statestore.storage import LocalStorage
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import copy_of, data_files, over, steps, whole, with_every_call

if TYPE_CHECKING:
    from statestore.store import StateStore

pytestmark = pytest.mark.slow

CHANGES: dict[str, Any] = {
    "keys": {"delete": ["a"], "put": [{"user": "u1", "n": 7}]},
    "sql": {"sql": "SELECT user, 7 AS n FROM state WHERE user = 'u1'"},
}
CASES = [
    (FaultKind.ERROR, "keys"),
    (FaultKind.ANSWER_LOST, "keys"),
    (FaultKind.TRUNCATED, "keys"),
    pytest.param(FaultKind.ERROR, "sql", marks=pytest.mark.long),  # it commits as the others
]


def edit(store: StateStore, how: str) -> None:
    store.maintenance.edit("users", "totals", **CHANGES[how])


@pytest.mark.long_cases("FaultKind.ANSWER_LOST-keys-steps")
@with_every_call
@pytest.mark.parametrize(("kind", "how"), CASES)
def test_an_edit_that_failed_at_any_call_can_be_run_again(
    base: Path, fast_path: Path, kind: FaultKind, how: str, every_call: bool
) -> None:
    """The old checkpoint is intact, the new one is complete or invisible, and no orphan file
    remains.
    """
    counted = copy_of(base, fast_path / "counted")
    calls = calls_of(LocalStorage(str(counted)), lambda storage: edit(over(storage), how))
    (commit,) = [
        call.number
        for call in calls
        if (call.operation, call.name) == ("put_if_absent", manifest_path(2))
    ]
    struck = 0
    for call in steps(calls, every_call):
        fault = Fault(call.number, kind)
        if not fault.strikes(call):
            continue
        struck += 1
        folder = copy_of(base, fast_path / "store")
        before = data_files(folder)
        with pytest.raises((StorageError, CorruptionError)):
            edit(over(FaultyStorage(LocalStorage(str(folder)), fault)), how)
        store = over(LocalStorage(str(folder)))
        whole(store, 1)
        assert store.checkpoints() in ((1,), (1, 2)), call
        # After the commit call the manifest may exist, so its files stay.
        if call.number < commit and call.operation != "open_write":
            assert data_files(folder) == before, call
        edit(store, how)
        assert store.maintenance.verify("all", deep=True).is_intact, call
        keyed = store.restore(parallelism=1).keyed("users", "totals")
        assert keyed.get("u1") == [{"user": "u1", "n": 7}]
        assert keyed.get("a") == []
    assert struck > 0
