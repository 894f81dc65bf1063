"""The rows of many keys: what a micro-batch needs of a state, in a pass over their key groups.

Files never change, so what was read of one may be kept: :class:`RowCache` holds decoded files with
the hashes of their keys, up to a number of bytes, and a lookup in it reads nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.handles import KeyedStateSlice
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import StateReads
from statestore.format.state import KeyedState
from statestore.keys.arrow import key_groups
from statestore.storage import Storage
from statestore.table.arrow import as_table
from statestore.table.ceiling import kept_rows
from statestore.table.digest import row_hashes
from statestore.table.fitting import fitted_table
from statestore.table.given import is_dicts, settled
from statestore.table.matching import found
from statestore.table.merge import live_rows_of, merged_rows
from statestore.table.scan import read_slices, restored_schema
from statestore.table.uuids import uuid_columns, with_uuids
from statestore.table.values import table_of_dicts

__all__ = ["Indexed", "RowCache", "WantedKeys", "rows_of_keys"]

U64Array = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

_STALE = 32
"""Lookups after which what was not asked for makes room."""
_SMALL = 4
"""A file decoded is seldom larger than so many times its bytes."""


@dataclass(frozen=True)
class WantedKeys:
    """Keys that are looked for: their columns, and of each its hash, in order, and key group."""

    rows: pa.Table
    hashes: U64Array
    groups: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: Any, state: KeyedState) -> WantedKeys:
        """Return the keys in the key columns of a table, a frame that speaks Arrow or dictionaries,
        with repetitions or without.

        InvalidArgumentError when a key column is missing, or has a value that is no key, as
        :func:`~statestore.table.lookup.key_batch` says of one; NullKeyError.
        """
        rows = settled(rows)
        if is_dicts(rows):
            rows = _of_dicts(rows, state)
        rows = as_table(rows, f"the keys of {state}")
        missing = [name for name in state.key if name not in rows.column_names]
        if missing:
            raise InvalidArgumentError(
                f"keys of {state} have the columns ({', '.join(state.key)}); {missing[0]!r} is "
                "missing"
            )
        schema = state.schema.select(state.key)
        try:
            keys = fitted_table(rows, schema).combine_chunks()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"these are no keys of {state}: {error}") from error
        groups = key_groups(
            keys.columns,
            max_parallelism=state.max_parallelism,
            hash_scheme=state.hash_scheme,
            key_types=state.key_types,
        )
        hashes = _hashes(keys)
        order = np.argsort(hashes, kind="stable")
        return cls(keys.take(pa.array(order)), hashes[order], np.asarray(groups, np.int32)[order])

    def of_reads(self, reads: StateReads) -> WantedKeys:
        """Return the keys in key groups of which something is read."""
        lies = np.zeros(len(self.groups), np.bool_)
        for part in reads.slices:
            lies |= self._in(part)
        at = np.flatnonzero(lies)
        return WantedKeys(self.rows.take(pa.array(at)), self.hashes[at], self.groups[at])

    def hashes_in(self, part: KeyedStateSlice) -> U64Array:
        """Return the hashes, in order, of the keys in the key groups of a slice."""
        return self.hashes[self._in(part)]

    def match(self, rows: pa.Table) -> pa.Table:
        """Return those rows that have one of the keys: hashes may lie, values do not."""
        places, _ = found(rows.select(self.rows.column_names), self.rows)
        return rows if len(places) == rows.num_rows else rows.take(pa.array(np.sort(places)))

    def _in(self, part: KeyedStateSlice) -> npt.NDArray[np.bool_]:
        groups = part.key_groups
        return (self.groups >= groups.first) & (self.groups <= groups.last)


class RowCache:
    """Decoded slices of files with hashes of their keys, up to a number of bytes.

    Each lookup asks for about the same slices. So what is held stays while it is in use, and what
    finds no room is read each time: to let the least lately used one go would, with one slice more
    than there is room for, let each go right before it is asked for.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Hold at most so many bytes."""
        self._limit, self._size = limit_bytes, 0
        self._lookup, self._lookups = "", 0
        self._held: dict[tuple[str, int, int, int], _Held] = {}
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """What is held now."""
        return self._size

    def begin(self, lookup: str) -> None:
        """Say of which lookup the next questions are; what was not asked for in many goes."""
        with self._lock:
            if lookup == self._lookup:
                return
            self._lookup, self._lookups = lookup, self._lookups + 1
            for name, held in [*self._held.items()]:
                if held.used < self._lookups - _STALE:
                    self._size -= self._held.pop(name).indexed.size

    def find(self, part: KeyedStateSlice) -> Indexed | None:
        """Return a slice if it is held."""
        with self._lock:
            held = self._held.get(_name(part))
            if held is None:
                return None
            held.used = self._lookups
            return held.indexed

    def takes(self, part: KeyedStateSlice) -> bool:
        """Return whether there may be room for a slice."""
        return part.size_bytes * _SMALL <= self._limit - self._size

    def put(self, part: KeyedStateSlice, indexed: Indexed) -> None:
        """Hold a slice if there is room."""
        with self._lock:
            if _name(part) not in self._held and self._size + indexed.size <= self._limit:
                self._held[_name(part)] = _Held(indexed, self._lookups)
                self._size += indexed.size


@dataclass(frozen=True)
class Indexed:
    """Rows with the hashes of their keys, in order, and the places of these."""

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

    def like(self, wanted: U64Array) -> pa.Table:
        """Return the rows whose keys have one of the hashes, in their order."""
        first = np.searchsorted(self.hashes, wanted, "left")
        counts = np.searchsorted(self.hashes, wanted, "right") - first
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        spread = np.arange(total) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
        return self.rows.take(pa.array(np.sort(self.order[spread])))


@dataclass
class _Held:
    indexed: Indexed
    used: int


@dataclass(frozen=True)
class _Search:
    """A lookup of some keys in the files of a state, through a cache if there is one."""

    storage: Storage
    wanted: WantedKeys
    cache: RowCache | None
    verify: bool
    state: KeyedState = field(repr=False)

    def rows_in(self, entry: KeyedEntry, slices: Iterable[KeyedStateSlice]) -> pa.Table:
        """Return the rows of the keys in slices of a state or of a layer, in their order."""
        pieces = [restored_schema(entry.state.schema).empty_table()]
        for part in slices:
            hashes = np.unique(self.wanted.hashes_in(part))
            if len(hashes):
                pieces.append(self._like(entry, part, hashes))
        return self.wanted.match(pa.concat_tables(pieces).combine_chunks())

    def _like(self, entry: KeyedEntry, part: KeyedStateSlice, hashes: U64Array) -> pa.Table:
        """Return a slice's rows with one of the hashes."""
        cache = self.cache
        if cache is None or ((held := cache.find(part)) is None and not cache.takes(part)):
            return self._streamed(entry, part, hashes)
        if held is None:
            rows = pa.Table.from_batches(
                read_slices(self.storage, entry, [part], verify=self.verify),
                restored_schema(entry.state.schema),
            )
            held = Indexed.of(rows.combine_chunks(), self.state)
            cache.put(part, held)
        return held.like(hashes)

    def _streamed(self, entry: KeyedEntry, part: KeyedStateSlice, hashes: U64Array) -> pa.Table:
        pieces = [restored_schema(entry.state.schema).empty_table()]
        for batch in read_slices(self.storage, entry, [part], verify=self.verify):
            own = row_hashes(batch.select([*self.state.key]))
            at = np.minimum(np.searchsorted(hashes, own), len(hashes) - 1)
            places = np.flatnonzero(hashes[at] == own)
            pieces.append(pa.Table.from_batches([batch.take(pa.array(places))]))
        return pa.concat_tables(pieces)


