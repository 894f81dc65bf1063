"""Storages for tests: one that fails at a chosen call, and one that counts reads.

:class:`FaultyStorage` tests backends and jobs with broken storage. :class:`CountingStorage`
verifies what a restore reads (I8).

::

    calls = calls_of(MyStorage(url), lambda storage: take(StateStore.open(storage)))
    for call in calls:
        storage = FaultyStorage(MyStorage(url), Fault(call.number, FaultKind.FULL))
        with pytest.raises(StorageError):
            take(StateStore.open(storage))

Calls are numbered from 1, in their order. Calls of the storage are counted, and ``write``, ``read``
and ``close`` of the files that it opens. A seek is not counted. The same run makes the same calls,
so a fault at a number is reproducible. Only calls that a command makes concurrently can change
places. A pickled copy continues the count of the original independently.

If a call cannot have the fault, it succeeds: a full disk does not affect a read. As with a file
system, the storage raises StorageError, and an open file raises OSError.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, BinaryIO, TypeVar, cast

from statestore.errors import StorageError
from statestore.storage import LocalStorage, Storage
from statestore.storage.base import Listed, NewFile, report_os_errors
from statestore.storage.forwarding import ForwardingFile, ForwardingStorage


class CountingStorage(LocalStorage):
    """A local storage that counts reads.

    ``opened`` counts by name how often a file was opened for reading. ``bytes_read`` is the total
    of all bytes that were read. ``ranges`` has each part that was read. With several ``streams`` it
    is read by ranges, like an object store.
    """

    def __init__(self, url: str, streams: int = 1) -> None:
        """Open a path, with all counts at zero."""
        super().__init__(url)
        self.streams = streams
        self.ranges: list[tuple[str, int, int]] = []
        self.opened: Counter[str] = Counter()
        self.files: list[BinaryIO] = []
        self.bytes_read = 0

    def native_path(self, name: str) -> str | None:
        """Return None, so that every data file is opened here."""
        return None

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Read a part of a file and count it."""
        data = super().read_range(name, start, stop)
        self.count(name, start, data)
        return data

    def count(self, name: str, start: int, data: bytes) -> None:
        """Count a part of a file that was read."""
        self.ranges.append((name, start, start + len(data)))
        self.bytes_read += len(data)

    def open_read(self, name: str) -> BinaryIO:
        """Open a file and count it."""
        self.opened[name] += 1
        self.files.append(cast(BinaryIO, _CountedFile(super().open_read(name), self, name)))
        return self.files[-1]


class _CountedFile(ForwardingFile):
    """An open file that counts reads."""

    def __init__(self, file: BinaryIO, storage: CountingStorage, name: str) -> None:
        super().__init__(file)
        self._storage, self._name = storage, name

    def read(self, size: int = -1) -> bytes:
        start = self._file.tell()
        data: bytes = self._file.read(size)
        self._storage.count(self._name, start, data)
        return data


T = TypeVar("T")

_WRITING = ("put_if_absent", "open_write", "write", "close", "sync")
_CHANGING = (*_WRITING, "delete", "renew")


class FaultKind(Enum):
    """The effect of a fault on a call."""

    ERROR = "an input/output error before the operation has any effect"
    FULL = "the disk is full: every call that needs space fails"
    READ_ONLY = "the file system is read-only: every call that changes something fails"
    DISCONNECTED = "the connection is lost before the operation has any effect"
    ANSWER_LOST = (
        "the operation succeeds, but the connection is lost before the answer, so the call fails"
    )
    ANSWER_WRONG = "a put, write or sync reports success but has no effect"
    TRUNCATED = "a file silently loses its tail, from the middle of this write on"
    DELAYED = "the operation takes long and succeeds"
    KILLED = "the process dies (SIGKILL); half of the bytes of a write are stored"


_ACTIONS = {
    "listed": "list",
    **dict.fromkeys(("put_if_absent", "open_write"), "write"),
    **dict.fromkeys(("open_read", "read_range", "size", "renew"), "read"),
}
_ERRNO = {
    FaultKind.ERROR: errno.EIO,
    FaultKind.FULL: errno.ENOSPC,
    FaultKind.READ_ONLY: errno.EROFS,
    FaultKind.DISCONNECTED: errno.ECONNRESET,
    FaultKind.ANSWER_LOST: errno.ECONNRESET,
}
_MET_BY = {
    FaultKind.FULL: _WRITING,
    FaultKind.READ_ONLY: _CHANGING,
    FaultKind.ANSWER_WRONG: ("put_if_absent", "write", "sync"),
    FaultKind.TRUNCATED: ("write",),
}


@dataclass(frozen=True)
class Fault:
    """A fault at call number ``at``; a lasting fault also affects all later calls."""

    at: int
    kind: FaultKind
    lasting: bool = False
    seconds: float = 0.01
    """The duration of a delayed call."""

    def strikes(self, call: Call) -> bool:
        """Return whether the fault affects this call."""
        reached = call.number >= self.at if self.lasting else call.number == self.at
        return reached and call.operation in _MET_BY.get(self.kind, (call.operation,))


@dataclass(frozen=True)
class Call:
    """One call: its number, the method (of the storage, or of a file), and the file's name."""

    number: int
    operation: str
    name: str


def calls_of(storage: Storage, run: Callable[[Storage], Any]) -> tuple[Call, ...]:
    """Run once without a fault and return all calls in order."""
    watched = FaultyStorage(storage)
    run(watched)
    return watched.calls


