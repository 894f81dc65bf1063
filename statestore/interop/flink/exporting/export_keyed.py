"""Read the keyed states of an operator from a store, as entries of a savepoint's stream.

In the stream, a key group has the entries of all states, one state after another. So rows are read
in chunks of key groups, state by state, and the entries of one chunk are in memory. A key group
that is larger than a chunk is read in parts. If rows change their key groups, the entries of all
states are sorted, on disk if they do not fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from heapq import merge

import numpy as np
import pyarrow as pa

from statestore.errors import CorruptionError
from statestore.format.digest import combine
from statestore.format.names import KEY_GROUP
from statestore.format.rescale_proof import RowSet
from statestore.format.state import StateKind
from statestore.interop.flink.exporting.export_rows import (
    HashedKey,
    compute_flink_groups,
    encode_rows,
    hash_first_key,
    normalize_rows,
    row_set,
)
from statestore.interop.flink.exporting.export_types import KeyedExport, OperatorExport
from statestore.interop.flink.write.entries import (
    PIECE_BYTES,
    EntryRun,
    EntrySort,
    Groups,
    split_runs,
)
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import sorted_tables
from statestore.layers.expiry import hides_expired
from statestore.restore.restored import RestoredCheckpoint
from statestore.rows.sorting import gather_batches, keep_together

CHUNK_BYTES = 32 * 2**20
"""The approximate size of a chunk's entries in memory."""
_PARQUET = 4  # an estimate of how much larger rows are in memory than in Parquet
_NO_ROWS = RowSet(0, 0)


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


