"""Apply edits of single keys to a keyed state by rewriting only the files of their key groups.

Each of these files is merged with the new rows, a piece at a time
(:mod:`statestore.layers.aligned_streams`). Rows of its other key groups are copied. The SHA-256 of
a file is checked before it is read, so that damage is not copied. Layers of changes are merged into
the rewritten files. An update changes some columns of the rows of some keys, and the other columns
keep their values.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.arguments import checked_fields
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import paired_tables
from statestore.layers.merge import read_pieces
from statestore.layers.rewrite import RewrittenState, Write, owning_spans, rewrite_spans
from statestore.maintenance.diff_report import Example
from statestore.parquet.reader import restored_schema
from statestore.restore.lookup import rows_of_keys
from statestore.restore.wanted_keys import WantedKeys, key_batch, key_group_of
from statestore.rows.column_types import uuid_columns, with_uuids
from statestore.rows.equality import matching_positions, matching_rows
from statestore.rows.key_group_runs import NullKeys, key_groups_of, take_rows
from statestore.rows.python_values import display_rows, table_of_dicts
from statestore.rows.sorting import sorted_pieces
from statestore.storage import Storage

MOST_EXAMPLES = 20


@dataclass(frozen=True)
class EditChanges:
    """The changes to some key groups: keys whose rows are deleted, and rows to put, by key group.

    A new row replaces the row with the same key, namespace and entry columns. Deletes are applied
    first.
    """

    deleted: Mapping[int, tuple[pa.RecordBatch, ...]]
    put: Mapping[int, pa.Table]

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """The changed key groups, ascending."""
        return tuple(sorted({*self.deleted, *self.put}))


@checked_fields
@dataclass(frozen=True, kw_only=True)
class RowUpdate:
    """New values of some columns, for all rows of ``keys`` that have the values in ``where``.

    Attributes:
        keys: the keys, each in the form of a lookup: a value, or a tuple for several key columns.
        values: the new values, by column. Identity columns cannot change.
        where: the values that a row must have to be updated, by column; by default none.

    Raises:
        InvalidArgumentError: for a value of another type, such as one key instead of a list.
    """

    keys: Sequence[Any]
    values: Mapping[str, Any]
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EditResult:
    """A state after an edit; in a dry run ``state`` has no new files.

    ``rows`` counts the rows in its files, as :attr:`KeyedEntry.rows`, even in a dry run.
    ``deleted`` counts the rows deleted with their key, and ``put`` the new and replaced rows.
    ``examples`` are the first changed rows.
    """

    state: RewrittenState
    groups: tuple[int, ...]
    rows: int
    deleted: int = 0
    put: int = 0
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


def updated_rows(storage: Storage, entry: KeyedEntry, update: RowUpdate) -> pa.Table:
    """Return the rows of an update with their new values; rows that do not change are left out.

    Raises InvalidArgumentError for a key without such a row, for an identity column and for a value
    that its column cannot have, SchemaMismatchError for an unknown column, MissingFileError or
    DamagedFileError.
    """
    state = entry.state
    for name in update.values:
        if name in state.identity:
            raise InvalidArgumentError(
                f"{name!r} identifies the rows of {state}, so an update cannot change it: delete "
                "the key, and put a row with the new value"
            )
    new, wanted = (_one_row(state, values) for values in (update.values, update.where))
    before = _rows_of(storage, entry, update, wanted)
    after = before
    first = pa.array(np.zeros(before.num_rows, np.int64))
    for name in new.column_names:
        values = new.column(name).take(first)
        after = after.set_column(after.schema.get_field_index(name), before.field(name), values)
    same, _ = matching_positions(before, after)
    changes = np.ones(before.num_rows, np.bool_)
    changes[same] = False
    return after.filter(pa.array(changes))


def _one_row(state: KeyedState, values: Mapping[str, Any]) -> pa.Table:
    """Return a row with these values, in columns of the state's types."""
    names = [name for name in state.schema.names if name in values]
    unknown = [name for name in values if name not in names]
    if unknown:
        raise InvalidArgumentError(
            f"{state} has no column {unknown[0]!r}; its columns are ({state.schema})"
        )
    rows = with_uuids([dict(values)], uuid_columns(state))
    return table_of_dicts(rows, state.schema.select(names), subject=str(state))


def _rows_of(storage: Storage, entry: KeyedEntry, update: RowUpdate, where: pa.Table) -> pa.Table:
    """Return the stored rows of the update's keys that have the values in ``where``.

    Raises InvalidArgumentError.
    """
    state = entry.state
    keys = pa.Table.from_batches([key_batch(state, key) for key in update.keys])
    reads = reads_of(entry, KeyGroupRange.every(state.max_parallelism))
    rows = rows_of_keys(storage, entry, reads, WantedKeys.of(keys, state), verify=True)
    rows = rows.select(state.schema.names).combine_chunks()
    if where.column_names:
        places, _ = matching_positions(rows.select(where.column_names), where)
        rows = rows.take(pa.array(places))
    found, _ = matching_positions(keys, rows.select(state.key))
    missing = [key for place, key in enumerate(update.keys) if place not in found]
    if missing:
        values = f" with {dict(update.where)}" if update.where else ""
        raise InvalidArgumentError(
            f"{state} has no row of the key {missing[0]!r:.200}{values}, so there is nothing to "
            "update; put a row with all of its columns instead"
        )
    return rows


