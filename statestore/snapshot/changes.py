"""Incremental checkpoints: what changed since a checkpoint, instead of all rows.

The state is named again with its files, and the changes are a layer more. Where there is nothing to
build on, what comes is written in full.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from statestore.arguments import checked_methods
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, SchemaMismatchError
from statestore.files.against import Against
from statestore.files.changes import change_table, typed_deletes, typed_rows, width_of
from statestore.files.engines import Engine, engine_of, reread, spark_module
from statestore.files.keyed import KeyedTarget
from statestore.files.types import arrow_schema
from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import change_state
from statestore.format.manifest import KeyedEntry, Layer, TableRef
from statestore.format.names import changes_table
from statestore.format.schema import same_columns
from statestore.format.state import KeyedState
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment
from statestore.snapshot.attempt import Attempt
from statestore.snapshot.collected import Collected
from statestore.snapshot.states import (
    KeyedRequest,
    changed_ttl,
    kept_ttl,
    refuse_new_times,
    stamped,
)
from statestore.snapshot.written_states import checked_state, write_full

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KeyedChanges", "StoredChanges", "latest_or"]

LATEST = "latest"
Write = Callable[[Assignment, KeyedTarget], tuple[KeyedStateHandle, ...]]
_ON_DRIVER_BYTES = 8 * 2**20
"""Changes of which no Spark partition has more are brought to this process: a task for each would
cost more than their rows."""
_log = logging.getLogger(__name__)


@checked_methods
class KeyedChanges:
    """A keyed state of a checkpoint of which only changes are given; see ``checkpoint.keyed``."""

    def __init__(self, collected: Collected, request: KeyedRequest) -> None:
        """Take the checkpoint so far, and what is asked for; call one of the methods once."""
        self._writer = _ChangeWriter(collected, request)

    def changes(
        self,
        upserts: Any = None,
        deletes: Any = None,
        *,
        cleared: Any = None,
        base: int | str = LATEST,
    ) -> KeyedEntry:
        """Write what changed since the newest checkpoint, or since ``base``; return the state.

        ``upserts`` are whole rows, in the state's columns: each takes the place of the row with its
        key, namespace and entry columns, or is new. ``deletes`` name rows that go: by key, which
        deletes all of a key's rows, by key and namespace, or by these and the entry columns (one
        element of a list, one map entry, one timer); other columns play no part, and a list of
        dictionaries may mix the three. A value of another type goes in if it comes out equal, else
        the error names its column and row. ``cleared`` are
        deletes too, of keys that upserts of the same checkpoint may write anew. Each is a Spark
        DataFrame, an Arrow table, a frame that speaks Arrow, a list of dictionaries, or what yields
        them once, as :meth:`CheckpointWriter.keyed` takes it.

        Of a state with a time to live, upserts without its column get the checkpoint's clock: what
        is written now is used now. Where reads count too, upserts are also the rows that were read.

        A job that was restored from an older checkpoint gives it as ``base``. When the newest
        checkpoint lacks the state, the upserts are written in full, and a warning is logged.

        Raises DuplicateKeyError for an entry that comes twice, or comes and is deleted;
        NullKeyError; SchemaMismatchError or ParallelismError when columns, hash scheme or max
        parallelism are not those of the base; CheckpointNotFoundError when the base has expired;
        each before anything is visible.
        """
        return self._writer.changes(upserts, deletes, cleared, base)

    def changes_against(self, previous: int | str, rows: Any) -> KeyedEntry:
        """Write what tells ``rows``, all rows of the state, from a checkpoint; return the state.

        For callers who do not know what changed. ``previous`` is a checkpoint's id, ``latest``, or
        a savepoint's name; the new checkpoint builds on it, whatever came after it. Key groups of
        which the stored digest is that of the rows are not read, the others are merged and compared
        one after another, in Spark by the tasks that write. When nothing changed, no file is
        written. When the newest checkpoint lacks the state, the rows are written in full, and a
        warning is logged.

        Raises what :meth:`changes` raises, and MissingFileError or DamagedFileError for a file of
        ``previous`` that is not what was written.
        """
        return self._writer.changes_against(previous, rows)


class StoredChanges:
    """The changes of a state of a checkpoint that was committed: nothing is written."""

    def __init__(self, stored: KeyedEntry) -> None:
        """Take the state as it is stored."""
        self._stored = stored

    def changes(self, *changes: Any, **options: Any) -> KeyedEntry:
        """Return the stored state."""
        return self._stored

    def changes_against(self, previous: int | str, rows: Any) -> KeyedEntry:
        """Return the stored state."""
        return self._stored


class _ChangeWriter:
    """Writes the changes of one state, or where there is nothing to build on, its rows in full."""

    def __init__(self, collected: Collected, request: KeyedRequest) -> None:
        self._collected, self._attempt = collected, collected.attempt
        self._request, self._uid, self._name = request, request.uid, request.name
        self._ttl = request.ttl
        collected.changing[request.uid, request.name] = False

    def __str__(self) -> str:
        """Return how messages name the state."""
        return f"state {self._name!r} of operator {self._uid!r}"

    def changes(self, upserts: Any, deletes: Any, cleared: Any, base: int | str) -> KeyedEntry:
        """See :meth:`KeyedChanges.changes`."""
        with self._used():
            return self._changes(upserts, deletes, cleared, base)

    def _changes(self, upserts: Any, deletes: Any, cleared: Any, base: int | str) -> KeyedEntry:
        if upserts is None and deletes is None and cleared is None:
            raise InvalidArgumentError(
                f"no changes of {self} are given; give upserts=, deletes= or cleared=, an empty "
                "table when nothing changed"
            )
        upserts, deletes, cleared = (
            reread(rows, str(self)) for rows in (upserts, deletes, cleared)
        )
        old = latest_or(self._attempt, self._uid, self._name, base)
        if old is not None:
            upserts = typed_rows(upserts, old.state)
        upserts = self._stamped(upserts, None if old is None else old.state)
        if old is None:
            return self._in_full(upserts)
        entry = self._like(old, upserts)
        changes = change_state(entry.state)
        marked = [] if upserts is None else [(*engine_of(upserts), 0)]
        marked += self._deletes(deletes, 1, entry.state, "deletes")
        marked += self._deletes(cleared, -1, entry.state, "cleared")
        engine, rows = self._rows(marked, entry.state, changes)
        return self._layered(entry, lambda owners, target: engine.write_keyed(rows, owners, target))

    def changes_against(self, previous: int | str, rows: Any) -> KeyedEntry:
        """See :meth:`KeyedChanges.changes_against`."""
        with self._used():
            return self._changes_against(previous, rows)

    def _changes_against(self, previous: int | str, rows: Any) -> KeyedEntry:
        if rows is None:
            raise InvalidArgumentError(
                f"no rows of {self} are given; give all that it has now, an empty table for none"
            )
        rows = reread(rows, str(self))
        old = latest_or(self._attempt, self._uid, self._name, previous)
        if old is None:
            return self._in_full(rows)
        engine, rows = engine_of(typed_rows(rows, old.state))
        ttl = changed_ttl(self._ttl, old.state)
        refuse_new_times(ttl, old.state, engine.schema_of(rows).names)
        entry = self._like(old, rows)
        against = Against(self._attempt.catalog.storage, entry)
        return self._layered(
            entry,
            lambda owners, target: engine.write_against(rows, owners, against, target),
        )

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Say that changes came, which they do once, and measure the block."""
        state = self._uid, self._name
        if self._collected.changing[state]:
            raise InvalidArgumentError(f"the changes of {self} are given already; give them once")
        self._collected.changing[state] = True
        with self._attempt.measuring.writing(*state):
            yield

    def _deletes(
        self, given: Any, sign: int, state: KeyedState, what: str
    ) -> list[tuple[Engine, Any, int]]:
        """Return what goes, each part with its engine and its mark."""
        marked = []
        for rows in [] if given is None else typed_deletes(given, state, what):
            engine, rows = engine_of(rows)
            width = width_of(engine.schema_of(rows).names, state)
            engine.refuse_narrowing(rows, state.identity[:width], state)
            marked.append((engine, rows, sign * width))
        return marked

    def _stamped(self, upserts: Any, base: KeyedState | None) -> Any:
        """Return what is written now: where it has no times, it is used now."""
        if upserts is None:
            return None
        stored = base or self._attempt.history.keyed(self._uid, self._name)
        if base is None:
            ttl = kept_ttl(self._ttl, None if stored is None else stored.ttl, {})
        else:
            ttl = changed_ttl(self._ttl, base)
        _, rows = engine_of(upserts, str(self))
        return stamped(rows, ttl, stored, self._attempt.now_ms)

    def _in_full(self, upserts: Any) -> KeyedEntry:
        if upserts is None:
            raise InvalidArgumentError(
                f"the newest checkpoint has no {self}, so there is nothing to delete; give the "
                "rows that it has as upserts"
            )
        _log.warning("the newest checkpoint has no %s: its rows are written in full", self)
        return write_full(self._collected, self._request, upserts)

    def _like(self, old: KeyedEntry, upserts: Any) -> KeyedEntry:
        """Return the entry to build on, checked against what the caller asks for."""
        engine, rows = engine_of(arrow_schema(old.state.schema) if upserts is None else upserts)
        state = checked_state(self._collected, engine, rows, self._request)
        if not same_columns(state.schema, old.state.schema):
            raise SchemaMismatchError(
                f"{self} is stored with the columns ({old.state.schema}), and its changes have "
                f"({state.schema}); changes have the columns of what they change. Take a full "
                "snapshot to change the columns"
            )
        if (state.max_parallelism, state.hash_scheme) != (
            old.state.max_parallelism,
            old.state.hash_scheme,
        ):
            raise SchemaMismatchError(
                f"{self} is stored with max parallelism {old.state.max_parallelism} and hash "
                f"scheme {old.state.hash_scheme} in the checkpoint that the changes build on, and "
                f"with {state.max_parallelism} and {state.hash_scheme} in the newest; take a full "
                "snapshot"
            )
        ttl = changed_ttl(self._ttl, old.state)
        return replace(old, state=replace(old.state, uid=self._uid, ttl=ttl))

    def _rows(
        self, given: list[tuple[Engine, Any, int]], state: KeyedState, changes: KeyedState
    ) -> tuple[Engine, Any]:
        """Return all changes as one table here, or if they are many as a DataFrame."""
        here = [(_few(engine, rows, state, mark), mark) for engine, rows, mark in given]
        if all(rows is not None for rows, _ in here):
            return engine_of(change_table(here, state, changes))
        parts = [
            (rows if few is None else few, mark)
            for (few, mark), (_, rows, _) in zip(here, given, strict=True)
        ]
        return engine_of(spark_module("write").change_frame(parts, state, changes))

    def _layered(self, entry: KeyedEntry, write: Write) -> KeyedEntry:
        attempt, changes = self._attempt, change_state(entry.state)
        folder = changes_table(self._uid, self._name)
        target = KeyedTarget(
            storage=attempt.catalog.storage,
            folder=folder,
            checkpoint_id=attempt.checkpoint_id,
            state=replace(changes, ttl=entry.state.ttl),  # rows that come are checked by it
            options=attempt.parquet,
        )
        handles = write(attempt.owners_of(entry.state), target)
        if handles:
            stored = KeyedEntry(changes, TableRef("parquet", folder), handles)
            everything = KeyGroupRange(0, changes.max_parallelism - 1)
            layer = Layer(stored, attempt.checkpoint_id, 0, (everything,))
            entry = replace(entry, layers=(*entry.layers, layer))
        self._collected.add_changed(entry, [f"{folder}/{handle.path}" for handle in handles])
        return entry


def latest_or(attempt: Attempt, uid: str, name: str, base: int | str) -> KeyedEntry | None:
    """Return a state as the newest checkpoint has it, None when that lacks it, or as ``base`` does.

    Raises CheckpointNotFoundError, StateNotFoundError or MalformedManifestError: changes of what
    cannot be read would be lost.
    """
    if base == LATEST:
        return attempt.history.newest_keyed(uid, name)
    try:
        return attempt.catalog.load(base).keyed_entry(uid, name)
    except CheckpointNotFoundError as error:
        error.add_note(
            f"changes of state {name!r} of operator {uid!r} build on it: take a full snapshot, or "
            "restore a checkpoint that is kept and give its number as base"
        )
        raise


def _few(engine: Engine, rows: Any, state: KeyedState, mark: int) -> pa.Table | None:
    names = state.schema.names if mark == 0 else state.identity[: abs(mark)]
    return engine.on_driver(rows, names, _ON_DRIVER_BYTES)
