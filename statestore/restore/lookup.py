"""Look up the rows of keys: of one key, or of many in one pass over their key groups.

A lookup reads the files that contain key groups of the keys. In a file with several row groups, few
keys read only the row groups whose bounds include one of them.

Files never change, so their contents can be cached: :class:`RowCache` holds decoded files with the
hashes of their keys, up to a number of bytes, and :class:`LazySubtask` holds key groups. A lookup
in a cache reads nothing.

The keys are one key in Python's form, or many keys as rows of any kind.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.arguments import checked_methods
from statestore.engines.given_rows import as_table
from statestore.errors import InvalidArgumentError
from statestore.format.handles import Handle, KeyedStateSlice
from statestore.format.manifest import KeyedEntry
from statestore.format.schema import type_text
from statestore.format.slices import ReadSlices, reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.expiry import drop_expired
from statestore.layers.merge import live_rows_of, merged_rows, read_state
from statestore.parquet.reader import DataFile, RowGroups, read_slices, restored_schema
from statestore.parquet.statistics import positions_of
from statestore.rows.column_types import arrow_schema, uuid_as_stored, uuid_columns
from statestore.rows.digests import U64Array
from statestore.rows.equality import hashes_of, matching_positions
from statestore.rows.fit_columns import fit_table
from statestore.rows.key_group_runs import (
    combine_chunks,
    key_groups_of,
    rows_in_kept_groups,
    take_rows,
)
from statestore.rows.lossless_cast import brief_text
from statestore.rows.python_values import column_of, rows_to_dicts
from statestore.storage import Storage


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

    @classmethod
    def of_key(cls, key: Any, state: KeyedState) -> WantedKeys:
        """Return one key; raises the errors of :func:`key_batch`, and NullKeyError."""
        batch = key_batch(state, key)
        keys = pa.Table.from_batches([batch])
        groups = np.asarray(key_groups_of(batch, state), np.int32)
        return cls(keys, hashes_of(keys), groups)

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
        return {name: own.column(name) for name, data_type in kinds if _has_exact_bounds(data_type)}

    def match(self, rows: pa.Table) -> pa.Table:
        """Return the rows that have one of the keys; hashes may collide, values do not."""
        places, _ = matching_positions(rows.select(self.rows.column_names), self.rows)
        return rows if len(places) == rows.num_rows else take_rows(rows, places)

    def _places_in(self, part: KeyedStateSlice) -> slice:
        groups = part.key_groups
        return slice(*np.searchsorted(self.groups, (groups.first, groups.last + 1)).tolist())


def key_group_of(
    state: KeyedState, wanted: pa.RecordBatch, max_parallelism: int | None = None
) -> int:
    """Return the key group of a key that :func:`key_batch` returned.

    It is one of the stored key groups, or of ``max_parallelism`` key groups.
    """
    return int(key_groups_of(wanted, state, max_parallelism)[0])


def key_batch(state: KeyedState, key: Any) -> pa.RecordBatch:
    """Return a key as one row of the state's key columns, which ``key`` itself can be.

    Raises InvalidArgumentError when the value does not fit the key's type.
    """
    if isinstance(key, pa.RecordBatch):
        return key.select(state.key)
    schema = arrow_schema(state.schema.select(state.key))
    columns = uuid_columns(state)
    values = [
        uuid_as_stored(value, columns[field.name]) if field.name in columns else value
        for value, field in zip(_key_values(state, key), schema, strict=True)
    ]
    try:
        arrays = [
            column_of(
                [value], field.type, name=field.name, subject=brief_text(key), place=_key_place
            )
            for value, field in zip(values, schema, strict=True)
        ]
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{brief_text(key, 200)} is not a key of {state} ({_key_text(state)}): {error}"
        ) from error
    for value, column in zip(values, schema, strict=True):
        if not _has_all_fields(value, column.type):
            raise InvalidArgumentError(
                f"{brief_text(key, 200)} is not a key of {state} ({_key_text(state)}): name every "
                "key field"
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _has_all_fields(value: Any, data_type: pa.DataType) -> bool:
    """Return whether a value's dictionaries have all fields of their structs."""
    if pa.types.is_struct(data_type):
        return value is not None and all(
            field.name in value and _has_all_fields(value[field.name], field.type)
            for field in data_type
        )
    if pa.types.is_list(data_type) and value is not None:
        return all(item is None or _has_all_fields(item, data_type.value_type) for item in value)
    return True


def _key_place(index: int) -> str:
    return "the key"


