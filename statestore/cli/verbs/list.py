"""``statestore list``: the checkpoints of a store, the damaged ones too."""

from __future__ import annotations

import time

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.values import CheckpointList, CheckpointRow
from statestore.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatVersionError,
    StateStoreError,
)
from statestore.format.documents import Pin, Savepoint
from statestore.store import StateStore

__all__ = ["list_checkpoints"]


@click.command(
    "list",
    cls=Verb,
    prints=(
        "One line for each checkpoint, oldest first: id, time, age, parallelism, and the "
        "numbers of operators, states, rows, bytes and files, and of one that a command made which "
        "command, of which checkpoint; then the savepoints and the pins, "
        "each with the checkpoint that it keeps. A checkpoint with a damaged manifest is marked, "
        "the others are shown all the same, and the exit status is 13."
    ),
    examples=(
        "statestore list --store ./fraud",
        "STATESTORE_URI=./fraud statestore list --output json",
    ),
)
@pass_invocation
def list_checkpoints(invocation: Invocation) -> CheckpointList:
    """List the checkpoints of a store."""
    store = invocation.store()
    found = (_row(store, checkpoint_id) for checkpoint_id in store.checkpoints())
    rows = tuple(row for row in found if row is not None)
    problem = _problem(rows)
    savepoints: tuple[Savepoint, ...] = ()
    pins: tuple[Pin, ...] = ()
    try:
        savepoints, pins = store.savepoints(), store.pins()
    except (CorruptionError, FormatVersionError) as error:
        problem = problem or error
    return CheckpointList(
        store=store.url,
        now_ms=time.time_ns() // 1_000_000,
        rows=rows,
        savepoints=savepoints,
        pins=pins,
        problem=problem,
    )


def _row(store: StateStore, checkpoint_id: int) -> CheckpointRow | None:
    try:
        return CheckpointRow(checkpoint_id, store.manifest(checkpoint_id))
    except CheckpointNotFoundError:
        return None  # it expired while the list was made
    except (CorruptionError, FormatVersionError) as error:
        return CheckpointRow(checkpoint_id, None, error)


def _problem(rows: tuple[CheckpointRow, ...]) -> StateStoreError | None:
    errors = [row.error for row in rows if row.error is not None]
    if not any(isinstance(error, CorruptionError) for error in errors):
        return errors[0] if errors else None
    ids = ", ".join(str(row.checkpoint_id) for row in rows if row.error is not None)
    problem = CorruptionError(
        f"{len(errors)} of {len(rows)} checkpoints cannot be read: {ids}; restore another one"
    )
    for error in errors:
        problem.add_note(str(error))
    return problem
