"""What does not depend on the machine: files opened and bytes read, by all subtasks together."""

from __future__ import annotations

import time
from typing import Any, BinaryIO, cast

from statestore import StateStore
from statestore.storage import LocalStorage

__all__ = ["counts_of", "lookup_of"]


class CountingStorage(LocalStorage):
    """Counts the data files that are opened, and the bytes that are read of them."""

    opened = bytes_read = 0

    def native_path(self, name: str) -> str | None:
        """Return None, so that every file is opened here."""
        return None

    def open_read(self, name: str) -> BinaryIO:
        """Open a file and count it."""
        self.opened += 1
        return cast(BinaryIO, _Counted(super().open_read(name), self))


class _Counted:
    def __init__(self, file: BinaryIO, storage: CountingStorage) -> None:
        self._file, self._storage = file, storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._storage.bytes_read += len(data)
        return data


def counts_of(url: str, parallelism: int) -> dict[str, Any]:
    """Return files opened and bytes read by all subtasks, as ratios to what the state has."""
    storage = CountingStorage(url)
    restored = StateStore.over(storage).restore(parallelism=parallelism).keyed("bench", "state")
    for subtask in range(parallelism):
        for _ in restored.subtask(subtask):
            pass
    entry = restored.entry
    return {
        "parallelism": parallelism,
        "files opened, of all": round(storage.opened / len(entry.handles), 3),
        "bytes read, of all": round(storage.bytes_read / entry.size_bytes, 3),
    }


def lookup_of(url: str, keys: list[str]) -> dict[str, Any]:
    """Return what looking keys up costs on average: bytes, files, and milliseconds."""
    storage = CountingStorage(url)
    keyed = StateStore.over(storage).restore().keyed("bench", "state")
    keyed.get(keys[0])
    storage.opened = storage.bytes_read = 0
    start = time.perf_counter()
    for key in keys:
        assert len(keyed.get(key)) == 1
    seconds = time.perf_counter() - start
    return {
        "keys": len(keys),
        "milliseconds each": round(1000 * seconds / len(keys), 2),
        "bytes each": storage.bytes_read // len(keys),
        "files each": storage.opened / len(keys),
    }
