"""Write a state in full: a keyed state from one or many processes, or an operator state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from statestore.format.manifest import KeyedEntry, OperatorEntry, TableRef
from statestore.format.names import operator_table
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.parquet.operator_elements import write_elements
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.snapshot.prepare import Prepared, prepare, prepare_declared
from statestore.snapshot.state_request import operator_state
from statestore.snapshot.state_spec import StateSpec
from statestore.snapshot.subtask_writer import KeyedWriter, PendingSubtasks

__all__ = ["declare", "write_full", "write_operator", "write_prepared"]


def write_full(collected: PendingCheckpoint, spec: StateSpec, rows: Any) -> KeyedEntry:
    """Write all rows of a keyed state, and return it.

    Raises NullKeyError, DuplicateKeyError, UnsupportedTypeError, SchemaMismatchError or
    ParallelismError.
    """
    attempt = collected.attempt
    stored = attempt.history.stored(spec.operator, spec.state)
    spec = spec.completed(stored.state, attempt.operators, attempt.layout)
    prepared = prepare(collected, spec, rows, stored)
    return write_prepared(collected, prepared, co_located=spec.co_located)


def write_prepared(
    collected: PendingCheckpoint, prepared: Prepared, *, co_located: bool = False
) -> KeyedEntry:
    """Write all rows of a keyed state that is prepared, and return it."""
    attempt, state = collected.attempt, prepared.state
    target, owners = attempt.target_of(state, co_located=co_located), attempt.owners_of(state)
    handles = prepared.engine.write_keyed(prepared.rows, owners, target)
    written = replace(attempt.entry_of(state), handles=handles)
    collected.add_keyed(written)
    return written


def declare(collected: PendingCheckpoint, spec: StateSpec, schema: Any) -> KeyedWriter:
    """Return a writer for a keyed state that its subtasks write, in any process."""
    attempt = collected.attempt
    stored = attempt.history.stored(spec.operator, spec.state)
    spec = spec.completed(stored.state, attempt.operators, attempt.layout)
    state = prepare_declared(collected, spec, schema, stored).state
    target, owners = attempt.target_of(state, co_located=spec.co_located), attempt.owners_of(state)
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
        parallelism, stored = (
            attempt.operators.parallelism_of(uid),
            attempt.history.operator(uid, name),
        )
        state, table, counts = operator_state(uid, name, elements, mode, parallelism, stored)
        folder = operator_table(uid, name)
        handles = write_elements(
            table, state, attempt.catalog.storage, folder, attempt.checkpoint_id
        )
    written = OperatorEntry(state, TableRef(attempt.table.format, folder), counts, handles)
    collected.add_operator(written)
    return written
