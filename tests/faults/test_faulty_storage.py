"""The storage with injected faults: without a fault it acts normally, and a fault causes only
itself.
"""

from __future__ import annotations

import errno
import pickle
import time
from pathlib import Path

import pytest

from statestore.errors import StorageError
from statestore.storage import LocalStorage, Storage
from statestore.testing.faults import Call, Fault, FaultKind, FaultyStorage, calls_of
from statestore.testing.suites import StorageSuite

pytestmark = pytest.mark.slow


class TestFaultyStorage(StorageSuite):
    """The storage suite, without a fault."""

    races = 20

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return FaultyStorage(LocalStorage(str(tmp_path / "store")))


def write(storage: Storage) -> None:
    storage.put_if_absent("a", b"first")
    with storage.open_write("f") as file:
        file.write(b"12345678")
        file.write(b"90")
    storage.sync(["f"])
    with storage.open_read("f") as file:
        file.read()


def local(folder: Path) -> LocalStorage:
    return LocalStorage(str(folder))


def faulty(folder: Path, at: int, kind: FaultKind, *, lasting: bool = False) -> FaultyStorage:
    return FaultyStorage(local(folder), Fault(at, kind, lasting))


def test_calls_are_counted_in_order_including_those_of_files(tmp_path: Path) -> None:
    calls = calls_of(local(tmp_path), write)
    names = " ".join(call.operation for call in calls)
    assert names == "put_if_absent open_write write write close sync open_read read close"
    assert [call.number for call in calls] == list(range(1, 10))
    assert calls[1] == Call(2, "open_write", "f")


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (FaultKind.ERROR, errno.EIO),
        (FaultKind.FULL, errno.ENOSPC),
        (FaultKind.READ_ONLY, errno.EROFS),
        (FaultKind.DISCONNECTED, errno.ECONNRESET),
    ],
)
def test_an_error_is_raised_as_a_file_system_error(
    tmp_path: Path, kind: FaultKind, number: int
) -> None:
    with pytest.raises(StorageError) as caught:
        faulty(tmp_path, 1, kind).put_if_absent("a", b"")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == number
    storage = faulty(tmp_path, 2, kind)
    with storage.open_write("f") as file, pytest.raises(OSError) as raised:
        file.write(b"x")
    assert raised.value.errno == number
    assert local(tmp_path).list("") == ("f",)


def test_a_call_that_a_fault_cannot_affect_passes(tmp_path: Path) -> None:
    storage = faulty(tmp_path, 1, FaultKind.FULL, lasting=True)
    assert storage.list("") == ()
    storage.delete("nothing")
    with pytest.raises(StorageError, match="the disk is full"):
        storage.put_if_absent("a", b"")
    once = faulty(tmp_path, 1, FaultKind.ERROR)
    with pytest.raises(StorageError):
        once.list("")
    assert once.list("") == ()


def test_a_response_may_be_lost_or_wrong(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="reset"):
        faulty(tmp_path, 1, FaultKind.ANSWER_LOST).put_if_absent("a", b"x")
    assert local(tmp_path).read("a") == b"x"
    assert faulty(tmp_path, 1, FaultKind.ANSWER_WRONG).put_if_absent("b", b"x")
    assert local(tmp_path).list("") == ("a",)


@pytest.mark.parametrize(("at", "kept"), [(3, b"1234"), (4, b"123456789")])
def test_a_truncated_file_lacks_its_tail_without_an_error(
    tmp_path: Path, at: int, kept: bytes
) -> None:
    write(faulty(tmp_path, at, FaultKind.TRUNCATED))
    assert local(tmp_path).read("f") == kept


def test_a_delayed_call_succeeds(tmp_path: Path) -> None:
    storage = FaultyStorage(local(tmp_path), Fault(1, FaultKind.DELAYED, seconds=0.05))
    begun = time.monotonic()
    write(storage)
    assert time.monotonic() - begun >= 0.05
    assert local(tmp_path).read("f") == b"1234567890"


def test_a_copy_has_its_own_count(tmp_path: Path) -> None:
    storage = faulty(tmp_path, 2, FaultKind.ERROR)
    storage.list("")
    copy = pickle.loads(pickle.dumps(storage))
    for each in (storage, copy):
        with pytest.raises(StorageError):
            each.list("")
    assert copy.calls == storage.calls
