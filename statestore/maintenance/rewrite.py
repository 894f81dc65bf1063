"""Apply edits to a keyed state by rewriting only the files of the changed key groups.

Each of these files is merged with the new rows, a piece at a time
(:mod:`statestore.layers.aligned_streams`). Rows of its other key groups are copied. The new
checkpoint references all other files unchanged. The SHA-256 of a file is checked before it is read,
so that damage is not copied.

If the state has layers of changes, they are merged into the rewritten files, and are no longer
applied to these key groups.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import MARK, are_changes, live_without, widened_spans
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import align_streams
from statestore.layers.merge import read_pieces
from statestore.maintenance.diff_report import Example
from statestore.maintenance.row_changes import RowChanges
from statestore.parquet.keyed_reader import restored_schema
from statestore.parquet.keyed_writer import KeyedTarget, write_pieces
from statestore.parquet.uncommitted_files import UncommittedFiles
from statestore.restore.lookup import key_batch, key_group_of
from statestore.rows.delete_markers import clear_deletes
from statestore.rows.key_group_runs import check_and_sort, key_groups_of, take_rows
from statestore.rows.matching import matching_positions
from statestore.rows.null_keys import NullKeys
from statestore.rows.python_values import table_of_dicts
from statestore.rows.sorting import MEMORY_BYTES, sorted_pieces
from statestore.rows.uuids import uuid_columns, with_uuids
from statestore.storage import Storage

__all__ = ["EditChanges", "Rewritten", "changes_of", "rewrite", "sort_memory_bytes", "with_files"]


@dataclass(frozen=True)
class EditChanges:
    """The changes to some key groups: keys whose rows are deleted, and rows to put, by key group.

    A new row replaces the row with the same key, namespace and entry columns. Deletes are applied
    first.
    """

    deleted: Mapping[int, tuple[pa.RecordBatch, ...]]
    put: Mapping[int, pa.Table]

    @property
    def groups(self) -> tuple[int, ...]:
        """The changed key groups, ascending."""
        return tuple(sorted({*self.deleted, *self.put}))


@dataclass(frozen=True)
class Rewritten:
    """A state after the changes; ``new`` are the files that were written for it.

    ``replaced`` are the files that it no longer names, or without a target would no longer name.
    ``removed`` counts the rows deleted with their key, and ``added`` the new and replaced rows.
    ``rows`` counts the rows in its files, as :attr:`KeyedEntry.rows`, even without a target.
    ``examples`` are the first changed rows.
    """

    entry: KeyedEntry
    new: tuple[KeyedStateHandle, ...]
    replaced: tuple[KeyedStateHandle, ...]
    groups: tuple[int, ...]
    removed: int
    added: int
    rows: int
    examples: tuple[Example, ...] = ()


def changes_of(
    state: KeyedState, delete: Iterable[Any], put: Sequence[Mapping[str, Any]] | pa.Table
) -> EditChanges:
    """Return these keys and rows as changes by key group.

    Rows in a table have the state's columns. Raises InvalidArgumentError for a key or value that
    does not fit, SchemaMismatchError for an unknown column, or NullKeyError.
    """
    deleted: dict[int, tuple[pa.RecordBatch, ...]] = {}
    for key in delete:
        batch = key_batch(state, key)
        group = key_group_of(state, batch)
        deleted[group] = (*deleted.get(group, ()), batch)
    if not len(put):
        return EditChanges(deleted, {})
    if not isinstance(put, pa.Table):
        put = with_uuids(put, uuid_columns(state))
        put = table_of_dicts(put, state.schema, subject=str(state))
    rows = put.combine_chunks()
    nulls = NullKeys(state)
    nulls.add(rows)
    nulls.refuse()
    if state.ttl is not None and rows.column(state.ttl.column).null_count:
        raise InvalidArgumentError(
            f"a row of {state} would have no value in the TTL column {state.ttl.column!r}; give it "
            "the time of the row's last update"
        )
    groups = key_groups_of(rows, state)
    rows = rows.add_column(0, restored_schema(state.schema).field(0), pa.array(groups, pa.int32()))
    changed = {int(group) for group in groups}
    return EditChanges(
        deleted, {group: rows.filter(pa.array(groups == group)) for group in changed}
    )


def rewrite(
    storage: Storage, entry: KeyedEntry, changes: EditChanges, target: KeyedTarget | None
) -> Rewritten:
    """Apply the changes to the state, and write the changed files to ``target``.

    Without a target, everything is read and checked, but nothing is written, and the entry is
    returned unchanged.

    Raises MissingFileError or DamagedFileError for a missing or damaged file, DuplicateKeyError,
    InvalidArgumentError or StorageError; in that case the written files are deleted.
    """
    work = _Rewriter(storage, entry, changes, target)
    try:
        return work.run()
    except BaseException as error:
        if target is not None:
            written = UncommittedFiles(target.storage)
            written.add(target.folder, work.new)
            written.delete(error)
        raise


def sort_memory_bytes(target: KeyedTarget | None) -> int:
    """Return the memory limit for sorting rows."""
    return MEMORY_BYTES if target is None else target.options.memory_bytes


class _Rewriter:
    """Processes the files of a state in order: each is named again or rewritten."""

    def __init__(
        self, storage: Storage, entry: KeyedEntry, changes: EditChanges, target: KeyedTarget | None
    ) -> None:
        self._storage, self._entry, self._changes = storage, entry, changes
        self._target = target
        self._memory_bytes = sort_memory_bytes(target)
        self.new: list[KeyedStateHandle] = []
        self._removed = self._added = 0
        self._examples = RowChanges(entry.state)

    def run(self) -> Rewritten:
        """Rewrite the changed files, in order."""
        entry, target = self._entry, self._target
        replaced: list[KeyedStateHandle] = []
        spans: list[KeyGroupRange] = []
        rows = 0
        for handle, span, groups in self._by_file():
            pieces = self._changed_rows(span, groups)
            if target is None:
                rows += sum(piece.num_rows for piece in check_and_sort(pieces, entry.state))
            else:
                self.new += write_pieces(pieces, target)
            spans.append(span)
            if handle is not None:
                replaced.append(handle)
        edited = with_files(entry, replaced, spans, self.new)
        rows += edited.rows
        new, groups = tuple(self.new), self._changes.groups
        return Rewritten(
            entry if target is None else edited,
            new,
            tuple(replaced),
            groups,
            self._removed,
            self._added,
            rows,
            tuple(self._examples.examples),
        )

    def _by_file(
        self,
    ) -> Iterator[tuple[KeyedStateHandle | None, KeyGroupRange, tuple[int, ...]]]:
        """Yield each file with changed key groups, then each changed key group that has no file.

        A key group within the range of a file with several key groups belongs to that file, with or
        without rows. In a state with layers every key group belongs to a file, unless the base has
        none at all.
        """
        entry, groups = self._entry, self._changes.groups
        spans = [handle.key_groups for handle in entry.handles]
        handles: list[KeyedStateHandle | None] = [*entry.handles]
        if entry.layers:
            spans, handles = [*widened_spans(entry)], handles or [None]
        owned: set[int] = set()
        for handle, span in zip(handles, spans, strict=True):
            mine = tuple(group for group in groups if group in span)
            if mine:
                owned.update(mine)
                yield handle, span, mine
        for group in groups:
            if group not in owned and group in self._changes.put:
                yield None, KeyGroupRange(group, group), (group,)

    def _changed_rows(self, span: KeyGroupRange, groups: tuple[int, ...]) -> Iterator[pa.Table]:
        """Yield the rows of a file with the changes applied, in ascending pieces."""
        state = self._entry.state
        put = [self._changes.put[group] for group in groups if group in self._changes.put]
        self._added += sum(rows.num_rows for rows in put)
        gone = _GoneRows(state, self._examples.room)
        streams = [
            self._unchanged_rows(span, groups, gone),
            sorted_pieces(put, state, self._memory_bytes),
        ]
        # A delete and a new row of the same entry differ only in their marker.
        names = [name for name in state.identity if name != MARK]
        for piece in align_streams(streams, names):
            rows = pa.concat_tables([rows for rows in piece.rows if rows is not None])
            yield clear_deletes(rows) if are_changes(state) else rows
        self._examples.add(*gone.compared_with(put))

    def _unchanged_rows(
        self, span: KeyGroupRange, groups: tuple[int, ...], gone: _GoneRows
    ) -> Iterator[pa.Table]:
        """Yield the stored rows of a file that are neither deleted nor replaced, sorted.

        The other rows are added to ``gone``.
        """
        state, changes = self._entry.state, self._changes
        deleted = [batch for group in groups for batch in changes.deleted.get(group, ())]
        keys = pa.Table.from_batches(deleted) if deleted else None
        put = [changes.put[group] for group in groups if group in changes.put]
        identities = pa.concat_tables(put).select(state.identity) if put else None
        for rows in read_pieces(self._storage, self._entry, reads_of(self._entry, span)):
            found_groups = np.asarray(rows.column(KEY_GROUP))
            first = bisect_left(groups, found_groups[0])
            if first == len(groups) or groups[first] > found_groups[-1]:
                yield rows
                continue
            if keys is not None:
                rows, out = _split(rows, state.key, keys)
                self._removed += out.num_rows
                if identities is not None:  # a row that is put again is a changed row
                    out, again = _split(out, state.identity, identities)
                    gone.add_replaced(again)
                gone.add_deleted(out)
            if identities is not None:
                rows, out = _split(rows, state.identity, identities)
                gone.add_replaced(out)
            yield rows


class _GoneRows:
    """The stored rows of some key groups that an edit deletes or replaces.

    Only the first of them are in memory, as examples, and the identities of the replaced rows.
    """

    def __init__(self, state: KeyedState, room: int) -> None:
        self._state, self._room = state, room
        self._deleted = self._replaced = restored_schema(state.schema).empty_table()
        self._hidden = self._replaced.select(state.identity)

    def add_deleted(self, rows: pa.Table) -> None:
        """Add rows whose key is deleted."""
        first = self._first(rows, self._deleted)
        self._deleted = pa.concat_tables([self._deleted, first])

    def add_replaced(self, rows: pa.Table) -> None:
        """Add rows with the identity of a new row."""
        first = self._first(rows, self._replaced)
        others = rows.slice(first.num_rows).select(self._state.identity)
        self._replaced = pa.concat_tables([self._replaced, first])
        self._hidden = pa.concat_tables([self._hidden, others])

    def compared_with(self, put: Sequence[pa.Table]) -> tuple[pa.Table, pa.Table]:
        """Return the examples, and the new rows that replace none or one of them."""
        new = pa.concat_tables([restored_schema(self._state.schema).empty_table(), *put])
        shown, _ = _split(new, self._state.identity, self._hidden)
        return pa.concat_tables([self._replaced, self._deleted]), shown

    def _first(self, rows: pa.Table, known: pa.Table) -> pa.Table:
        """Return a copy of the rows for which there is room; a slice would keep all in memory."""
        return take_rows(rows, np.arange(min(rows.num_rows, self._room - known.num_rows)))


def with_files(
    entry: KeyedEntry,
    replaced: Iterable[KeyedStateHandle],
    spans: Sequence[KeyGroupRange],
    new: Iterable[KeyedStateHandle],
) -> KeyedEntry:
    """Return the entry with new files for the key groups in ``spans``, without their changes.

    ``replaced`` are the files that had these key groups.
    """
    stay = {*entry.handles}.difference(replaced)
    handles = sorted((*stay, *new), key=lambda handle: handle.key_groups.first)
    live = (live_without(layer, spans) for layer in entry.layers)
    edited = replace(entry, handles=tuple(handles), layers=tuple(layer for layer in live if layer))
    if edited.layers != entry.layers:  # no table version has these files
        edited = replace(edited, table=entry.table.without_version())
    return edited


def _split(rows: pa.Table, names: Sequence[str], gone: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows without these values in these columns, and the ones with them."""
    places, _ = matching_positions(rows.select(names), gone.select(names))
    if not len(places):
        return rows, rows.schema.empty_table()
    kept = np.ones(rows.num_rows, np.bool_)
    kept[places] = False
    return rows.filter(pa.array(kept)), rows.filter(pa.array(~kept))