class FaultyStorage(ForwardingStorage):
    """A wrapper of another storage, with at most one fault; picklable if the other storage is.

    Calls of Spark and of delta-rs are not counted.
    """

    def __init__(self, storage: Storage, fault: Fault | None = None) -> None:
        """Wrap a storage; without a fault, calls are only counted."""
        super().__init__(storage)
        self._fault = fault
        self._calls: list[Call] = []
        self._lock = threading.Lock()

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls made so far, in order."""
        return tuple(self._calls)

    def arm(self, fault: Fault | None) -> None:
        """Set another fault, or none; its ``at`` is relative to the next call."""
        with self._lock:
            later = fault and replace(fault, at=len(self._calls) + fault.at)
            self._fault = later

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return self._call("read", name, lambda: self._storage.read(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file."""
        read = self._storage.read_range
        return self._call("read_range", name, lambda: read(name, start, stop))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put a file if its name is free."""
        put = self._storage.put_if_absent
        return self._call("put_if_absent", name, lambda: put(name, data), wrong=True)

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all files below a folder."""
        return self._call("list", folder, lambda: self._storage.list(folder))

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Return all files below a folder, with length and time."""
        return self._call("listed", folder, lambda: self._storage.listed(folder))

    def is_empty(self) -> bool:
        """Return whether the storage has no files."""
        return self._call("is_empty", "", self._storage.is_empty)

    def folder_above(self, name: str) -> str | None:
        """Return the folder that the wrapped storage names."""
        return self._call("folder_above", name, lambda: self._storage.folder_above(name))

    def delete(self, name: str) -> None:
        """Remove a file."""
        self._call("delete", name, lambda: self._storage.delete(name))

    def size(self, name: str) -> int:
        """Return a file's length in bytes."""
        return self._call("size", name, lambda: self._storage.size(name))

    def renew(self, old: str, new: str) -> bool:
        """Give a file an additional name."""
        return self._call("renew", new, lambda: self._storage.renew(old, new))

    def open_write(self, name: str) -> NewFile:
        """Return a file for writing, whose calls are counted too."""
        opened = self._call("open_write", name, lambda: self._storage.open_write(name))
        return cast(NewFile, _FaultyFile(opened, name, self))

    def open_read(self, name: str) -> BinaryIO:
        """Return a file for reading, whose calls are counted too."""
        opened = self._call("open_read", name, lambda: self._storage.open_read(name))
        return cast(BinaryIO, _FaultyFile(opened, name, self))

    def sync(self, names: Iterable[str]) -> None:
        """Make files durable."""
        some = tuple(names)
        self._call("sync", ", ".join(some), lambda: self._storage.sync(some), wrong=None)

    def native_path(self, name: str) -> str | None:
        """Return None, so that all files are opened here, where their calls are counted."""
        return None

    def _call(self, operation: str, name: str, do: Callable[[], T], wrong: Any = None) -> T:
        with report_os_errors(_ACTIONS.get(operation, operation), f"{self.url}/{name}"):
            return cast(T, self.meet(operation, name, do, wrong))

    def meet(self, operation: str, name: str, do: Callable[[], Any], wrong: Any = None) -> Any:
        """Count a call, and make it or apply its fault; ``wrong`` is the result of a wrong answer.

        Open files of this storage call this method. Raises the OSError of the fault.
        """
        with self._lock:
            call = Call(len(self._calls) + 1, operation, name)
            self._calls.append(call)
        fault = self._fault
        if fault is None or not fault.strikes(call):
            return do()
        match fault.kind:
            case FaultKind.KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.DELAYED:
                time.sleep(fault.seconds)
                return do()
            case FaultKind.ANSWER_WRONG:
                return wrong
            case FaultKind.ANSWER_LOST:
                with suppress(OSError, StorageError):  # its error is lost as well
                    _drop(do())
            case FaultKind.TRUNCATED:
                raise _Truncated
        raise OSError(_ERRNO[fault.kind], f"{os.strerror(_ERRNO[fault.kind])} (injected at {call})")

    @property
    def kills(self) -> bool:
        """Whether the process will be killed at the next call."""
        fault, number = self._fault, len(self._calls) + 1
        return fault is not None and fault.kind is FaultKind.KILLED and fault.at == number


def _drop(answer: Any) -> None:
    """Close a file that was opened, but is not returned."""
    if hasattr(answer, "abandon"):
        answer.abandon()
    elif hasattr(answer, "close"):
        answer.close()


class _Truncated(Exception):
    """Raised in a write whose second half, and all later data, do not reach the file."""


class _FaultyFile(ForwardingFile):
    """An open file with counted calls."""

    def __init__(self, raw: Any, name: str, storage: FaultyStorage) -> None:
        super().__init__(raw)
        self._name, self._storage = name, storage
        self._lost_tail = False

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        if error_type is None or not hasattr(self._file, "abandon"):
            self.close()
        else:
            self._file.abandon()

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._storage.meet("read", self._name, lambda: self._file.read(size))
        return data

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        half = memoryview(data).cast("B")[: length // 2]
        if self._lost_tail:
            return self._storage.meet("write", self._name, lambda: length, length) or length
        if self._storage.kills:
            self._file.write(half)
            self._file.flush()
        try:
            self._storage.meet("write", self._name, lambda: self._file.write(data), length)
        except _Truncated:
            self._file.write(half)
            self._lost_tail = True
        return length

    def close(self) -> None:
        """Close the file; even if this fails, it is closed, as with the operating system."""
        if self._file.closed:
            return
        try:
            self._storage.meet("close", self._name, self._file.close)
        finally:
            _drop(self._file)
