"""A snapshot that any fault interrupts at any storage call: I4, I5, I6, I10."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statestore.errors import CorruptionError, StateStoreError, StorageError
from statestore.format.names import manifest_path
from statestore.storage import LocalStorage
from statestore.testing.faults import Call, Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import (
    copy_of,
    data_files,
    over,
    settle,
    steps,
    take,
    whole,
    with_every_call,
)

pytestmark = pytest.mark.slow

STOPPING = [
    (FaultKind.ERROR, False),
    (FaultKind.ANSWER_LOST, False),
    (FaultKind.DISCONNECTED, True),
    # test_disks.py covers a really full disk and a read-only one in each run.
    pytest.param(FaultKind.FULL, True, marks=pytest.mark.long),
    pytest.param(FaultKind.READ_ONLY, True, marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def calls(base: Path, memory: Path) -> tuple[Call, ...]:
    """Every storage call of the snapshot that makes checkpoint 2."""
    copy = copy_of(base, memory / "counted")
    return calls_of(LocalStorage(str(copy)), lambda storage: take(over(storage), 2))


def is_commit(call: Call, number: int = 2) -> bool:
    return (call.operation, call.name) == ("put_if_absent", manifest_path(number))


def commit_in(calls: tuple[Call, ...], number: int = 2) -> int:
    """Return the number of the call that commits."""
    (at,) = [call.number for call in calls if is_commit(call, number)]
    return at


def interrupted(folder: Path, fault: Fault, number: int = 2) -> StateStoreError | None:
    """Take a checkpoint with a fault; return the error."""
    try:
        take(over(FaultyStorage(LocalStorage(str(folder)), fault)), number)
    except StateStoreError as error:
        return error
    return None


def test_the_manifest_is_put_once_and_last(calls: tuple[Call, ...]) -> None:
    """I5: no call after the commit changes anything, and every file was synced before it."""
    after = calls[commit_in(calls) :]
    assert {call.operation for call in after} <= {"read", "list"}
    files = {call.name for call in calls if call.operation == "open_write"}
    assert len(files) == 6
    syncs = [call for call in calls if call.operation == "sync" and call.name]
    assert {name for call in syncs for name in call.name.split(", ")} == files


@pytest.mark.long_cases("FaultKind.ANSWER_LOST-False-steps", "FaultKind.DISCONNECTED-True-steps")
@with_every_call
@pytest.mark.parametrize(("kind", "lasting"), STOPPING)
def test_no_failed_call_leaves_a_partially_visible_checkpoint(
    base: Path,
    fast_path: Path,
    calls: tuple[Call, ...],
    kind: FaultKind,
    lasting: bool,
    every_call: bool,
) -> None:
    """I4, I6, I10: the error is a StorageError, and checkpoint 1 is intact. Checkpoint 2 is
    invisible if the error occurred before its commit. If the commit succeeded, even without a
    response, it is visible and complete. The next snapshot succeeds.
    """
    before, commit = data_files(base), commit_in(calls)
    for call in steps(calls, every_call):
        if not Fault(call.number, kind).strikes(call):
            continue
        folder = copy_of(base, fast_path / "store")
        error = interrupted(folder, Fault(call.number, kind, lasting))
        assert isinstance(error, StorageError), call
        committed = call.number + (kind is FaultKind.ANSWER_LOST) > commit
        if not lasting and call.number < commit and call.operation != "open_write":
            assert data_files(folder) == before, call  # the cleanup was possible
        settle(folder, (1, 2) if committed else (1,))


@pytest.mark.parametrize(
    "kind", [FaultKind.TRUNCATED, pytest.param(FaultKind.ANSWER_WRONG, marks=pytest.mark.long)]
)
@with_every_call
def test_a_truncated_file_does_not_get_into_a_checkpoint(
    base: Path, fast_path: Path, calls: tuple[Call, ...], kind: FaultKind, every_call: bool
) -> None:
    """I5: the write reported no error, but the size check before the commit finds the
    difference.
    """
    for call in steps(calls, every_call):
        if call.operation == "write":
            folder = copy_of(base, fast_path / "store")
            error = interrupted(folder, Fault(call.number, kind))
            assert isinstance(error, CorruptionError), call
            assert call.name.rpartition("-")[0] in str(error)
            settle(folder, (1,))


def test_a_wrong_response_to_a_put_is_detected(
    base: Path, fast_path: Path, calls: tuple[Call, ...]
) -> None:
    """I4: no writer continues without its claim or its manifest, and no later run is blocked."""
    puts = [call for call in calls if call.operation == "put_if_absent"]
    assert is_commit(puts[-1])
    for call in puts:
        folder = copy_of(base, fast_path / "store")
        error = interrupted(folder, Fault(call.number, FaultKind.ANSWER_WRONG))
        assert isinstance(error, StorageError), call
        assert f"{folder}/{call.name}: the file system reported that the file was written" in str(
            error
        )
        settle(folder, (1,))


def test_a_wrong_response_during_store_creation_leaves_a_usable_location(fast_path: Path) -> None:
    """I10: even if the store's own file does not exist afterwards."""
    counted = calls_of(LocalStorage(str(fast_path / "counted")), lambda s: take(over(s), 1))
    puts = [call for call in counted if call.operation == "put_if_absent"]
    assert "statestore.json" in [call.name for call in puts]
    for call in puts:
        folder = fast_path / f"store {call.number}"
        fault = Fault(call.number, FaultKind.ANSWER_WRONG)
        assert isinstance(interrupted(folder, fault, 1), StorageError), call
        settle(folder, ())


