"""Apply edits of single keys to a keyed state by rewriting only the files of their key groups.

Each of these files is merged with the new rows, a piece at a time
(:mod:`statestore.layers.aligned_streams`). Rows of its other key groups are copied. The SHA-256 of
a file is checked before it is read, so that damage is not copied. Layers of changes are merged into
the rewritten files. An update changes some columns of the rows of some keys, and the other columns
keep their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.arguments import checked_fields
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.aligned_streams import paired_tables
from statestore.layers.merge import read_pieces
from statestore.layers.rewrite import RewrittenState, Write, owning_spans, rewrite_spans
from statestore.maintenance.diff_report import Example
from statestore.maintenance.diff_rows import RowDifference
from statestore.parquet.reader import restored_schema
from statestore.restore.lookup import WantedKeys, key_batch, key_group_of, rows_of_keys
from statestore.rows.column_types import uuid_columns, with_uuids
from statestore.rows.equality import matching_positions
from statestore.rows.key_group_runs import NullKeys, key_groups_of
from statestore.rows.python_values import table_of_dicts
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
        tuple(work.changes.examples),
    )


class _KeyEdit:
    """Yields the rows of changed files, and counts the changes."""

    def __init__(
        self, storage: Storage, entry: KeyedEntry, changes: EditChanges, memory_bytes: int
    ) -> None:
        self._storage, self._entry, self._wanted = storage, entry, changes
        self._memory_bytes = memory_bytes
        self.rows = self.deleted = self.put = 0
        self.changes = RowChanges(entry.state)

    def rows_of(self, span: KeyGroupRange) -> Iterator[pa.Table]:
        """Yield the rows of a file with the changes applied, in ascending pieces."""
        state, changes = self._entry.state, self._wanted
        groups = [group for group in changes.groups if group in span]
        deleted = [batch for group in groups for batch in changes.deleted.get(group, ())]
        keys = pa.Table.from_batches(deleted) if deleted else None
        put = [changes.put[group] for group in groups if group in changes.put]
        stored = read_pieces(self._storage, self._entry, reads_of(self._entry, span))
        added = sorted_pieces(put, state, self._memory_bytes)
        for old, new in paired_tables((state, stored), (state, added)):
            rows = self._edited(old, new, keys)
            self.rows += rows.num_rows
            yield rows

    def _edited(self, old: pa.Table, new: pa.Table, keys: pa.Table | None) -> pa.Table:
        """Return stored rows without the deleted and the replaced ones, and the new rows."""
        state = self._entry.state
        gone = _flag(old, state.identity, new)
        if keys is not None:
            is_deleted = _flag(old, state.key, keys)
            self.deleted += int(is_deleted.sum())
            gone |= is_deleted
        self.put += new.num_rows
        if not gone.any() and not new.num_rows:
            return old
        self.changes.add(old.filter(pa.array(gone)), new)
        return pa.concat_tables([old.filter(pa.array(~gone)), new])


@dataclass
class RowChanges:
    """Added, removed and changed rows: their number, key groups, and at most ``limit`` examples."""

    state: KeyedState
    limit: int = MOST_EXAMPLES
    added: int = 0
    removed: int = 0
    changed: int = 0
    examples: list[Example] = field(default_factory=list)
    groups: set[int] = field(default_factory=set)

    def add(self, before: pa.Table, after: pa.Table) -> None:
        """Compare rows of some key groups; rows with the same identity are a changed row.

        Both tables have the column ``key_group``. Equal rows do not count.
        """
        found = RowDifference.between((self.state, before), (self.state, after))
        self.added += found.counts["added"]
        self.removed += found.counts["removed"]
        self.changed += found.counts["changed"]
        self.groups |= found.groups()
        for change in ("changed", "removed", "added"):
            self.examples += found.examples({change: self.limit - len(self.examples)})


def _flag(rows: pa.Table, names: Sequence[str], wanted: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows have the values of one of the ``wanted`` rows in these columns."""
    places, _ = matching_positions(rows.select(names), wanted.select(names))
    flags = np.zeros(rows.num_rows, np.bool_)
    flags[places] = True
    return flags
