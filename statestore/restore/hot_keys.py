"""Hot keys: the keys with the most rows in some key groups of a state, counted exactly.

The rows of a key group are sorted by identity, so the rows of a key are adjacent. A key is
counted while it is read, and only the keys with the most rows so far are kept in memory. Without
changes only the key columns are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappush, heappushpop
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.format.manifest import KeyedEntry
from statestore.format.slices import reads_of
from statestore.keys.groups import KeyGroupRange
from statestore.layers.merge import read_state
from statestore.parquet.reader import open_data, row_groups_of
from statestore.rows.column_types import arrow_schema
from statestore.rows.matching import first_of_equals
from statestore.rows.python_values import display_rows
from statestore.storage import Storage

__all__ = ["KEYS", "READ_GROUPS", "CountedKey", "counted_keys"]


@dataclass(frozen=True)
class CountedKey:
    """A key by its columns, its key group, and its number of rows."""

    key: dict[str, Any]
    key_group: int
    rows: int


def counted_keys(
    storage: Storage, entry: KeyedEntry, key_group: int, most: int
) -> tuple[CountedKey, ...]:
    """Return up to ``most`` keys of a key group with the most rows, most rows first.

    Expired rows that are still stored count. Raises MissingFileError or DamagedFileError.
    """
    counter = _Counter(key_group, most)
    for batch in _keys(storage, entry, key_group):
        counter.add(batch)
    return counter.finish()


def _keys(storage: Storage, entry: KeyedEntry, key_group: int) -> Iterator[pa.RecordBatch]:
    """Yield the key columns of all rows of a key group; rows of the same key are adjacent."""
    own, names = KeyGroupRange(key_group, key_group), list(entry.state.key)
    keys = arrow_schema(entry.state.schema.select(entry.state.key))
    reads = reads_of(entry, own)
    if reads.layers:
        for batch in read_state(storage, entry, reads):
            yield batch.select(names)
        return
    for part in reads.base:
        rows = range(part.first_row, part.first_row + part.rows)
        with open_data(storage, entry.table.path, part.handle) as file:
            numbers, first_row = row_groups_of(file.parquet.metadata, rows)
            for batch in file.batches(numbers, keys):
                begin, end = (
                    max(rows.start - first_row, 0),
                    min(rows.stop - first_row, batch.num_rows),
                )
                first_row += batch.num_rows
                if begin < end:
                    yield batch.slice(begin, end - begin)


class _Counter:
    """The current key, and the keys with the most rows before it."""

    def __init__(self, key_group: int, most: int) -> None:
        self._key_group, self._most = key_group, most
        # The number breaks ties between equal counts, because keys may not be comparable.
        self._found: list[tuple[int, int, pa.RecordBatch]] = []
        self._number = 0
        self._key: pa.RecordBatch | None = None
        self._rows = 0

    def add(self, keys: pa.RecordBatch) -> None:
        if not keys.num_rows:
            return
        before = [] if self._key is None else [self._key]
        begins = first_of_equals(pa.Table.from_batches([*before, keys]))[len(before) :]
        starts = np.flatnonzero(begins).tolist()
        self._rows += starts[0] if starts else keys.num_rows
        for first, stop in pairwise([*starts, keys.num_rows]):
            self._close()
            self._key, self._rows = keys.slice(first, 1), stop - first

    def _close(self) -> None:
        rows, key, self._rows = self._rows, self._key, 0
        if key is None:
            return
        self._number -= 1  # among equal counts, the first one is kept
        if len(self._found) < self._most:
            heappush(self._found, (rows, self._number, _copy_batch(key)))
        elif (rows, self._number) > self._found[0][:2]:
            heappushpop(self._found, (rows, self._number, _copy_batch(key)))

    def finish(self) -> tuple[CountedKey, ...]:
        self._close()
        self._key = None
        counted = sorted(self._found, key=lambda entry: entry[:2], reverse=True)
        return tuple(CountedKey(_first(key), self._key_group, rows) for rows, _, key in counted)


def _copy_batch(key: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy: a slice would keep the memory of its whole batch."""
    return key.take(pa.array([0]))


def _first(keys: pa.RecordBatch) -> dict[str, Any]:
    [first, *_] = display_rows(keys)
    return first


KEYS, READ_GROUPS = 10, 8