def edit_keys(
    storage: Storage, entry: KeyedEntry, changes: EditChanges, write: Write, memory_bytes: int
) -> EditResult:
    """Apply the changes to the state, and write the changed files; sort in ``memory_bytes``.

    Raises MissingFileError or DamagedFileError for a missing or damaged file, DuplicateKeyError,
    InvalidArgumentError or StorageError.
    """
    work = _KeyEdit(storage, entry, changes, memory_bytes)
    spans = owning_spans(entry, changes.groups)
    state = rewrite_spans(entry, ((span, work.rows_of(span)) for span in spans), write)
    copied = state.entry.rows - sum(handle.rows for handle in state.new)
    return EditResult(
        state,
        changes.groups,
        copied + work.rows,
        work.deleted,
        work.put,
        tuple(work.examples.examples),
    )


class _KeyEdit:
    """Yields the rows of changed files, and counts the changes."""

    def __init__(
        self, storage: Storage, entry: KeyedEntry, changes: EditChanges, memory_bytes: int
    ) -> None:
        self._storage, self._entry, self._changes = storage, entry, changes
        self._memory_bytes = memory_bytes
        self.rows = self.deleted = self.put = 0
        self.examples = RowChanges(entry.state)

    def rows_of(self, span: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield the rows of a file with the changes applied, in ascending pieces."""
        state, changed = self._entry.state, self._changes.groups
        groups = changed[bisect_left(changed, span.first) : bisect_right(changed, span.last)]
        put = [self._changes.put[group] for group in groups if group in self._changes.put]
        self.put += sum(rows.num_rows for rows in put)
        gone = _GoneRows(state, self.examples.room)
        unchanged = self._unchanged_rows(span, groups, gone)
        added = sorted_pieces(put, state, self._memory_bytes)
        for pair in paired_tables((state, unchanged), (state, added)):
            rows = pa.concat_tables(pair)
            self.rows += rows.num_rows
            yield rows
        self.examples.add(*gone.compared_with(put))

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
                self.deleted += out.num_rows
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


@dataclass
class RowChanges:
    """The number of rows that were added, removed and changed, and at most ``limit`` examples."""

    state: KeyedState
    limit: int = MOST_EXAMPLES
    added: int = 0
    removed: int = 0
    changed: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def room(self) -> int:
        """The number of examples that are still wanted."""
        return self.limit - len(self.examples)

    def add(self, before: pa.Table, after: pa.Table) -> None:
        """Compare rows of some key groups; rows with the same identity are a changed row.

        Both tables have the column ``key_group``. Equal rows do not count.
        """
        names = self.state.schema.names
        old_at, new_at, same = matching_rows(
            before.select(names), after.select(names), self.state.identity
        )
        removed = np.setdiff1d(np.arange(before.num_rows), old_at, assume_unique=True)
        added = np.setdiff1d(np.arange(after.num_rows), new_at, assume_unique=True)
        self.added += len(added)
        self.removed += len(removed)
        self.changed += int((~same).sum())
        self._show("changed", (before, old_at[~same]), (after, new_at[~same]))
        self._show("removed", (before, removed), None)
        self._show("added", None, (after, added))

    def _show(
        self,
        change: str,
        before: tuple[pa.Table, np.ndarray] | None,
        after: tuple[pa.Table, np.ndarray] | None,
    ) -> None:
        room = self.room
        sides = [
            None if side is None else take_rows(side[0], side[1][:room]) for side in (before, after)
        ]
        (first, *_) = (rows for rows in sides if rows is not None)
        groups = first.column(KEY_GROUP).to_pylist()
        names = self.state.schema.names
        shown = [
            [None] * len(groups) if rows is None else display_rows(rows.select(names))
            for rows in sides
        ]
        for group, old, new in zip(groups, *shown, strict=True):
            identity = {name: (old or new)[name] for name in self.state.identity}
            self.examples.append(
                Example(change=change, key_group=group, identity=identity, a=old, b=new)
            )


def _split(rows: pa.Table, names: Sequence[str], gone: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows without these values in these columns, and the ones with them."""
    places, _ = matching_positions(rows.select(names), gone.select(names))
    if not len(places):
        return rows, rows.schema.empty_table()
    kept = np.ones(rows.num_rows, np.bool_)
    kept[places] = False
    return rows.filter(pa.array(kept)), rows.filter(pa.array(~kept))
