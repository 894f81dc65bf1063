"""A storage that counts the bytes that are read through it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, BinaryIO, cast

from statestore.storage.base import Listed, NewFile, Storage

__all__ = ["MeteredStorage"]


class MeteredStorage:
    """Another storage; ``bytes_read`` counts the bytes read from it, documents and data."""

    def __init__(self, storage: Storage) -> None:
        """Wrap a storage; nothing is read yet."""
        self._storage = storage
        self._lock = threading.Lock()
        self.url, self.streams = storage.url, storage.streams
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
        """Return a file that counts the bytes read from it."""
        return cast(BinaryIO, _MeteredFile(self._storage.open_read(name), self))

    def native_path(self, name: str) -> str | None:
        """Return None: bytes that the operating system reads directly could not be counted."""
        return None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Delegate to the wrapped storage."""
        return self._storage.put_if_absent(name, data)

    def list(self, folder: str) -> tuple[str, ...]:
        """Delegate to the wrapped storage; a listing reads no file."""
        return self._storage.list(folder)

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Delegate to the wrapped storage; a listing reads no file."""
        return self._storage.listed(folder)

    def is_empty(self) -> bool:
        """Delegate to the wrapped storage."""
        return self._storage.is_empty()

    def folder_above(self, name: str) -> str | None:
        """Delegate to the wrapped storage."""
        return self._storage.folder_above(name)

    def delete(self, name: str) -> None:
        """Delegate to the wrapped storage."""
        self._storage.delete(name)

    def size(self, name: str) -> int:
        """Delegate to the wrapped storage."""
        return self._storage.size(name)

    def renew(self, old: str, new: str) -> bool:
        """Delegate to the wrapped storage; no bytes are read here."""
        return self._storage.renew(old, new)

    def open_write(self, name: str) -> NewFile:
        """Delegate to the wrapped storage."""
        return self._storage.open_write(name)

    def sync(self, names: Iterable[str]) -> None:
        """Delegate to the wrapped storage."""
        self._storage.sync(names)

    def spark_url(self, name: str) -> str:
        """Delegate to the wrapped storage."""
        return self._storage.spark_url(name)

    def hadoop_settings(self) -> dict[str, str]:
        """Delegate to the wrapped storage; the result contains secrets, never show it."""
        return self._storage.hadoop_settings()

    def delta_options(self) -> dict[str, str]:
        """Delegate to the wrapped storage; the result contains secrets, never show it."""
        return self._storage.delta_options()


class _MeteredFile:
    """An open file that counts reads; it forwards every other call to the wrapped file."""

    def __init__(self, file: BinaryIO, meter: MeteredStorage) -> None:
        self._file, self._meter = file, meter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _MeteredFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        return self._meter.count(self._file.read(size))
