"""Look up the rows of many keys, for a micro-batch, in one pass over their key groups.

Files never change, so their contents can be cached: :class:`RowCache` holds decoded files with the
hashes of their keys, up to a number of bytes. A lookup of cached files reads nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.engines.given_rows import as_table
from statestore.errors import InvalidArgumentError
from statestore.format.handles import KeyedStateSlice
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import ReadSlices
from statestore.format.state import KeyedState
from statestore.layers.merge import live_rows_of, merged_rows
from statestore.layers.regrouped_rows import rows_in_kept_groups
from statestore.parquet.keyed_reader import read_slices, restored_schema
from statestore.restore.lookup import has_exact_bounds
from statestore.rows.equality import hashes_of
from statestore.rows.fit_columns import fit_table
from statestore.rows.key_group_runs import combine_chunks, key_groups_of, take_rows
from statestore.rows.matching import matching_positions
from statestore.storage import Storage

__all__ = ["Indexed", "RowCache", "WantedKeys", "bytes_to_read", "rows_of_keys"]


U64Array = npt.NDArray[np.uint64]

_SliceName = tuple[str, int, int, int, bool]

_STALE = 32
"""Slices that were not used in this many lookups are evicted."""
_SMALL = 4
"""A decoded file is seldom larger than this multiple of its size."""


@dataclass(frozen=True)
class WantedKeys:
    """Keys to look up, in order of key group: their columns, hashes and key groups.

    Within a key group the hashes are in order.
    """

    rows: pa.Table
    hashes: U64Array
    groups: npt.NDArray[np.int32]

    @classmethod
    def of(cls, rows: Any, state: KeyedState) -> WantedKeys:
        """Return the keys in the key columns of a table, an Arrow-compatible frame or dictionaries.

        Keys may be repeated. Raises InvalidArgumentError when a key column is missing, or has a
        value that :func:`key_batch` would refuse; NullKeyError for a null key.
        """
        rows = as_table(rows, f"the keys of {state}", lambda untyped: untyped.keys(state))
        missing = [name for name in state.key if name not in rows.column_names]
        if missing:
            raise InvalidArgumentError(
                f"the keys of {state} must have the columns ({', '.join(state.key)}); "
                f"{missing[0]!r} is missing"
            )
        schema = state.schema.select(state.key)
        try:
            keys = fit_table(rows, schema).combine_chunks()
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"invalid keys of {state}: {error}") from error
        groups = np.asarray(key_groups_of(keys, state), np.int32)
        hashes = hashes_of(keys)
        order = np.lexsort((hashes, groups))
        return cls(keys.take(pa.array(order)), hashes[order], groups[order])

    def of_reads(self, reads: ReadSlices) -> WantedKeys:
        """Return the keys whose key groups are in these reads."""
        lies = np.zeros(len(self.groups), np.bool_)
        for part in reads.slices:
            lies[self._places_in(part)] = True
        positions = np.flatnonzero(lies)
        return WantedKeys(
            self.rows.take(pa.array(positions)), self.hashes[positions], self.groups[positions]
        )

    def hashes_in(self, part: KeyedStateSlice) -> U64Array:
        """Return the distinct hashes of the keys in the key groups of a slice, in order."""
        hashes = self.hashes[self._places_in(part)]
        if len(part.key_groups) > 1:
            hashes = np.sort(hashes)
        again = hashes[1:] == hashes[:-1]
        return hashes[np.append(~again, True)] if again.any() else hashes

    def values_in(self, part: KeyedStateSlice) -> dict[str, pa.ChunkedArray]:
        """Return the key values in the key groups of a slice, for simple key columns.

        These are the columns whose values Arrow compares exactly as this module does.
        """
        own = self._places_in(part)
        own = self.rows.slice(own.start, own.stop - own.start)
        kinds = zip(own.column_names, own.schema.types, strict=True)
        return {name: own.column(name) for name, data_type in kinds if has_exact_bounds(data_type)}

    def match(self, rows: pa.Table) -> pa.Table:
        """Return the rows that have one of the keys; hashes may collide, values do not."""
        places, _ = matching_positions(rows.select(self.rows.column_names), self.rows)
        return rows if len(places) == rows.num_rows else take_rows(rows, places)

    def _places_in(self, part: KeyedStateSlice) -> slice:
        groups = part.key_groups
        return slice(*np.searchsorted(self.groups, (groups.first, groups.last + 1)).tolist())


class RowCache:
    """A cache of decoded slices of files with hashes of their keys, up to a number of bytes.

    Each lookup needs about the same slices. Therefore a slice is not evicted while lookups use it,
    and slices that do not fit are read each time. With LRU eviction, one slice too many would evict
    each slice right before it is needed.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Start an empty cache of at most ``limit_bytes``."""
        self._limit, self._size = limit_bytes, 0
        self._lookup, self._lookups = "", 0
        self._held: dict[_SliceName, _CachedSlice] = {}
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """The number of bytes in the cache."""
        return self._size

    def begin(self, lookup: str) -> None:
        """Start a lookup; evict slices that were not used in many lookups."""
        with self._lock:
            if lookup == self._lookup:
                return
            self._lookup, self._lookups = lookup, self._lookups + 1
            for name, held in [*self._held.items()]:
                if held.used < self._lookups - _STALE:
                    self._size -= self._held.pop(name).indexed.size

    def find(self, part: KeyedStateSlice, verify: bool) -> Indexed | None:
        """Return a slice if it is in the cache; with ``verify`` only if its file was verified."""
        with self._lock:
            held = self._held.get(_name(part, verify))
            if held is None:
                return None
            held.used = self._lookups
            return held.indexed

    def takes(self, size_bytes: int) -> bool:
        """Return whether there may be room for this many bytes of files."""
        return size_bytes * _SMALL <= self._limit - self._size

    def put(self, part: KeyedStateSlice, indexed: Indexed, verify: bool) -> None:
        """Cache a slice if there is room; ``verify`` tells whether its file was verified."""
        name = _name(part, verify)
        with self._lock:
            if name not in self._held and self._size + indexed.size <= self._limit:
                self._held[name] = _CachedSlice(indexed, self._lookups)
                self._size += indexed.size


@dataclass(frozen=True)
class Indexed:
    """Rows with the sorted hashes of their keys, and the rows' positions in hash order."""

    rows: pa.Table
    hashes: U64Array
    order: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, rows: pa.Table, state: KeyedState) -> Indexed:
        """Return rows with their index."""
        hashes = hashes_of(rows.select(state.key))
        order = np.argsort(hashes).astype(np.uint32)
        return cls(rows, hashes[order], order)

    @property
    def size(self) -> int:
        """The number of bytes in memory."""
        return int(self.rows.nbytes + self.hashes.nbytes + self.order.nbytes)

    def like(self, wanted: U64Array) -> pa.Table:
        """Return the rows whose keys have one of the hashes, in the rows' order."""
        first = np.searchsorted(self.hashes, wanted, "left")
        counts = np.searchsorted(self.hashes, wanted, "right") - first
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        spread = np.arange(total) - np.repeat(ends - counts, counts) + np.repeat(first, counts)
        return take_rows(self.rows, np.sort(self.order[spread]).astype(np.intp))


