"""Write a state in full, and prepare the rows and the state of every write.

A keyed state comes from one or many processes. An operator state comes from its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from statestore.engines.given_rows import read_rows, typed_rows
from statestore.engines.rows import ArrowRows, Rows
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry, OperatorEntry, TableRef
from statestore.format.names import operator_table
from statestore.format.schema import type_text
from statestore.format.state import TIME_TYPES, KeyedState, TimeToLive, check_instant
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.parquet.operator_elements import write_elements
from statestore.rows.column_types import arrow_schema
from statestore.rows.python_values import refuse_repeated_names
from statestore.rows.untyped_rows import UntypedRows
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.snapshot.prior_checkpoints import StoredFacts
from statestore.snapshot.state_request import (
    keyed_state,
    operator_state,
    refuse_other_form,
    uuid_columns_of,
)
from statestore.snapshot.state_spec import OFF, StateSpec
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
    target, owners = pending.target_of(state, co_located=co_located), pending.owners_of(state)
    handles = rows.write(owners, target)
    written = replace(pending.entry_of(state), handles=handles)
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
    target, owners = pending.target_of(state, co_located=spec.co_located), pending.owners_of(state)
    writer = KeyedWriter(pending.id, pending.entry_of(state), owners, target)
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

    Raises the errors of :func:`statestore.snapshot.state_request.keyed_state`, and
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
