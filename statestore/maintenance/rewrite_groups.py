"""Give a keyed state other rows by rewriting only the files of the key groups that differ.

The new rows arrive in any order, and can be read several times. A key group is unchanged if it has
as many rows as before, with the same digest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise

import numpy as np
import pyarrow as pa

from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import widened_spans
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.base_comparison import BaseComparison, ObservedRows
from statestore.maintenance.rewrite import Rewritten, sort_memory_bytes, with_files
from statestore.maintenance.row_changes import RowChanges
from statestore.parquet.keyed_writer import KeyedTarget, write_pieces
from statestore.parquet.uncommitted_files import UncommittedFiles
from statestore.rows.digests import row_hashes
from statestore.rows.sorting import sorted_pieces
from statestore.storage import Storage

__all__ = ["GroupSizes", "rewrite_groups"]

Batches = Iterable[pa.RecordBatch]


@dataclass
class GroupSizes:
    """The number of rows of each key group, and their digest."""

    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def count(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Pass batches with a column ``key_group`` on, and count their rows."""
        for batch in batches:
            names = [name for name in batch.schema.names if name != KEY_GROUP]
            groups, hashes = np.asarray(batch.column(KEY_GROUP)), row_hashes(batch.select(names))
            order = np.argsort(groups, kind="stable")
            starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
            if len(starts):
                digests = np.add.reduceat(hashes[order], starts)
                counts = np.diff(starts, append=len(groups))
                for group, rows, digest in zip(groups[order][starts], counts, digests, strict=True):
                    known_rows, known = self.sizes.get(int(group), (0, 0))
                    self.sizes[int(group)] = known_rows + int(rows), (known + int(digest)) % 2**64
            yield batch

    def differing(self, other: GroupSizes) -> tuple[int, ...]:
        """Return the key groups that differ, ascending."""
        groups = sorted({*self.sizes, *other.sizes})
        return tuple(one for one in groups if self.sizes.get(one) != other.sizes.get(one))


def rewrite_groups(
    storage: Storage,
    entry: KeyedEntry,
    before: GroupSizes,
    batches: Callable[[], Batches],
    target: KeyedTarget | None,
) -> Rewritten:
    """Write the files of the key groups that the new rows change; return the new state.

    Args:
        storage: the storage of the state.
        entry: the state.
        before: the sizes of its key groups, with its changes applied.
        batches: returns all new rows, with a column ``key_group``, each time.
        target: where to write; None to write nothing.

    Raises:
        DuplicateKeyError, InvalidArgumentError or StorageError. The written files are deleted then.
    """
    after = GroupSizes()
    for _ in after.count(batches()):
        pass
    groups = before.differing(after)
    replaced, spans = _affected(entry, groups)
    memory_bytes = sort_memory_bytes(target)
    new = _NewRows(entry.state, spans, batches)
    changes = _compare(BaseComparison(storage, entry, memory_bytes=memory_bytes), new)
    handles = () if target is None else _write(new, target, memory_bytes)
    edited = entry if target is None else with_files(entry, replaced, spans, handles)
    kept = with_files(entry, replaced, spans, ())
    rows = kept.rows + sum(after.sizes.get(group, (0, 0))[0] for span in spans for group in span)
    return Rewritten(
        edited,
        handles,
        replaced,
        groups,
        changes.removed,
        changes.added + changes.changed,
        rows,
        tuple(changes.examples),
    )


def _write(new: _NewRows, target: KeyedTarget, memory_bytes: int) -> tuple[KeyedStateHandle, ...]:
    """Write each range of key groups to its own files."""
    handles: list[KeyedStateHandle] = []
    try:
        for _, pieces in new.by_span(memory_bytes):
            handles += write_pieces(pieces, target)
    except BaseException as error:
        written = UncommittedFiles(target.storage)
        written.add(target.folder, handles)
        written.delete(error)
        raise
    return tuple(handles)


def _affected(
    entry: KeyedEntry, groups: tuple[int, ...]
) -> tuple[tuple[KeyedStateHandle, ...], tuple[KeyGroupRange, ...]]:
    """Return the files with these key groups, and the key groups to write, as ascending ranges.

    Adjacent ranges are one. In a state with changes, a key group without a file belongs to the file
    before it.
    """
    spans = [handle.key_groups for handle in entry.handles]
    handles: list[KeyedStateHandle | None] = [*entry.handles]
    if entry.layers:
        spans, handles = [*widened_spans(entry)], handles or [None]
    replaced, affected = [], set(groups)
    for handle, span in zip(handles, spans, strict=True):
        if any(group in span for group in groups):
            affected.update(span)
            if handle is not None:
                replaced.append(handle)
    ordered = sorted(affected)
    runs = groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])
    ranges = [[group for _, group in run] for _, run in runs]
    return tuple(replaced), tuple(KeyGroupRange(run[0], run[-1]) for run in ranges)


@dataclass(frozen=True)
class _NewRows:
    """The new rows of some ranges of key groups, which can be read several times."""

    state: KeyedState
    spans: tuple[KeyGroupRange, ...]
    batches: Callable[[], Batches]

    def by_span(self, memory_bytes: int) -> Iterator[tuple[KeyGroupRange, Iterator[pa.Table]]]:
        """Yield each range with its rows, as ascending pieces; read one range after another.

        The rows are sorted in ``memory_bytes``.
        """
        pieces = sorted_pieces(self._wanted(), self.state, memory_bytes)
        for place, part in groupby(self._cut(pieces), self._place):
            yield self.spans[place], part

    def _wanted(self) -> Iterator[pa.RecordBatch]:
        if not self.spans:
            return
        for batch in self.batches():
            places = self._places(batch)
            lasts = np.array([span.last for span in self.spans])
            inside = (places >= 0) & (np.asarray(batch.column(KEY_GROUP)) <= lasts[places])
            if inside.any():
                yield batch.filter(pa.array(inside))

    def _cut(self, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Divide pieces at the ends of the ranges."""
        for piece in pieces:
            places = self._places(piece)
            starts = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), piece.num_rows]
            for first, stop in pairwise(starts):
                yield piece.slice(first, stop - first)

    def _places(self, rows: pa.RecordBatch | pa.Table) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        starts = np.array([span.first for span in self.spans])
        return np.searchsorted(starts, np.asarray(rows.column(KEY_GROUP)), "right") - 1

    def _place(self, piece: pa.Table) -> int:
        group = piece.column(KEY_GROUP)[0].as_py()
        return bisect_right(self.spans, group, key=lambda span: span.first) - 1


def _compare(comparison: BaseComparison, new: _NewRows) -> RowChanges:
    """Compare the new rows with the stored ones."""
    changes = RowChanges(comparison.state)
    left = [*new.spans]
    empty: Iterator[pa.Table] = iter(())
    for span, pieces in chain(new.by_span(comparison.sort_bytes), [(None, empty)]):
        while left and left[0] != span:  # all rows of these key groups are removed
            for pair in comparison.pairs(empty, left.pop(0), ObservedRows()):
                changes.add(*pair)
        if span is not None:
            for pair in comparison.pairs(pieces, left.pop(0), ObservedRows()):
                changes.add(*pair)
    return changes
