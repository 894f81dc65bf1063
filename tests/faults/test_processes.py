"""Kill the process with SIGKILL at any storage call: I4, I5, I6, I10. No JVM runs."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
from tests.faults.test_reading import restore_to
from tests.faults.test_snapshot import commit_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def dies(work: Callable[..., None], *runs: tuple[Any, ...]) -> list[bool]:
    """Run each in its own process; return which ones were killed. An error fails the test."""
    # Fork from a new process and not from this one, because Arrow's threads do not survive a fork.
    code = "from tests.faults.test_processes import fork_each; fork_each()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=pickle.dumps((work, runs)),
        capture_output=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    codes = [int(line) for line in done.stdout.split()]
    assert {*codes} <= {0, -signal.SIGKILL}, done.stderr.decode()
    return [code != 0 for code in codes]


def fork_each() -> None:
    """Read a function of a test module and the runs; print each run's exit code."""
    work, runs = pickle.load(sys.stdin.buffer)
    for arguments in runs:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(*arguments)
                code = 0
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


READING = ("read", "list", "listed", "size", "is_empty", "open_read", "read_range")


def with_few_writes(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return the calls, with only the first and last of each file's writes."""
    around = zip((None, *calls), calls, (*calls[1:], None), strict=False)
    return tuple(
        call
        for before, call, after in around
        if {each and each.operation for each in (before, call, after)} != {"write"}
    )


def that_differ(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return the calls at which a kill leaves a different result. Of consecutive reads this keeps
    one, and of a file's writes the first and the last.
    """
    calls = with_few_writes(calls)
    pairs = zip((None, *calls), calls, strict=False)
    return tuple(
        call
        for before, call in pairs
        if before is None or not {before.operation, call.operation} <= {*READING}
    )


def take_and_die(folder: Path, at: int, number: int) -> None:
    fault = Fault(at, FaultKind.KILLED)
    take(over(FaultyStorage(LocalStorage(str(folder)), fault)), number)


def export_and_die(folder: Path, to: Path, at: int) -> None:
    fault = Fault(at, FaultKind.KILLED)
    restore_to(over(FaultyStorage(LocalStorage(str(folder)), fault)), to)


def rename_and_die(folder: Path, to: Path, at: int) -> None:
    die_in("rename", at)
    restore_to(over(LocalStorage(str(folder))), to)


def put_and_die(folder: Path, system_call: str, at: int) -> None:
    die_in(system_call, at)
    LocalStorage(str(folder)).put_if_absent("checkpoints/0000000002.json", b"x" * 100_000)


def expire_and_die(folder: Path, at: int) -> None:
    fault = Fault(at, FaultKind.KILLED)
    over(FaultyStorage(LocalStorage(str(folder)), fault)).maintenance.expire(retain=1)


def collect_and_die(folder: Path, at: int) -> None:
    fault = Fault(at, FaultKind.KILLED)
    over(FaultyStorage(LocalStorage(str(folder)), fault)).maintenance.gc(minimum_age="0")


def begun(base: Path, folder: Path, number: int) -> Path:
    """Return a store whose next checkpoint is this one. Before the first checkpoint the store does
    not exist.
    """
    return folder if number == 1 else copy_of(base, folder)


def die_in(system_call: str, at: int) -> None:
    """Kill this process before the ``at``-th call of a system call."""
    real, made = getattr(os, system_call), [0]

    def call(*arguments: Any, **options: Any) -> Any:
        made[0] += 1
        if made[0] == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)

    setattr(os, system_call, call)


@pytest.mark.long_cases("2-steps")
@with_every_call
@pytest.mark.parametrize("number", [1, 2])
def test_a_snapshot_killed_at_any_call(
    base: Path, fast_path: Path, number: int, every_call: bool
) -> None:
    """I4, I5, I6, I10: the first snapshot of a store, and a later one. Committed checkpoints are
    intact, and the next snapshot succeeds. The killed snapshot is visible, and complete, only if
    its commit was done.
    """
    counted = begun(base, fast_path / "counted", number)
    calls = calls_of(LocalStorage(str(counted)), lambda storage: take(over(storage), number))
    commit = commit_in(calls, number)
    if number == 1:  # from its first data file on it is like any other snapshot
        first = next(call.number for call in calls if call.operation == "open_write")
        calls = (*calls[:first], *calls[commit - 1 :])
    calls = that_differ(steps(calls, every_call))
    folders = [begun(base, fast_path / str(call.number), number) for call in calls]
    runs = [(folder, call.number, number) for folder, call in zip(folders, calls, strict=True)]
    assert all(dies(take_and_die, *runs))
    for folder, call in zip(folders, calls, strict=True):
        settle(folder, range(1, number + (call.number > commit)))


@pytest.mark.long
@with_every_call
def test_an_export_killed_at_any_call_is_run_again(
    base: Path, fast_path: Path, every_call: bool
) -> None:
    """I10: the second run uses the same directory, which a marker shows as incomplete until it is
    done.
    """
    reader = LocalStorage(str(base))
    right = restore_to(over(reader), fast_path / "right")
    calls = calls_of(reader, lambda storage: restore_to(over(storage), fast_path / "counted"))
    last = max(call.number for call in calls if call.operation == "read")
    calls = steps(calls[:last], every_call)
    runs = [(base, fast_path / str(call.number), call.number) for call in calls]
    assert all(dies(export_and_die, *runs))
    for _, to, _ in runs:
        assert list((to / "out").glob("[!.]*")) == []
        assert restore_to(over(reader), to) == right


@pytest.mark.long
@pytest.mark.parametrize("at", [1, 2])
def test_an_export_killed_while_its_folders_move_up_is_run_again(
    base: Path, fast_path: Path, at: int
) -> None:
    """I10: one of the two operators may already be at its final location."""
    right = restore_to(over(LocalStorage(str(base))), fast_path / "right")
    assert dies(rename_and_die, (base, fast_path / "to", at)) == [True]
    assert len(list((fast_path / "to" / "out").iterdir())) == at
    assert restore_to(over(LocalStorage(str(base))), fast_path / "to") == right


@pytest.mark.long
@with_every_call
def test_an_expire_killed_at_any_call_is_run_again(
    base: Path, fast_path: Path, every_call: bool
) -> None:
    """I4, I6, I10: the oldest checkpoint expires first, the others are intact, and no id
    is reused.
    """
    full = copy_of(base, fast_path / "full")
    for number in (2, 3):
        take(over(LocalStorage(str(full))), number)
    counted = copy_of(full, fast_path / "counted")
    calls = calls_of(
        LocalStorage(str(counted)), lambda storage: over(storage).maintenance.expire(retain=1)
    )
    calls = steps(calls, every_call)
    folders = [copy_of(full, fast_path / str(call.number)) for call in calls]
    runs = [(folder, call.number) for folder, call in zip(folders, calls, strict=True)]
    assert all(dies(expire_and_die, *runs))
    for folder in folders:
        store = over(LocalStorage(str(folder)))
        assert store.checkpoints() in ((1, 2, 3), (2, 3), (3,))
        whole(store, 3)
        store.maintenance.expire(retain=1)
        assert store.checkpoints() == (3,)
        take(store, 4)
        assert store.checkpoints() == (3, 4)


@pytest.mark.long
@with_every_call
def test_a_collection_killed_at_any_call_is_run_again(
    base: Path, fast_path: Path, every_call: bool
) -> None:
    """I9, I10: kept checkpoints are intact, and a second run ends like an undisturbed run."""
    full = copy_of(base, fast_path / "full")
    store = over(LocalStorage(str(full)))
    take(store, 2)
    take(store, 3)
    store.maintenance.savepoint("audit", 2)
    store.maintenance.expire(retain=1)
    counted = copy_of(full, fast_path / "counted")
    calls = calls_of(LocalStorage(str(counted)), lambda s: over(s).maintenance.gc(minimum_age="0"))
    calls = steps(calls, every_call)
    folders = [copy_of(full, fast_path / str(call.number)) for call in calls]
    runs = [(folder, call.number) for folder, call in zip(folders, calls, strict=True)]
    assert all(dies(collect_and_die, *runs))
    for folder in folders:
        store = over(LocalStorage(str(folder)))
        assert store.checkpoints() == (2, 3)
        whole(store, 2)
        whole(store, 3)
        store.maintenance.gc(minimum_age="0")
        assert data_files(folder) == data_files(counted)


@pytest.mark.long_cases("fsync-1-False", "fsync-2-False", "unlink-1-True", "fsync-3-True")
@pytest.mark.parametrize(
    ("system_call", "at", "appeared"),
    [
        *(("fsync", 1, False), ("fsync", 2, False), ("link", 1, False)),
        *(("unlink", 1, True), ("fsync", 3, True)),
    ],
)
def test_a_put_killed_between_its_system_calls_is_complete_or_absent(
    fast_path: Path, system_call: str, at: int, appeared: bool
) -> None:
    """I4: the leftover temporary file blocks no other writer."""
    assert dies(put_and_die, (fast_path, system_call, at)) == [True]
    storage = LocalStorage(str(fast_path))
    assert storage.list("") == (("checkpoints/0000000002.json",) if appeared else ())
    assert storage.put_if_absent("checkpoints/0000000002.json", b"y" * 100_000) is not appeared
    assert set(storage.read("checkpoints/0000000002.json")) == {ord("x" if appeared else "y")}
