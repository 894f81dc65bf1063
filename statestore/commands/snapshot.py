"""Snapshot: states in, one manifest out. Tables first, the manifest last (I5).

:class:`CheckpointWriter` is what ``with store.snapshot(…) as checkpoint`` yields. Each call writes
one state's files at once; leaving the block publishes the tables and commits the manifest. An
exception in the block deletes what was written and commits nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

from statestore.catalog import Catalog
from statestore.commands.history import History
from statestore.commands.states import KeyedRequest, keyed_state, operator_state
from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    ParallelismError,
    StorageError,
)
from statestore.fence import Fence
from statestore.model.manifest import Entry, KeyedEntry, Manifest, OperatorEntry, TableRef, Writer
from statestore.model.operators import Operators
from statestore.model.paths import keyed_table, operator_table
from statestore.model.redistribution import RedistributionMode
from statestore.model.state import Layout, StateKind, TimeDomain
from statestore.table.base import StateTable
from statestore.table.elements import write_elements
from statestore.table.engines import Engine, engine_of
from statestore.table.keyed import KeyedTarget
from statestore.table.reading import check_size
from statestore.table.writing import ParquetOptions

__all__ = ["CheckpointWriter"]

Columns = str | Sequence[str]
_PUBLISHERS = 4
_CONFIRMERS = 16
_USED = "the 'with' block of this snapshot has begun already; take another one: store.snapshot(…)"


@dataclass(frozen=True)
class Attempt:
    """What is fixed for one attempt to take a checkpoint."""

    catalog: Catalog
    fence: Fence
    table: StateTable
    parquet: ParquetOptions
    operators: Operators
    checkpoint_id: int
    history: History
    writer: Writer
    started_at_ms: int

    def max_parallelism_of(self, uid: str, wanted: int | None) -> int | None:
        """Return what the caller asks for, or else the job's graph; None leaves it to the store.

        Raises ParallelismError when both speak and differ.
        """
        of_graph = self.operators.max_parallelism_of(uid)
        if None not in (wanted, of_graph) and wanted != of_graph:
            raise ParallelismError(
                f"operator {uid!r} has max parallelism {of_graph} in the job graph, as its chain "
                f"has, and {wanted} is asked for; name one of them only"
            )
        return of_graph if wanted is None else wanted


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
    ) -> KeyedEntry:
        """Write a keyed state: one row per key and namespace unless ``kind`` says otherwise.

        ``rows`` is a Spark DataFrame, an Arrow table, a frame that speaks Arrow, or a list of
        dictionaries. Max parallelism is fixed for the life of the operator's state: by default it
        is what the job's graph says, else what the operator was stored with, else Flink's default
        for this parallelism. ``layout`` is ``partitioned`` (a file per key group), ``ranged`` (few
        files, each with a range of key groups) or ``auto``, which takes ranged files for fewer than
        2,048 rows a key group; by default what the store was opened with. It may be another one at
        every checkpoint. ``placed`` says that Spark partition i of a DataFrame holds subtask i's
        rows and no others, as a restore at this parallelism left them: then nothing is shuffled,
        and a row that lies elsewhere is refused. Returns
        what the manifest will say. Raises NullKeyError, DuplicateKeyError, UnsupportedTypeError,
        SchemaMismatchError or ParallelismError before anything is visible.
        """
        self._refuse_twice(uid, name)
        attempt = self._attempt
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
            rows=engine.rows_known(rows),
        )
        return self._write_keyed(engine, rows, request, placed=placed)

    def list(
        self, uid: str, name: str, rows: Any, *, position: str = "position", **options: Any
    ) -> KeyedEntry:
        """Write a list state: one row per element, ordered by an integer column. Else as
        :meth:`keyed`.
        """
        return self.keyed(uid, name, rows, kind=StateKind.LIST, entry=position, **options)

    def map(
        self, uid: str, name: str, rows: Any, *, map_key: Columns, **options: Any
    ) -> KeyedEntry:
        """Write a map state: one row per key and map key. Else as :meth:`keyed`."""
        return self.keyed(uid, name, rows, kind=StateKind.MAP, entry=map_key, **options)

    def reducing(self, uid: str, name: str, rows: Any, **options: Any) -> KeyedEntry:
        """Write a reducing state: one row per key, the reduced value. Else as :meth:`keyed`."""
        return self.keyed(uid, name, rows, kind=StateKind.REDUCING, **options)

    def aggregating(self, uid: str, name: str, rows: Any, **options: Any) -> KeyedEntry:
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
    ) -> KeyedEntry:
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

    def _write_keyed(
        self, engine: Engine, rows: Any, request: KeyedRequest, *, placed: bool
    ) -> KeyedEntry:
        attempt = self._attempt
        parallelism = attempt.operators.parallelism_of(request.uid)
        state = keyed_state(
            request,
            schema=engine.schema_of(rows),
            key_types=lambda names, scheme: engine.key_types(rows, names, scheme),
            parallelism=parallelism,
            history=attempt.history,
            so_far=self._keyed,
        )
        folder = keyed_table(request.uid, request.name)
        target = KeyedTarget(
            attempt.catalog.storage,
            folder,
            attempt.checkpoint_id,
            state,
            attempt.parquet,
            placed=placed,
        )
        handles = engine.write_keyed(rows, parallelism, target)
        written = KeyedEntry(state, TableRef(attempt.table.format, folder), handles)
        self._keyed.append(written)
        return written

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
        self._confirm_files()
        tables = iter(self._publish())
        keyed = tuple(replace(entry, table=next(tables)) for entry in self._keyed)
        operator = tuple(replace(entry, table=next(tables)) for entry in self._operator)
        return Manifest(
            store_id=attempt.catalog.store_id,
            checkpoint_id=attempt.checkpoint_id,
            parallelism=attempt.operators.parallelism,
            graph=attempt.operators.graph,
            started_at_ms=attempt.started_at_ms,
            created_at_ms=time.time_ns() // 1_000_000,
            writer=attempt.writer,
            keyed=keyed,
            operator=operator,
        )

    def _confirm_files(self) -> None:
        """Ask for the size of every file that the manifest will name, side by side (I5).

        Raises MissingFileError or DamagedFileError for one that is not as it was written.
        """
        storage = self._attempt.catalog.storage
        entries = self._entries()
        folders = [entry.table.path for entry in entries for _ in entry.handles]
        handles = [handle for entry in entries for handle in entry.handles]
        with ThreadPoolExecutor(max_workers=_CONFIRMERS) as pool:
            for _ in pool.map(partial(check_size, storage), folders, handles):
                continue

    def _publish(self) -> Sequence[TableRef]:
        """Publish all tables, side by side: a table's commit is mostly waiting."""
        publish, checkpoint_id = self._attempt.table.publish, self._attempt.checkpoint_id
        self._published = self._attempt.table.keeps_log
        with ThreadPoolExecutor(max_workers=_PUBLISHERS) as pool:
            return [*pool.map(lambda entry: publish(entry, checkpoint_id), self._entries())]

    def _entries(self) -> tuple[Entry, ...]:
        return (*self._keyed, *self._operator)

    def _discard(self, reason: BaseException) -> None:
        """Delete what was written; what cannot be deleted is noted on the reason, and left.

        Files that a table's log may name already stay: without them the table could not be read.
        """
        if self._published:
            reason.add_note("its files stay behind: the tables' newest versions name them")
            return
        for entry in self._entries():
            for handle in entry.handles:
                try:
                    self._attempt.catalog.storage.delete(f"{entry.table.path}/{handle.path}")
                except StorageError as error:
                    reason.add_note(f"its file stays behind: {error}")


def _names(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
