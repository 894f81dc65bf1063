"""A storage that counts the bytes that are read through it."""

from __future__ import annotations

import threading
from typing import Any, BinaryIO, cast

from statestore.storage.base import Storage
from statestore.storage.forwarding import ForwardingFile, ForwardingStorage

__all__ = ["MeteredStorage"]


class MeteredStorage(ForwardingStorage):
    """Count in ``bytes_read`` the bytes that are read from another storage, documents and data."""

    def __init__(self, storage: Storage) -> None:
        """Wrap a storage; nothing is read yet."""
        super().__init__(storage)
        self._lock = threading.Lock()
        self.bytes_read = 0

    def __getstate__(self) -> dict[str, Any]:
        """Omit the lock: a copy in another process counts its own bytes."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Create a new lock."""
        vars(self).update(state, _lock=threading.Lock())

    def count(self, data: bytes) -> bytes:
        """Count these bytes as read, and return them."""
        with self._lock:
            self.bytes_read += len(data)
        return data

    def read(self, name: str) -> bytes:
        """Read and count the bytes."""
        return self.count(self._storage.read(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Read and count the bytes."""
        return self.count(self._storage.read_range(name, start, stop))

    def open_read(self, name: str) -> BinaryIO:
        """Open a file for reading; the bytes read from it are counted."""
        return cast(BinaryIO, _MeteredFile(self._storage.open_read(name), self))

    def native_path(self, name: str) -> str | None:
        """Return None: bytes that the operating system reads directly could not be counted."""
        return None


class _MeteredFile(ForwardingFile):
    """An open file that counts reads."""

    def __init__(self, file: BinaryIO, meter: MeteredStorage) -> None:
        super().__init__(file)
        self._meter = meter

    def read(self, size: int = -1) -> bytes:
        return self._meter.count(self._file.read(size))
