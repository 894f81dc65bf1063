"""Finds changes by comparing all rows of a state with the stored rows, if callers do not know them.

A key group is not read if its stored digest equals the digest of its new rows. The other key groups
are read with their layers merged, and compared with the new rows, a run of key groups at a time. A
key group that does not fit in memory is compared in pieces: its new rows are sorted
(:mod:`statestore.rows.sorting`) and merged with the stored ones. Rows are matched by their
identity. Two rows with the same identity are equal if all their values are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby, pairwise

import numpy as np
import pyarrow as pa

from statestore.format.digest import combine
from statestore.format.layers import change_state
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import paired_tables, sorted_tables
from statestore.layers.key_group_contents import group_parts
from statestore.layers.merge import read_state
from statestore.parquet.reader import restored_schema
from statestore.rows.change_rows import change_table
from statestore.rows.delete_markers import Deletion
from statestore.rows.equality import hashes_of, matching_rows
from statestore.rows.key_group_runs import RUN_BYTES, check_and_sort, take_rows
from statestore.rows.sorting import MEMORY_BYTES, fit_or_stream, key_group_pieces
from statestore.storage import Storage

_STORED_BYTES = 4 * RUN_BYTES


@dataclass
class ObservedRows:
    """The number and digest of the new rows that were compared so far."""

    rows: int = 0
    digest: int = 0

    def add(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Add the row counts and digests of some key groups."""
        for rows, digest in sizes:
            self.rows += rows
            self.digest = combine((self.digest, digest))


