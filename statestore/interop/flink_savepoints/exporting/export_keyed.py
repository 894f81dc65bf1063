"""Read the keyed states of an operator from a store, as entries of a savepoint's stream.

In the stream, a key group has the entries of all states, one state after another. So rows are read
in chunks of key groups, state by state, and the entries of one chunk are in memory. A key group
that is larger than a chunk is read in parts. If rows change their key groups, the entries of all
states are sorted, on disk if they do not fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import merge

import numpy as np
import pyarrow as pa

from statestore.errors import CorruptionError
from statestore.format.digest import RowSet, combine
from statestore.format.names import KEY_GROUP
from statestore.format.state import StateKind
from statestore.interop.flink_savepoints.exporting.export_rows import (
    encoded_rows,
    groups_in_flink,
    normal_rows,
    row_set,
)
from statestore.interop.flink_savepoints.exporting.export_types import KeyedExport, OperatorExport
from statestore.interop.flink_savepoints.write.entries import (
    PIECE_BYTES,
    EntryRun,
    EntrySort,
    Groups,
    split_runs,
)
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import sorted_tables
from statestore.layers.merge import hides
from statestore.restore.restored import RestoredCheckpoint
from statestore.rows.sorting import last_difference, slices_of

__all__ = ["CHUNK_BYTES", "ExportedKeyed"]

CHUNK_BYTES = 32 * 2**20
"""The approximate size of a chunk's entries in memory."""
_PARQUET = 4  # an estimate of how much larger rows are in memory than in Parquet
_NOTHING = RowSet(0, 0)


@dataclass(frozen=True, eq=False)
class _Entries:
    """Entries of a state, with the totals of their rows and the row count by key group."""

    place: int
    entries: pa.Array
    groups: Groups
    stored: RowSet
    normal: RowSet
    group_rows: Groups

    def runs(self) -> Iterator[EntryRun]:
        return split_runs(self.entries, self.groups, np.full(len(self.groups), self.place))


