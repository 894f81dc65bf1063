"""Write a state: all of its rows, or its changes since a checkpoint.

A keyed state comes from one or many processes. An operator state comes from its own.

A state with changes is named again with its files, and the changes become one more layer. Without a
base to build on, the rows are written in full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from statestore.engines.given_rows import read_rows, typed_rows
from statestore.engines.rows import ArrowRows, Rows
from statestore.engines.spark_modules import spark_module
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, StateNotFoundError
from statestore.format.digest import RowSet
from statestore.format.handles import KeyedStateHandle, read_all
from statestore.format.layers import change_state
from statestore.format.manifest import KeyedEntry, Layer, OperatorEntry, TableRef
from statestore.format.names import changes_table, operator_table
from statestore.format.schema import type_text
from statestore.format.state import TIME_TYPES, KeyedState, TimeToLive, check_instant
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import Assignment, KeyGroupRange
from statestore.layers.base_comparison import BaseComparison
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.parquet.operator_elements import write_elements
from statestore.rows.change_rows import change_stream, width_of
from statestore.rows.column_types import arrow_schema, refuse_repeated_names
from statestore.rows.delete_markers import Deletion, named_columns
from statestore.rows.untyped_rows import UntypedRows
from statestore.snapshot.pending_checkpoint import LATEST, PendingCheckpoint, StoredFacts
from statestore.snapshot.state_spec import (
    OFF,
    Changes,
    StateSpec,
    keyed_state,
    operator_state,
    refuse_other_form,
    uuid_columns_of,
)
from statestore.snapshot.subtask_writer import KeyedWriter, PendingSubtasks


def write_full(pending: PendingCheckpoint, spec: StateSpec, rows: Any) -> KeyedEntry:
    """Write all rows of a keyed state, and return it.

    Raises NullKeyError, DuplicateKeyError, UnsupportedTypeError, SchemaMismatchError or
    ParallelismError.
    """
    stored = pending.history.stored(spec.operator, spec.state)
    spec = spec.completed(stored.state, pending.operators, pending.layout)
    known, state = prepare(pending, spec, rows, stored)
    return write_rows(pending, known, state, co_located=spec.co_located)


def write_rows(
    pending: PendingCheckpoint, rows: Rows, state: KeyedState, *, co_located: bool = False
) -> KeyedEntry:
    """Write all rows of a keyed state, and return it."""
    entry = pending.entry_of(state)
    target = pending.new_files.target(entry, co_located=co_located)
    written = replace(entry, handles=rows.write(pending.owners_of(state), target))
    pending.add_written(written)
    return written


def declare(pending: PendingCheckpoint, spec: StateSpec, schema: Any) -> KeyedWriter:
    """Return a writer for a keyed state that its subtasks write, in any process.

    Raises the errors of :func:`prepare`.
    """
    stored = pending.history.stored(spec.operator, spec.state)
    spec = spec.completed(stored.state, pending.operators, pending.layout)
    refuse_repeated_names(schema.names, str(spec))
    ttl = spec.kept_ttl(stored.state)
    state = _checked_state(pending, spec, ArrowRows(schema, iter(())), ttl, stored)
    entry = pending.entry_of(state)
    target = pending.new_files.target(entry, co_located=spec.co_located)
    writer = KeyedWriter(pending.id, entry, pending.owners_of(state), target)
    pending.expect(PendingSubtasks(writer, target.storage))
    pending.measuring.declared(state.uid, state.name)
    return writer


def write_operator(
    pending: PendingCheckpoint, uid: str, name: str, elements: Any, mode: RedistributionMode
) -> OperatorEntry:
    """Write the elements of an operator's state, and return it."""
    pending.refuse_twice(uid, name)
    with pending.measuring.writing(uid, name):
        parallelism, stored = (
            pending.operators.parallelism_of(uid),
            pending.history.operator(uid, name),
        )
        state, table, counts = operator_state(uid, name, elements, mode, parallelism, stored)
        folder = operator_table(uid, name)
        handles = write_elements(
            table, state, pending.catalog.storage, folder, pending.checkpoint_id
        )
    written = OperatorEntry(state, TableRef(pending.table.format, folder), counts, handles)
    pending.add_written(written)
    return written


