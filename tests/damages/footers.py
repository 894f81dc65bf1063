"""Damaged footers of data files. Each is given to one of all readers of data files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import ClassVar

from statestore import StateStore
from statestore.errors import CorruptionError
from statestore.format.state import Layout
from tests.damages.damage import Attempt, damage
from tests.damages.readers import READERS
from tests.damages.stores import fill, unseal

__all__ = ["Footers", "UnsealedFooters", "damage_footer", "data_files"]

_END_BYTES = 8


class Footers:
    """A store of each layout, with the checksums of footers in its manifests."""

    allowed: ClassVar[frozenset[str]] = frozenset({"found", "same"})
    must_find: ClassVar[frozenset[str]] = frozenset({"verify"})

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stores = [self._fill(layout) for layout in Layout]
        self._expected = [{name: READERS[name](s) for name in READERS} for s in self._stores]
        self._files = [sorted(data_files(store)) for store in self._stores]

    def _fill(self, layout: Layout) -> StateStore:
        return fill(self._folder / layout, layout)

    def draw(self, random: Random) -> Attempt:
        """Draw a file, a damage of its footer, and a reader."""
        at = random.randrange(len(self._stores))
        file, reader = random.choice(self._files[at]), random.choice([*READERS])
        what, damaged = damage_footer(random, file.read_bytes())
        described = f"{reader}, {file.relative_to(self._folder)}, {what}"
        return Attempt(described, file, damaged, lambda: self._read(at, reader))

    def _read(self, at: int, reader: str) -> str:
        try:
            found = READERS[reader](self._stores[at])
        except CorruptionError:
            return "found"
        is_right = found == self._expected[at][reader] and reader not in self.must_find
        return "same" if is_right else "wrong"


class UnsealedFooters(Footers):
    """The same stores as older releases wrote them. Arrow parses every damaged footer and can end
    the process, and an undamaged part of a footer cannot be told from a damaged one.
    """

    allowed = frozenset({"found", "same", "crash"})
    must_find = frozenset()

    def _fill(self, layout: Layout) -> StateStore:
        return unseal(super()._fill(layout), self._folder / f"old {layout}")


def data_files(store: StateStore) -> Iterator[Path]:
    """Yield the files that the newest checkpoint references."""
    for entry in store.checkpoint().manifest.entries:
        for part in entry.parts:
            yield from (Path(store.url, part.table.path, handle.path) for handle in part.handles)


def damage_footer(random: Random, raw: bytes) -> tuple[str, bytes]:
    """Return the description of random damage to a footer, and the damaged file."""
    length = int.from_bytes(raw[-_END_BYTES:-4], "little") + _END_BYTES
    return damage(random, raw, len(raw) - length)
