"""A storage that counts what is opened."""

from __future__ import annotations

from collections import Counter
from typing import BinaryIO

from statestore.storage import LocalStorage
from statestore.store import StateStore
from statestore.table.files import ParquetOptions


class CountingStorage(LocalStorage):
    """A local storage; ``opened`` counts, per name, how often a file was opened to be read, and
    ``files`` are these.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opened: Counter[str] = Counter()
        self.files: list[BinaryIO] = []

    def native_path(self, name: str) -> str | None:
        """Have data files opened through the storage, where they are counted."""
        return None

    def open_read(self, name: str) -> BinaryIO:
        self.opened[name] += 1
        self.files.append(super().open_read(name))
        return self.files[-1]


def counting_store(storage: CountingStorage) -> StateStore:
    """Return a store on it, with tables of plain Parquet."""
    return StateStore(storage, None, "parquet", ParquetOptions())