def prepare(
    pending: PendingCheckpoint,
    spec: StateSpec,
    given: Any,
    stored: StoredFacts,
    *,
    fills_times: bool = False,
) -> tuple[Rows, KeyedState]:
    """Return all rows of a state in their types, and the checked state.

    If its TTL is turned on, rows without times get the checkpoint's clock. With ``fills_times``
    they also get it for a state that already has a TTL.

    Raises the errors of :func:`statestore.snapshot.state_spec.keyed_state`, and
    InvalidArgumentError for rows without times.
    """
    old = stored.state
    rows = with_types(read_rows(given, str(spec), pending.parquet.stream_bytes), spec, old)
    ttl = spec.kept_ttl(old)
    if not fills_times:
        _refuse_new_times(rows, ttl, old)
    rows = add_time_column(rows, ttl, old, pending.now_ms)
    if spec.regroup:
        rows = rows.ungrouped()  # they still have their old key groups
    return rows, _checked_state(pending, spec, rows, ttl, stored)


def prepare_changes(
    pending: PendingCheckpoint,
    spec: StateSpec,
    given: Any,
    base: KeyedState,
    stored: StoredFacts,
    *,
    fills_times: bool,
) -> tuple[Rows, KeyedState]:
    """Return upserts, or all rows, of a state whose changes are based on ``base``, and the state.

    None stands for no rows. With ``fills_times`` rows without times get the checkpoint's clock;
    otherwise they are refused.

    Raises the errors of :func:`prepare`, and SchemaMismatchError if the columns, the hash scheme or
    the max parallelism differ from the base.
    """
    ttl = spec.changed_ttl(base)
    if given is None:
        rows: Rows = ArrowRows.of(arrow_schema(base.schema).empty_table())
    else:
        known = read_rows(given, str(spec), pending.parquet.stream_bytes)
        rows = typed_rows(known, lambda untyped: untyped.changes(base))
        if fills_times:
            rows = add_time_column(rows, ttl, base, pending.now_ms)
        else:
            _refuse_new_times(rows, ttl, base)
    refuse_other_form(
        spec,
        rows,
        base,
        parallelism=pending.operators.parallelism_of(spec.operator),
        stored=stored,
        so_far=pending.keyed,
    )
    return rows, replace(base, uid=spec.operator, ttl=ttl)


def _checked_state(
    pending: PendingCheckpoint,
    spec: StateSpec,
    rows: Rows,
    ttl: TimeToLive | None,
    stored: StoredFacts,
) -> KeyedState:
    return keyed_state(
        spec,
        rows,
        ttl=ttl,
        parallelism=pending.operators.parallelism_of(spec.operator),
        stored=stored,
        so_far=pending.keyed,
    )


def with_types(rows: Rows | UntypedRows, spec: StateSpec, stored: KeyedState | None) -> Rows:
    """Return rows, which get the stored types, where they fit, if they have none of their own."""

    def convert(untyped: UntypedRows) -> pa.Table:
        untyped = untyped.with_uuids(uuid_columns_of(spec, stored))
        if stored is None:
            return untyped.guessed()
        return untyped.widening(stored.schema.renamed(spec.renamed), stored.identity)

    return typed_rows(rows, convert)


def _refuse_new_times(rows: Rows, ttl: TimeToLive | None, stored: KeyedState | None) -> None:
    """Refuse rows without timestamps for a state that already has a TTL."""
    if ttl is None or stored is None or stored.ttl is None:
        return
    if ttl.column in rows.schema.names:
        return
    raise InvalidArgumentError(
        f"{stored} has a TTL, but its rows lack the column {ttl.column!r}, so the lifetime of "
        "all rows would restart. Add the timestamps, write only changes with "
        f"checkpoint.write_changes(…), which can omit the column, or end the TTL with ttl={OFF!r}"
    )


def add_time_column(
    rows: Rows, ttl: TimeToLive | None, stored: KeyedState | None, now_ms: int
) -> Rows:
    """Add the clock as time column to rows that lack it; return other rows unchanged.

    The column has its stored type, or long if it is new.
    """
    if ttl is None or ttl.column in rows.schema.names:
        return rows
    time_type = "long"
    if stored is not None and ttl.column in stored.schema.names:
        time_type = type_text(stored.schema.type_of(ttl.column))
    if time_type not in TIME_TYPES:
        return rows  # the check of the state refuses the column, with its type
    if time_type != "long":
        check_instant(now_ms)
    return rows.with_time(ttl.column, time_type, now_ms)


