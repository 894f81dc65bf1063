"""Merges base and changes: yields a state's rows in key-group order, in one pass over its files.

Base and layers are read in aligned pieces (:mod:`statestore.layers.aligned_streams`), so memory
does not depend on the size of a key group. In memory are two pieces of each layer and of the base,
and one more of the base: one thread decodes the base, and another one decodes the layers and aligns
them with it. Within a piece, each row of the base is looked up in the changes, the newest first.
Only rows that are new to the base are sorted.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.format.handles import Handle
from statestore.format.layers import delete_widths
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import LayerReads, ReadSlices
from statestore.format.state import KeyedState
from statestore.layers.aligned_streams import AlignedPiece, align_streams, sorted_tables
from statestore.layers.expiry import MERGED_BYTES, drop_expired
from statestore.layers.layer_cache import LayerCache, Read
from statestore.parquet.reader import DataFile, RowGroups, read_slices, restored_schema
from statestore.rows.change_rows import open_deletes
from statestore.rows.delete_markers import are_upserts, clear_deletes, widths_of
from statestore.rows.digests import Flags, Places
from statestore.rows.equality import matching_positions
from statestore.rows.key_group_runs import (
    order_of,
    rows_in_kept_groups,
    take_rows,
    wide_bytes,
)
from statestore.storage import Storage

T = TypeVar("T")
Widths = npt.NDArray[np.int64]


def record_batch_reader(
    storage: Storage,
    entry: KeyedEntry,
    reads: ReadSlices,
    *,
    verify: bool = False,
    now_ms: int | None = None,
    cache: LayerCache | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of a subtask as a stream of Arrow batches, ``key_group`` first."""
    schema = restored_schema(entry.state.schema)
    batches = read_state(storage, entry, reads, verify=verify, now_ms=now_ms, cache=cache)
    return pa.RecordBatchReader.from_batches(schema, batches)


def read_state(
    storage: Storage,
    entry: KeyedEntry,
    reads: ReadSlices,
    *,
    verify: bool = False,
    now_ms: int | None = None,
    run_bytes: int = MERGED_BYTES,
    wanted: Wanted | None = None,
    cache: LayerCache | None = None,
) -> Generator[pa.RecordBatch]:
    """Yield the rows of a subtask in order of key group; with ``verify`` SHA-256 is checked first.

    If ``now_ms`` is given, rows that have expired by then are left out if the state hides them.
    Without changes, one batch is in memory. With changes, about twice ``run_bytes`` of each layer
    and three times as much of the base are in memory. More than 32 layers share the memory of 32.
    Single rows may be larger.

    ``wanted`` limits the columns and row groups that are read; the rows may lack other columns,
    except ``key_group``. Reads of the same state, all without ``wanted``, may share a ``cache``.
    Raises MissingFileError or DamagedFileError with the names of file, state and operator.
    """
    base = partial(read_slices, storage, verify=verify)
    layer, columns = base, None
    if wanted is not None:
        # A key may have to be hashed again for the key groups that are kept.
        columns = wanted.returned(entry.state) if reads.kept is None else None
        entry, reads = wanted.select(entry, reads)
        base = partial(base, row_groups=wanted.row_groups)
        layer = partial(layer, row_groups=_every_row_group)
    for batch in _all_rows(base, layer, entry, reads, run_bytes, cache, columns):
        yield rows_in_kept_groups(drop_expired(batch, entry.state, now_ms), entry.state, reads.kept)


def read_pieces(
    storage: Storage, entry: KeyedEntry, reads: ReadSlices, piece_bytes: int = MERGED_BYTES
) -> Iterator[pa.Table]:
    """Yield the rows of a subtask, sorted, in tables of about ``piece_bytes``; SHA-256 is checked.

    The tables are in ascending order, with floats in the order of newly written files. Raises
    MissingFileError or DamagedFileError.
    """
    batches = read_state(storage, entry, reads, verify=True, run_bytes=piece_bytes)
    return sorted_tables(batches, entry.state, piece_bytes)


