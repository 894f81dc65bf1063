"""A storage that counts the bytes that are read through it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, BinaryIO, cast

from statestore.storage.base import Listed, NewFile, Storage

__all__ = ["MeteredStorage"]


class MeteredStorage:
    """Another storage; ``bytes_read`` is what was read of it so far, documents and data."""

    def __init__(self, storage: Storage) -> None:
        """Wrap a storage; nothing is read yet."""
        self._storage = storage
        self._lock = threading.Lock()
        self.url, self.streams = storage.url, storage.streams
        self.bytes_read = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave the lock behind: a copy in another process counts for itself."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a lock of its own."""
        vars(self).update(state, _lock=threading.Lock())

    def count(self, data: bytes) -> bytes:
        """Add some bytes that were read to the count, and return them."""
        with self._lock:
            self.bytes_read += len(data)
        return data

    def read(self, name: str) -> bytes:
        """Read and count."""
        return self.count(self._storage.read(name))

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Read and count."""
        return self.count(self._storage.read_range(name, start, stop))

    def open_read(self, name: str) -> BinaryIO:
        """Return a file that counts what is read of it."""
        return cast(BinaryIO, _MeteredFile(self._storage.open_read(name), self))

    def native_path(self, name: str) -> str | None:
        """Return None: what the operating system opens by itself could not be counted."""
        return None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Pass on."""
        return self._storage.put_if_absent(name, data)

    def list(self, folder: str) -> tuple[str, ...]:
        """Pass on; a listing reads no file."""
        return self._storage.list(folder)

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Pass on; a listing reads no file."""
        return self._storage.listed(folder)

    def is_empty(self) -> bool:
        """Pass on."""
        return self._storage.is_empty()

    def folder_above(self, name: str) -> str | None:
        """Pass on."""
        return self._storage.folder_above(name)

    def delete(self, name: str) -> None:
        """Pass on."""
        self._storage.delete(name)

    def size(self, name: str) -> int:
        """Pass on."""
        return self._storage.size(name)

    def renew(self, old: str, new: str) -> bool:
        """Pass on; nothing is read here."""
        return self._storage.renew(old, new)

    def open_write(self, name: str) -> NewFile:
        """Pass on."""
        return self._storage.open_write(name)

    def sync(self, names: Iterable[str]) -> None:
        """Pass on."""
        self._storage.sync(names)

    def spark_url(self, name: str) -> str:
        """Pass on."""
        return self._storage.spark_url(name)

    def hadoop_settings(self) -> dict[str, str]:
        """Pass on; it holds secrets, never show it."""
        return self._storage.hadoop_settings()

    def delta_options(self) -> dict[str, str]:
        """Pass on; it holds secrets, never show it."""
        return self._storage.delta_options()


class _MeteredFile:
    """An open file; what has no call of its own goes to the file behind."""

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
