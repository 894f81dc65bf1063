"""Write a state in full: a keyed state from one or many processes, or an operator state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from statestore.engines.choice import Engine, engine_of, reread
from statestore.format.manifest import KeyedEntry, OperatorEntry, TableRef
from statestore.format.names import operator_table
from statestore.format.state import KeyedState
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.parquet.operator_elements import write_elements
from statestore.rows.input_rows import is_dicts
from statestore.rows.python_values import table_like
from statestore.rows.uuids import with_uuids
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.snapshot.state_request import (
    KeyedRequest,
    kept_ttl,
    keyed_state,
    operator_state,
    refuse_new_times,
    stamped,
    uuid_columns_of,
)
from statestore.snapshot.subtask_writer import KeyedWriter, PendingSubtasks

__all__ = ["checked_state", "declare", "write_full", "write_operator"]


def write_full(
    collected: PendingCheckpoint, request: KeyedRequest, rows: Any, *, co_located: bool = False
) -> KeyedEntry:
    """Write all rows of a keyed state, and return it.

    Raises NullKeyError, DuplicateKeyError, UnsupportedTypeError, SchemaMismatchError or
    ParallelismError.
    """
    attempt = collected.attempt
    rows = reread(rows, str(request), attempt.parquet.stream_bytes)
    rows = _as_stored(collected, rows, request)
    rows = _with_times(collected, rows, request)
    engine, rows = engine_of(rows, str(request))
    if request.regroup:
        rows = engine.ungrouped(rows)  # they still have their old key groups
    request = replace(request, rows=engine.rows_known(rows))
    state = checked_state(collected, engine, rows, request)
    target, owners = attempt.target_of(state, co_located=co_located), attempt.owners_of(state)
    handles = engine.write_keyed(rows, owners, target)
    written = replace(attempt.entry_of(state), handles=handles)
    collected.add_keyed(written)
    return written


def declare(
    collected: PendingCheckpoint, request: KeyedRequest, schema: Any, *, co_located: bool = False
) -> KeyedWriter:
    """Return a writer for a keyed state that its subtasks write, in any process."""
    attempt = collected.attempt
    engine, rows = engine_of(schema, str(request))
    state = checked_state(collected, engine, rows, request)
    target, owners = attempt.target_of(state, co_located=co_located), attempt.owners_of(state)
    writer = KeyedWriter(attempt.id, attempt.entry_of(state), owners, target)
    collected.expect(PendingSubtasks(writer, target.storage))
    attempt.measuring.declared(state.uid, state.name)
    return writer


def write_operator(
    collected: PendingCheckpoint, uid: str, name: str, elements: Any, mode: RedistributionMode
) -> OperatorEntry:
    """Write the elements of an operator's state, and return it."""
    collected.refuse_twice(uid, name)
    attempt = collected.attempt
    with attempt.measuring.writing(uid, name):
        state, table, counts = operator_state(
            uid, name, elements, mode, attempt.operators.parallelism_of(uid), attempt.history
        )
        folder = operator_table(uid, name)
        handles = write_elements(
            table, state, attempt.catalog.storage, folder, attempt.checkpoint_id
        )
    written = OperatorEntry(state, TableRef(attempt.table.format, folder), counts, handles)
    collected.add_operator(written)
    return written


def checked_state(
    collected: PendingCheckpoint, engine: Engine, rows: Any, request: KeyedRequest
) -> KeyedState:
    """Return the requested state with the columns of the rows, checked against the stored state.

    Raises the errors of :func:`statestore.snapshot.state_request.keyed_state`.
    """
    return keyed_state(
        request,
        schema=engine.schema_of(rows),
        key_types=lambda *asked: engine.key_types(rows, *asked),
        parallelism=collected.attempt.operators.parallelism_of(request.uid),
        history=collected.attempt.history,
        so_far=collected.keyed,
    )


def _as_stored(collected: PendingCheckpoint, rows: Any, request: KeyedRequest) -> Any:
    """Convert dictionaries to a table with the stored types, as far as these fit the values."""
    if not is_dicts(rows):
        return rows
    stored = collected.attempt.history.keyed(request.uid, request.name)
    rows = with_uuids(rows, uuid_columns_of(request, stored))
    if stored is None:
        return rows
    return table_like(rows, stored.schema.renamed(request.renamed), subject=str(request))


def _with_times(collected: PendingCheckpoint, rows: Any, request: KeyedRequest) -> Any:
    """Return all rows of a state, each with its time; see ``state_request``."""
    stored = collected.attempt.history.keyed(request.uid, request.name)
    ttl = kept_ttl(request.ttl, stored.ttl if stored else None, request.renamed)
    if ttl is None:
        return rows
    engine, rows = engine_of(rows, str(request))
    refuse_new_times(ttl, stored, engine.schema_of(rows).names)
    return stamped(rows, ttl, stored, collected.attempt.now_ms)
