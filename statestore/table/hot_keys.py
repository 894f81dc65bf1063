"""Hot keys: those with most rows in some key groups of a state, counted exactly.

Rows of a key group lie in order of their identity, so that those of one key follow each other: a
key is counted where it lies, and only the keys with most rows so far are held. Without changes
nothing but the key columns is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.files.digest import row_hashes
from statestore.files.merge import read_reads
from statestore.files.reader import open_data, row_groups_of
from statestore.files.types import arrow_schema
from statestore.files.values import shown
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import reads_of
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage

__all__ = ["CountedKey", "counted_keys"]


@dataclass(frozen=True)
class CountedKey:
    """A key, by its columns, its key group, and how many rows it has."""

    key: dict[str, Any]
    key_group: int
    rows: int


def counted_keys(
    storage: Storage, entry: KeyedEntry, key_group: int, most: int
) -> tuple[CountedKey, ...]:
    """Return up to ``most`` keys of a key group with most rows, most first.

    Rows that have expired and are still stored count. Raises MissingFileError or DamagedFileError.
    """
    counter = _Counter(key_group, most)
    for batch in _keys(storage, entry, key_group):
        counter.add(batch)
    return counter.finish()


def _keys(storage: Storage, entry: KeyedEntry, key_group: int) -> Iterator[pa.RecordBatch]:
    """Yield the key columns of all rows of a key group, those of a key side by side."""
    own, names = KeyGroupRange(key_group, key_group), list(entry.state.key)
    keys = arrow_schema(entry.state.schema.select(entry.state.key))
    reads = reads_of(entry, own)
    if reads.layers:
        for batch in read_reads(storage, entry, reads):
            yield batch.select(names)
        return
    for part in reads.base:
        rows = range(part.first_row, part.first_row + part.rows)
        with open_data(storage, entry.table.path, part.handle) as file:
            numbers, at = row_groups_of(file.parquet.metadata, rows)
            for batch in file.batches(numbers, keys):
                begin, end = max(rows.start - at, 0), min(rows.stop - at, batch.num_rows)
                at += batch.num_rows
                if begin < end:
                    yield batch.slice(begin, end - begin)


class _Counter:
    """The key at hand, and those with most rows before it."""

    def __init__(self, key_group: int, most: int) -> None:
        self._key_group, self._most = key_group, most
        # The number tells equal counts apart: keys need not have an order.
        self._found: list[tuple[int, int, pa.RecordBatch]] = []
        self._number = 0
        self._hash: int | None = None
        self._key: pa.RecordBatch | None = None
        self._rows = 0

    def add(self, keys: pa.RecordBatch) -> None:
        if not keys.num_rows:
            return
        hashes = row_hashes(keys)
        starts = [0, *(np.flatnonzero(hashes[1:] != hashes[:-1]) + 1).tolist()]
        for first, stop in zip(starts, [*starts[1:], keys.num_rows], strict=True):
            own = int(hashes[first])
            if own != self._hash:
                self._close()
                self._hash, self._key = own, keys.slice(first, 1)
            self._rows += stop - first

    def _close(self) -> None:
        rows, key, self._rows = self._rows, self._key, 0
        if key is None:
            return
        self._number -= 1  # of equal counts the one that came first stays
        if len(self._found) < self._most:
            heappush(self._found, (rows, self._number, _alone(key)))
        elif (rows, self._number) > self._found[0][:2]:
            heappushpop(self._found, (rows, self._number, _alone(key)))

    def finish(self) -> tuple[CountedKey, ...]:
        self._close()
        self._key = None
        found = sorted(self._found, key=lambda one: one[:2], reverse=True)
        return tuple(CountedKey(_first(key), self._key_group, rows) for rows, _, key in found)


def _alone(key: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy: a slice would hold the memory of its whole batch."""
    return key.take(pa.array([0]))


def _first(keys: pa.RecordBatch) -> dict[str, Any]:
    [first, *_] = shown(keys)
    return first
