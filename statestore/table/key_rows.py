"""The rows of many keys: what a micro-batch needs of a state, in a pass over their key groups.

Files never change, so what was read of one may be kept: :class:`RowCache` holds decoded files with
the hashes of their keys, up to a number of bytes, and a lookup in it reads nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.model.handles import KeyedStateSlice
from statestore.model.manifest import KeyedEntry
from statestore.model.reads import StateReads
from statestore.model.state import KeyedState
from statestore.storage import Storage
from statestore.table.ceiling import kept_rows
from statestore.table.digest import row_hashes
from statestore.table.hashing import key_groups
from statestore.table.matching import found
from statestore.table.merge import live_rows_of, merged_rows
from statestore.table.scan import read_slices, restored_schema
from statestore.table.types import arrow_schema

__all__ = ["Indexed", "RowCache", "WantedKeys", "rows_of_keys"]

U64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class WantedKeys:
    """Keys that are looked for, each once: their columns, hashes in order, and key groups."""

    rows: pa.Table
    hashes: U64Array
    groups: frozenset[int]

    @classmethod
    def of(cls, rows: pa.Table, state: KeyedState) -> WantedKeys:
        """Return the keys in the key columns of ``rows``, with repetitions or without.

        InvalidArgumentError when a key column is missing or does not fit.
        """
        missing = [name for name in state.key if name not in rows.column_names]
        if missing:
            raise InvalidArgumentError(
                f"keys of {state} have the columns ({', '.join(state.key)}); {missing[0]!r} is "
                "missing"
            )
        schema = arrow_schema(state.schema.select(state.key))
        try:
            keys = rows.select(state.key).cast(schema).combine_chunks()
        except pa.ArrowException as error:
            raise InvalidArgumentError(f"these are no keys of {state}: {error}") from error
        groups = key_groups(
            keys.columns,
            max_parallelism=state.max_parallelism,
            hash_scheme=state.hash_scheme,
            key_types=state.key_types,
        )
        return cls(keys, np.unique(_hashes(keys)), frozenset(np.unique(groups).tolist()))

    def match(self, rows: pa.Table) -> pa.Table:
        """Return those rows that have one of the keys: hashes may lie, values do not."""
        places, _ = found(rows.select(self.rows.column_names), self.rows)
        return rows if len(places) == rows.num_rows else rows.take(pa.array(np.sort(places)))


class RowCache:
    """Decoded slices of files with hashes of their keys; the least lately used go first."""

    def __init__(self, limit_bytes: int) -> None:
        """Hold at most so many bytes; 0 holds nothing."""
        self._limit, self._size = limit_bytes, 0
        self._held: OrderedDict[tuple[str, int, int], Indexed] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, storage: Storage, entry: KeyedEntry, part: KeyedStateSlice) -> Indexed:
        """Return a slice with its hashes, read if it is not held."""
        name = (part.handle.sha256, part.first_row, part.rows)
        with self._lock:
            held = self._held.get(name)
            if held is not None:
                self._held.move_to_end(name)
                return held
        indexed = Indexed.of(_read(storage, entry, [part]), entry.state)
        with self._lock:
            if name not in self._held and indexed.size <= self._limit:
                self._held[name] = indexed
                self._size += indexed.size
                while self._size > self._limit:
                    self._size -= self._held.popitem(last=False)[1].size
        return indexed


@dataclass(frozen=True)
class Indexed:
    """Rows with the hashes of their keys, in order of hash."""

    rows: pa.Table
    hashes: U64Array
    order: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, rows: pa.Table, state: KeyedState) -> Indexed:
        """Return rows with their index."""
        hashes = _hashes(rows.select(state.key))
        order = np.argsort(hashes).astype(np.uint32)
        return cls(rows, hashes[order], order)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return int(self.rows.nbytes + self.hashes.nbytes + self.order.nbytes)

    def find(self, wanted: WantedKeys) -> pa.Table:
        """Return the rows that have one of the keys, in their order."""
        first = np.searchsorted(self.hashes, wanted.hashes, "left")
        stop = np.searchsorted(self.hashes, wanted.hashes, "right")
        hits = np.flatnonzero(stop > first)
        spans = [self.order[first[hit] : stop[hit]] for hit in hits]
        places = np.sort(np.concatenate(spans)) if spans else np.zeros(0, np.uint32)
        return wanted.match(self.rows.take(pa.array(places)))


def rows_of_keys(
    storage: Storage,
    entry: KeyedEntry,
    reads: StateReads,
    wanted: WantedKeys,
    cache: RowCache | None = None,
) -> pa.Table:
    """Return the rows that these keys have in the given parts of a state, ``key_group`` first.

    In order of key group. Only files with key groups of the keys are read, each once; without a
    cache a row group is in memory, and what is found. Raises MissingFileError or DamagedFileError.
    """
    state = entry.state
    base = _found_in(storage, entry, reads.base, wanted, cache)
    layers = [
        live_rows_of(_found_in(storage, layer.entry, layer.slices, wanted, None), layer)
        for layer in reads.layers
    ]
    return kept_rows(merged_rows(base, layers, state), state, reads.kept)


def _found_in(
    storage: Storage,
    entry: KeyedEntry,
    slices: Iterable[KeyedStateSlice],
    wanted: WantedKeys,
    cache: RowCache | None,
) -> pa.Table:
    schema = restored_schema(entry.state.schema)
    pieces = [
        rows
        for part in slices
        if not wanted.groups.isdisjoint(part.key_groups)
        for rows in _in_slice(storage, entry, part, wanted, cache)
    ]
    return pa.concat_tables(pieces) if pieces else schema.empty_table()


def _in_slice(
    storage: Storage,
    entry: KeyedEntry,
    part: KeyedStateSlice,
    wanted: WantedKeys,
    cache: RowCache | None,
) -> Iterator[pa.Table]:
    if cache is not None:
        yield cache.of(storage, entry, part).find(wanted)
        return
    for batch in read_slices(storage, entry, [part]):
        hashes = row_hashes(batch.select(list(entry.state.key)))
        at = np.minimum(np.searchsorted(wanted.hashes, hashes), len(wanted.hashes) - 1)
        like = np.flatnonzero(wanted.hashes[at] == hashes)
        if len(like):
            yield wanted.match(pa.Table.from_batches([batch.take(pa.array(like))]))


def _read(storage: Storage, entry: KeyedEntry, slices: list[KeyedStateSlice]) -> pa.Table:
    schema = restored_schema(entry.state.schema)
    return pa.Table.from_batches(read_slices(storage, entry, slices), schema).combine_chunks()


def _hashes(rows: pa.Table) -> U64Array:
    found = [row_hashes(batch) for batch in rows.to_batches()]
    return np.concatenate(found) if found else np.zeros(0, np.uint64)
