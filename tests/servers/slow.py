"""Simulate a distant object store: each request has a latency, and each stream a bandwidth.

::

    storage = SlowStorage(url)          # 20 ms a request, 50 MB/s a stream, 16 streams
    StateStore.open(storage).restore(parallelism=7)

The latency is a sleep, which uses no CPU, so that measurements show the network and the reader.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock
from typing import BinaryIO, cast

from statestore.storage import LocalStorage
from statestore.storage.forwarding import ForwardingFile

__all__ = ["SlowStorage"]


class SlowStorage(LocalStorage):
    """A folder that is read like an object store.

    ``requests`` and ``bytes_read`` are counters. ``most`` is the greatest number of concurrent
    requests.
    """

    def __init__(
        self,
        url: str,
        *,
        streams: int = 16,
        latency_seconds: float = 0.02,
        bytes_per_second: float = 50e6,
    ) -> None:
        """Take a path and the properties of the network; requests above ``streams`` wait."""
        super().__init__(url)
        self.streams = streams
        self.latency_seconds, self.bytes_per_second = latency_seconds, bytes_per_second
        self.requests = self.bytes_read = self.most = self._under_way = 0
        self._free, self._lock = BoundedSemaphore(streams), Lock()

    def floor_seconds(self, size_bytes: int) -> float:
        """Return the shortest time for this many bytes: all streams busy, and two round trips."""
        return size_bytes / (self.streams * self.bytes_per_second) + 2 * self.latency_seconds

    def native_path(self, name: str) -> str | None:
        """Return None: files have no local path."""
        return None

    def size(self, name: str) -> int:
        """Return the length of a file, in one request."""
        with self._request(0):
            return super().size(name)

    def read(self, name: str) -> bytes:
        """Read a file in one request."""
        with self._request(super().size(name)):
            return super().read(name)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Read a part of a file in one request."""
        with self._request(max(min(stop, super().size(name)) - start, 0)):
            return super().read_range(name, start, stop)

    def open_read(self, name: str) -> BinaryIO:
        """Open a file; every read of it is a request."""
        with self._request(0):
            return cast(BinaryIO, _SlowFile(super().open_read(name), self))

    @contextmanager
    def _request(self, size_bytes: int) -> Iterator[None]:
        with self._free:
            with self._lock:
                self.requests += 1
                self.bytes_read += size_bytes
                self._under_way += 1
                self.most = max(self.most, self._under_way)
            start = time.monotonic()
            try:
                yield
            finally:
                seconds = self.latency_seconds + size_bytes / self.bytes_per_second
                time.sleep(max(start + seconds - time.monotonic(), 0))
                with self._lock:
                    self._under_way -= 1


class _SlowFile(ForwardingFile):
    """An open file whose reads are requests."""

    def __init__(self, file: BinaryIO, storage: SlowStorage) -> None:
        super().__init__(file)
        self._storage = storage

    def read(self, size: int = -1) -> bytes:
        left = self._storage_size() - self._file.tell()
        with self._storage._request(left if size < 0 else min(size, left)):
            data: bytes = self._file.read(size)
        return data

    def _storage_size(self) -> int:
        position = self._file.tell()
        end: int = self._file.seek(0, 2)
        self._file.seek(position)
        return end
