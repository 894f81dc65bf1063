"""Snapshot: states in, one manifest out. Tables first, the manifest last (I5).

:class:`CheckpointWriter` is what ``with store.snapshot(…) as checkpoint`` yields. Each call writes
one state's files at once; leaving the block publishes the tables and commits the manifest. An
exception in the block deletes what was written and commits nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from statestore.arguments import checked_methods
from statestore.errors import InvalidArgumentError
from statestore.files.arrow import is_schema
from statestore.flink.redistribution import RedistributionMode
from statestore.format.manifest import Entry, Manifest, OperatorEntry, Writer
from statestore.format.metrics import CheckpointMetrics
from statestore.format.state import Layout, StateKind, TimeDomain, TimeToLive
from statestore.snapshot.attempt import Attempt
from statestore.snapshot.carry import LATEST, Carrying
from statestore.snapshot.changes import KeyedChanges
from statestore.snapshot.collected import NOT_ENTERED, USED, Collected
from statestore.snapshot.commit import Commit
from statestore.snapshot.states import (
    KeyedRequest,
    KeyTypes,
)
from statestore.snapshot.subtasks import Acknowledgement
from statestore.snapshot.written_states import declare, write_full, write_operator

__all__ = ["CheckpointWriter"]

Columns = str | Sequence[str]


@checked_methods
class CheckpointWriter:
    """Collects the states of one checkpoint; commits them together when its block ends.

    ``already_committed`` says that an earlier attempt had committed this id, and nothing is written
    now.
    """

    already_committed = False

    def __init__(self, attempt: Attempt) -> None:
        """Start with no states; see ``StateStore.snapshot``."""
        self._attempt = attempt
        self._collected = Collected(attempt)
        self._carrying = Carrying(self._collected)
        self._commit = Commit(self._collected)

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
        return self._attempt.checkpoint_id, self._attempt.writer

    @property
    def manifest(self) -> Manifest:
        """The committed manifest; InvalidArgumentError before the block has ended."""
        if self._commit.manifest is None:
            raise InvalidArgumentError(
                "the checkpoint is committed when its 'with' block ends, not before"
            )
        return self._commit.manifest

    @property
    def metrics(self) -> CheckpointMetrics | None:
        """What the checkpoint cost, that of its manifest's put too; what the manifest says when it
        was committed before. InvalidArgumentError before the block has ended.
        """
        return self.manifest.metrics if self._commit.metrics is None else self._commit.metrics

    @property
    def collected(self) -> Collected:
        """The states so far; what a checkpoint that is made of another one is put together of."""
        return self._collected

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
        self._collected.refuse_twice(uid, name)
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
        if rows is None:
            return KeyedChanges(self._collected, request)
        with self._attempt.measuring.writing(uid, name):
            write = declare if is_schema(rows) else write_full
            return write(self._collected, request, rows, placed=placed)

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        """Take a subtask's answer: the checkpoint will have its files. May be called from threads.

        The first answer of a subtask counts, and its repetition changes nothing; of another one,
        of a subtask that was run twice, the files are deleted, and False is returned. Raises
        InvalidArgumentError for an answer to another checkpoint or attempt, or of a state that is
        not awaited; its files are left alone.
        """
        if self._collected.left:
            raise InvalidArgumentError(USED)
        state, attempted = acknowledgement.entry.state, self._attempt.id
        if acknowledgement.attempt != attempted:
            raise InvalidArgumentError(
                f"the acknowledgement of subtask {acknowledgement.subtask} of {state} is of "
                f"{acknowledgement.attempt}, and this is {attempted}; write again with the writer "
                "that this checkpoint's keyed(…) returned"
            )
        awaited = self._collected.awaited.get((state.uid, state.name))
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
        return write_operator(self._collected, uid, name, elements, RedistributionMode.SPLIT)

    def union(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write union state: on a restore every subtask gets every element. Else as
        :meth:`split`.
        """
        return write_operator(self._collected, uid, name, elements, RedistributionMode.UNION)

    def broadcast(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write broadcast state, which is the same in every subtask: one list of elements."""
        return write_operator(self._collected, uid, name, elements, RedistributionMode.BROADCAST)

    def carry(self, uid: str, name: str, *, base: int | str = LATEST) -> Entry:
        """Take a state over from the newest checkpoint, or from ``base``; return it.

        Its files are named again, and no row is read; elements of an operator are dealt anew when
        its parallelism is another one. Raises StateNotFoundError, CheckpointNotFoundError,
        MalformedManifestError, ParallelismError, or InvalidArgumentError for a state that is in
        this checkpoint already.
        """
        return self._carrying.carry(uid, name, base=base)

    def carry_rest(self, *, base: int | str = LATEST) -> None:
        """Take over, when the block ends, each state of the newest checkpoint, or of ``base``, that
        is neither in this one by then nor dropped; else as :meth:`carry`.
        """
        self._carrying.carry_rest(base=base)

    def drop(self, uid: str, name: str) -> None:
        """Leave a state of the newest checkpoint out of this one, and so of those that follow.

        Nothing happens when there is no such state.
        """
        self._carrying.drop(uid, name)

    def left_out(self, naming: Iterable[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
        """Return operator and name of each state that would be lost if the block ended now, after
        those in ``naming`` had been written: states of the newest checkpoint that this one has not.
        """
        return self._carrying.left_out(naming)

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Count the time of a block to the compaction of states that are carried."""
        with self._attempt.measuring.phase("compaction"):
            yield

    def say_origin(self, origin: Mapping[str, Any]) -> None:
        """Say of which checkpoint, and how, this one is made; plain JSON values, for the
        manifest.
        """
        self._commit.origin = origin

    def give_up(self) -> None:
        """Take no checkpoint after all; nothing was written yet. InvalidArgumentError within the
        block.
        """
        if self._collected.entered and not self._collected.left:
            raise InvalidArgumentError("within its 'with' block, a snapshot ends by an exception")
        self._collected.entered = self._collected.left = True

    def __del__(self) -> None:
        """Warn of a checkpoint whose block was never entered: nothing of it was committed."""
        collected = getattr(self, "_collected", None)
        if collected is None or collected.entered or collected.left:
            return
        warnings.warn(
            f"checkpoint {self._attempt.checkpoint_id} of {self._attempt.catalog.storage.url} "
            f"was begun and never taken: {NOT_ENTERED}",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __enter__(self) -> Self:
        """Return the writer; InvalidArgumentError when it was used before."""
        if self._collected.entered:
            raise InvalidArgumentError(USED)
        self._collected.entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Carry the rest if that was asked for, refuse what would be lost, and commit; after an
        exception delete what was written.
        """
        try:
            if error is None:
                self._carrying.settle()
        except BaseException as failure:
            self._commit.fail(failure)
            raise
        finally:
            self._collected.left = True
        if error is None:
            self._commit.run()
        else:
            self._commit.fail(error)


def _names(columns: Columns) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
