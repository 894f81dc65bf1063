"""A storage that counts what is opened."""

from __future__ import annotations

from collections import Counter
from typing import BinaryIO

from statestore.storage import LocalStorage


class CountingStorage(LocalStorage):
    """A local storage; ``opened`` counts, per name, how often a file was opened to be read."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.opened: Counter[str] = Counter()

    def native_path(self, name: str) -> str | None:
        """Have data files opened through the storage, where they are counted."""
        return None

    def open_read(self, name: str) -> BinaryIO:
        self.opened[name] += 1
        return super().open_read(name)