@dataclass(frozen=True)
class Wanted:
    """The wanted part of a state: some columns, and some row groups of its base files.

    All row groups of the layers are read, because any change may hide an older row. A change whose
    older row is not read counts as a new row.
    """

    columns: Collection[str]
    row_groups: RowGroups

    def select(self, entry: KeyedEntry, reads: ReadSlices) -> tuple[KeyedEntry, ReadSlices]:
        """Return a state and its reads, reduced to these columns.

        The identity columns and the TTL's column are kept too.
        """
        return _with_columns(entry, reads, self.columns)

    def returned(self, state: KeyedState) -> Collection[str]:
        """Return the columns that are needed after the merge: without the identity columns."""
        return {*self.columns, *([state.ttl.column] if state.ttl else [])}


def identities_of(entry: KeyedEntry, reads: ReadSlices) -> tuple[KeyedEntry, ReadSlices]:
    """Return a state and its reads, reduced to the identity columns and the TTL's column."""
    return _with_columns(entry, reads, ())


def _with_columns(
    entry: KeyedEntry, reads: ReadSlices, columns: Collection[str]
) -> tuple[KeyedEntry, ReadSlices]:
    ttl = entry.state.ttl
    names = {*columns, *entry.state.identity, *([ttl.column] if ttl else [])}
    layers = [replace(layer, entry=_select_columns(layer.entry, names)) for layer in reads.layers]
    return _select_columns(entry, names), ReadSlices(reads.base, tuple(layers), reads.kept)


def _select_columns(entry: KeyedEntry, names: Collection[str]) -> KeyedEntry:
    own = entry.state
    kept = [name for name in own.schema.names if name in names or name in own.identity]
    return replace(entry, state=replace(own, schema=own.schema.select(kept)))


def _every_row_group(_: DataFile, handle: Handle) -> Iterable[int]:
    return range(handle.row_groups)


_FULL_SIZE_LAYERS = 32
_WIDE_BYTES = 64 * 2**20
"""Base and layers with many columns share this memory, see :func:`wide_bytes`."""


def _layer_bytes(run_bytes: int, layers: int) -> int:
    """Return the bytes of one layer's tables; many layers share the memory of a few."""
    return run_bytes * _FULL_SIZE_LAYERS // max(layers, _FULL_SIZE_LAYERS)


