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
import pyarrow.compute as pc

from statestore.model.changes import MARK
from statestore.model.keygroups import KeyGroupRange
from statestore.model.manifest import KeyedEntry
from statestore.model.paths import KEY_GROUP
from statestore.model.reads import LayerReads, StateReads
from statestore.model.state import KeyedState
from statestore.storage import Storage
from statestore.table.matching import found
from statestore.table.runs import in_order, runs_of
from statestore.table.scan import read_slices, restored_schema

__all__ = ["merged_changes", "read_reads", "record_batch_reader"]

Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]


def record_batch_reader(
    storage: Storage, entry: KeyedEntry, reads: StateReads, *, verify: bool = False
) -> pa.RecordBatchReader:
    """Return the rows of a subtask as a stream of Arrow batches, ``key_group`` first."""
    schema = restored_schema(entry.state.schema)
    batches = read_reads(storage, entry, reads, verify=verify)
    return pa.RecordBatchReader.from_batches(schema, batches)


def read_reads(
    storage: Storage, entry: KeyedEntry, reads: StateReads, *, verify: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a subtask in order of key group; with ``verify`` SHA-256 is checked first.

    Without changes one row group is in memory, else a run of key groups of each layer. Raises
    MissingFileError or DamagedFileError, naming file, state and operator.
    """
    base = read_slices(storage, entry, reads.base, verify=verify)
    if not reads.layers:
        yield from base
        return
    layers = [_layer_runs(storage, layer, verify) for layer in reads.layers]
    for rows in _merged(runs_of(base), layers, entry.state):
        yield from rows.to_batches()


def merged_changes(
    storage: Storage, layers: Sequence[LayerReads], state: KeyedState
) -> Iterator[pa.Table]:
    """Yield the rows of some layers, oldest first, as one layer has them, by whole key groups.

    Deletes are marked as those of keys that may come again: in another of the layers they do.
    """
    streams = [_Stream(_layer_runs(storage, layer, True)) for layer in layers]
    for parts in _side_by_side(streams):
        rows = reduce(lambda old, new: _over(old, new, state), parts)
        at = rows.column_names.index(MARK)
        yield rows.set_column(at, MARK, pc.negate(rows.column(MARK)))


def _layer_runs(storage: Storage, layer: LayerReads, verify: bool) -> Iterator[pa.Table]:
    """Yield the changes of a layer that count."""
    for run in runs_of(read_slices(storage, layer.entry, layer.slices, verify=verify)):
        live = _live(np.asarray(run.column(KEY_GROUP)), layer.live)
        kept = run if live.all() else run.filter(pa.array(live))
        if kept.num_rows:
            yield kept


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


def _side_by_side(streams: Sequence[_Stream]) -> Iterator[list[pa.Table]]:
    """Yield what the streams have of the next key groups, of those that have some."""
    while lasts := [stream.last for stream in streams if stream.last is not None]:
        taken = [stream.take(min(lasts)) for stream in streams]
        yield [part for part in taken if part is not None]


def _merged(
    base: Iterator[pa.Table], layers: Sequence[Iterator[pa.Table]], state: KeyedState
) -> Iterator[pa.Table]:
    """Yield the rows of a state, as restored."""
    first, rest = _Stream(base), [_Stream(layer) for layer in layers]
    schema = restored_schema(state.schema)
    while lasts := [stream.last for stream in (first, *rest) if stream.last is not None]:
        rows = first.take(min(lasts))
        parts = [part for part in (stream.take(min(lasts)) for stream in rest) if part is not None]
        if not parts:
            assert rows is not None
            yield rows
            continue
        changes = reduce(lambda old, new: _over(old, new, state), parts)
        yield _applied(schema.empty_table() if rows is None else rows, changes, state, schema)


def _over(old: pa.Table, new: pa.Table, state: KeyedState) -> pa.Table:
    """Return older changes with newer ones over them."""
    gone, _ = _replaced(old, _widths(old, state), new, state)
    rows = pa.concat_tables([old.filter(pa.array(~gone)), new])
    groups = np.asarray(rows.column(KEY_GROUP))
    return rows.take(pa.array(np.argsort(groups, kind="stable")))


def _applied(rows: pa.Table, changes: pa.Table, state: KeyedState, schema: pa.Schema) -> pa.Table:
    """Return the rows of some key groups with changes put over them, in order of identity."""
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
