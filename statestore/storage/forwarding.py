"""Wrappers of a storage or file: base classes that pass each call on, and one that counts bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, BinaryIO, Self, cast

from statestore.storage.base import Listed, NewFile, Storage


class ForwardingStorage:
    """Passes each call to another storage. Subclasses override the calls that they change."""

    def __init__(self, storage: Storage) -> None:
        """Wrap a storage; nothing is read yet."""
        self._storage = storage
        self.url, self.streams = storage.url, storage.streams

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return self._storage.read(name)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return a part of a file."""
        return self._storage.read_range(name, start, stop)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put a file if its name is free."""
        return self._storage.put_if_absent(name, data)

    def list(self, folder: str) -> tuple[str, ...]:
        """Return the names of all files below a folder."""
        return self._storage.list(folder)

    def listed(self, folder: str) -> tuple[Listed, ...]:
        """Return all files below a folder, with length and time."""
        return self._storage.listed(folder)

    def is_empty(self) -> bool:
        """Return whether the storage has no files yet."""
        return self._storage.is_empty()

    def folder_above(self, name: str) -> str | None:
        """Return the nearest parent folder that contains a file of this name."""
        return self._storage.folder_above(name)

    def delete(self, name: str) -> None:
        """Remove a file."""
        self._storage.delete(name)

    def size(self, name: str) -> int:
        """Return a file's length in bytes."""
        return self._storage.size(name)

    def renew(self, old: str, new: str) -> bool:
        """Give a file a second name."""
        return self._storage.renew(old, new)

    def open_write(self, name: str) -> NewFile:
        """Open a new file for writing."""
        return self._storage.open_write(name)

    def open_read(self, name: str) -> BinaryIO:
        """Open a file for reading."""
        return self._storage.open_read(name)

    def sync(self, names: Iterable[str]) -> None:
        """Make files durable."""
        self._storage.sync(names)

    def native_path(self, name: str) -> str | None:
        """Return a path that the operating system can open."""
        return self._storage.native_path(name)

    def spark_url(self, name: str) -> str:
        """Return the URL of a file or folder for Spark."""
        return self._storage.spark_url(name)

    def hadoop_settings(self) -> dict[str, str]:
        """Return the settings of Spark's file systems; they contain secrets, never show them."""
        return self._storage.hadoop_settings()

    def delta_options(self) -> dict[str, str]:
        """Return delta-rs's options; they contain secrets, never show them."""
        return self._storage.delta_options()


class ForwardingFile:
    """Passes each call to another open file. Subclasses override the calls that they change."""

    def __init__(self, file: Any) -> None:
        """Wrap an open file."""
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._file.close()


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