def _all_rows(
    read_base: Read,
    read_layer: Read,
    entry: KeyedEntry,
    reads: ReadSlices,
    run_bytes: int,
    cache: LayerCache | None,
    columns: Collection[str] | None,
) -> Iterator[pa.RecordBatch]:
    base = read_base(entry, reads.base)
    if not reads.layers:
        yield from base
        return
    tables_in_memory = 2 * (len(reads.layers) + 1)  # one is merged, and the next one is read
    run_bytes = wide_bytes(run_bytes, entry.state, _WIDE_BYTES // tables_in_memory)
    layer_bytes = _layer_bytes(run_bytes, len(reads.layers))
    with _read_ahead(sorted_tables(base, entry.state, run_bytes)) as tables:
        layers = _layer_streams(read_layer, reads.layers, entry.state, layer_bytes, cache)
        # A second thread decodes the layers and aligns them with the base.
        with _read_ahead(align_streams([*layers, tables], entry.state.identity)) as pieces:
            for rows in _merge_pieces(pieces, len(layers), entry.state, columns):
                yield from rows.to_batches()


@contextmanager
def _read_ahead(items: Iterator[T]) -> Iterator[Iterator[T]]:
    """Let a thread compute the next item, so that Arrow decodes while rows are merged.

    Leaving the ``with`` block early waits for the item that is being computed.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="statestore-ahead") as pool:
        coming = pool.submit(next, items, None)

        def come() -> Iterator[T]:
            nonlocal coming
            while (item := coming.result()) is not None:
                coming = pool.submit(next, items, None)
                yield item

        try:
            yield come()
        finally:
            pool.shutdown(cancel_futures=True)


def merged_batches(
    base: Iterator[pa.RecordBatch], layers: Sequence[Iterator[pa.RecordBatch]], entry: KeyedEntry
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a base with the changes of a state's layers applied, oldest first.

    The batches are in stored order, with ``key_group`` first. ``layers`` have only live changes.
    """
    state = entry.state
    changes = [
        sorted_tables(batches, layer.entry.state, MERGED_BYTES)
        for batches, layer in zip(layers, entry.layers, strict=True)
    ]
    rows = sorted_tables(base, state, MERGED_BYTES)
    pieces = align_streams([*changes, rows], state.identity)
    for table in _merge_pieces(pieces, len(changes), state):
        yield from table.to_batches()


def merged_changes(
    storage: Storage,
    layers: Sequence[LayerReads],
    state: KeyedState,
    table_bytes: int = MERGED_BYTES,
) -> Iterator[pa.Table]:
    """Yield the rows of some layers, oldest first, merged into one layer, sorted.

    All changes of an identity are in one table. Deletes are cleared: a newer layer may upsert rows
    that they name.
    """
    read = partial(read_slices, storage, verify=True)
    streams = _layer_streams(read, layers, state, _layer_bytes(table_bytes, len(layers)))
    for rows in _merge_layers(streams, state):
        yield clear_deletes(rows)


def merged_rows(rows: pa.Table, layers: Sequence[pa.Table], state: KeyedState) -> pa.Table:
    """Return rows of a base with changes of some layers, oldest first, applied to them.

    All tables must have the complete rows of the same key groups, or of the same keys, with
    ``key_group`` as their first column. ``layers`` must have only live changes.
    """
    return _apply_changes(rows, [_Changes(layer) for layer in layers if layer.num_rows], state)


_TINY_LAYER_BYTES, _TINY_LAYERS_BYTES = 128 * 2**10, 2**20


def _layer_streams(
    read: Read,
    layers: Sequence[LayerReads],
    state: KeyedState,
    table_bytes: int,
    cache: LayerCache | None = None,
) -> list[Iterator[pa.Table]]:
    """Return sorted streams of the live changes of some layers, oldest first.

    Adjacent tiny layers are merged in memory into one stream, about 1 MiB of files at a time. A
    merge has a fixed cost for each stream, which is higher than the cost of a few rows.
    """
    streams: list[Iterator[pa.Table]] = []
    for together in _tiny_together(layers):
        changes = [_layer_changes(read, layer, table_bytes, cache) for layer in together]
        streams.append(_merge_layers(changes, state))
    return streams


def _tiny_together(layers: Sequence[LayerReads]) -> Iterator[list[LayerReads]]:
    together: list[LayerReads] = []
    total = 0
    for layer in layers:
        size = sum(handle.size_bytes for handle in layer.entry.handles)
        is_tiny = size <= _TINY_LAYER_BYTES
        if together and not (is_tiny and total + size <= _TINY_LAYERS_BYTES):
            yield together
            together, total = [], 0
        together.append(layer)
        total += size if is_tiny else _TINY_LAYERS_BYTES
    if together:
        yield together


def _layer_changes(
    read: Read,
    layer: LayerReads,
    table_bytes: int = MERGED_BYTES,
    cache: LayerCache | None = None,
) -> Iterator[pa.Table]:
    """Yield the live changes of a layer, sorted, in tables of about ``table_bytes``.

    If they are cached, they are one table.
    """
    cached = None if cache is None else cache.rows_of(layer, read)
    tables: Iterable[pa.Table] = (
        [cached]
        if cached is not None
        else sorted_tables(read(layer.entry, layer.slices), layer.entry.state, table_bytes)
    )
    for table in tables:
        live = live_rows_of(table, layer)
        if live.num_rows:
            yield live


def live_rows_of(rows: pa.Table, layer: LayerReads) -> pa.Table:
    """Return the live rows of a layer, whose rows are in order of key group."""
    groups = np.asarray(rows.column(KEY_GROUP))
    bounds = np.array([(span.first, span.last + 1) for span in layer.live], groups.dtype)
    spans = np.searchsorted(groups, bounds).tolist()
    if len(spans) == 1:
        [(begin, end)] = spans
        return rows.slice(begin, end - begin)
    live = np.zeros(len(groups), np.bool_)
    for begin, end in spans:
        live[begin:end] = True
    return rows if live.all() else rows.filter(pa.array(live))


def _merge_layers(layers: Sequence[Iterator[pa.Table]], state: KeyedState) -> Iterator[pa.Table]:
    """Merge layers, passed oldest first, and yield their changes as one sorted layer."""
    if len(layers) == 1:
        yield from layers[0]
        return
    opened = [_OpenDeletes(state) for _ in layers]
    for piece in align_streams(layers, state.identity):
        changes = _newest_changes(_changes_of(piece, opened), state)
        if changes.num_rows:
            yield changes


def _merge_pieces(
    pieces: Iterable[AlignedPiece],
    layers: int,
    state: KeyedState,
    columns: Collection[str] | None = None,
) -> Iterator[pa.Table]:
    """Yield a state's rows from pieces of its layers, oldest first, and then of its base.

    Only ``columns`` and ``key_group`` are gathered; all columns without ``columns``.
    """
    empty = restored_schema(state.schema).empty_table()
    opened = [_OpenDeletes(state) for _ in range(layers)]
    for piece in pieces:
        rows = piece.rows[-1]
        rows = empty if rows is None else rows
        yield _apply_changes(rows, _changes_of(piece, opened), state, columns)


def _changes_of(piece: AlignedPiece, opened: Sequence[_OpenDeletes]) -> list[_Changes]:
    """Return the changes in a piece by layer; ``piece.rows`` has the layers before the base."""
    layers = zip(opened, piece.rows, strict=False)
    parts = [each.extend(rows, piece) for each, rows in layers]
    return [part for part in parts if part is not None]


@dataclass(frozen=True)
class _Changes:
    """Changes of one layer, after ``earlier`` deletes of earlier pieces."""

    rows: pa.Table
    earlier: int = 0


class _OpenDeletes:
    """Carries the deletes of one sorted stream of changes into later pieces.

    A delete may name only the first identity columns, such as a key. It sorts before all rows that
    it names, and these may be in many pieces.
    """

    def __init__(self, state: KeyedState) -> None:
        self._state = state
        self._open: pa.Table | None = None
        self._has_prefixes = len(delete_widths(state)) > 1

    def extend(self, changes: pa.Table | None, piece: AlignedPiece) -> _Changes | None:
        """Return a piece's changes together with earlier deletes that may apply to its rows.

        None if there are neither.
        """
        if not self._has_prefixes:
            return None if changes is None else _Changes(changes)
        parts = [rows for rows in (self._open, changes) if rows is not None]
        if not parts:
            return None
        rows, earlier = pa.concat_tables(parts), 0 if self._open is None else self._open.num_rows
        self._open = None
        if piece.following is not None:
            still_open = open_deletes(rows, piece.following, self._state)
            self._open = still_open if still_open.num_rows else None
        return _Changes(rows, earlier)


def _newest_changes(parts: Sequence[_Changes], state: KeyedState) -> pa.Table:
    """Return the changes of some layers, oldest first, merged into one sorted layer.

    Deletes of earlier pieces are not returned again.
    """
    if len(parts) == 1:
        return parts[0].rows.slice(parts[0].earlier)
    changes, ages = _newest_first(parts)
    widths = widths_of(changes, state)
    is_newest = ~_are_replaced(changes, ages, widths, _distinct_widths(widths), state)
    begin = 0
    for part in reversed(parts):
        is_newest[begin : begin + part.earlier] = False
        begin += part.rows.num_rows
    kept = np.flatnonzero(is_newest)
    if not len(kept):
        return changes.slice(0, 0)
    own = changes.select([KEY_GROUP, *state.identity]).take(pa.array(kept)).combine_chunks()
    return take_rows(changes, kept[order_of(own, state)])


def _newest_first(parts: Sequence[_Changes]) -> tuple[pa.Table, Places]:
    """Return the changes of some layers, passed oldest first, with the newest layer first.

    Also return for each change the number of layers that are newer.
    """
    tables = [part.rows for part in reversed(parts)]
    ages = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    return pa.concat_tables(tables), ages


def _are_replaced(
    changes: pa.Table, ages: Places, widths: Widths, replacing: Sequence[int], state: KeyedState
) -> Flags:
    """Return which changes are replaced by newer ones, of those with the ``replacing`` widths.

    The newest changes come first. A newer delete replaces a delete of the same key; a newer row of
    that key does not.
    """
    are_replaced = np.zeros(changes.num_rows, np.bool_)
    for width in replacing:
        newer, reached = np.flatnonzero(widths == width), np.flatnonzero(widths >= width)
        identities = changes.select(list(state.identity[:width]))
        positions, places = matching_positions(
            _take_at(identities, reached), _take_at(identities, newer)
        )
        are_replaced[reached[positions]] |= ages[newer[places]] < ages[reached[positions]]
    return are_replaced


def _distinct_widths(widths: Widths) -> list[int]:
    distinct: list[int] = np.flatnonzero(np.bincount(widths)).tolist()
    return distinct


def _apply_changes(
    rows: pa.Table,
    parts: Sequence[_Changes],
    state: KeyedState,
    columns: Collection[str] | None = None,
) -> pa.Table:
    """Return a piece's rows with the changes of some layers applied, in order of identity.

    The layers are given oldest first. If there are changes and ``columns``, the rows have only
    these columns and ``key_group``.
    """
    if not parts:
        return rows
    changes, ages = _newest_first(parts)
    widths, every = widths_of(changes, state), len(state.identity)
    prefixes = [width for width in _distinct_widths(widths) if width < every]
    left = are_upserts(changes) & ~_are_replaced(changes, ages, widths, prefixes, state)
    behind = rows.num_rows
    places, stays = np.arange(behind), np.ones(behind, np.bool_)
    for width in prefixes:
        stays[_matches([rows], changes, np.flatnonzero(widths == width), state, width)[0]] = False
    whole = np.flatnonzero(widths == every)
    # Rows are looked up in all changes: the first that equals a row is the newest one. Changes of
    # several layers are looked up with them, because a lookup costs more than some more rows.
    looked_up = [rows, changes] if len(parts) > 1 else [rows]
    found, firsts = _matches(looked_up, changes, whole, state, every)
    of_rows = int(np.searchsorted(found, behind))
    gone, newest = found[:of_rows], firsts[:of_rows]
    in_place = left[newest]
    places[gone[in_place]] = behind + newest[in_place]
    stays[gone] = in_place
    left[newest] = False
    left[found[of_rows:][found[of_rows:] - behind != firsts[of_rows:]] - behind] = False
    new = np.flatnonzero(left)
    if len(new):
        new, before = _new_places(rows, changes, new, state)
        places, stays = np.insert(places, before, behind + new), np.insert(stays, before, True)
    if columns is not None:
        rows = rows.select(
            [name for name in rows.schema.names if name in columns or name == KEY_GROUP]
        )
    both = pa.concat_tables([rows, changes.select(rows.schema.names).cast(rows.schema)])
    return take_rows(both, places[stays])


def _matches(
    tables: Sequence[pa.Table], changes: pa.Table, chosen: Places, state: KeyedState, width: int
) -> tuple[Places, Places]:
    """Return the positions of rows whose first ``width`` identity columns a chosen change has.

    Also return the position of the first such change of each. The tables follow one another.
    """
    names = list(state.identity[:width])
    positions, places = matching_positions(
        pa.concat_tables([rows.select(names) for rows in tables]),
        _take_at(changes.select(names), chosen),
    )
    return positions, chosen[places]


def _new_places(
    rows: pa.Table, changes: pa.Table, new: Places, state: KeyedState
) -> tuple[Places, Places]:
    """Return the positions of new rows in sorted order, and before which row each one belongs.

    The rows are sorted. A sample of them, at equal distances, determines the block that each new
    row belongs to. Only rows of these blocks are then sorted together with the new rows. The
    distance is chosen so that the two steps sort the fewest rows in total.
    """
    far = max(isqrt(rows.num_rows // len(new)), 1)
    names = [KEY_GROUP, *state.identity]
    rows, comes_new = rows.select(names), changes.select(names).take(pa.array(new))

    def in_order(among: Places) -> tuple[Places, Places]:
        both = pa.concat_tables([rows.take(pa.array(among)), comes_new])
        order = order_of(both.combine_chunks(), state)
        positions = np.flatnonzero(order >= len(among))
        return order[positions] - len(among), positions - np.arange(len(positions))

    _, block = in_order(np.arange(0, rows.num_rows, far))
    meets = np.zeros(rows.num_rows // far + 2, np.bool_)
    meets[block] = True  # block 0 has the new rows that come before all rows
    among = np.flatnonzero(np.repeat(meets[1:], far)[: rows.num_rows])
    order, count = in_order(among)
    return new[order], np.concatenate(([0], among + 1))[count]


def _take_at(rows: pa.Table, places: Places) -> pa.Table:
    return rows if len(places) == rows.num_rows else rows.take(pa.array(places))
