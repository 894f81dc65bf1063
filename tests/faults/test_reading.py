"""Every read command, interrupted at any storage call: I4, I10."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from statestore import OperatorKey
from statestore.errors import StorageError
from statestore.storage import LocalStorage
from statestore.store import StateStore
from statestore.testing.faults import Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import data_files, over, rows_of

pytestmark = pytest.mark.slow

Command = Callable[[StateStore, Path], Any]
UNTOUCHED = {"put_if_absent", "open_write", "write", "sync", "delete"}


def subtask(store: StateStore, folder: Path) -> Any:
    keyed = store.restore(parallelism=2).keyed("users", "totals")
    return [rows_of(keyed.to_arrow(i)) for i in range(2)]


def checked_subtask(store: StateStore, folder: Path) -> Any:
    keyed = store.restore(parallelism=1, verify=True).keyed("users", "routes")
    return rows_of(keyed.to_arrow(0))


def get(store: StateStore, folder: Path) -> Any:
    return store.restore().keyed("users", "recent").get("u1")


def operator(store: StateStore, folder: Path) -> Any:
    restored = store.restore(parallelism=1)
    names = ("offsets", "splits", "rules")
    return [restored.operator_state("source", name).subtask(0) for name in names]


def plan(store: StateStore, folder: Path) -> Any:
    return store.plan(parallelism=2)


def show(store: StateStore, folder: Path) -> Any:
    return store.checkpoints(), store.checkpoint().manifest


def verify(store: StateStore, folder: Path) -> Any:
    report = store.maintenance.verify(deep=True)
    assert report.is_intact
    return report


def diff(store: StateStore, folder: Path) -> Any:
    return store.inspect.diff(1, 1)


def salvage_of_what_is_intact(store: StateStore, folder: Path) -> Any:
    report = store.maintenance.salvage(1)
    assert report.is_intact
    return report


def find_key(store: StateStore, folder: Path) -> Any:
    search = store.maintenance.find_subject(OperatorKey("users", "a"))
    assert search.found
    return search


def plan_of_a_purge(store: StateStore, folder: Path) -> Any:
    return store.maintenance.forget(OperatorKey("users", "a"), search=False, dry_run=True)


def plan_of_an_edit(store: StateStore, folder: Path) -> Any:
    return store.maintenance.edit(
        "users", "totals", delete=["a"], put=[{"user": "b", "n": 1}], dry_run=True
    )


def restore_to(store: StateStore, folder: Path) -> Any:
    store.restore(parallelism=2).export(folder / "out")
    return exported(folder / "out")


def exported(folder: Path) -> Any:
    """Return the rows of every file of an export."""
    files = sorted(folder.rglob("*.parquet"))
    return {str(f.relative_to(folder)): rows_of(pq.ParquetFile(f).read()) for f in files}


COMMANDS = [
    subtask,
    checked_subtask,
    get,
    operator,
    plan,
    show,
    verify,
    restore_to,
    find_key,
    plan_of_a_purge,
    plan_of_an_edit,
    diff,
    salvage_of_what_is_intact,
]


@pytest.mark.long_cases("verify-FaultKind.ERROR", "operator-FaultKind.ERROR")
@pytest.mark.parametrize(
    ("command", "kind"),
    [
        pytest.param(command, kind, marks=[] if kind is FaultKind.ERROR else pytest.mark.long)
        for command in COMMANDS
        for kind in (FaultKind.ERROR, FaultKind.DISCONNECTED, FaultKind.ANSWER_LOST)
    ],
)
def test_a_command_that_fails_can_be_run_again(
    base: Path, fast_path: Path, command: Command, kind: FaultKind
) -> None:
    """I10: at every call the error is a StorageError, and the store and the restore target are
    unchanged. The same command then returns the right result.
    """
    before = data_files(base)
    answers: list[Any] = []
    calls = calls_of(
        LocalStorage(str(base)), lambda s: answers.append(command(over(s), fast_path / "right"))
    )
    for call in calls:
        folder = fast_path / str(call.number)
        lasting = kind is FaultKind.DISCONNECTED
        storage = FaultyStorage(LocalStorage(str(base)), Fault(call.number, kind, lasting))
        if call.operation == "close":  # everything was read, so the fault has no effect
            with suppress(StorageError):
                command(over(storage), folder)
        else:
            with pytest.raises(StorageError):
                command(over(storage), folder)
            assert list((folder / "out").glob("*")) == [], call
        assert data_files(base) == before
        again = folder / "again"
        assert command(over(LocalStorage(str(base))), again) == answers[0], call


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_reading_changes_nothing_and_waits_for_slow_storage(
    base: Path, fast_path: Path, command: Command
) -> None:
    """I4: readers issue no write call, so they work on a read-only store."""
    right = command(over(LocalStorage(str(base))), fast_path / "right")
    fault = Fault(1, FaultKind.DELAYED, lasting=True, seconds=0.002)
    storage = FaultyStorage(LocalStorage(str(base)), fault)
    assert command(over(storage), fast_path / "slow") == right
    assert not UNTOUCHED & {call.operation for call in storage.calls}
