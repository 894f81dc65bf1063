"""Base and changes merged: the rows of a state, in one pass over its files, in order of key group.

Base and layers are read side by side, a run of key groups at a time; the run of each is all that is
in memory. Changes of one run are brought together first, newest last, and put over the base then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.format.layers import MARK
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import LayerReads, StateReads
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage
from statestore.table.ceiling import kept_rows
from statestore.table.changes import stored_again
from statestore.table.expiry import unexpired
from statestore.table.matching import found
from statestore.table.runs import in_order, runs_of
from statestore.table.scan import read_slices, restored_schema

__all__ = [
    "live_rows_of",
    "merged_changes",
    "merged_rows",
    "read_reads",
    "record_batch_reader",
    "side_by_side",
]

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


def record_batch_reader(
    storage: Storage,
    entry: KeyedEntry,
    reads: StateReads,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> pa.RecordBatchReader:
    """Return the rows of a subtask as a stream of Arrow batches, ``key_group`` first."""
    schema = restored_schema(entry.state.schema)
    batches = read_reads(storage, entry, reads, verify=verify, now_ms=now_ms)
    return pa.RecordBatchReader.from_batches(schema, batches)


def read_reads(
    storage: Storage,
    entry: KeyedEntry,
    reads: StateReads,
    *,
    verify: bool = False,
    now_ms: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a subtask in order of key group; with ``verify`` SHA-256 is checked first.

    With a clock, ``now_ms``, those that have expired by then are left out where the state says so.
    Without changes one row group is in memory, else a run of key groups of each layer. Raises
    MissingFileError or DamagedFileError, naming file, state and operator.
    """
    for batch in _all_rows(storage, entry, reads, verify):
        yield kept_rows(unexpired(batch, entry.state, now_ms), entry.state, reads.kept)


def _all_rows(
    storage: Storage, entry: KeyedEntry, reads: StateReads, verify: bool
) -> Iterator[pa.RecordBatch]:
    base = read_slices(storage, entry, reads.base, verify=verify)
    if not reads.layers:
        yield from base
        return
    layers = [_layer_runs(storage, layer, verify) for layer in reads.layers]
    changes = _brought_together(layers, entry.state)
    for rows in _merged(runs_of(base), changes, entry.state):
        yield from rows.to_batches()


def merged_changes(
    storage: Storage, layers: Sequence[LayerReads], state: KeyedState
) -> Iterator[pa.Table]:
    """Yield the rows of some layers, oldest first, as one layer has them, by whole key groups.

    Deletes are marked as those of keys that may come again: in another of the layers they do.
    """
    for rows in _brought_together([_layer_runs(storage, layer, True) for layer in layers], state):
        yield stored_again(rows)


def merged_rows(rows: pa.Table, layers: Sequence[pa.Table], state: KeyedState) -> pa.Table:
    """Return rows of a base with changes of some layers, oldest first, put over them.

    All of them are of the same key groups, or of the same keys, and that are all there are;
    ``key_group`` is their first column. Of layers only what counts may be given.
    """
    parts = [layer for layer in layers if layer.num_rows]
    return _applied(rows, _newest(parts, state), state) if parts else rows


def _layer_runs(storage: Storage, layer: LayerReads, verify: bool) -> Iterator[pa.Table]:
    """Yield the changes of a layer that count."""
    for run in runs_of(read_slices(storage, layer.entry, layer.slices, verify=verify)):
        kept = live_rows_of(run, layer)
        if kept.num_rows:
            yield kept


def live_rows_of(rows: pa.Table, layer: LayerReads) -> pa.Table:
    """Return those of a layer's rows, which are in order of key group, that count."""
    live = _live(np.asarray(rows.column(KEY_GROUP)), layer.live)
    return rows if live.all() else rows.filter(pa.array(live))


def _live(groups: npt.NDArray[np.int32], ranges: Iterable[KeyGroupRange]) -> Flags:
    live = np.zeros(len(groups), np.bool_)
    for one in ranges:
        live[np.searchsorted(groups, one.first) : np.searchsorted(groups, one.last, "right")] = True
    return live


