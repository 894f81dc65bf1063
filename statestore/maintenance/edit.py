"""Edit one keyed state of a checkpoint offline, as a new checkpoint; the old one stays.

There are three kinds of edits. Single keys are replaced or deleted, which rewrites the files of
their key groups. A frame becomes the state's whole content. So does the result of an SQL expression
over the state. Every other file is named again.

If the state has layers of changes, they are merged with its rows on reading, and the rewritten
files contain the result. Key groups that an edit of single keys does not touch keep their layers,
and no temporary file is written. The rows must satisfy the rules of a snapshot: columns and types
as stored, no null key, no duplicate entry.

The new checkpoint's ``origin`` describes the edit in numbers. It has no keys, no rows and no SQL
text, because manifests outlive the rows that they describe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.catalog.catalog import CheckpointRef
from statestore.display import counted
from statestore.engines.given_rows import read_rows, typed_rows
from statestore.errors import InvalidArgumentError, Remedy, SchemaMismatchError
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import KeyedEntry
from statestore.format.schema import same_columns
from statestore.format.slices import reads_of
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.layers.intact_key_groups import group_digests
from statestore.layers.merge import identities_of
from statestore.layers.rewrite import RewrittenState, with_new_files
from statestore.maintenance.derive import DerivedReport, Draft
from statestore.maintenance.diff_report import Example
from statestore.maintenance.edit_keys import (
    EditChanges,
    EditResult,
    RowUpdate,
    changes_of,
    edit_keys,
    updated_rows,
)
from statestore.maintenance.edit_sql import SqlResult, sql_result
from statestore.maintenance.store_context import HasContext
from statestore.restore.lookup import WantedKeys, key_batch, rows_of_keys
from statestore.restore.plan import owners_of
from statestore.rows.column_types import arrow_schema
from statestore.rows.equality import matching_positions
from statestore.rows.python_values import display_rows
from statestore.storage import Storage

_MOST_MISSING = 5
"""The most keys without a row that a result names."""


@dataclass(frozen=True, kw_only=True)
class EditedState(DerivedReport):
    """The result of an edit, or of a dry run.

    If nothing would change in an edit of single keys, no checkpoint is made. ``how`` is keys, rows
    or sql. ``files`` and ``size_bytes`` count the rewritten files, or in a dry run the files that
    would be replaced. ``rows_before`` and ``rows_after`` are the rows in the state's files, in base
    and changes together. ``changed_rows_before`` of ``rows_before`` are changes; an edit merges
    them into the files that it rewrites. ``deleted`` and ``put`` count rows; a row that was put may
    have replaced another. ``missing`` is the number of keys to delete that have no row, and
    ``missing_keys`` are the first of these, by key column. ``examples`` are the first changed rows,
    each with ``a``, the row before, and ``b``, the row after. An edit with all rows has neither
    numbers nor examples.
    """

    operator: str
    state: str
    how: str
    rows_before: int
    changed_rows_before: int
    rows_after: int
    deleted: int
    put: int
    key_groups: tuple[int, ...]
    files: int
    size_bytes: int
    missing: int = 0
    missing_keys: tuple[Mapping[str, Any], ...] = ()
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class _Deletes:
    """The keys to delete that have rows, and a table of the other keys."""

    stored: Sequence[Any]
    missing: pa.Table


def edit(
    store: HasContext,
    operator: str,
    state: str,
    *,
    delete: Sequence[Any] = (),
    put: Sequence[Mapping[str, Any]] = (),
    update: RowUpdate | None = None,
    rows: Any = None,
    sql: str | None = None,
    allow_empty: bool = True,
    checkpoint: CheckpointRef = "latest",
    from_older: bool = False,
    dry_run: bool = False,
) -> EditedState:
    """Change one keyed state of a checkpoint, as a new checkpoint; the old one stays.

    Either ``delete``, ``put`` and ``update`` change single keys, or ``rows`` or ``sql`` gives
    all rows. Only files of key groups that change are written, except with ``rows``.

    Args:
        operator: the operator.
        state: the state.
        delete: keys whose rows are all deleted. They are deleted before ``put`` is applied.
        put: rows that replace rows with the same key, namespace and entry columns. Columns that
            a row lacks become null.
        update: new values for some columns of the rows of some keys. The other columns keep
            their values.
        rows: all rows of the state, as a DataFrame, an Arrow table, or a list of dictionaries.
        sql: a SELECT over the table ``state``, which DuckDB runs.
        allow_empty: whether the result of ``sql`` may be empty, which removes all rows.
        checkpoint: as in :meth:`savepoint`.
        from_older: as in :meth:`compact`.
        dry_run: reports what would be changed, and changes nothing.

    Returns:
        The changed state, with the first changed rows before and after.

    Raises:
        StateNotFoundError: if the state does not exist.
        InvalidArgumentError, SchemaMismatchError, NullKeyError or DuplicateKeyError: for rows
            that a snapshot would refuse. InvalidArgumentError also if ``update`` names a key
            without a row, or one that is deleted.
        MissingDependencyError: without DuckDB.
        CorruptionError: if a file is damaged.
        CommitConflictError: if another writer commits first.
        StorageError: if the store cannot be read or written.
    """
    delete, put = tuple(delete), tuple(put)
    how = _kind_of(bool(delete or put or update), rows, sql)
    deriver = store.parts.deriver()
    storage, memory_bytes = deriver.catalog.storage, deriver.parquet.memory_bytes
    source = deriver.load_source(checkpoint, from_older=from_older or dry_run)
    entry = source.manifest.keyed_entry(operator, state)
    deletes = _deletes(storage, entry, delete)
    with ExitStack() as stack:
        # First: a refused edit must not take over the store of a job.
        changes = answer = None
        if sql is not None:
            answer = stack.enter_context(sql_result(storage, entry, sql, memory_bytes))
            if not (dry_run or allow_empty):
                _refuse_empty(entry, answer)
        elif rows is None:
            changes = _changes_of_keys(storage, entry, deletes, delete, put, update)
        is_needed = changes is None or bool(changes.groups)
        with deriver.derive(source, "edit", dry_run=dry_run, is_needed=is_needed) as draft:
            if answer is not None:
                result = answer.rewrite(draft.write, memory_bytes)
            elif changes is not None:
                result = edit_keys(storage, entry, changes, draft.write, memory_bytes)
            else:
                result = _replace_rows(entry, rows, draft)
            draft.put(result.state.entry)
            draft.record(
                operator=operator,
                state=state,
                by=how,
                rows_before=entry.rows,
                rows_after=result.rows,
                key_groups=len(result.groups),
            )
    return _edited(draft.facts, entry, how, result, deletes.missing)


def _edited(
    facts: Mapping[str, Any], entry: KeyedEntry, how: str, result: EditResult, missing: pa.Table
) -> EditedState:
    files = result.state.replaced if facts["dry_run"] else result.state.new
    return EditedState(
        **facts,
        operator=entry.state.uid,
        state=entry.state.name,
        how=how,
        rows_before=entry.rows,
        changed_rows_before=entry.changed_rows,
        rows_after=result.rows,
        deleted=result.deleted,
        put=result.put,
        key_groups=result.groups,
        files=len(files),
        size_bytes=sum(handle.size_bytes for handle in files),
        missing=missing.num_rows,
        missing_keys=tuple(display_rows(missing.slice(0, _MOST_MISSING))),
        examples=result.examples,
    )


def _kind_of(is_of_keys: bool, rows: Any, sql: str | None) -> str:
    """Return the kind of edit: ``keys``, ``rows`` or ``sql``; refuse none, and a combination."""
    passed = {"keys": is_of_keys, "rows": rows is not None, "sql": sql is not None}
    kinds = [kind for kind, is_passed in passed.items() if is_passed]
    if len(kinds) != 1:
        raise InvalidArgumentError(
            "an edit takes exactly one of these: changes of single keys, all rows of the state, or "
            f"an SQL expression; {'several were' if kinds else 'none was'} passed"
        )
    return kinds[0]


def _refuse_empty(entry: KeyedEntry, answer: SqlResult) -> None:
    removed = answer.rows_before
    if removed and not answer.rows:
        raise InvalidArgumentError(
            f"the result of the query is empty, so the edit would remove all "
            f"{counted(removed, 'row')} of {entry.state}; correct the query",
            remedy=Remedy("allow_empty", True, "then the state has no rows"),
        )


def _changes_of_keys(
    storage: Storage,
    entry: KeyedEntry,
    deletes: _Deletes,
    delete: Sequence[Any],
    put: Sequence[Mapping[str, Any]],
    update: RowUpdate | None,
) -> EditChanges:
    """Return the changes of single keys; none for a key to delete that does not exist."""
    state = entry.state
    changes = changes_of(state, deletes.stored, put)
    if update is None:
        return changes
    _refuse_deleted_and_updated(state, delete, update.keys)
    updated = changes_of(state, (), updated_rows(storage, entry, update))
    for group in {*changes.put}.intersection(updated.put):
        identities = [rows.put[group].select(state.identity) for rows in (changes, updated)]
        if len(matching_positions(*identities)[0]):
            raise InvalidArgumentError(
                f"an edit of {state} puts a row and updates the same row; do one of these"
            )
    together = {
        group: pa.concat_tables(rows.put[group] for rows in (changes, updated) if group in rows.put)
        for group in {*changes.put, *updated.put}
    }
    return EditChanges(changes.deleted, together)


def _refuse_deleted_and_updated(
    state: KeyedState, deleted: Sequence[Any], updated: Sequence[Any]
) -> None:
    """Refuse a key that is deleted and updated: the values of its updated rows are unclear."""
    if not deleted or not updated:
        return
    sides = [
        pa.Table.from_batches([key_batch(state, key) for key in keys])
        for keys in (deleted, updated)
    ]
    for place in matching_positions(*sides)[0][:1].tolist():
        raise InvalidArgumentError(
            f"an edit of {state} deletes the key {deleted[place]!r:.200} and updates its rows; "
            "do one of these"
        )


def _deletes(storage: Storage, entry: KeyedEntry, keys: Sequence[Any]) -> _Deletes:
    """Return which keys have rows; read only the key columns of the files.

    Raises InvalidArgumentError for a value that is not a key, MissingFileError or DamagedFileError.
    """
    state = entry.state
    if not keys:
        return _Deletes([], arrow_schema(state.schema.select(state.key)).empty_table())
    wanted = pa.Table.from_batches([key_batch(state, key) for key in keys])
    every = reads_of(entry, KeyGroupRange.every(state.max_parallelism))
    narrow, reads = identities_of(entry, every)
    rows = rows_of_keys(storage, narrow, reads, WantedKeys.of(wanted, state))
    places, _ = matching_positions(wanted, rows.select(state.key))
    missing = np.setdiff1d(np.arange(len(keys)), places)
    return _Deletes([keys[place] for place in places.tolist()], wanted.take(pa.array(missing)))


def _replace_rows(entry: KeyedEntry, given: Any, draft: Draft) -> EditResult:
    state = entry.state
    rows = typed_rows(read_rows(given, str(state)), lambda untyped: untyped.exact(state))
    schema = rows.schema
    if not same_columns(schema, state.schema):
        raise SchemaMismatchError(
            f"{state} has the columns ({state.schema}), but the rows have ({schema}); an edit "
            "cannot change the columns of a state"
        )
    replaced = tuple(handle for part in entry.parts for handle in part.handles)
    if draft.writer is None:
        count = given.count() if rows.count is None else rows.count
        return EditResult(RewrittenState(entry, (), replaced), _groups_of(replaced), count)
    owners = owners_of(draft.source.manifest, state.uid)
    new = rows.write(owners, draft.files.target(entry))
    draft.files.add(entry.table.path, new)
    every = KeyGroupRange.every(state.max_parallelism)
    changed = with_new_files(entry, [every], new)
    return EditResult(changed, _groups_of(new), sum(handle.rows for handle in new))


def _groups_of(handles: Iterable[KeyedStateHandle]) -> tuple[int, ...]:
    return tuple(sorted({group for handle in handles for group, _, _ in group_digests(handle)}))
