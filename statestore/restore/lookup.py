"""Lookups by key: one key in one file, many keys in one pass, or a subtask's keys on demand."""

from __future__ import annotations

import threading
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
from statestore.engines.arrow_engine import as_table
from statestore.errors import InvalidArgumentError
from statestore.format.handles import KeyedStateSlice
from statestore.format.manifest import KeyedEntry
from statestore.format.schema import type_text
from statestore.format.slices import ReadSlices, Slices, reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.merge import (
    kept_rows,
    live_rows_of,
    merged_rows,
    read_state,
    unexpired,
)
from statestore.parquet.reader import open_data, placed, read_slices, restored_schema, row_groups_of
from statestore.parquet.statistics import positions_of
from statestore.rows.column_types import arrow_schema, uuid_as_stored, uuid_columns, with_uuids
from statestore.rows.equality import found, hashes_of
from statestore.rows.input_rows import is_dicts, settled
from statestore.rows.key_group_runs import combined, key_groups_of, taken
from statestore.rows.lossless_cast import brief
from statestore.rows.python_values import column_of, dictionaries, fitted_table, table_of_dicts
from statestore.storage import Storage

__all__ = [
    "Indexed",
    "LazySubtask",
    "RowCache",
    "WantedKeys",
    "bytes_to_read",
    "key_batch",
    "key_group_of",
    "rows_of_key",
    "rows_of_keys",
    "table_of_key",
]


# The rows of one key, from at most one data file: a point lookup without a scan of the state.