def _key_values(state: KeyedState, key: Any) -> list[Any]:
    if isinstance(key, Mapping) and set(key) == set(state.key):
        return [key[name] for name in state.key]
    if len(state.key) == 1:
        return [key]
    if isinstance(key, tuple | list) and len(key) == len(state.key):
        return list(key)
    raise InvalidArgumentError(
        f"{brief_text(key)} is not a key of {state}; its key is ({_key_text(state)})"
    )


def _key_text(state: KeyedState) -> str:
    return ", ".join(f"{name} {type_text(state.schema.type_of(name))}" for name in state.key)


def _has_exact_bounds(data_type: pa.DataType) -> bool:
    """Return whether Parquet's bounds of a column decide which keys are in it."""
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_date(data_type)
    )


_SliceName = tuple[str, int, int, int, bool]

_STALE = 32
"""Slices that were not used in this many lookups are evicted."""
_SMALL = 4
"""A decoded file is seldom larger than this multiple of its size."""
_FEW_KEYS = 16
"""For more keys in a file, their values are not compared with the bounds of its row groups."""


def rows_of_key(
    storage: Storage,
    entry: KeyedEntry,
    key: Any,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> pa.Table:
    """Return the rows of a key, in stored order and columns; see :func:`key_batch` for ``key``.

    This reads one file of the base, and one of each layer of changes. Otherwise it is the same as
    :func:`rows_of_keys`, whose errors it raises, and InvalidArgumentError when the value does not
    fit the key's type.
    """
    wanted = WantedKeys.of_key(key, entry.state)
    group = int(wanted.groups[0])
    reads = reads_of(entry, KeyGroupRange(group, group))
    rows = rows_of_keys(storage, entry, reads, wanted, verify=verify, now_ms=now_ms)
    return rows.select(entry.state.schema.names)


def rows_of_keys(
    storage: Storage,
    entry: KeyedEntry,
    reads: ReadSlices,
    wanted: WantedKeys,
    cache: RowCache | None = None,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> pa.Table:
    """Return the rows of these keys in the given parts of a state, ``key_group`` first.

    The rows are in order of key group. Only files with key groups of the keys are read, each once.
    Without a cache, only one row group and the result are in memory. With ``verify`` the SHA-256 of
    each file is checked first. If ``now_ms`` is given, expired rows are left out if the state hides
    them. Raises MissingFileError or DamagedFileError.
    """
    search = _Search(storage, wanted, cache, verify, entry.state)
    base = search.rows_in(entry, reads.base)
    layers = [
        live_rows_of(search.rows_in(layer.entry, layer.slices), layer) for layer in reads.layers
    ]
    merged = merged_rows(base, layers, entry.state)
    kept = rows_in_kept_groups(merged, entry.state, reads.kept)
    return drop_expired(kept, entry.state, now_ms)


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

    def has_room_for(self, size_bytes: int) -> bool:
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
        """Index rows by the hashes of their keys."""
        hashes = hashes_of(rows.select(state.key))
        order = np.argsort(hashes).astype(np.uint32)
        return cls(rows, hashes[order], order)

    @property
    def size(self) -> int:
        """The number of bytes in memory."""
        return int(self.rows.nbytes + self.hashes.nbytes + self.order.nbytes)

    def find(self, wanted: WantedKeys) -> pa.Table:
        """Return the rows of the keys, in the rows' order."""
        return wanted.match(self.like(wanted.hashes))

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
            (held := cache.find(part, self.verify)) is None
            and not cache.has_room_for(part.size_bytes)
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
        row_groups = _row_groups_of_keys(part, len(hashes), values)
        for batch in read_slices(
            self.storage, entry, [part], row_groups=row_groups, verify=self.verify
        ):
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


def _row_groups_of_keys(
    part: KeyedStateSlice, keys: int, values: Mapping[str, pa.ChunkedArray]
) -> RowGroups | None:
    """Return a filter for the row groups that may have some keys; None to read all of them.

    ``keys`` is the number of keys, and ``values`` has the values of their simple columns. Bounds in
    a footer without a checksum are not trusted: they could hide rows. Many keys are in nearly all
    row groups. A file with one row group is read as a whole, with one request, except for one key.
    """
    if part.handle.footer is None or not values or keys > _FEW_KEYS:
        return None
    if part.handle.row_groups == 1 < keys:
        return None
    stored = {name: _stored_values(column) for name, column in values.items()}

    def row_groups(file: DataFile, handle: Handle) -> list[int]:
        metadata = file.parquet.metadata
        positions = positions_of(metadata)
        known = {positions[name]: own for name, own in stored.items() if name in positions}
        return [
            number
            for number in range(metadata.num_row_groups)
            if all(
                _may_contain(metadata.row_group(number).column(position).statistics, own)
                for position, own in known.items()
            )
        ]

    return row_groups


def _stored_values(column: pa.ChunkedArray) -> list[Any] | None:
    """Return sorted values as Parquet stores them: dates as days, text as UTF-8; None with nulls.

    Python has no date after the year 9999, but the number of days always exists. Parquet orders
    text by its bytes.
    """
    if column.null_count:
        return None
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    values = column.to_pylist()
    return sorted(value.encode() if isinstance(value, str) else value for value in values)


def _may_contain(statistics: Any, values: Sequence[Any] | None) -> bool:
    if values is None or statistics is None or not statistics.has_min_max:
        return True
    least, most = statistics.min_raw, statistics.max_raw
    return bisect_left(values, least) < bisect_right(values, most)


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


def _name(part: KeyedStateSlice, verify: bool) -> _SliceName:
    return part.handle.sha256, part.key_groups.first, part.first_row, part.rows, verify


@checked_methods
class LazySubtask:
    """The key groups of one subtask, each read when one of its keys is looked up.

    Up to ``limit_bytes`` of decoded key groups are cached; the least recently used are evicted
    first. A larger key group is not cached: each lookup reads the row groups that may have the key.
    Not thread-safe.
    """

    def __init__(
        self,
        storage: Storage,
        entry: KeyedEntry,
        own: KeyGroupRange,
        max_parallelism: int,
        *,
        limit_bytes: int,
        verify: bool = False,
        now_ms: int | None,
    ) -> None:
        """Take the subtask's key groups; nothing is read yet."""
        self.key_groups = own
        self._storage, self._entry, self._max = storage, entry, max_parallelism
        self._limit, self._verify, self._now_ms = limit_bytes, verify, now_ms
        self._size = 0
        self._held: OrderedDict[int, Indexed] = OrderedDict()
        self._too_large: set[int] = set()

    @property
    def fetched(self) -> tuple[int, ...]:
        """The key groups in the cache, ascending."""
        return tuple(sorted(self._held))

    def get(self, key: Any) -> list[dict[str, Any]]:
        """Return the rows of one key, [] for none; its key group is read, and cached if it fits.

        Raises InvalidArgumentError for an invalid key, or one that another subtask owns,
        MissingFileError or DamagedFileError.
        """
        state = self._entry.state
        batch = key_batch(state, key)
        group = key_group_of(state, batch, self._max)
        if group not in self.key_groups:
            raise InvalidArgumentError(
                f"the key {brief_text(key)} of {state} is in key group {group}, but "
                f"this subtask owns {self.key_groups}; ask the subtask that owns the key group"
            )
        held = self._group(group)
        if held is None:
            rows = rows_of_key(
                self._storage, self._entry, batch, verify=self._verify, now_ms=self._now_ms
            )
        else:
            rows = held.find(WantedKeys.of_key(batch, state)).select(state.schema.names)
        return rows_to_dicts(rows, str(state))

    def fetch(self, key_groups: KeyGroupRange | None = None) -> int:
        """Read key groups into the cache, by default all; return the number of cached key groups.

        A key group that is larger than the limit is not cached.
        """
        for group in self.key_groups if key_groups is None else key_groups:
            if group in self.key_groups:
                self._group(group)
        return len(self._held)

    def _group(self, group: int) -> Indexed | None:
        """Return a key group and cache it; None if it is larger than the limit."""
        held = self._held.get(group)
        if held is None:
            if group in self._too_large:
                return None
            held = self._read(group)
            if held is None or held.size > self._limit:
                self._too_large.add(group)
                return None
            self._held[group] = held
            self._size += held.size
            while self._size > self._limit:
                self._size -= self._held.popitem(last=False)[1].size
        self._held.move_to_end(group)
        return held

    def _read(self, group: int) -> Indexed | None:
        """Return a key group; None if its rows are larger than the limit."""
        reads = reads_of(self._entry, KeyGroupRange(group, group), self._max)
        if sum(part.size_bytes for part in reads.base) > self._limit:  # rows are larger than files
            return None
        schema = restored_schema(self._entry.state.schema)
        pieces: list[pa.RecordBatch] = []
        size = 0
        with closing(
            read_state(self._storage, self._entry, reads, verify=self._verify, now_ms=self._now_ms)
        ) as batches:
            for batch in batches:
                size += batch.nbytes
                if size > self._limit:
                    return None
                pieces.append(batch)
        return Indexed.of(combine_chunks(pa.Table.from_batches(pieces, schema)), self._entry.state)
