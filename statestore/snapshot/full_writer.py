"""Write a state in full: a keyed state from one or many processes, or an operator state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from statestore.engines.rows import Rows
from statestore.format.manifest import KeyedEntry, OperatorEntry, TableRef
from statestore.format.names import operator_table
from statestore.format.state import KeyedState
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.parquet.operator_elements import write_elements
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.snapshot.prepare import prepare, prepare_declared
from statestore.snapshot.state_request import operator_state
from statestore.snapshot.state_spec import StateSpec
from statestore.snapshot.subtask_writer import KeyedWriter, PendingSubtasks

__all__ = ["declare", "write_full", "write_operator", "write_rows"]


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
    """Return a writer for a keyed state that its subtasks write, in any process."""
    stored = pending.history.stored(spec.operator, spec.state)
    spec = spec.completed(stored.state, pending.operators, pending.layout)
    state = prepare_declared(pending, spec, schema, stored)
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
