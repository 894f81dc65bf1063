"""What changed, found by comparing all rows of a state with what is stored: for callers who do not
know it.

A key group of which the stored digest is that of its new rows is not read. The others are read
merged and compared with the new rows, a run of key groups at a time; both sides of the run are all
that is in memory. Rows are known by their identity, and two of one identity are the same when
all their values are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np
import pyarrow as pa

from statestore.files.changes import change_table
from statestore.files.digest import row_hashes
from statestore.files.equality import pairs_of
from statestore.files.key_groups import group_parts
from statestore.files.marks import Deletion
from statestore.files.merge import read_state
from statestore.files.reader import restored_schema
from statestore.files.runs import RUN_BYTES, checked, runs_of
from statestore.format.digest import combine
from statestore.format.layers import change_state
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage

__all__ = ["Against", "Seen"]

_HASHED_ROWS = 16_384


@dataclass
class Seen:
    """The new rows that were compared so far, by their number and digest."""

    rows: int = 0
    digest: int = 0

    def add(self, sizes: Iterable[tuple[int, int]]) -> None:
        """Add rows and digest of some key groups."""
        for rows, digest in sizes:
            self.rows += rows
            self.digest = combine((self.digest, digest))


@dataclass(frozen=True)
class Against:
    """A stored state that new rows are compared with; can be pickled to a worker."""

    storage: Storage
    entry: KeyedEntry
    run_bytes: int = RUN_BYTES

    @property
    def state(self) -> KeyedState:
        """The state whose rows are compared."""
        return self.entry.state

    def changes(
        self, runs: Iterable[pa.Table], key_groups: KeyGroupRange, seen: Seen
    ) -> Iterator[pa.Table]:
        """Yield what makes new rows of the stored ones, as changes of whole key groups in order;
        ``seen`` has all new rows at the end.

        ``runs`` are all new rows of the key groups, ``key_group`` among their columns, in its
        order, each with all rows of its key groups. Stored rows of key groups that they lack go.
        Raises NullKeyError, DuplicateKeyError or InvalidArgumentError for rows that cannot be
        stored, and MissingFileError or DamagedFileError.
        """
        first = key_groups.first
        for run in runs:
            last = int(np.asarray(run.column(KEY_GROUP))[-1])
            assert key_groups.intersect(KeyGroupRange(first, last)) == KeyGroupRange(first, last)
            yield from self._compared(run, KeyGroupRange(first, last), seen)
            first = last + 1
        if first <= key_groups.last:
            empty = restored_schema(self.state.schema).empty_table()
            yield from self._compared(empty, KeyGroupRange(first, key_groups.last), seen)

    @cached_property
    def _stored(self) -> dict[int, tuple[int, int] | None]:
        """Rows and digest of each key group, None where changes make others of them."""
        parts = group_parts(self.entry).items()
        return {group: known[0] if len(known) == 1 else None for group, known in parts}

    def _compared(self, new: pa.Table, key_groups: KeyGroupRange, seen: Seen) -> Iterator[pa.Table]:
        """Yield the changes of key groups, of which those are read that differ."""
        found_sizes, stored = _sizes(new, self.state), self._stored
        seen.add(found_sizes.values())
        nothing = (0, 0)
        differing = [
            group
            for group in key_groups
            if stored.get(group, nothing) != found_sizes.get(group, nothing)
        ]
        groups = np.asarray(new.column(KEY_GROUP))
        for _, some in groupby(enumerate(differing), lambda pair: pair[1] - pair[0]):
            neighbours = [group for _, group in some]
            those = KeyGroupRange(neighbours[0], neighbours[-1])
            begin, end = np.searchsorted(groups, (those.first, those.last + 1)).tolist()
            rows = checked([new.slice(begin, end - begin)] if begin < end else [], self.state)
            yield from self._merged(next(rows, None), those)

    def _merged(self, new: pa.Table | None, key_groups: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield the changes of neighbouring key groups; ``new`` are their rows, in order."""
        left = restored_schema(self.state.schema).empty_table() if new is None else new
        reads, run_bytes = reads_of(self.entry, key_groups), self.run_bytes
        old_rows = read_state(self.storage, self.entry, reads, run_bytes=run_bytes)
        for old in runs_of(old_rows, run_bytes):
            last = int(np.asarray(old.column(KEY_GROUP))[-1])
            stop = int(np.searchsorted(np.asarray(left.column(KEY_GROUP)), last, "right"))
            yield from self._changed(old, left.slice(0, stop))
            left = left.slice(stop)
        if left.num_rows:
            yield from self._changed(left.schema.empty_table(), left)

    def _changed(self, old: pa.Table, new: pa.Table) -> Iterator[pa.Table]:
        """Yield the changes that make new rows of old ones, if there are any."""
        state = self.state
        identity = list(state.identity)
        names = state.schema.names
        new_at, old_at, same = pairs_of(new.select(names), old.select(names), identity)
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
            yield rows.take(pa.array(np.argsort(groups, kind="stable")))


def _hashes(rows: pa.Table, state: KeyedState) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Return the hash of all stored columns of each row, as the digest takes it."""
    batches = rows.select(state.schema.names).to_batches(_HASHED_ROWS)
    return np.concatenate([np.zeros(0, np.uint64), *(row_hashes(batch) for batch in batches)])


def _sizes(rows: pa.Table, state: KeyedState) -> dict[int, tuple[int, int]]:
    """Return rows and digest of each key group that has rows."""
    if not rows.num_rows:
        return {}
    groups = np.asarray(rows.column(KEY_GROUP))
    starts = np.concatenate(([0], np.flatnonzero(np.diff(groups)) + 1))
    digests = np.add.reduceat(_hashes(rows, state), starts)
    counts = np.diff([*starts.tolist(), len(groups)])
    return {
        int(group): (int(count), int(digest))
        for group, count, digest in zip(groups[starts], counts, digests, strict=True)
    }
