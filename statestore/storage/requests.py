"""Requests to an object store: which are sent again, what their errors say, and files of them.

What Amazon's, Microsoft's and Google's answers mean is in the module of each; here is what follows
from it.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from fsspec.caching import ReadAheadCache

from statestore.display import duration
from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage.base import without_credentials

__all__ = [
    "ATTEMPTS",
    "CONNECT_SECONDS",
    "NOT_REACHED",
    "READ_SECONDS",
    "Failure",
    "ObjectReader",
    "ObjectWriter",
    "Upload",
    "advice_of",
    "again",
    "object_errors",
]

Answer = TypeVar("Answer")
Errors = Callable[[str], AbstractContextManager[None]]
"""What turns the errors of an action into ours."""

# How long a server is waited for, and how often it is asked: every wait has an end, in seconds.

# Four in all: waits of up to 1, 2 and 4 s lie between them, at random, so that writers who were
# told to slow down together do not come back together. More would make a dead server slow to name.
ATTEMPTS = 4
# The longest first wait; each wait after it may be twice as long as the one before.
WAIT_SECONDS = 1.0
# A server in reach accepts in a fraction of a second; a lost packet is sent again after 1 and 3 s.
CONNECT_SECONDS = 5.0
# Between two pieces of an answer, not for all of it: large files take as long as they take. The
# first byte comes in well under a second; 10 s leave room for a server that is busy.
READ_SECONDS = 10.0

NOT_REACHED = "check that the server runs, and the storage option {endpoint}; then try again"
_READ_AHEAD_BYTES = 4 * 2**20


def again(call: Callable[[], Answer], attempts: int, passes: Callable[[Exception], bool]) -> Answer:
    """Return the answer of a request; send it again when it fails in passing, after a wait, at most
    so often in all.
    """
    for attempt in itertools.count(1):
        try:
            return call()
        except Exception as error:
            if attempt >= attempts or not passes(error):
                raise
            time.sleep(random.uniform(0, WAIT_SECONDS * 2 ** (attempt - 1)))
    raise AssertionError("an answer or an error came before this")


@dataclass(frozen=True)
class Failure:
    """What the error of a request says."""

    code: str
    """The server's own name of it, else that of the error's class."""

    advice: str | None = None
    """What to do, as the end of a sentence."""

    tried: str = ""
    """How often it was sent, as ``4 times``; empty when it was not sent again."""

    is_object_missing: bool = False
    """Whether there is no such object, where the bucket is there."""


def advice_of(code: str, table: Mapping[str, Iterable[str]]) -> str | None:
    """Return what a table of codes by advice says of a code."""
    return next((advice for advice, codes in table.items() if code in codes), None)


@contextmanager
def object_errors(
    action: str, where: str, explain: Callable[[Exception, str], Failure]
) -> Iterator[None]:
    """Turn any error of a request into StorageError naming what was tried, where, how often, and
    what to do; ``explain`` gets the error and the action.

    A missing object is FileNotFoundError while reading; it is not when its bucket is missing.
    """
    start = time.monotonic()
    try:
        yield
    except (InvalidArgumentError, StorageError):
        raise
    except Exception as error:
        failure = explain(error, action)
        if action == "read" and failure.is_object_missing:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from error
        # Some say nothing themselves, as fsspec's timeout.
        text = str(error) or str(error.__cause__ or failure.code)
        said = without_credentials(" ".join(text.split()).rstrip("."))
        if failure.tried:
            spent = duration(round(1000 * (time.monotonic() - start)))
            said += f" (tried {failure.tried} in {spent})"
        advice = [failure.advice] if failure.advice else []
        raise StorageError("; ".join([f"cannot {action} {where}: {said}", *advice])) from error


class ObjectReader(io.RawIOBase):
    """An object to read and seek in, fetched by byte ranges, and a little ahead."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        """Take what returns a range of the object, and its length."""
        self._cache = ReadAheadCache(_READ_AHEAD_BYTES, fetch, size)
        self._size, self._at = size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a position; costs nothing until it is read from."""
        at = offset + (0, self._at, self._size)[whence]
        if at < 0:
            raise ValueError(f"a position lies before the beginning: {at}")
        self._at = at
        return at

    def read(self, size: int | None = -1, /) -> bytes:
        """Return ``size`` bytes, fewer only at the end."""
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        data = cast(bytes, self._cache._fetch(self._at, stop))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer; return how much."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Upload(Protocol):
    """An object under way, sent in parts; nothing is there before :meth:`complete`."""

    def send(self, body: bytes) -> None:
        """Send the next part; it has the store's own length."""

    def complete(self, last: bytes) -> None:
        """Send what is left, which may be nothing, and let the object appear."""

    def abort(self) -> None:
        """Let the server forget the parts."""


class ObjectWriter(io.RawIOBase):
    """A new object, sent in parts while it is written; it exists once it is closed, whole.

    Not fsspec's own file, which finishes the object when it is merely dropped, also after an error.
    """

    def __init__(
        self,
        begin: Callable[[], Upload],
        put: Callable[[bytes], None],
        errors: Errors,
        part_bytes: int,
    ) -> None:
        """Take what begins an upload, what puts a small object in one request, what turns errors
        into ours, and how much a part holds.
        """
        self._begin, self._put, self._errors = begin, put, errors
        self._part_bytes = part_bytes
        self._waiting = bytearray()
        self._upload: Upload | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Take bytes; once they fill a part, it is sent."""
        if self.closed:
            raise ValueError("the object is closed already")
        size = memoryview(data).nbytes
        self._waiting += data
        with self._errors("write"), self._discarding():
            while len(self._waiting) >= self._part_bytes:
                if self._upload is None:
                    self._upload = self._begin()
                self._upload.send(bytes(self._waiting[: self._part_bytes]))
                del self._waiting[: self._part_bytes]
        return size

    def close(self) -> None:
        """Make the object appear."""
        if self.closed:
            return
        super().close()
        with self._errors("write"), self._discarding():
            if self._upload is None:
                self._put(bytes(self._waiting))
            else:
                self._upload.complete(bytes(self._waiting))

    def abandon(self) -> None:
        """Let nothing appear, and the parts that were sent go: they would stay, unseen and billed.

        What the server does not take back now, a collection does, or the server itself.
        """
        if not self.closed:
            super().close()
            self._take_back()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close it, or after an exception abandon it."""
        self.close() if kind is None else self.abandon()

    def __del__(self) -> None:
        """Send nothing: what was not closed shall not appear."""
        super().close()

    def _take_back(self) -> None:
        if self._upload is not None:
            with suppress(Exception):
                self._upload.abort()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            super().close()
            self._take_back()
            raise