def rows_of_key(
    storage: Storage,
    entry: KeyedEntry,
    key: Any,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> list[dict[str, Any]]:
    """Return a key's rows as dictionaries, in stored order; empty when the state lacks the key.

    Otherwise the same as :func:`table_of_key`.
    """
    table = table_of_key(storage, entry, key, verify=verify, now_ms=now_ms)
    return dictionaries(table, str(entry.state))


def table_of_key(
    storage: Storage,
    entry: KeyedEntry,
    key: Any,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> pa.Table:
    """Return the rows of a key, in stored order and columns.

    ``key`` is a value, or for several key columns a tuple or a dictionary. This reads the file of
    the key's group, and one file of each layer of changes, but only row groups whose bounds include
    the key. With ``verify`` it reads the whole file to check its SHA-256. If ``now_ms`` is given,
    expired rows are left out if the state hides them. Raises InvalidArgumentError when the value
    does not fit the key's type.
    """
    wanted = key_batch(entry.state, key)
    group = key_group_of(entry.state, wanted)
    reads = reads_of(entry, KeyGroupRange(group, group))
    rows = _rows_of(storage, entry, reads.base, wanted, verify)
    layers = [
        _rows_of(storage, layer.entry, layer.slices, wanted, verify) for layer in reads.layers
    ]
    merged = unexpired(merged_rows(rows, layers, entry.state), entry.state, now_ms)
    return merged.select(entry.state.schema.names)


def _rows_of(
    storage: Storage, entry: KeyedEntry, slices: Slices, wanted: pa.RecordBatch, verify: bool
) -> pa.Table:
    """Return the rows of a key in some slices of one key group, ``key_group`` first."""
    schema = arrow_schema(entry.state.schema)
    restored = restored_schema(entry.state.schema)
    keys = pa.Table.from_batches([wanted])
    pieces: list[pa.RecordBatch] = []
    for part in slices:
        with open_data(storage, entry.table.path, part.handle, verify=verify) as file:
            metadata = file.parquet.metadata
            own, _ = row_groups_of(metadata, range(part.first_row, part.first_row + part.rows))
            # Bounds in a footer without a checksum are not trusted: they could hide rows.
            known = part.handle.footer is not None
            for index in _row_groups(metadata, wanted, own) if known else own:
                for batch in file.batches([index], schema):
                    own = pa.Table.from_batches([batch.select(wanted.schema.names)])
                    rows = batch.take(pa.array(found(own, keys)[0]))
                    pieces.append(placed(rows, part.key_groups.first, restored))
    return pa.Table.from_batches(pieces, restored)


def key_group_of(
    state: KeyedState, wanted: pa.RecordBatch, max_parallelism: int | None = None
) -> int:
    """Return the key group of a key that :func:`key_batch` returned.

    It is one of the stored key groups, or of ``max_parallelism`` key groups.
    """
    return int(key_groups_of(wanted, state, max_parallelism)[0])


def key_batch(state: KeyedState, key: Any) -> pa.RecordBatch:
    """Return a key as one row of the state's key columns.

    Raises InvalidArgumentError when the value does not fit the key's type.
    """
    schema = arrow_schema(state.schema.select(state.key))
    columns = uuid_columns(state)
    values = [
        uuid_as_stored(value, columns[field.name]) if field.name in columns else value
        for value, field in zip(_key_values(state, key), schema, strict=True)
    ]
    try:
        arrays = [
            column_of([value], field.type, name=field.name, subject=brief(key), place=_of_key)
            for value, field in zip(values, schema, strict=True)
        ]
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{brief(key, 200)} is not a key of {state} ({_key_text(state)}): {error}"
        ) from error
    for value, column in zip(values, schema, strict=True):
        if not _names_all(value, column.type):
            raise InvalidArgumentError(
                f"{brief(key, 200)} is not a key of {state} ({_key_text(state)}): name every "
                "key field"
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _names_all(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value's dictionaries have all fields of their structs."""
    if pa.types.is_struct(kind):
        return value is not None and all(
            field.name in value and _names_all(value[field.name], field.type) for field in kind
        )
    if pa.types.is_list(kind) and value is not None:
        return all(one is None or _names_all(one, kind.value_type) for one in value)
    return True


def _of_key(at: int) -> str:
    return "the key"


def _key_values(state: KeyedState, key: Any) -> list[Any]:
    if isinstance(key, Mapping) and set(key) == set(state.key):
        return [key[name] for name in state.key]
    if len(state.key) == 1:
        return [key]
    if isinstance(key, tuple | list) and len(key) == len(state.key):
        return list(key)
    raise InvalidArgumentError(
        f"{brief(key)} is not a key of {state}; its key is ({_key_text(state)})"
    )


def _key_text(state: KeyedState) -> str:
    return ", ".join(f"{name} {type_text(state.schema.type_of(name))}" for name in state.key)


def _row_groups(metadata: Any, wanted: pa.RecordBatch, among: range) -> list[int]:
    """Return the row groups whose bounds include the key, or that have no bounds."""
    positions = positions_of(metadata)
    kept = []
    for group in among:
        row_group = metadata.row_group(group)
        bounds = (
            (row_group.column(positions[name]).statistics, _physical(wanted.column(name)[0]))
            for name in wanted.schema.names
            if name in positions and _comparable(wanted.schema.field(name).type)
        )
        if all(_admits(statistics, value) for statistics, value in bounds):
            kept.append(group)
    return kept


def _comparable(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))


def _physical(value: pa.Scalar) -> int | bytes | None:
    """Return a value as Parquet stores it: a date as days, text as UTF-8 bytes."""
    if pa.types.is_date(value.type):
        value = value.cast(pa.int32())
    stored = value.as_py()
    return stored.encode() if isinstance(stored, str) else stored


def _admits(statistics: Any, value: int | bytes | None) -> bool:
    if value is None or statistics is None or not statistics.has_min_max:
        return True
    # Python has no date after the year 9999, but the number of days always exists. Parquet orders
    # text by its bytes.
    return bool(statistics.min_raw <= value <= statistics.max_raw)


# The rows of many keys, for a micro-batch, in one pass over their key groups.
#
# Files never change, so their contents can be cached: :class:`RowCache` holds decoded files with
# the hashes of their keys, up to a number of bytes. A lookup of cached files reads nothing.


U64Array = npt.NDArray[np.uint64]

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
        rows = settled(rows)
        if is_dicts(rows):
            rows = _of_dicts(rows, state)
        rows = as_table(rows, f"the keys of {state}")
        missing = [name for name in state.key if name not in rows.column_names]
        if missing:
            raise InvalidArgumentError(
                f"the keys of {state} must have the columns ({', '.join(state.key)}); "
                f"{missing[0]!r} is missing"
            )
        schema = state.schema.select(state.key)
        try:
            keys = fitted_table(rows, schema).combine_chunks()
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
            lies[self._in(part)] = True
        at = np.flatnonzero(lies)
        return WantedKeys(self.rows.take(pa.array(at)), self.hashes[at], self.groups[at])

    def hashes_in(self, part: KeyedStateSlice) -> U64Array:
        """Return the distinct hashes of the keys in the key groups of a slice, in order."""
        hashes = self.hashes[self._in(part)]
        if len(part.key_groups) > 1:
            hashes = np.sort(hashes)
        again = hashes[1:] == hashes[:-1]
        return hashes[np.append(~again, True)] if again.any() else hashes

    def values_in(self, part: KeyedStateSlice) -> dict[str, pa.ChunkedArray]:
        """Return the key values in the key groups of a slice, for simple key columns.

        These are the columns whose values Arrow compares exactly as this module does.
        """
        own = self._in(part)
        own = self.rows.slice(own.start, own.stop - own.start)
        kinds = zip(own.column_names, own.schema.types, strict=True)
        return {name: own.column(name) for name, kind in kinds if _comparable(kind)}

    def match(self, rows: pa.Table) -> pa.Table:
        """Return the rows that have one of the keys; hashes may collide, values do not."""
        places, _ = found(rows.select(self.rows.column_names), self.rows)
        return rows if len(places) == rows.num_rows else taken(rows, places)

    def _in(self, part: KeyedStateSlice) -> slice:
        groups = part.key_groups
        return slice(*np.searchsorted(self.groups, (groups.first, groups.last + 1)).tolist())


class RowCache:
    """A cache of decoded slices of files with hashes of their keys, up to a number of bytes.

    Each lookup needs about the same slices. Cached slices therefore stay while they are in use, and
    slices that do not fit are read each time. With LRU eviction, one slice too many would evict
    each slice right before it is needed.
    """

    def __init__(self, limit_bytes: int) -> None:
        """Start an empty cache of at most ``limit_bytes``."""
        self._limit, self._size = limit_bytes, 0
        self._lookup, self._lookups = "", 0
        self._held: dict[tuple[str, int, int, int], _Held] = {}
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

    def find(self, part: KeyedStateSlice) -> Indexed | None:
        """Return a slice if it is in the cache."""
        with self._lock:
            held = self._held.get(_name(part))
            if held is None:
                return None
            held.used = self._lookups
            return held.indexed

    def takes(self, size_bytes: int) -> bool:
        """Return whether there may be room for this many bytes of files."""
        return size_bytes * _SMALL <= self._limit - self._size

    def put(self, part: KeyedStateSlice, indexed: Indexed) -> None:
        """Cache a slice if there is room."""
        with self._lock:
            if _name(part) not in self._held and self._size + indexed.size <= self._limit:
                self._held[_name(part)] = _Held(indexed, self._lookups)
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
        return taken(self.rows, np.sort(self.order[spread]).astype(np.intp))


@dataclass
class _Held:
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
                pieces.append(self._like(entry, part, hashes))
        return self.wanted.match(combined(pa.concat_tables(pieces)))

    def _like(self, entry: KeyedEntry, part: KeyedStateSlice, hashes: U64Array) -> pa.Table:
        """Return a slice's rows with one of the hashes."""
        cache = self.cache
        if cache is None or (
            (held := cache.find(part)) is None and not cache.takes(part.size_bytes)
        ):
            return self._streamed(entry, part, hashes)
        if held is None:
            rows = pa.Table.from_batches(
                read_slices(self.storage, entry, [part], verify=self.verify),
                restored_schema(entry.state.schema),
            )
            held = Indexed.of(combined(rows), self.state)
            cache.put(part, held)
        return held.like(hashes)

    def _streamed(self, entry: KeyedEntry, part: KeyedStateSlice, hashes: U64Array) -> pa.Table:
        pieces = [restored_schema(entry.state.schema).empty_table()]
        values = self.wanted.values_in(part)
        for batch in read_slices(self.storage, entry, [part], verify=self.verify):
            # Filter by value first: this removes nearly all rows, so few need hashes. For a single
            # simple key column it is exact; with several, each value may occur in another key.
            for name, wanted in values.items():
                batch = batch.filter(pc.is_in(batch.column(name), value_set=wanted))
            if not len(values) == len(self.state.key) == 1:
                own = hashes_of(batch.select([*self.state.key]))
                at = np.minimum(np.searchsorted(hashes, own), len(hashes) - 1)
                batch = batch.take(pa.array(np.flatnonzero(hashes[at] == own)))
            pieces.append(pa.Table.from_batches([batch]))
        return pa.concat_tables(pieces)


def bytes_to_read(
    per_subtask: Sequence[ReadSlices], wanted: WantedKeys, cache: RowCache | None
) -> int:
    """Return the number of bytes of the files that some keys need and a cache does not hold."""
    groups = np.unique(wanted.groups)
    return sum(
        part.size_bytes
        for reads in per_subtask
        for part in reads.slices
        if _has_any(part, groups) and (cache is None or cache.find(part) is None)
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
    return kept_rows(merged_rows(base, layers, entry.state), entry.state, reads.kept)


def _of_dicts(rows: Sequence[Mapping[str, Any]], state: KeyedState) -> pa.Table:
    """Return the key columns that occur in dictionaries; without dictionaries, all of them."""
    names = [name for name in state.key if any(name in row for row in rows) or not rows]
    keys: Sequence[Mapping[str, Any]] = [{name: row.get(name) for name in names} for row in rows]
    keys = with_uuids(keys, uuid_columns(state))
    return table_of_dicts(keys, state.schema.select(names), subject=f"the keys of {state}")


def _name(part: KeyedStateSlice) -> tuple[str, int, int, int]:
    return part.handle.sha256, part.key_groups.first, part.first_row, part.rows


# A subtask's state that is fetched on demand: a lookup reads one key group, not all of them.
#
# As with disaggregated state, a restored subtask can begin immediately, and reads state on demand.


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
        batch = key_batch(self._entry.state, key)
        group = key_group_of(self._entry.state, batch, self._max)
        if group not in self.key_groups:
            raise InvalidArgumentError(
                f"the key {brief(key)} of {self._entry.state} is in key group {group}, but "
                f"this subtask owns {self.key_groups}; ask the subtask that owns the key group"
            )
        state, held = self._entry.state, self._group(group)
        if held is None:
            return rows_of_key(
                self._storage, self._entry, key, verify=self._verify, now_ms=self._now_ms
            )
        wanted = WantedKeys.of(pa.Table.from_batches([batch]), state)
        rows = wanted.match(held.like(wanted.hashes))
        return dictionaries(rows.select(state.schema.names), str(state))

    def fetch(self, key_groups: KeyGroupRange | None = None) -> int:
        """Read key groups into the cache, by default all; return the number of cached ones.

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
        return Indexed.of(combined(pa.Table.from_batches(pieces, schema)), self._entry.state)
