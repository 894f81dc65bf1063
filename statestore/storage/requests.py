"""Requests to an object store: retries, error messages, and file objects for reading and writing.

The module of each service knows what its answers mean. This module has the code that they share.

Timeouts and retries: every wait ends within seconds.
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
from statestore.storage.addresses import without_credentials

Answer = TypeVar("Answer")
Errors = Callable[[str], AbstractContextManager[None]]
"""Converts the errors of an action to this package's errors."""

# Four attempts in total, with random waits of up to 1, 2 and 4 s between them. The randomness keeps
# writers that were throttled together from retrying together. With more attempts it would take too
# long to report a dead server.
ATTEMPTS = 4
# The upper bound of the first wait; each later bound is twice the previous one.
WAIT_SECONDS = 1.0
# A reachable server accepts in a fraction of a second; lost packets are resent after 1 and 3 s.
CONNECT_SECONDS = 5.0
# The timeout between two pieces of an answer, not for the whole answer: large files take longer.
# The first byte usually arrives well within a second; 10 s allow for a busy server.
READ_SECONDS = 10.0

NOT_REACHED = (
    "check that the server is running, and check the storage option {endpoint}; then try again"
)
_READ_AHEAD_BYTES = 4 * 2**20
# Codes of HDFS, Ceph and MinIO.
_FULL = {
    *("DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"),
    *("QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"),
}


def retry(call: Callable[[], Answer], attempts: int, passes: Callable[[Exception], bool]) -> Answer:
    """Return the answer of a request; retry transient errors, with ``attempts`` attempts in total.

    It waits for a random time before each retry.
    """
    for attempt in itertools.count(1):
        try:
            return call()
        except Exception as error:
            if attempt >= attempts or not passes(error):
                raise
            time.sleep(random.uniform(0, WAIT_SECONDS * 2 ** (attempt - 1)))
    raise AssertionError("the loop must end with an answer or an error")


@dataclass(frozen=True)
class Failure:
    """The meaning of a request's error."""

    code: str
    """The server's error code, or the name of the error's class."""

    advice: str | None = None
    """What the user can do, as the end of a sentence."""

    tried: str = ""
    """The number of attempts, such as ``4 times``; empty if the request was not retried."""

    is_object_missing: bool = False
    """True if the bucket exists but the object does not."""


def advice_of(code: str, table: Mapping[str, Iterable[str]]) -> str | None:
    """Return the advice for an error code, from a table of codes by advice."""
    return next((advice for advice, codes in table.items() if code in codes), None)


@contextmanager
def object_errors(
    action: str, where: str, explain: Callable[[Exception, str], Failure]
) -> Iterator[None]:
    """Convert any error of a request to a StorageError with action, place and advice.

    ``explain`` gets the error and the action. While reading, a missing object is a
    FileNotFoundError, but a missing bucket is not.
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
        # Some errors have no text of their own, such as fsspec's timeout.
        text = str(error) or str(error.__cause__ or failure.code)
        message = without_credentials(" ".join(text.split()).rstrip("."))
        if failure.tried:
            spent = duration(round(1000 * (time.monotonic() - start)))
            message += f" (tried {failure.tried} in {spent})"
        advice = [failure.advice] if failure.advice else []
        if failure.code in _FULL and isinstance(error, OSError):
            error.errno = errno.EDQUOT  # for is_full_disk
        raise StorageError("; ".join([f"cannot {action} {where}: {message}", *advice])) from error


class ObjectReader(io.RawIOBase):
    """An object to read and seek in; it fetches byte ranges with a short read-ahead."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        """Take the function that returns a range of the object, and the object's length."""
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
        """Set the position; nothing is requested until the next read."""
        position = offset + (0, self._at, self._size)[whence]
        if position < 0:
            raise ValueError(f"the position {position} is negative")
        self._at = position
        return position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return ``size`` bytes, or fewer at the end."""
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if stop <= self._at:
            return b""
        data = cast(bytes, self._cache._fetch(self._at, stop))
        self._at += len(data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Read into a buffer; return the number of bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Upload(Protocol):
    """An object being uploaded in parts; it does not exist before :meth:`complete`."""

    def send(self, body: bytes) -> None:
        """Send the next part, which has the service's part size."""

    def complete(self, last: bytes) -> None:
        """Send the remaining bytes, possibly none, and create the object."""

    def abort(self) -> None:
        """Discard the parts on the server."""


class ObjectWriter(io.RawIOBase):
    """A new object that is sent in parts while it is written; it exists once it is closed.

    fsspec's own file is not used: it completes the object when it is garbage-collected, even after
    an error.
    """

    def __init__(
        self,
        begin: Callable[[], Upload],
        put: Callable[[bytes], None],
        errors: Errors,
        part_bytes: int,
    ) -> None:
        """Take the callbacks and the part size.

        ``begin`` starts an upload, ``put`` sends a small object in one request, and ``errors``
        converts errors.
        """
        self._begin, self._put, self._errors = begin, put, errors
        self._part_bytes = part_bytes
        self._waiting = bytearray()
        self._upload: Upload | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Accept bytes; send each part once it is full."""
        if self.closed:
            raise ValueError("the object is already closed")
        size = memoryview(data).nbytes
        self._waiting += data
        with self._errors("write"), self._discard_on_error():
            while len(self._waiting) >= self._part_bytes:
                if self._upload is None:
                    self._upload = self._begin()
                self._upload.send(bytes(self._waiting[: self._part_bytes]))
                del self._waiting[: self._part_bytes]
        return size

    def close(self) -> None:
        """Create the object."""
        if self.closed:
            return
        super().close()
        with self._errors("write"), self._discard_on_error():
            if self._upload is None:
                self._put(bytes(self._waiting))
            else:
                self._upload.complete(bytes(self._waiting))

    def abandon(self) -> None:
        """Discard the object and its parts, which would otherwise stay unseen and billed.

        If the server cannot delete the parts now, a garbage collection or the server does it later.
        """
        if not self.closed:
            super().close()
            self._abort_upload()

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        """Close the object, or abandon it after an exception."""
        self.close() if error_type is None else self.abandon()

    def __del__(self) -> None:
        """Send nothing: an object that was not closed must not appear."""
        super().close()

    def _abort_upload(self) -> None:
        if self._upload is not None:
            with suppress(Exception):
                self._upload.abort()

    @contextmanager
    def _discard_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            super().close()
            self._abort_upload()
            raise
