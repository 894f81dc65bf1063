"""Snapshot: states in, one manifest out. Tables first, the manifest last (I5).

:class:`CheckpointWriter` is what ``with store.snapshot(…) as checkpoint`` yields. Each call writes
one state's files at once; leaving the block publishes the tables and commits the manifest. An
exception in the block deletes what was written and commits nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from statestore.arguments import checked_methods
from statestore.errors import InvalidArgumentError
from statestore.files.arrow import is_schema
from statestore.files.engines import Engine, engine_of, reread
from statestore.files.given import is_dicts
from statestore.files.types import with_uuids
from statestore.files.values import table_like
from statestore.flink.redistribution import RedistributionMode
from statestore.format.manifest import OperatorEntry
from statestore.format.state import KeyedState, Layout, StateKind, TimeDomain, TimeToLive
from statestore.snapshot.carry import CarryingCommit
from statestore.snapshot.changes import ChangeWriter, KeyedChanges
from statestore.snapshot.commit import USED
from statestore.snapshot.states import (
    KeyedRequest,
    KeyTypes,
    kept_ttl,
    keyed_state,
    refuse_new_times,
    stamped,
    uuid_columns_of,
)
from statestore.snapshot.subtasks import Acknowledged, Acknowledgement, KeyedWriter

__all__ = ["CheckpointWriter"]

Columns = str | Sequence[str]


@checked_methods
class CheckpointWriter(CarryingCommit):
    """Collects the states of one checkpoint; commits them together when its block ends."""

    def keyed(
        self,
        uid: str,
        name: str,
        rows: Any = None,
        *,
        key: Columns,
        namespace: Columns = (),
        max_parallelism: int | None = None,
        hash_scheme: str | None = None,
        key_types: KeyTypes = None,
        kind: StateKind | str = StateKind.VALUE,
        entry: Columns = (),
        time_domain: TimeDomain | str | None = None,
        layout: Layout | str | None = None,
        placed: bool = False,
        renamed: Mapping[str, str] | None = None,
        dropped: Columns = (),
        ttl: TimeToLive | str | None = None,
        regroup: bool = False,
    ) -> Any:
        """Write a keyed state: one row per key and namespace unless ``kind`` says otherwise.

        ``rows`` is a Spark DataFrame, an Arrow table or stream, a frame that speaks Arrow, or
        dictionaries; of an iterator, all. Max parallelism is fixed for the life of the operator's
        state: by default it is what the job's graph says, else as it was stored, else Flink's
        default for this parallelism; ``regroup`` lets it be another one. ``key_types`` says what a
        key column is hashed as where that is not its own type: a name, one a column, or by column
        (``{"at": "TIMESTAMP(3)"}``); by default as stored. ``layout`` is one of
        ``partitioned`` (a file per key group), ``ranged`` (few files, each of a range) or ``auto``
        (ranged below 2,048 rows a key group); by default what the store was opened with. ``placed``
        says that Spark partition i of a DataFrame holds subtask i's rows, as a restore at this
        parallelism left them: nothing is shuffled, and a row that lies elsewhere is refused. Value
        columns may be new, left out or of a wider type than before; ``renamed={"old": "new"}``
        names a column that has another name now, ``dropped`` those that none replaces. ``ttl``, how
        long rows live, is kept until another one or ``"off"`` is given; to turn it on, rows may
        come without its column, and get the checkpoint's clock. Returns a KeyedEntry.

        The column ``key_group`` of what a restore gave is checked, and not stored again.

        With a ``pyarrow.Schema`` for ``rows`` nothing is written here: returned is a KeyedWriter,
        whose ``subtask(i).write(table)`` writes the rows of subtask i in any process, and each
        answer goes to :meth:`acknowledge`. Without ``rows`` a KeyedChanges is returned, whose
        ``changes(upserts, deletes)`` writes only what changed. Raises NullKeyError,
        DuplicateKeyError, UnsupportedTypeError, SchemaMismatchError or ParallelismError before
        anything is visible.
        """
        self._refuse_twice(uid, name)
        request = KeyedRequest(
            uid=uid,
            name=name,
            kind=StateKind(kind),
            key=_names(key),
            namespace=_names(namespace),
            entry=_names(entry),
            max_parallelism=self._attempt.max_parallelism_of(uid, max_parallelism),
            hash_scheme=hash_scheme,
            key_types=key_types,
            time_domain=None if time_domain is None else TimeDomain(time_domain),
            layout=layout or self._attempt.parquet.layout,
            renamed=renamed or {},
            dropped=_names(dropped),
            regroup=regroup,
            ttl=ttl,
        )
        return self._changes_of(request) if rows is None else self._full(rows, request, placed)

    def _changes_of(self, request: KeyedRequest) -> KeyedChanges:
        writer = ChangeWriter(
            self._attempt,
            request.uid,
            request.name,
            checked=lambda engine, rows: self._keyed_state(engine, rows, request),
            full=lambda rows: self._in_full(rows, request, False),
            add=self._add_changed,
            ttl=request.ttl,
        )
        self._changing.append(writer)
        return KeyedChanges(writer)

    def _full(self, rows: Any, request: KeyedRequest, placed: bool) -> Any:
        with self._attempt.measuring.writing(request.uid, request.name):
            return self._in_full(rows, request, placed)

    def _in_full(self, rows: Any, request: KeyedRequest, placed: bool) -> Any:
        declared, rows = is_schema(rows), self._as_stored(reread(rows, str(request)), request)
        if not declared:
            rows = self._with_times(rows, request)
        engine, rows = engine_of(rows, str(request))
        if request.regroup:
            rows = engine.ungrouped(rows)  # they come with the key groups that they had
        request = replace(request, rows=None if declared else engine.rows_known(rows))
        state = self._keyed_state(engine, rows, request)
        return self._write_keyed(engine, rows, state, declared, placed)

    def _as_stored(self, rows: Any, request: KeyedRequest) -> Any:
        """Return dictionaries as a table of the stored types, as far as these hold the values."""
        if not is_dicts(rows):
            return rows
        stored = self._attempt.history.keyed(request.uid, request.name)
        rows = with_uuids(rows, uuid_columns_of(request, stored))
        if stored is None:
            return rows
        return table_like(rows, stored.schema.renamed(request.renamed), subject=str(request))

    def _with_times(self, rows: Any, request: KeyedRequest) -> Any:
        """Return all rows of a state, each with its time; see :mod:`statestore.snapshot.states`."""
        stored = self._attempt.history.keyed(request.uid, request.name)
        ttl = kept_ttl(request.ttl, stored.ttl if stored else None, request.renamed)
        if ttl is None:
            return rows
        engine, rows = engine_of(rows, str(request))
        refuse_new_times(ttl, stored, engine.schema_of(rows).names)
        return stamped(rows, ttl, stored, self._attempt.now_ms)

    def _write_keyed(
        self, engine: Engine, rows: Any, state: KeyedState, declared: bool, placed: bool
    ) -> Any:
        attempt, uid, name = self._attempt, state.uid, state.name
        empty, target = attempt.entry_of(state), attempt.target_of(state, placed=placed)
        owners = attempt.owners_of(state)
        if declared:
            writer = KeyedWriter(attempt.id, empty, owners, target)
            self._acknowledged[uid, name] = Acknowledged(writer, target.storage)
            attempt.measuring.declared(uid, name)
            return writer
        written = replace(empty, handles=engine.write_keyed(rows, owners, target))
        self._keyed.append(written)
        attempt.measuring.wrote(written)
        return written

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        """Take a subtask's answer: the checkpoint will have its files. May be called from threads.

        The first answer of a subtask counts, and its repetition changes nothing; of another one,
        of a subtask that was run twice, the files are deleted, and False is returned. Raises
        InvalidArgumentError for an answer to another checkpoint or attempt, or of a state that is
        not awaited; its files are left alone.
        """
        if self._left:
            raise InvalidArgumentError(USED)
        state, attempted = acknowledgement.entry.state, self._attempt.id
        if acknowledgement.attempt != attempted:
            raise InvalidArgumentError(
                f"the acknowledgement of subtask {acknowledgement.subtask} of {state} is of "
                f"{acknowledgement.attempt}, and this is {attempted}; write again with the writer "
                "that this checkpoint's keyed(…) returned"
            )
        awaited = self._acknowledged.get((state.uid, state.name))
        if awaited is None:
            raise InvalidArgumentError(
                f"{state} is not awaited here; declare it with checkpoint.keyed(…, schema, …)"
            )
        is_new = awaited.add(acknowledgement)
        if is_new:
            self._attempt.measuring.answered(state.uid, state.name)
        return is_new

    def list(
        self, uid: str, name: str, rows: Any = None, *, position: str = "position", **options: Any
    ) -> Any:
        """Write a list state: one row per element, ordered by an integer column. Else as
        :meth:`keyed`.
        """
        return self.keyed(uid, name, rows, kind=StateKind.LIST, entry=position, **options)

    def map(
        self, uid: str, name: str, rows: Any = None, *, map_key: Columns, **options: Any
    ) -> Any:
        """Write a map state: one row per key and map key. Else as :meth:`keyed`."""
        return self.keyed(uid, name, rows, kind=StateKind.MAP, entry=map_key, **options)

    def reducing(self, uid: str, name: str, rows: Any = None, **options: Any) -> Any:
        """Write a reducing state: one row per key, the reduced value. Else as :meth:`keyed`."""
        return self.keyed(uid, name, rows, kind=StateKind.REDUCING, **options)

    def aggregating(self, uid: str, name: str, rows: Any = None, **options: Any) -> Any:
        """Write an aggregating state: one row per key, the accumulator. Else as :meth:`keyed`."""
        return self.keyed(uid, name, rows, kind=StateKind.AGGREGATING, **options)

    def timers(
        self,
        uid: str,
        name: str,
        rows: Any = None,
        *,
        time_domain: TimeDomain | str,
        timestamp: str = "timestamp",
        **options: Any,
    ) -> Any:
        """Write timers: one row per key, namespace and time, in event or processing time."""
        domain = TimeDomain(time_domain)
        return self.keyed(
            uid, name, rows, kind=StateKind.TIMERS, entry=timestamp, time_domain=domain, **options
        )

    def split(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write list state of an operator: on a rescale each element goes to one new subtask.

        ``elements`` is a list of elements per subtask, or a DataFrame or table of elements with or
        without the columns ``subtask`` and ``position``.
        """
        return self._write_operator(uid, name, elements, RedistributionMode.SPLIT)

    def union(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write union state: on a restore every subtask gets every element. Else as
        :meth:`split`.
        """
        return self._write_operator(uid, name, elements, RedistributionMode.UNION)

    def broadcast(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write broadcast state, which is the same in every subtask: one list of elements."""
        return self._write_operator(uid, name, elements, RedistributionMode.BROADCAST)

    def _keyed_state(self, engine: Engine, rows: Any, request: KeyedRequest) -> KeyedState:
        return keyed_state(
            request,
            schema=engine.schema_of(rows),
            key_types=lambda *asked: engine.key_types(rows, *asked),
            parallelism=self._attempt.operators.parallelism_of(request.uid),
            history=self._attempt.history,
            so_far=self._all_keyed(),
        )


def _names(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
