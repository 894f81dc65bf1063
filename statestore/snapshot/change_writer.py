"""Write incremental checkpoints: the changes since a checkpoint, instead of all rows.

The state is named again with its files, and the changes become one more layer. Without a base to
build on, the rows are written in full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from statestore.engines.given_rows import read_rows
from statestore.engines.rows import ArrowRows, Rows
from statestore.engines.spark_modules import spark_module
from statestore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    StateNotFoundError,
)
from statestore.format.digest import RowSet
from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import change_state
from statestore.format.listed import read_all
from statestore.format.manifest import KeyedEntry, Layer, TableRef
from statestore.format.names import changes_table
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment
from statestore.layers.base_comparison import BaseComparison
from statestore.parquet.keyed_writer import KeyedTarget
from statestore.rows.change_rows import change_stream, width_of
from statestore.rows.delete_markers import Deletion, named_columns
from statestore.rows.untyped_rows import UntypedRows
from statestore.snapshot.carry import LATEST
from statestore.snapshot.full_writer import prepare, prepare_changes, write_rows
from statestore.snapshot.pending_checkpoint import PendingCheckpoint
from statestore.snapshot.state_spec import Changes, StateSpec

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