@dataclass
class _CachedSlice:
    indexed: Indexed
    used: int


@dataclass(frozen=True)
class _Search:
    """A lookup of some keys in the files of a state, with a cache if there is one."""

    storage: Storage
    wanted: WantedKeys
    cache: RowCache | None
    verify: bool
    state: KeyedState = field(repr=False)

    def rows_in(self, entry: KeyedEntry, slices: Iterable[KeyedStateSlice]) -> pa.Table:
        """Return the rows of the keys in slices of a state or of a layer, in their order."""
        pieces = [restored_schema(entry.state.schema).empty_table()]
        for part in slices:
            hashes = self.wanted.hashes_in(part)
            if len(hashes):
                pieces.append(self._rows_like(entry, part, hashes))
        return self.wanted.match(combine_chunks(pa.concat_tables(pieces)))

    def _rows_like(self, entry: KeyedEntry, part: KeyedStateSlice, hashes: U64Array) -> pa.Table:
        """Return a slice's rows with one of the hashes."""
        cache = self.cache
        if cache is None or (
            (held := cache.find(part, self.verify)) is None and not cache.takes(part.size_bytes)
        ):
            return self._stream_rows_like(entry, part, hashes)
        if held is None:
            rows = pa.Table.from_batches(
                read_slices(self.storage, entry, [part], verify=self.verify),
                restored_schema(entry.state.schema),
            )
            held = Indexed.of(combine_chunks(rows), self.state)
            cache.put(part, held, self.verify)
        return held.like(hashes)

    def _stream_rows_like(
        self, entry: KeyedEntry, part: KeyedStateSlice, hashes: U64Array
    ) -> pa.Table:
        pieces = [restored_schema(entry.state.schema).empty_table()]
        values = self.wanted.values_in(part)
        for batch in read_slices(self.storage, entry, [part], verify=self.verify):
            # Filter by value first: this removes nearly all rows, so few need hashes. For a single
            # simple key column it is exact; with several, each value may occur in another key.
            for name, wanted in values.items():
                batch = batch.filter(pc.is_in(batch.column(name), value_set=wanted))
            if not len(values) == len(self.state.key) == 1:
                own = hashes_of(batch.select([*self.state.key]))
                nearest = np.minimum(np.searchsorted(hashes, own), len(hashes) - 1)
                batch = batch.take(pa.array(np.flatnonzero(hashes[nearest] == own)))
            pieces.append(pa.Table.from_batches([batch]))
        return pa.concat_tables(pieces)


def bytes_to_read(
    per_subtask: Sequence[ReadSlices], wanted: WantedKeys, cache: RowCache | None, verify: bool
) -> int:
    """Return the number of bytes of the files that some keys need and a cache does not hold."""
    groups = np.unique(wanted.groups)
    return sum(
        part.size_bytes
        for reads in per_subtask
        for part in reads.slices
        if _has_any(part, groups) and (cache is None or cache.find(part, verify) is None)
    )


def _has_any(part: KeyedStateSlice, groups: npt.NDArray[np.int32]) -> bool:
    """Return whether some of the sorted key groups are in a slice."""
    first, after = np.searchsorted(groups, (part.key_groups.first, part.key_groups.last + 1))
    return bool(first < after)


def rows_of_keys(
    storage: Storage,
    entry: KeyedEntry,
    reads: ReadSlices,
    wanted: WantedKeys,
    cache: RowCache | None = None,
    *,
    verify: bool = False,
) -> pa.Table:
    """Return the rows of these keys in the given parts of a state, ``key_group`` first.

    The rows are in order of key group. Only files with key groups of the keys are read, each once.
    Without a cache, only one row group and the result are in memory. With ``verify`` the SHA-256 of
    each file is checked first. Raises MissingFileError or DamagedFileError.
    """
    search = _Search(storage, wanted, cache, verify, entry.state)
    base = search.rows_in(entry, reads.base)
    layers = [
        live_rows_of(search.rows_in(layer.entry, layer.slices), layer) for layer in reads.layers
    ]
    return rows_in_kept_groups(merged_rows(base, layers, entry.state), entry.state, reads.kept)


def _name(part: KeyedStateSlice, verify: bool) -> _SliceName:
    return part.handle.sha256, part.key_groups.first, part.first_row, part.rows, verify