def test_a_slow_storage_changes_nothing(base: Path, fast_path: Path) -> None:
    """Every call is slow, and the snapshot succeeds."""
    folder = copy_of(base, fast_path / "store")
    fault = Fault(1, FaultKind.DELAYED, lasting=True, seconds=0.002)
    assert interrupted(folder, fault) is None
    settle(folder, (1, 2))


def test_a_reader_at_any_moment_sees_whole_checkpoints(base: Path, fast_path: Path) -> None:
    """I4: between any two calls of the writer only checkpoint 1 is visible, and then both are."""
    folder = copy_of(base, fast_path / "store")
    reader = over(LocalStorage(str(folder)))
    seen: list[tuple[int, ...]] = []

    class Watched(FaultyStorage):
        def meet(self, operation: str, name: str, do: Any, wrong: Any = None) -> Any:
            result = super().meet(operation, name, do, wrong)
            seen.append(reader.checkpoints())
            for number in seen[-1][-1:]:
                whole(reader, number)
            return result

    take(over(Watched(LocalStorage(str(folder)))), 2)
    before = seen.count((1,))
    assert seen == [(1,)] * before + [(1, 2)] * (len(seen) - before)
    assert 0 < before < len(seen)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(FaultKind.ERROR, marks=pytest.mark.long),
        FaultKind.ANSWER_LOST,
        pytest.param(FaultKind.DISCONNECTED, marks=pytest.mark.long),
    ],
)
def test_a_failed_first_snapshot_leaves_a_usable_location(fast_path: Path, kind: FaultKind) -> None:
    """I10: the same run creates the store. The next run takes checkpoint 1."""
    counted = calls_of(LocalStorage(str(fast_path / "counted")), lambda s: take(over(s), 1))
    # Up to the first data file. After that it is like any other snapshot.
    beginning = next(call.number for call in counted if call.operation == "open_write")
    commit = commit_in(counted, 1)
    for call in (*counted[:beginning], *counted[commit - 1 :]):
        folder = fast_path / f"store {call.number}"
        fault = Fault(call.number, kind, lasting=kind is FaultKind.DISCONNECTED)
        assert isinstance(interrupted(folder, fault, 1), StorageError), call
        done = call.number + (kind is FaultKind.ANSWER_LOST) > commit
        settle(folder, (1,) if done else ())