class ExportedKeyedStates:
    """The keyed states of an operator as runs of entries, with running totals of their rows."""

    def __init__(
        self,
        restored: RestoredCheckpoint,
        plan: OperatorExport,
        memory_bytes: int,
        report_rows: Callable[[int], None],
    ) -> None:
        """Open the states of a checkpoint; ``report_rows`` receives numbers of written rows."""
        self._plan, self._memory_bytes, self._report_rows = plan, memory_bytes, report_rows
        self._states = [
            restored.keyed(plan.uid, state_plan.state.name) for state_plan in plan.keyed
        ]
        self._max_parallelism = plan.share.max_parallelism
        self._stored = [_NO_ROWS] * len(self._states)
        self._normal = [_NO_ROWS] * len(self._states)
        self._group_rows = np.zeros(self._max_parallelism, np.int64)
        self._examples: list[HashedKey | None] = [None] * len(self._states)

    @property
    def hash_examples(self) -> tuple[HashedKey | None, ...]:
        """A key and its hash for each state whose keys are a class of the job."""
        return tuple(self._examples)

    def count_rows(self, part: KeyGroupRange) -> int:
        """Return the number of rows of a subtask, after all runs were consumed."""
        return int(self._group_rows[part.first : part.last + 1].sum())

    def runs(self, stack: ExitStack) -> Iterator[EntryRun]:
        """Return all entries, ordered by key group and state.

        Spilled files are deleted when ``stack`` is closed.
        """
        plans = self._plan.keyed
        if not any(
            plan.has_flink_groups
            or plan.has_class_keys
            or plan.state.max_parallelism != self._max_parallelism
            for plan in plans
        ):
            return self._stream_runs()
        sort = stack.enter_context(EntrySort(self._max_parallelism, self._memory_bytes))
        for place, plan in enumerate(plans):
            every = KeyGroupRange.every(plan.state.max_parallelism)
            for entry in self._read_entries(place, every):
                self._count(entry)
                sort.add(entry.entries, entry.groups, place)
        return sort.runs()

    def check_totals(self) -> tuple[RowSet, ...]:
        """Return the totals of each state; CorruptionError if they differ from the recorded ones.

        A state with a TTL is compared only if none of its rows can have expired.
        """
        for state, actual in zip(self._states, self._stored, strict=True):
            recorded = state.entry.contents
            if (
                recorded is not None
                and not hides_expired(state.entry.state, state.now_ms)
                and recorded != actual
            ):
                raise CorruptionError(
                    f"{state.entry.state}: {actual.rows} rows were read, but the manifest says "
                    f"{recorded.rows} rows, or the values differ; run 'statestore verify'"
                )
        return tuple(self._normal)

    def _count(self, state_entries: _Entries) -> None:
        place = state_entries.place
        self._stored[place] = _add_row_sets(self._stored[place], state_entries.stored)
        self._normal[place] = _add_row_sets(self._normal[place], state_entries.normal)
        self._group_rows += np.bincount(state_entries.group_rows, minlength=self._max_parallelism)
        self._report_rows(state_entries.normal.rows)

    def _stream_runs(self) -> Iterator[EntryRun]:
        """Yield the runs of rows that stay in their key groups."""
        size = _PARQUET * sum(state.entry.size_bytes for state in self._states)
        width = max(1, CHUNK_BYTES * self._max_parallelism // max(size, 1))
        for first in range(0, self._max_parallelism, width):
            yield from self._merge_runs(
                KeyGroupRange(first, min(first + width, self._max_parallelism) - 1)
            )

    def _merge_runs(self, chunk: KeyGroupRange) -> Iterator[EntryRun]:
        all_entries = (
            entry
            for place in range(len(self._states))
            for entry in self._read_entries(place, chunk)
        )
        if len(chunk) == 1:
            for state_entries in all_entries:
                self._count(state_entries)
                yield from state_entries.runs()
            return
        pending: list[_Entries] = []
        size = 0
        for state_entries in all_entries:
            pending.append(state_entries)
            size += state_entries.entries.nbytes
            if size > 2 * CHUNK_BYTES:  # these key groups are larger than the average
                half = chunk.first + len(chunk) // 2
                pending.clear()
                yield from self._merge_runs(KeyGroupRange(chunk.first, half - 1))
                yield from self._merge_runs(KeyGroupRange(half, chunk.last))
                return
        for state_entries in pending:
            self._count(state_entries)
        yield from merge(
            *(state_entries.runs() for state_entries in pending),
            key=lambda run: (run.key_group, run.state),
        )

    def _read_entries(self, place: int, key_groups: KeyGroupRange) -> Iterator[_Entries]:
        """Yield the entries of a state in some stored key groups, in parts."""
        plan = self._plan.keyed[place]
        for rows in self._read_rows(place, key_groups):
            is_moved = plan.state.max_parallelism != self._max_parallelism
            if is_moved or plan.has_flink_groups or plan.has_class_keys:
                rows = _assign_groups(rows, plan, self._max_parallelism)
            if plan.has_class_keys and self._examples[place] is None:
                self._examples[place] = hash_first_key(rows, plan)
            stored, normal = row_set(rows, plan), normalize_rows(rows, plan)
            changed = stored if normal is rows else row_set(normal, plan)
            group_rows = rows.column(KEY_GROUP).to_numpy()
            entries, groups = encode_rows(normal, plan, self._max_parallelism)
            yield _Entries(place, entries, groups, stored, changed, group_rows)

    def _read_rows(self, place: int, key_groups: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield stored rows in order, in tables that never split a list."""
        plan = self._plan.keyed[place]
        reader, state = self._states[place].key_groups(key_groups), plan.state
        if state.kind is not StateKind.LIST:
            return gather_batches(reader, PIECE_BYTES)
        tables = sorted_tables(reader, state, PIECE_BYTES)
        if plan.planned is None:
            return keep_together(tables, [KEY_GROUP, *state.key, *state.namespace])
        # All lists of a key are together, so that their rows can be counted.
        return keep_together(tables, [KEY_GROUP, *state.key])


def _assign_groups(rows: pa.Table, plan: KeyedExport, max_parallelism: int) -> pa.Table:
    """Return rows with their key groups for ``max_parallelism``."""
    [batch] = rows.combine_chunks().to_batches()
    groups = pa.array(compute_flink_groups(batch, plan, max_parallelism), pa.int32())
    index = rows.schema.get_field_index(KEY_GROUP)
    return pa.Table.from_batches([batch.set_column(index, batch.schema.field(index), groups)])


def _add_row_sets(first: RowSet, second: RowSet) -> RowSet:
    return RowSet(first.rows + second.rows, combine((first.digest, second.digest)))
