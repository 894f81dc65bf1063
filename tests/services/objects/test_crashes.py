"""Interrupt commits at any call, and kill processes there, on real servers: I4, I5, I10.

One store is used for all runs, so each run starts with the leftovers of the previous one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import adlfs  # noqa: F401 - these are loaded before processes are forked: each of them has them
import gcsfs.core  # noqa: F401
import pytest
import requests  # noqa: F401
import s3fs  # noqa: F401

from statestore.errors import StateStoreError, StorageError
from statestore.storage import Storage, open_storage
from statestore.storage.objects import ObjectStorage
from statestore.testing.faults import Call, Fault, FaultKind, FaultyStorage, calls_of
from tests.faults.cases import over, take, whole
from tests.faults.test_processes import dies, that_differ
from tests.faults.test_reading import COMMANDS, Command
from tests.faults.test_snapshot import commit_in
from tests.services.objects.conftest import BAD_NETWORK

pytestmark = [pytest.mark.services, pytest.mark.slow]

OTHERS = ("azure", "gcs", "hdfs", "s3proxy", "versitygw", "minio")
OVER_A_BAD_NETWORK = (
    *(f"s3{BAD_NETWORK}", f"s3proxy{BAD_NETWORK}"),
    *(f"versitygw{BAD_NETWORK}", f"minio{BAD_NETWORK}"),
)

# The faults are injected above the storage, which other tests check on each service. The kills are
# real, so the nightly has them on each service, which handles an upload that is never completed.
on_s3_in_each_run = pytest.mark.parametrize(
    "server",
    ["s3", *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)],
    indirect=True,
)
ON_CEPH = [
    pytest.param(name, marks=[pytest.mark.long, pytest.mark.ceph])
    for name in ("ceph", f"ceph{BAD_NETWORK}")
]
also_over_a_bad_network = pytest.mark.parametrize(
    "server",
    [
        "s3",
        *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS + OVER_A_BAD_NETWORK),
        *ON_CEPH,
    ],
    indirect=True,
)


@pytest.fixture
def calls(storage: ObjectStorage) -> tuple[Call, ...]:
    """The calls of one checkpoint, one of each kind in a row; checkpoints 1 and 2 exist."""
    take(over(storage), 1)
    return that_differ(calls_of(storage, lambda counted: take(over(counted), 2)))


def that_leave_more(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return the calls at which a kill leaves more behind than at any earlier call.

    These are the first call, and each call after one that puts an object. A written object exists
    once it is closed.
    """
    pairs = zip((None, *calls), calls, strict=False)
    puts = ("close", "put_if_absent")
    return tuple(call for before, call in pairs if before is None or before.operation in puts)


def check(storage: Storage, newest: int) -> None:
    """Check that all checkpoints up to this one are visible and that it is complete."""
    store = over(storage)
    assert store.checkpoints() == tuple(range(1, newest + 1))
    whole(store, newest)


@pytest.mark.long_cases("FaultKind.ERROR-s3")
@on_s3_in_each_run
@pytest.mark.parametrize(
    "kind", [FaultKind.ERROR, pytest.param(FaultKind.ANSWER_LOST, marks=pytest.mark.long)]
)
def test_a_failing_call_never_leaves_a_partial_checkpoint(
    storage: ObjectStorage, calls: tuple[Call, ...], kind: FaultKind
) -> None:
    """I4, I6, I10: the error is a StorageError; a checkpoint is complete and visible after its put.

    This includes a put whose response was lost.
    """
    newest, commit = 2, commit_in(calls)
    for call in calls:
        with pytest.raises(StorageError):
            take(over(FaultyStorage(storage, Fault(call.number, kind))), newest + 1)
        newest += call.number + (kind is FaultKind.ANSWER_LOST) > commit
        check(storage, newest)
    take(over(storage), newest + 1)
    check(storage, newest + 1)


@pytest.mark.long_cases("FaultKind.TRUNCATED-s3")
@on_s3_in_each_run
@pytest.mark.parametrize(
    "kind", [FaultKind.TRUNCATED, pytest.param(FaultKind.ANSWER_WRONG, marks=pytest.mark.long)]
)
def test_no_checkpoint_contains_truncated_files(
    storage: ObjectStorage, calls: tuple[Call, ...], kind: FaultKind
) -> None:
    """I5: this holds for data files and for the manifest, even if the response was a success."""
    struck = [call for call in calls if Fault(call.number, kind).strikes(call)]
    damaged = [call for call in struck if call.operation != "sync"]
    assert damaged
    for call in damaged:
        with pytest.raises(StateStoreError):
            take(over(FaultyStorage(storage, Fault(call.number, kind))), 3)
        check(storage, 2)


def take_and_die(url: str, options: dict[str, Any], at: int, newest: int) -> None:
    """Check the result of the previous run; then die at a call of the next checkpoint."""
    storage = open_storage(url, options)
    check(storage, newest)
    take(over(FaultyStorage(storage, Fault(at, FaultKind.KILLED))), newest + 1)


@pytest.mark.long
@also_over_a_bad_network
@pytest.mark.parametrize("each_file", [False, True])
def test_a_kill_at_any_call_leaves_complete_checkpoints(
    storage: ObjectStorage, server: Any, calls: tuple[Call, ...], each_file: bool
) -> None:
    """I4, I5, I6, I10: SIGKILL after the claim, after the last file, and after the commit."""
    commit, calls = commit_in(calls), that_leave_more(calls)
    if not each_file:
        calls = (calls[1], *calls[-2:])
    # A process that dies after the commit has committed, so the next run finds one more.
    late = [call.number for call in calls if call.number > commit]
    newest = {number: 2 + index for index, number in enumerate(late)}
    place = (storage.url, server.options)
    runs = [(*place, call.number, newest.get(call.number, 2)) for call in calls]
    assert all(dies(take_and_die, *runs))
    check(storage, 2 + len(late))
    take(over(storage), 3 + len(late))
    check(storage, 3 + len(late))


@pytest.mark.long  # in each run, tests/faults/test_reading.py has them on disk
@on_s3_in_each_run
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_a_failed_command_can_be_run_again(
    storage: ObjectStorage, tmp_path: Path, command: Command
) -> None:
    """I10: any reading command, at any call; it changes nothing in the bucket."""
    take(over(storage), 1)
    before = storage.list("")
    answers: list[Any] = []
    calls = calls_of(storage, lambda s: answers.append(command(over(s), tmp_path / "right")))
    assert {"read", "list"} & {call.operation for call in calls}
    for call in calls:
        folder = tmp_path / str(call.number)
        with pytest.raises(StorageError):
            command(over(FaultyStorage(storage, Fault(call.number, FaultKind.ERROR))), folder)
        assert list((folder / "out").glob("*")) == [], call
    assert command(over(storage), tmp_path / "again") == answers[0]
    assert storage.list("") == before