class ExportedKeyed:
    """The keyed states of an operator as runs of entries, with running totals of their rows."""

    def __init__(
        self,
        restored: RestoredCheckpoint,
        plan: OperatorExport,
        memory_bytes: int,
        told: Callable[[int], None],
    ) -> None:
        """Open the states of a checkpoint; ``told`` is called with numbers of written rows."""
        self._plan, self._memory_bytes, self._told = plan, memory_bytes, told
        self._states = [restored.keyed(plan.uid, one.state.name) for one in plan.keyed]
        self._most = plan.share.max_parallelism
        self._stored = [_NOTHING] * len(self._states)
        self._normal = [_NOTHING] * len(self._states)
        self._group_rows = np.zeros(self._most, np.int64)

    def rows_of(self, part: KeyGroupRange) -> int:
        """Return the number of rows of a subtask, after all runs were consumed."""
        return int(self._group_rows[part.first : part.last + 1].sum())

    def runs(self, stack: ExitStack) -> Iterator[EntryRun]:
        """Return all entries, ordered by key group and state.

        Spilled files are deleted when ``stack`` is closed.
        """
        plans = self._plan.keyed
        if not any(plan.is_bytes or plan.state.max_parallelism != self._most for plan in plans):
            return self._runs_in_place()
        sort = stack.enter_context(EntrySort(self._most, self._memory_bytes))
        for place, one in enumerate(plans):
            every = KeyGroupRange.every(one.state.max_parallelism)
            for entry in self._entries(place, every):
                self._take(entry)
                sort.add(entry.entries, entry.groups, place)
        return sort.runs()

    def done(self) -> tuple[RowSet, ...]:
        """Return the totals of each state; CorruptionError if they differ from the recorded ones.

        A state with a TTL is compared only if none of its rows can have expired.
        """
        for state, seen in zip(self._states, self._stored, strict=True):
            known = state.entry.contents
            if known is not None and not hides(state.entry.state, state.now_ms) and known != seen:
                raise CorruptionError(
                    f"{state.entry.state}: {seen.rows} rows were read, but the manifest says "
                    f"{known.rows} rows, or the values differ; run 'statestore verify'"
                )
        return tuple(self._normal)

    def _take(self, found: _Entries) -> None:
        place = found.place
        self._stored[place] = _sum(self._stored[place], found.stored)
        self._normal[place] = _sum(self._normal[place], found.normal)
        self._group_rows += np.bincount(found.group_rows, minlength=self._most)
        self._told(found.normal.rows)

    def _runs_in_place(self) -> Iterator[EntryRun]:
        """Yield the runs of rows that stay in their key groups."""
        size = _PARQUET * sum(state.entry.size_bytes for state in self._states)
        width = max(1, CHUNK_BYTES * self._most // max(size, 1))
        for first in range(0, self._most, width):
            yield from self._runs_of(KeyGroupRange(first, min(first + width, self._most) - 1))

    def _runs_of(self, chunk: KeyGroupRange) -> Iterator[EntryRun]:
        every = (
            entry for place in range(len(self._states)) for entry in self._entries(place, chunk)
        )
        if len(chunk) == 1:
            for found in every:
                self._take(found)
                yield from found.runs()
            return
        some: list[_Entries] = []
        size = 0
        for found in every:
            some.append(found)
            size += found.entries.nbytes
            if size > 2 * CHUNK_BYTES:  # these key groups are larger than the average
                half = chunk.first + len(chunk) // 2
                some.clear()
                yield from self._runs_of(KeyGroupRange(chunk.first, half - 1))
                yield from self._runs_of(KeyGroupRange(half, chunk.last))
                return
        for found in some:
            self._take(found)
        yield from merge(*(one.runs() for one in some), key=lambda run: (run.key_group, run.state))

    def _entries(self, place: int, key_groups: KeyGroupRange) -> Iterator[_Entries]:
        """Yield the entries of a state in some stored key groups, in parts."""
        plan = self._plan.keyed[place]
        for rows in self._rows(place, key_groups):
            if plan.is_bytes or plan.state.max_parallelism != self._most:
                rows = _in_new_groups(rows, plan, self._most)
            stored, normal = row_set(rows, plan), normal_rows(rows, plan)
            changed = stored if normal is rows else row_set(normal, plan)
            group_rows = rows.column(KEY_GROUP).to_numpy()
            entries, groups = encoded_rows(normal, plan, self._most)
            yield _Entries(place, entries, groups, stored, changed, group_rows)

    def _rows(self, place: int, key_groups: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield stored rows in order, in tables that never split a list."""
        reader, state = self._states[place].key_groups(key_groups), self._plan.keyed[place].state
        if state.kind is not StateKind.LIST:
            return _pieces(reader)
        tables = sorted_tables(reader, state, PIECE_BYTES)
        return _whole_lists(tables, [KEY_GROUP, *state.key, *state.namespace])


def _pieces(batches: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """Combine batches into tables of about ``PIECE_BYTES``."""
    held: list[pa.Table] = []
    size = 0
    for batch in batches:
        for part in slices_of(pa.Table.from_batches([batch]), PIECE_BYTES):
            held.append(part)
            size += part.nbytes
            if size >= PIECE_BYTES:
                yield pa.concat_tables(held)
                held, size = [], 0
    if size:
        yield pa.concat_tables(held)


def _whole_lists(tables: Iterator[pa.Table], names: Sequence[str]) -> Iterator[pa.Table]:
    """Regroup sorted tables so that rows with equal values in ``names`` are in one table."""
    held: pa.Table | None = None
    for table in tables:
        rows = table if held is None else pa.concat_tables([held, table])
        cut = last_difference(rows, names)
        if cut:
            yield rows.slice(0, cut)
        held = rows.slice(cut)
    if held is not None:
        yield held


def _in_new_groups(rows: pa.Table, plan: KeyedExport, max_parallelism: int) -> pa.Table:
    """Return rows with their key groups for ``max_parallelism``."""
    [batch] = rows.combine_chunks().to_batches()
    groups = pa.array(groups_in_flink(batch, plan, max_parallelism), pa.int32())
    at = rows.schema.get_field_index(KEY_GROUP)
    return pa.Table.from_batches([batch.set_column(at, batch.schema.field(at), groups)])


def _sum(one: RowSet, other: RowSet) -> RowSet:
    return RowSet(one.rows + other.rows, combine((one.digest, other.digest)))
