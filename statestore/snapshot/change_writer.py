"""Write incremental checkpoints: the changes since a checkpoint, instead of all rows.

The state is named again with its files, and the changes become one more layer. Without a base to
build on, the rows are written in full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from statestore.engines.choice import Engine, engine_of, reread_untyped, spark_module
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    StateNotFoundError,
)
from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import change_state
from statestore.format.listed import read_all
from statestore.format.manifest import KeyedEntry, Layer, TableRef
from statestore.format.names import changes_table
from statestore.format.rescale_proof import RowSet
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment
from statestore.layers.base_comparison import BaseComparison
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.rows.change_rows import (
    change_stream,
    change_table,
    typed_deletes,
    width_of,
)
from statestore.rows.delete_markers import Deletion, named_columns
from statestore.rows.input_rows import StreamedRows
from statestore.snapshot.carry import LATEST
from statestore.snapshot.full_writer import write_prepared
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.snapshot.prepare import prepare, prepare_changes
from statestore.snapshot.state_spec import Changes, StateSpec

__all__ = ["latest_or", "write_against", "write_changes"]

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
        most = self._pending.parquet.stream_bytes
        upserts = reread_untyped(requested.upserts, str(self), most)
        deletes = reread_untyped(requested.deletes, f"{_DELETES} of {self}", most)
        cleared = reread_untyped(requested.cleared, f"{_CLEARED} of {self}", most)
        old = self._base
        if old is None:
            return self._write_in_full(upserts, fills_times=True)
        prepared = prepare_changes(
            self._pending, self._spec, upserts, old, self._stored, fills_times=True
        )
        entry = replace(old, state=prepared.state)
        changes = change_state(entry.state)
        marked: list[tuple[Engine, Any, Deletion | None]] = []
        if upserts is not None:
            marked.append((prepared.engine, prepared.rows, None))
        marked += self._read_deletes(deletes, entry.state, cleared=False)
        marked += self._read_deletes(cleared, entry.state, cleared=True)
        engine, rows = self._collect_changes(marked, entry.state, changes)
        return self._write_layer(
            entry, engine, lambda owners, target: (engine.write_keyed(rows, owners, target), None)
        )

    def changes_against(self, rows: Any) -> KeyedEntry:
        if rows is None:
            raise InvalidArgumentError(
                f"no rows of {self} were passed; pass all of its current rows, or an empty table"
            )
        rows = reread_untyped(rows, str(self), self._pending.parquet.stream_bytes)
        old = self._base
        if old is None:
            return self._write_in_full(rows, fills_times=False)
        prepared = prepare_changes(
            self._pending, self._spec, rows, old, self._stored, fills_times=False
        )
        engine, rows, entry = prepared.engine, prepared.rows, replace(old, state=prepared.state)
        # Here, and not in Spark's job submission, where it would be wrapped in another error.
        read_all(part.handles for part in entry.parts)
        options = self._pending.parquet
        storage = self._pending.catalog.storage
        against = BaseComparison(storage, entry, options.run_bytes, options.memory_bytes)
        return self._write_layer(
            entry,
            engine,
            lambda owners, target: engine.write_against(rows, owners, against, target),
        )

    def _read_deletes(
        self, deletes: Any, state: KeyedState, *, cleared: bool
    ) -> list[tuple[Engine, Any, Deletion | None]]:
        """Return the deletes, each part with its engine and its kind of deletion."""
        marked: list[tuple[Engine, Any, Deletion | None]] = []
        text = _CLEARED if cleared else _DELETES
        for rows in [] if deletes is None else typed_deletes(deletes, state, text):
            engine, rows = engine_of(rows)
            width = width_of(engine.schema_of(rows).names, state)
            engine.refuse_narrowing(rows, state.identity[:width], state)
            marked.append((engine, rows, Deletion(width, cleared=cleared)))
        return marked

    def _write_in_full(self, rows: Any, *, fills_times: bool) -> KeyedEntry:
        if rows is None:
            raise InvalidArgumentError(
                f"the newest checkpoint has no {self}, so there is nothing to delete; pass "
                "its rows as upserts"
            )
        _log.warning("the newest checkpoint has no %s, so its rows are written in full", self)
        prepared = prepare(self._pending, self._spec, rows, self._stored, fills_times=fills_times)
        return write_prepared(self._pending, prepared)

    def _collect_changes(
        self,
        parts: list[tuple[Engine, Any, Deletion | None]],
        state: KeyedState,
        changes: KeyedState,
    ) -> tuple[Engine, Any]:
        """Return all changes as a local table or stream, or as a DataFrame if there are many."""
        most = self._pending.parquet.driver_bytes
        collected = [
            (engine.on_driver(rows, named_columns(deletion, state), most), deletion)
            for engine, rows, deletion in parts
        ]
        if all(rows is not None for rows, _ in collected):
            if any(isinstance(rows, StreamedRows) for rows, _ in collected):
                return engine_of(change_stream(collected, state, changes))
            return engine_of(change_table(collected, state, changes))
        frames = [
            (rows if few is None else few, deletion)
            for (few, deletion), (_, rows, _) in zip(collected, parts, strict=True)
        ]
        frames = [
            (rows.read_all() if isinstance(rows, StreamedRows) else rows, deletion)
            for rows, deletion in frames
        ]
        return engine_of(spark_module("state_writer").change_frame(frames, state, changes))

    def _write_layer(self, entry: KeyedEntry, engine: Engine, write: Write) -> KeyedEntry:
        pending, changes = self._pending, change_state(entry.state)
        folder = changes_table(self._spec.operator, self._spec.state)
        target = KeyedTarget(
            storage=pending.catalog.storage,
            folder=folder,
            checkpoint_id=pending.checkpoint_id,
            # the times of upserts are checked against it
            state=replace(changes, ttl=entry.state.ttl),
            options=pending.parquet,
            synced_later=engine.syncs_later,
        )
        before = entry.contents
        handles, rows = write(pending.owners_of(entry.state), target)
        if handles:
            stored = KeyedEntry(changes, TableRef("parquet", folder), handles)
            everything = KeyGroupRange.every(changes.max_parallelism)
            layer = Layer(stored, pending.checkpoint_id, 0, (everything,))
            entry = replace(entry, layers=(*entry.layers, layer))
        entry = entry.recording(rows or (None if handles else before))
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