# Writes changes. Returns their handles and, if known, all rows of the state.
Write = Callable[[Assignment, KeyedTarget], tuple[tuple[KeyedStateHandle, ...], RowSet | None]]
_DELETES, _CLEARED = "the deletes", "the cleared keys"
"""The names of rows in messages."""
_log = logging.getLogger(__name__)


def write_changes(
    pending: PendingCheckpoint, spec: StateSpec, changes: Changes, base: int | str
) -> KeyedEntry:
    """Write the changes, and return the state; see ``CheckpointWriter.write_changes``."""
    return _ChangeWriter(pending, spec, base).changes(changes)


def write_against(
    pending: PendingCheckpoint, spec: StateSpec, rows: Any, base: int | str
) -> KeyedEntry:
    """Write the differences from a checkpoint; see ``CheckpointWriter.write_changes_against``."""
    return _ChangeWriter(pending, spec, base).changes_against(rows)


class _ChangeWriter:
    """Writes the changes of one state, or without a base to build on, its rows in full."""

    def __init__(self, pending: PendingCheckpoint, spec: StateSpec, base: int | str) -> None:
        """Look up the base. Raises the errors of :func:`latest_or` and of a completed spec."""
        if spec.co_located:
            raise InvalidArgumentError(
                f"co_located cannot be set for changes of {spec}; it "
                "applies to all rows of a state, which write_keyed(…) writes"
            )
        self._pending = pending
        self._base = latest_or(pending, spec.operator, spec.state, base)
        self._stored = pending.history.stored(spec.operator, spec.state)
        known = self._stored.state if self._base is None else self._base.state
        self._spec = spec.completed(known, pending.operators, pending.layout)

    def __str__(self) -> str:
        """Return the state's name for messages."""
        return str(self._spec)

    def changes(self, requested: Changes) -> KeyedEntry:
        if all(rows is None for rows in (requested.upserts, requested.deletes, requested.cleared)):
            raise InvalidArgumentError(
                f"no changes of {self} were passed; pass Changes(upserts=, deletes= or cleared=), "
                "or an empty table if nothing changed"
            )
        old = self._base
        if old is None:
            return self._write_in_full(requested.upserts, fills_times=True)
        rows, state = prepare_changes(
            *(self._pending, self._spec, requested.upserts, old.state, self._stored),
            fills_times=True,
        )
        marked: list[tuple[Rows, Deletion | None]] = []
        if requested.upserts is not None:
            marked.append((rows, None))
        marked += self._read_deletes(requested.deletes, state, cleared=False)
        marked += self._read_deletes(requested.cleared, state, cleared=True)
        changes = self._collect_changes(marked, state)
        return self._write_layer(
            replace(old, state=state),
            changes,
            lambda owners, target: (changes.write(owners, target), None),
        )

    def changes_against(self, given: Any) -> KeyedEntry:
        if given is None:
            raise InvalidArgumentError(
                f"no rows of {self} were passed; pass all of its current rows, or an empty table"
            )
        old = self._base
        if old is None:
            return self._write_in_full(given, fills_times=False)
        rows, state = prepare_changes(
            self._pending, self._spec, given, old.state, self._stored, fills_times=False
        )
        entry = replace(old, state=state)
        # Here, and not in Spark's job submission, where it would be wrapped in another error.
        read_all(part.handles for part in entry.parts)
        options = self._pending.parquet
        storage = self._pending.catalog.storage
        against = BaseComparison(storage, entry, options.run_bytes, options.memory_bytes)
        return self._write_layer(
            entry,
            rows,
            lambda owners, target: rows.write_against(owners, against, target),
        )

    def _read_deletes(
        self, given: Any, state: KeyedState, *, cleared: bool
    ) -> list[tuple[Rows, Deletion]]:
        """Return the deletes, each part with its kind of deletion."""
        if given is None:
            return []
        text = _CLEARED if cleared else _DELETES
        known = read_rows(given, f"{text} of {self}", self._pending.parquet.stream_bytes)
        parts: list[Rows] = (
            [ArrowRows.of(table) for table in known.deletes(state, text)]
            if isinstance(known, UntypedRows)
            else [known]
        )
        marked = []
        for rows in parts:
            width = width_of(rows.schema.names, state)
            rows.refuse_narrowing(state.identity[:width], state)
            marked.append((rows, Deletion(width, cleared=cleared)))
        return marked

    def _write_in_full(self, rows: Any, *, fills_times: bool) -> KeyedEntry:
        if rows is None:
            raise InvalidArgumentError(
                f"the newest checkpoint has no {self}, so there is nothing to delete; pass "
                "its rows as upserts"
            )
        _log.warning("the newest checkpoint has no %s, so its rows are written in full", self)
        prepared = prepare(self._pending, self._spec, rows, self._stored, fills_times=fills_times)
        return write_rows(self._pending, *prepared)

    def _collect_changes(
        self, parts: list[tuple[Rows, Deletion | None]], state: KeyedState
    ) -> Rows:
        """Return all changes as a local table or stream, or as a DataFrame if there are many."""
        most, changes = self._pending.parquet.driver_bytes, change_state(state)
        collected = [
            (rows.collect(named_columns(deletion, state), most), deletion)
            for rows, deletion in parts
        ]
        local = [(rows, deletion) for rows, deletion in collected if rows is not None]
        if len(local) == len(parts):
            tables = [(rows.columns, rows.tables, deletion) for rows, deletion in local]
            marked = ArrowRows(*change_stream(tables, state, changes))
            is_stream = any(rows.table is None for rows, _ in local)
            return marked if is_stream else ArrowRows.of(pa.concat_tables(marked.tables))
        frames = [
            (rows if few is None else few, deletion)
            for (few, deletion), (rows, _) in zip(collected, parts, strict=True)
        ]
        many: Rows = spark_module("state_writer").change_frame(frames, state, changes)
        return many

    def _write_layer(self, entry: KeyedEntry, rows: Rows, write: Write) -> KeyedEntry:
        pending, changes = self._pending, change_state(entry.state)
        folder = changes_table(self._spec.operator, self._spec.state)
        target = KeyedTarget(
            storage=pending.catalog.storage,
            folder=folder,
            checkpoint_id=pending.checkpoint_id,
            # the times of upserts are checked against it
            state=replace(changes, ttl=entry.state.ttl),
            options=pending.parquet,
            synced_later=rows.syncs_later,
        )
        before = entry.contents
        handles, contents = write(pending.owners_of(entry.state), target)
        if handles:
            stored = KeyedEntry(changes, TableRef("parquet", folder), handles)
            everything = KeyGroupRange.every(changes.max_parallelism)
            layer = Layer(stored, pending.checkpoint_id, 0, (everything,))
            entry = replace(entry, layers=(*entry.layers, layer))
        entry = entry.recording(contents or (None if handles else before))
        names = [f"{folder}/{handle.path}" for handle in handles]
        self._pending.add_changed(entry, names, unsynced=names if target.synced_later else ())
        return entry