class _Stream:
    """Runs of whole key groups in ascending order, taken up to some key group."""

    def __init__(self, runs: Iterator[pa.Table]) -> None:
        self._runs = runs
        self._advance()

    def _advance(self) -> None:
        self._head = next(self._runs, None)
        if self._head is not None:
            self._groups = np.asarray(self._head.column(KEY_GROUP))

    @property
    def last(self) -> int | None:
        """The last key group of the run at hand, None at the end."""
        return None if self._head is None else int(self._groups[-1])

    def take(self, last: int) -> pa.Table | None:
        """Return the rows of the run up to a key group, None for none."""
        if self._head is None or self._groups[0] > last:
            return None
        stop = int(np.searchsorted(self._groups, last, "right"))
        taken, left = self._head.slice(0, stop), self._head.slice(stop)
        if left.num_rows:
            self._head, self._groups = left, self._groups[stop:]
        else:
            self._advance()
        return taken


def side_by_side(runs: Iterable[Iterator[pa.Table]]) -> Iterator[list[pa.Table | None]]:
    """Yield what each of some runs of whole key groups has of the next ones, None for nothing."""
    streams = [_Stream(each) for each in runs]
    while lasts := [stream.last for stream in streams if stream.last is not None]:
        yield [stream.take(min(lasts)) for stream in streams]


def _brought_together(
    layers: Iterable[Iterator[pa.Table]], state: KeyedState
) -> Iterator[pa.Table]:
    """Yield the changes of some layers, oldest first, as those of one: so that the base, with its
    many runs, meets few.
    """
    for parts in side_by_side(layers):
        yield _newest([part for part in parts if part is not None], state).combine_chunks()


def _merged(
    base: Iterator[pa.Table], changes: Iterator[pa.Table], state: KeyedState
) -> Iterator[pa.Table]:
    """Yield the rows of a state, as restored."""
    for rows, over in side_by_side([base, changes]):
        if over is None:
            assert rows is not None
            yield rows
            continue
        empty = restored_schema(state.schema).empty_table()
        yield _applied(empty if rows is None else rows, over, state)


def _newest(parts: Sequence[pa.Table], state: KeyedState) -> pa.Table:
    return reduce(lambda old, new: _over(old, new, state), parts)


def _over(old: pa.Table, new: pa.Table, state: KeyedState) -> pa.Table:
    """Return older changes with newer ones over them."""
    gone, _ = _replaced(old, _widths(old, state), new, state)
    rows = pa.concat_tables([old.filter(pa.array(~gone)), new])
    groups = np.asarray(rows.column(KEY_GROUP))
    return rows.take(pa.array(np.argsort(groups, kind="stable")))


def _applied(rows: pa.Table, changes: pa.Table, state: KeyedState) -> pa.Table:
    """Return the rows of some key groups with changes put over them, in order of identity."""
    schema = restored_schema(state.schema)
    changes = changes.combine_chunks()
    rows = rows.combine_chunks()
    gone, by = _replaced(rows, None, changes, state)
    comes = np.asarray(changes.column(MARK)) == 0
    upserts = changes.select(schema.names).cast(schema)
    both = pa.concat_tables([rows, upserts]).combine_chunks()
    places = np.arange(rows.num_rows)
    in_place = gone & (by >= 0) & comes[by]
    places[in_place] = rows.num_rows + by[in_place]
    places = places[~gone | in_place]
    comes[by[in_place]] = False
    new = np.flatnonzero(comes)
    if not len(new):
        return both.take(pa.array(places))
    return in_order(both.take(pa.array(np.concatenate((places, rows.num_rows + new)))), state)


def _widths(changes: pa.Table, state: KeyedState) -> npt.NDArray[np.int64]:
    """Return of how many columns of the identity each change speaks."""
    marks = np.asarray(changes.column(MARK)).astype(np.int64)
    return np.where(marks == 0, len(state.identity), marks)


def _replaced(
    old: pa.Table, widths: npt.NDArray[np.int64] | None, new: pa.Table, state: KeyedState
) -> tuple[Flags, Places]:
    """Return which old rows are gone by newer changes, and by which; -1 by none.

    ``widths`` are those of old rows that are changes: a delete of a key is gone by a newer one, and
    not by a row of that key.
    """
    gone, by = np.zeros(old.num_rows, np.bool_), np.full(old.num_rows, -1, np.intp)
    new_widths = _widths(new, state)
    for width in sorted(set(new_widths.tolist()), reverse=True):
        names = list(state.identity[:width])
        those = np.flatnonzero(new_widths == width)
        rows, places = found(old.select(names), new.select(names).take(pa.array(those)))
        if widths is not None:
            reaches = widths[rows] >= width
            rows, places = rows[reaches], places[reaches]
        gone[rows], by[rows] = True, those[places]
    return gone, by