def rows_of_keys(
    storage: Storage,
    entry: KeyedEntry,
    reads: StateReads,
    wanted: WantedKeys,
    cache: RowCache | None = None,
    *,
    verify: bool = False,
) -> pa.Table:
    """Return the rows that these keys have in the given parts of a state, ``key_group`` first.

    In order of key group. Only files with key groups of the keys are read, each once; without a
    cache a row group is in memory, and what is found. With ``verify`` the SHA-256 of a file that is
    read is checked first. Raises MissingFileError or DamagedFileError.
    """
    search = _Search(storage, wanted, cache, verify, entry.state)
    base = search.rows_in(entry, reads.base)
    layers = [
        live_rows_of(search.rows_in(layer.entry, layer.slices), layer) for layer in reads.layers
    ]
    return kept_rows(merged_rows(base, layers, entry.state), entry.state, reads.kept)


def _of_dicts(rows: Sequence[Mapping[str, Any]], state: KeyedState) -> pa.Table:
    """Return the key columns that dictionaries have; of none, all of them."""
    names = [name for name in state.key if any(name in row for row in rows) or not rows]
    keys: Sequence[Mapping[str, Any]] = [{name: row.get(name) for name in names} for row in rows]
    keys = with_uuids(keys, uuid_columns(state))
    return table_of_dicts(keys, state.schema.select(names), subject=f"the keys of {state}")


def _name(part: KeyedStateSlice) -> tuple[str, int, int, int]:
    return part.handle.sha256, part.key_groups.first, part.first_row, part.rows


def _hashes(rows: pa.Table) -> U64Array:
    found = [row_hashes(batch) for batch in rows.to_batches()]
    return np.concatenate(found) if found else np.zeros(0, np.uint64)
