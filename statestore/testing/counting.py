"""A local storage that counts opened files and reads, to verify what a restore reads (I8)."""

from __future__ import annotations

from collections import Counter
from typing import BinaryIO, cast

from statestore.storage import LocalStorage
from statestore.storage.wrappers import ForwardingFile

__all__ = ["CountingStorage"]


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
