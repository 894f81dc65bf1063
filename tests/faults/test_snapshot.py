"""A snapshot that is interrupted at any call of the storage, by any fault: I4, I5, I6, I10."""

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
    # In each run test_disks.py has a disk that is really full, and one that is read-only.
    pytest.param(FaultKind.FULL, True, marks=pytest.mark.long),
    pytest.param(FaultKind.READ_ONLY, True, marks=pytest.mark.long),
]


@pytest.fixture(scope="module")
def calls(base: Path, memory: Path) -> tuple[Call, ...]:
    """Every call that taking checkpoint 2 makes."""
    copy = copy_of(base, memory / "counted")
    return calls_of(LocalStorage(str(copy)), lambda storage: take(over(storage), 2))


def is_commit(call: Call, number: int = 2) -> bool:
    return (call.operation, call.name) == ("put_if_absent", manifest_path(number))


def commit_in(calls: tuple[Call, ...], number: int = 2) -> int:
    """Return the number of the call that commits."""
    (at,) = [call.number for call in calls if is_commit(call, number)]
    return at


def interrupted(folder: Path, fault: Fault, number: int = 2) -> StateStoreError | None:
    """Take a checkpoint with a fault; return the error that it ends with."""
    try:
        take(over(FaultyStorage(LocalStorage(str(folder)), fault)), number)
    except StateStoreError as error:
        return error
    return None


def test_the_manifest_is_put_once_and_last(calls: tuple[Call, ...]) -> None:
    """I5: no call changes anything after the commit, and every file was synced before."""
    after = calls[commit_in(calls) :]
    assert {call.operation for call in after} <= {"read", "list"}
    files = {call.name for call in calls if call.operation == "open_write"}
    assert len(files) == 6
    syncs = [call for call in calls if call.operation == "sync" and call.name]
    assert {name for call in syncs for name in call.name.split(", ")} == files


@with_every_call
@pytest.mark.parametrize(("kind", "lasting"), STOPPING)
def test_whatever_call_fails_nothing_is_half_visible(
    base: Path,
    fast_path: Path,
    calls: tuple[Call, ...],
    kind: FaultKind,
    lasting: bool,
    every_call: bool,
) -> None:
    """I4, I6, I10: the error is a StorageError, and checkpoint 1 is whole. Checkpoint 2 is
    invisible when the error came before its commit was done; from there on, the lost answer to
    the commit included, it is there, whole. The next one succeeds.
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
            assert data_files(folder) == before, call  # it could clean up
        settle(folder, (1, 2) if committed else (1,))


@pytest.mark.parametrize(
    "kind", [FaultKind.TRUNCATED, pytest.param(FaultKind.ANSWER_WRONG, marks=pytest.mark.long)]
)
@with_every_call
def test_a_file_that_lost_bytes_does_not_get_into_a_checkpoint(
    base: Path, fast_path: Path, calls: tuple[Call, ...], kind: FaultKind, every_call: bool
) -> None:
    """I5: nobody was told when it was written; the sizes asked for before the commit tell."""
    for call in steps(calls, every_call):
        if call.operation == "write":
            folder = copy_of(base, fast_path / "store")
            error = interrupted(folder, Fault(call.number, kind))
            assert isinstance(error, CorruptionError), call
            assert call.name.rpartition("-")[0] in str(error)
            settle(folder, (1,))


def test_a_wrong_answer_to_a_put_is_found_out(
    base: Path, fast_path: Path, calls: tuple[Call, ...]
) -> None:
    """I4: no writer goes on as if its claim or its checkpoint were there, and nothing is stuck."""
    puts = [call for call in calls if call.operation == "put_if_absent"]
    assert is_commit(puts[-1])
    for call in puts:
        folder = copy_of(base, fast_path / "store")
        error = interrupted(folder, Fault(call.number, FaultKind.ANSWER_WRONG))
        assert isinstance(error, StorageError), call
        assert f"{folder}/{call.name}: the file system answered that it was written" in str(error)
        settle(folder, (1,))


def test_a_wrong_answer_while_a_store_is_made_leaves_a_place_to_begin(fast_path: Path) -> None:
    """I10: also when the store's own file is not there after all."""
    counted = calls_of(LocalStorage(str(fast_path / "counted")), lambda s: take(over(s), 1))
    puts = [call for call in counted if call.operation == "put_if_absent"]
    assert "statestore.json" in [call.name for call in puts]
    for call in puts:
        folder = fast_path / f"store {call.number}"
        fault = Fault(call.number, FaultKind.ANSWER_WRONG)
        assert isinstance(interrupted(folder, fault, 1), StorageError), call
        settle(folder, ())


def test_a_slow_storage_changes_nothing(base: Path, fast_path: Path) -> None:
    """Every call takes long, and all is well."""
    folder = copy_of(base, fast_path / "store")
    fault = Fault(1, FaultKind.DELAYED, lasting=True, seconds=0.002)
    assert interrupted(folder, fault) is None
    settle(folder, (1, 2))


def test_a_reader_at_any_moment_sees_whole_checkpoints(base: Path, fast_path: Path) -> None:
    """I4: between any two calls of the writer only checkpoint 1 is visible, then both."""
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
def test_a_first_snapshot_that_fails_leaves_a_place_to_begin(
    fast_path: Path, kind: FaultKind
) -> None:
    """I10: the store itself is made by the same run; afterwards checkpoint 1 is the first."""
    counted = calls_of(LocalStorage(str(fast_path / "counted")), lambda s: take(over(s), 1))
    # As far as the first file; from there on it is as any other snapshot.
    beginning = next(call.number for call in counted if call.operation == "open_write")
    commit = commit_in(counted, 1)
    for call in (*counted[:beginning], *counted[commit - 1 :]):
        folder = fast_path / f"store {call.number}"
        fault = Fault(call.number, kind, lasting=kind is FaultKind.DISCONNECTED)
        assert isinstance(interrupted(folder, fault, 1), StorageError), call
        done = call.number + (kind is FaultKind.ANSWER_LOST) > commit
        settle(folder, (1,) if done else ())
