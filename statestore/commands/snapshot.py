"""Snapshot: states in, one manifest out. Tables first, the manifest last (I5).

:class:`CheckpointWriter` is what ``with store.snapshot(…) as checkpoint`` yields. Each call writes
one state's files at once; leaving the block publishes the tables and commits the manifest. An
exception in the block deletes what was written and commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any

from statestore.commands.attempt import Attempt
from statestore.commands.states import KeyedRequest, keyed_state, operator_state
from statestore.commands.subtasks import Acknowledged, KeyedWriter
from statestore.errors import CommitConflictError, InvalidArgumentError, StorageError
from statestore.model.acknowledgement import Acknowledgement
from statestore.model.manifest import Entry, KeyedEntry, Manifest, OperatorEntry, TableRef, Writer
from statestore.model.paths import operator_table
from statestore.model.redistribution import RedistributionMode
from statestore.model.state import KeyedState, Layout, StateKind, TimeDomain
from statestore.table.arrow import is_schema
from statestore.table.elements import write_elements
from statestore.table.engines import Engine, engine_of
from statestore.table.fetching import Handle
from statestore.table.reading import check_sizes

__all__ = ["CheckpointWriter"]

Columns = str | Sequence[str]
_PUBLISHERS = 4
_USED = "the 'with' block of this snapshot has begun already; take another one: store.snapshot(…)"


class CheckpointWriter:
    """Collects the states of one checkpoint; commits them together when its block ends.

    ``already_committed`` says that an earlier attempt had committed this id, and nothing is written
    now.
    """

    already_committed = False

    def __init__(self, attempt: Attempt) -> None:
        """Start with no states; see ``StateStore.snapshot``."""
        self._attempt = attempt
        self._keyed: list[KeyedEntry] = []
        self._operator: list[OperatorEntry] = []
        self._acknowledged: dict[tuple[str, str], Acknowledged] = {}
        self._carried: list[Entry] = []
        self._rewritten: list[str] = []
        self._origin: Mapping[str, Any] | None = None
        self._committed: Manifest | None = None
        self._entered = self._left = self._published = False

    @property
    def id(self) -> int:
        """The checkpoint's number, known once it is committed; InvalidArgumentError before."""
        return self.manifest.checkpoint_id

    @property
    def planned(self) -> tuple[int, Writer]:
        """The number that the checkpoint gets, and its writer; known before it is committed.

        Who never hears whether the commit was done finds out by asking again for this number: the
        checkpoint is this one if its manifest names the same writer.
        """
        fixed = self._committed or self._attempt
        return fixed.checkpoint_id, fixed.writer

    @property
    def manifest(self) -> Manifest:
        """The committed manifest; InvalidArgumentError before the block has ended."""
        if self._committed is None:
            raise InvalidArgumentError(
                "the checkpoint is committed when its 'with' block ends, not before"
            )
        return self._committed

    def keyed(
        self,
        uid: str,
        name: str,
        rows: Any,
        *,
        key: Columns,
        namespace: Columns = (),
        max_parallelism: int | None = None,
        hash_scheme: str | None = None,
        kind: StateKind | str = StateKind.VALUE,
        entry: Columns = (),
        time_domain: TimeDomain | str | None = None,
        layout: Layout | str | None = None,
        placed: bool = False,
        renamed: Mapping[str, str] | None = None,
        dropped: Columns = (),
    ) -> Any:
        """Write a keyed state: one row per key and namespace unless ``kind`` says otherwise.

        ``rows`` is a Spark DataFrame, an Arrow table, a frame that speaks Arrow, or a list of
        dictionaries. Max parallelism is fixed for the life of the operator's state: by default it
        is what the job's graph says, else what the operator was stored with, else Flink's default
        for this parallelism. ``layout`` is ``partitioned`` (a file per key group), ``ranged`` (few
        files, each with a range of key groups) or ``auto``, which takes ranged files for fewer than
        2,048 rows a key group; by default what the store was opened with. It may be another one at
        every checkpoint. ``placed`` says that Spark partition i of a DataFrame holds subtask i's
        rows and no others, as a restore at this parallelism left them: then nothing is shuffled,
        and a row that lies elsewhere is refused. Value columns may be new, left out or of a wider
        type than before; ``renamed={"old": "new"}`` names a column that has another name now, and
        ``dropped`` those that none of the new ones replaces. Returns a KeyedEntry.

        With a ``pyarrow.Schema`` for ``rows`` nothing is written here: returned is a KeyedWriter,
        whose ``subtask(i).write(table)`` writes the rows of subtask i in any process, and each
        answer goes to :meth:`acknowledge`. Raises NullKeyError, DuplicateKeyError,
        UnsupportedTypeError, SchemaMismatchError or ParallelismError before anything is visible.
        """
        self._refuse_twice(uid, name)
        attempt = self._attempt
        declared = is_schema(rows)
        engine, rows = engine_of(rows)
        request = KeyedRequest(
            uid=uid,
            name=name,
            kind=StateKind(kind),
            key=_names(key),
            namespace=_names(namespace),
            entry=_names(entry),
            max_parallelism=attempt.max_parallelism_of(uid, max_parallelism),
            hash_scheme=hash_scheme,
            time_domain=None if time_domain is None else TimeDomain(time_domain),
            layout=layout or attempt.parquet.layout,
            rows=None if declared else engine.rows_known(rows),
            renamed=renamed or {},
            dropped=_names(dropped),
        )
        state = self._keyed_state(engine, rows, request)
        return self._write_keyed(engine, rows, state, declared, placed)

    def _write_keyed(
        self, engine: Engine, rows: Any, state: KeyedState, declared: bool, placed: bool
    ) -> Any:
        attempt, uid, name = self._attempt, state.uid, state.name
        empty, target = attempt.entry_of(state), attempt.target_of(state, placed=placed)
        parallelism = attempt.operators.parallelism_of(uid)
        if declared:
            writer = KeyedWriter(attempt.id, empty, parallelism, target)
            self._acknowledged[uid, name] = Acknowledged(writer, target.storage)
            return writer
        written = replace(empty, handles=engine.write_keyed(rows, parallelism, target))
        self._keyed.append(written)
        return written

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        """Take a subtask's answer: the checkpoint will have its files. May be called from threads.

        The first answer of a subtask counts, and its repetition changes nothing; of another one,
        of a subtask that was run twice, the files are deleted, and False is returned. Raises
        InvalidArgumentError for an answer to another checkpoint or attempt, or of a state that is
        not awaited; its files are left alone.
        """
        if self._left:
            raise InvalidArgumentError(_USED)
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
        return awaited.add(acknowledgement)

    def list(
        self, uid: str, name: str, rows: Any, *, position: str = "position", **options: Any
    ) -> Any:
        """Write a list state: one row per element, ordered by an integer column. Else as
        :meth:`keyed`.
        """
        return self.keyed(uid, name, rows, kind=StateKind.LIST, entry=position, **options)

    def map(self, uid: str, name: str, rows: Any, *, map_key: Columns, **options: Any) -> Any:
        """Write a map state: one row per key and map key. Else as :meth:`keyed`."""
        return self.keyed(uid, name, rows, kind=StateKind.MAP, entry=map_key, **options)

    def reducing(self, uid: str, name: str, rows: Any, **options: Any) -> Any:
        """Write a reducing state: one row per key, the reduced value. Else as :meth:`keyed`."""
        return self.keyed(uid, name, rows, kind=StateKind.REDUCING, **options)

    def aggregating(self, uid: str, name: str, rows: Any, **options: Any) -> Any:
        """Write an aggregating state: one row per key, the accumulator. Else as :meth:`keyed`."""
        return self.keyed(uid, name, rows, kind=StateKind.AGGREGATING, **options)

    def timers(
        self,
        uid: str,
        name: str,
        rows: Any,
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

    def carry(self, entry: Entry, new: Sequence[Handle] = ()) -> None:
        """Take a state over as another checkpoint of this store has it, with its files.

        The files are not copied, only named again; an error in the block does not delete them, but
        those in ``new``, which were written for this checkpoint. Raises InvalidArgumentError for a
        state that is in this checkpoint already.
        """
        self._refuse_twice(entry.state.uid, entry.state.name)
        self._carried.append(entry)
        self._rewritten += [f"{entry.table.path}/{handle.path}" for handle in new]

    def say_origin(self, origin: Mapping[str, Any]) -> None:
        """Say of which checkpoint, and how, this one is made; plain JSON values, for the
        manifest.
        """
        self._origin = origin

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

    def broadcast(
        self, uid: str, name: str, elements: Iterable[Mapping[str, Any]]
    ) -> OperatorEntry:
        """Write broadcast state, which is the same in every subtask: one list of elements."""
        return self._write_operator(uid, name, elements, RedistributionMode.BROADCAST)

    def __enter__(self) -> CheckpointWriter:
        """Return the writer; InvalidArgumentError when it was used before."""
        if self._entered:
            raise InvalidArgumentError(_USED)
        self._entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or after an exception delete what was written; a commit that another writer won
        deletes it too.

        A writer that was replaced meanwhile is stopped before it publishes tables, and again right
        before it puts the manifest; ``fence.py`` says why that is enough.
        """
        self._left = True
        if error is not None:
            self._discard(error)
            return
        try:
            for awaited in self._acknowledged.values():
                awaited.refuse_missing()
            self._attempt.fence.check()
            self._attempt.catalog.refuse_taken(self._attempt.checkpoint_id)
            manifest = self._manifest()
            self._attempt.fence.check()
        except BaseException as failure:
            self._discard(failure)
            raise
        try:
            self._attempt.catalog.commit(manifest)
        except CommitConflictError as conflict:
            self._discard(conflict)
            raise
        # After any other error the manifest may be there, so the files that it names stay.
        self._committed = manifest

    def _keyed_state(self, engine: Engine, rows: Any, request: KeyedRequest) -> KeyedState:
        return keyed_state(
            request,
            schema=engine.schema_of(rows),
            key_types=lambda names, scheme: engine.key_types(rows, names, scheme),
            parallelism=self._attempt.operators.parallelism_of(request.uid),
            history=self._attempt.history,
            so_far=self._all_keyed(),
        )

    def _write_operator(
        self, uid: str, name: str, elements: Any, mode: RedistributionMode
    ) -> OperatorEntry:
        self._refuse_twice(uid, name)
        attempt = self._attempt
        state, table, counts = operator_state(
            uid, name, elements, mode, attempt.operators.parallelism_of(uid), attempt.history
        )
        folder = operator_table(uid, name)
        handles = write_elements(
            table, state, attempt.catalog.storage, folder, attempt.checkpoint_id
        )
        written = OperatorEntry(state, TableRef(attempt.table.format, folder), counts, handles)
        self._operator.append(written)
        return written

    def _refuse_twice(self, uid: str, name: str) -> None:
        if self._left:
            raise InvalidArgumentError(_USED)
        self._attempt.operators.check(uid)
        for written in self._entries():
            if (written.state.uid, written.state.name) == (uid, name):
                raise InvalidArgumentError(
                    f"{written.state} is in this checkpoint already; name it once"
                )

    def _manifest(self) -> Manifest:
        attempt = self._attempt
        check_sizes(attempt.catalog.storage, self._entries())
        published = [
            replace(entry, table=table)
            for entry, table in zip(self._entries(), self._publish(), strict=True)
        ]
        return Manifest(
            store_id=attempt.catalog.store_id,
            checkpoint_id=attempt.checkpoint_id,
            parallelism=attempt.operators.parallelism,
            graph=attempt.operators.graph,
            started_at_ms=attempt.started_at_ms,
            created_at_ms=time.time_ns() // 1_000_000,
            writer=attempt.writer,
            keyed=tuple(entry for entry in published if isinstance(entry, KeyedEntry)),
            operator=tuple(entry for entry in published if isinstance(entry, OperatorEntry)),
            origin=self._origin,
        )

    def _publish(self) -> Sequence[TableRef]:
        """Publish all tables, side by side: a table's commit is mostly waiting."""
        publish, checkpoint_id = self._attempt.table.publish, self._attempt.checkpoint_id
        self._published = self._attempt.table.keeps_log
        with ThreadPoolExecutor(max_workers=_PUBLISHERS) as pool:
            return [*pool.map(lambda entry: publish(entry, checkpoint_id), self._entries())]

    def _entries(self) -> tuple[Entry, ...]:
        return (*self._written(), *self._carried)

    def _written(self) -> tuple[Entry, ...]:
        return (*self._all_keyed(), *self._operator)

    def _all_keyed(self) -> tuple[KeyedEntry, ...]:
        return (*self._keyed, *(awaited.entry for awaited in self._acknowledged.values()))

    def _discard(self, reason: BaseException) -> None:
        """Delete what was written; what cannot be deleted is noted on the reason, and left.

        Files that a table's log may name already stay: without them the table could not be read.
        """
        if self._published:
            reason.add_note("its files stay behind: the tables' newest versions name them")
            return
        written = [f"{e.table.path}/{handle.path}" for e in self._written() for handle in e.handles]
        for name in (*written, *self._rewritten):
            try:
                self._attempt.catalog.storage.delete(name)
            except StorageError as error:
                reason.add_note(f"its file stays behind: {error}")


def _names(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