@dataclass(frozen=True)
class BaseComparison:
    """A stored state that new rows are compared with; can be pickled to a worker.

    Half of ``memory_bytes`` is for the sort of the new rows. The other half is for rows of both
    sides that are compared, of which there are several copies.
    """

    storage: Storage
    entry: KeyedEntry
    run_bytes: int = RUN_BYTES
    memory_bytes: int = MEMORY_BYTES

    @property
    def state(self) -> KeyedState:
        """The state whose rows are compared."""
        return self.entry.state

    @property
    def sort_bytes(self) -> int:
        """The memory in which the new rows are sorted, in bytes."""
        return self.memory_bytes // 2

    def changes(
        self, pieces: Iterable[pa.Table], key_groups: KeyGroupRange, observed: ObservedRows
    ) -> Iterator[pa.Table]:
        """Yield the changes that turn the stored rows into the new rows, in ascending pieces.

        ``pieces`` are all new rows of the key groups, in ascending order
        (:mod:`statestore.rows.sorting`). Stored rows of key groups without new rows are deleted.
        At the end, ``observed`` has counted all new rows.

        Raises NullKeyError, DuplicateKeyError or InvalidArgumentError for rows that cannot be
        stored, StorageError if the temporary folder cannot be written, and MissingFileError or
        DamagedFileError.
        """
        for old, new in self.pairs(pieces, key_groups, observed):
            yield from self._changes_between(old, new)

    def pairs(
        self, pieces: Iterable[pa.Table], key_groups: KeyGroupRange, observed: ObservedRows
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield stored rows and new rows of key groups that differ, in ascending pieces.

        Rows of the same identity are in the same pair of pieces. Arguments and errors are those of
        :meth:`changes`.
        """
        first = key_groups.first
        for last, parts in _parts_of(pieces):
            span = KeyGroupRange(first, last)
            assert key_groups.intersect(span) == span
            fitting = fit_or_stream(parts, self.memory_bytes // 8)
            if isinstance(fitting, list):
                yield from self._compare_groups(pa.concat_tables(fitting), span, observed)
            else:
                yield from self._merge_groups(_count_rows(fitting, self.state, observed), span)
            first = last + 1
        if first <= key_groups.last:
            empty = restored_schema(self.state.schema).empty_table()
            yield from self._compare_groups(empty, KeyGroupRange(first, key_groups.last), observed)

    def pieces(self, rows: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[pa.Table]:
        """Divide rows, sorted by key group, into pieces of limited size in the same order."""
        return key_group_pieces(rows, self.state, self.run_bytes, self.sort_bytes)

    @cached_property
    def _stored(self) -> dict[int, tuple[int, int] | None]:
        """Row count and digest of each key group, None if stored changes apply to it."""
        parts = group_parts(self.entry).items()
        return {group: known[0] if len(known) == 1 else None for group, known in parts}

    def _compare_groups(
        self, new: pa.Table, key_groups: KeyGroupRange, observed: ObservedRows
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the pairs of key groups; only key groups that differ are read."""
        found_sizes, stored = _sizes(new, self.state), self._stored
        observed.add(found_sizes.values())
        nothing = (0, 0)
        differing = [
            group
            for group in key_groups
            if stored.get(group, nothing) != found_sizes.get(group, nothing)
        ]
        groups = np.asarray(new.column(KEY_GROUP))
        for _, run in groupby(enumerate(differing), lambda pair: pair[1] - pair[0]):
            neighbours = [group for _, group in run]
            key_range = KeyGroupRange(neighbours[0], neighbours[-1])
            begin, end = np.searchsorted(groups, (key_range.first, key_range.last + 1)).tolist()
            rows = [new.slice(begin, end - begin)] if begin < end else []
            yield from self._merge_groups(rows, key_range)

    def _merge_groups(
        self, new: Iterable[pa.Table], key_groups: KeyGroupRange
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield the pairs of adjacent key groups.

        Their new rows are either one piece, or pieces of a single large key group.
        """
        reads = reads_of(self.entry, key_groups)
        read = read_state(self.storage, self.entry, reads, run_bytes=self.run_bytes)
        stored = sorted_tables(read, self.state, min(_STORED_BYTES, self.memory_bytes // 8))
        found = check_and_sort(new, self.state)
        return paired_tables((self.state, stored), (self.state, found))

    def _changes_between(self, old: pa.Table, new: pa.Table) -> Iterator[pa.Table]:
        """Yield the changes from the old rows to the new rows, if there are any."""
        state = self.state
        identity = list(state.identity)
        names = state.schema.names
        new_at, old_at, same = matching_rows(new.select(names), old.select(names), identity)
        comes, goes = np.ones(new.num_rows, np.bool_), np.ones(old.num_rows, np.bool_)
        comes[new_at[same]] = False
        goes[old_at] = False
        parts = [
            (new.filter(pa.array(comes)), None),
            (old.filter(pa.array(goes)), Deletion(len(identity))),
        ]
        changes = change_table(parts, state, change_state(state))
        if changes.num_rows:
            groups = np.asarray(changes.column(KEY_GROUP)).astype(np.int32)
            rows = changes.drop_columns([KEY_GROUP]).add_column(0, KEY_GROUP, pa.array(groups))
            yield take_rows(rows, np.argsort(groups, kind="stable"))


def _parts_of(pieces: Iterable[pa.Table]) -> Iterator[tuple[int, Iterator[pa.Table]]]:
    """Yield runs of rows, each with its last key group.

    Key groups that are in one piece stay together. A key group that spans several pieces is a run
    of its own.
    """

    def parts() -> Iterator[pa.Table]:
        before = -1
        for piece, following in pairwise(chain(pieces, [None])):
            groups = np.asarray(piece.column(KEY_GROUP))
            cuts = {0, len(groups)}
            if groups[0] == before:
                cuts.add(int(np.searchsorted(groups, before, "right")))
            before = groups[-1]
            if following is not None and following.column(KEY_GROUP)[0].as_py() == before:
                cuts.add(int(np.searchsorted(groups, before)))
            for first, stop in pairwise(sorted(cuts)):
                yield piece.slice(first, stop - first)

    def span(part: pa.Table) -> tuple[int, int]:
        groups = part.column(KEY_GROUP)
        return groups[0].as_py(), groups[-1].as_py()

    for (_, last), run in groupby(parts(), span):
        yield last, run


def _count_rows(
    pieces: Iterable[pa.Table], state: KeyedState, observed: ObservedRows
) -> Iterator[pa.Table]:
    """Pass pieces on, and count their rows."""
    for piece in pieces:
        observed.add(_sizes(piece, state).values())
        yield piece


def _sizes(rows: pa.Table, state: KeyedState) -> dict[int, tuple[int, int]]:
    """Return row count and digest of each key group that has rows."""
    if not rows.num_rows:
        return {}
    groups = np.asarray(rows.column(KEY_GROUP))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(groups)) + 1))
    digests = np.add.reduceat(hashes_of(rows.select(state.schema.names)), starts)
    counts = np.diff([*starts.tolist(), len(groups)])
    return {
        int(group): (int(count), int(digest))
        for group, count, digest in zip(groups[starts], counts, digests, strict=True)
    }