def latest_or(
    pending: PendingCheckpoint, uid: str, name: str, base: int | str
) -> KeyedEntry | None:
    """Return a state of the newest checkpoint or of ``base``.

    Returns None if the newest checkpoint lacks it. Raises CheckpointNotFoundError,
    StateNotFoundError or MalformedManifestError, because changes to an unreadable base would be
    lost.

    """
    if base == LATEST:
        return pending.history.newest_keyed(uid, name)
    try:
        manifest = pending.history.load(base)
    except CheckpointNotFoundError as error:
        error.add_note(
            f"the changes of state {name!r} of operator {uid!r} are based on this checkpoint: "
            "take a full snapshot, or restore a kept checkpoint and pass its number as base"
        )
        raise
    stored = pending.history.keyed_in(manifest, uid, name)
    if stored is not None:
        return stored
    other = manifest.keyed_entry(uid, name)
    raise StateNotFoundError(
        f"{other.state} in checkpoint {manifest.checkpoint_id} belongs to another operator, "
        f"because the operator ids differ: {manifest.operators.id_of(uid)} there, "
        f"{pending.operators.id_of(uid)} in this job. Write the state in full with "
        "checkpoint.write_keyed(…). If it is the same operator, give it the same uid, or pass the "
        "job graph to the snapshot"
    )
