"""Snapshot: states in, one manifest out. Tables first, the manifest last (I5).

:class:`CheckpointWriter` is what ``with store.snapshot(…) as checkpoint`` yields. Each call writes
one state's files at once; leaving the block publishes the tables and commits the manifest. An
exception in the block deletes what was written and commits nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from statestore.arguments import checked_methods
from statestore.errors import InvalidArgumentError
from statestore.files.arrow import is_schema
from statestore.flink.redistribution import RedistributionMode
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry, Writer
from statestore.format.metrics import CheckpointMetrics
from statestore.format.state import Layout, StateKind, TimeDomain, TimeToLive
from statestore.snapshot.attempt import Attempt
from statestore.snapshot.carry import LATEST, Carrying
from statestore.snapshot.changes import changed_request, write_against, write_changes
from statestore.snapshot.collected import NOT_ENTERED, USED, Collected
from statestore.snapshot.commit import Commit
from statestore.snapshot.states import Columns, KeyedRequest, KeyTypes, keyed_request
from statestore.snapshot.subtasks import Acknowledgement, KeyedWriter
from statestore.snapshot.written_states import declare, write_full, write_operator

__all__ = ["ChangeOptions", "CheckpointWriter", "KeyedOptions", "StateOptions"]


class _Common(TypedDict, total=False):
    namespace: Columns
    max_parallelism: int | None
    hash_scheme: str | None
    key_types: KeyTypes
    layout: Layout | str | None
    renamed: Mapping[str, str] | None
    dropped: Columns
    ttl: TimeToLive | str | None
    regroup: bool


class _Kind(TypedDict, total=False):
    kind: StateKind | str
    entry: Columns
    time_domain: TimeDomain | str | None


class _Key(TypedDict):
    key: Columns


class StateOptions(_Key, _Common, total=False):
    """How a keyed state is written, whatever its kind; :meth:`CheckpointWriter.keyed` says what
    each option does.
    """

    co_located: bool


class KeyedOptions(StateOptions, _Kind, total=False):
    """How a keyed state of any kind is written; see :meth:`CheckpointWriter.keyed`."""


class ChangeOptions(_Common, _Kind, total=False):
    """How a keyed state is named of which changes are written: by default as it is stored."""

    key: Columns


@checked_methods
class CheckpointWriter:
    """Collects the states of one checkpoint; commits them together when its block ends.

    ``already_committed`` says that the store contains this batch, and nothing is written now.
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
        """The checkpoint's number, known once it is committed.

        Raises:
            InvalidArgumentError: before the block has ended.
        """
        return self.manifest.checkpoint_id

    @property
    def planned(self) -> tuple[int, Writer]:
        """The number that the checkpoint gets, and its writer; known before it is committed.

        A caller that never receives the answer to a commit asks for this number again. The
        checkpoint is this one if its manifest names the same writer.
        """
        return self._attempt.checkpoint_id, self._attempt.writer

    @property
    def manifest(self) -> Manifest:
        """The committed manifest.

        Raises:
            InvalidArgumentError: before the block has ended.
        """
        if self._commit.manifest is None:
            raise InvalidArgumentError(
                "the checkpoint is committed when its 'with' block ends, not before"
            )
        return self._commit.manifest

    @property
    def metrics(self) -> CheckpointMetrics | None:
        """What the checkpoint cost, the put of its manifest included.

        Of a checkpoint that was committed before, this is what its manifest says.

        Raises:
            InvalidArgumentError: before the block has ended.
        """
        return self.manifest.metrics if self._commit.metrics is None else self._commit.metrics

    @property
    def collected(self) -> Collected:
        """The states so far. A checkpoint that is made from another one is built with it."""
        return self._collected

    def keyed(self, uid: str, name: str, rows: Any, **options: Unpack[KeyedOptions]) -> KeyedEntry:
        """Write all rows of a keyed state.

        There is one row per key and namespace, unless ``kind`` says otherwise.

        Args:
            uid: the operator.
            name: the state.
            rows: a Spark DataFrame, an Arrow table or stream, a frame that speaks Arrow, or
                dictionaries. An iterator is read to its end. The column ``key_group`` of restored
                rows is checked, and not stored again.
            key: the key columns.
            namespace: the namespace columns; by default none.
            kind: what a row is; by default ``value``.
            entry: the columns that tell the entries of one key apart, of a list, map or timer.
            time_domain: ``event`` or ``processing``, of timers.
            max_parallelism: the number of key groups, fixed for the life of the operator's state.
                By default what the job's graph says, else as stored, else Flink's default for this
                parallelism.
            regroup: lets ``max_parallelism`` differ from the stored one.
            hash_scheme: how keys are hashed; by default as stored, else Flink's of Java objects.
            key_types: the type that a key column is hashed as, where that is not its own type. It
                is one name, one name per column, or a dictionary by column
                (``{"at": "TIMESTAMP(3)"}``). By default as stored.
            layout: ``partitioned`` (one file per key group), ``ranged`` (few files, each with a
                range of key groups) or ``auto`` (partitioned from 2,048 rows per key group on, else
                ranged). By default what the store was opened with, else ``auto``.
            co_located: says that Spark partition i of a DataFrame holds subtask i's rows, as a
                restore at this parallelism left them. Nothing is shuffled. A row that belongs to
                another subtask is refused.
            renamed: ``{"old": "new"}`` names a value column that has another name now. Value
                columns may also be new, left out or of a wider type than before.
            dropped: value columns that are removed without a replacement.
            ttl: how long rows live. It is kept until another one or ``"off"`` is given. To turn it
                on, rows may come without its column, and get the checkpoint's clock.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            NullKeyError, DuplicateKeyError or UnsupportedTypeError: for the rows.
            SchemaMismatchError, ParallelismError or InvalidArgumentError: for what does not fit the
                stored state, or each other. Nothing is visible then either.
        """
        co_located = options.pop("co_located", False)
        request = self._request(uid, name, **options)
        if rows is None or is_schema(rows):
            raise InvalidArgumentError(
                f"{request} is given without rows; write what changed with checkpoint.changes(…), "
                "and what subtasks write after checkpoint.declare(…)"
            )
        with self._attempt.measuring.writing(uid, name):
            entry = write_full(self._collected, request, rows, co_located=co_located)
        self._collected.rewritten.add((uid, name))
        return entry

    def declare(
        self, uid: str, name: str, schema: Any, **options: Unpack[KeyedOptions]
    ) -> KeyedWriter:
        """Declare a keyed state that subtasks write, in any process; nothing is written here.

        The options and errors are those of :meth:`keyed`.

        Args:
            uid: the operator.
            name: the state.
            schema: the columns of the rows, a ``pyarrow.Schema``.

        Returns:
            A writer to send to the subtasks. ``writer.subtask(i).write(table)`` writes the rows of
            subtask i. Each answer goes to :meth:`acknowledge`.
        """
        co_located = options.pop("co_located", False)
        request = self._request(uid, name, **options)
        if not is_schema(schema):
            raise InvalidArgumentError(
                f"{request} is declared with a pyarrow.Schema, not {type(schema).__name__}; rows "
                "are written with checkpoint.keyed(…)"
            )
        with self._attempt.measuring.writing(uid, name):
            writer = declare(self._collected, request, schema, co_located=co_located)
        self._collected.rewritten.add((uid, name))
        return writer

    def changes(
        self,
        uid: str,
        name: str,
        upserts: Any = None,
        deletes: Any = None,
        *,
        cleared: Any = None,
        base: int | str = LATEST,
        **options: Unpack[ChangeOptions],
    ) -> KeyedEntry:
        """Write what changed in a keyed state since the newest checkpoint, or since ``base``.

        The options are those of :meth:`keyed`, by default as stored. For a state that may not be
        stored yet, ``key`` is needed, and ``kind`` and ``entry`` where they apply.

        A value of another type than the column's is accepted if the conversion leaves it equal.
        Else the error names its column and row. In a state with a time to live, upserts without its
        column get the checkpoint's clock: what is written now is used now. Where reads count too,
        the rows that were read are upserts as well. When the newest checkpoint lacks the state, the
        upserts are written in full, and a warning is logged.

        Args:
            uid: the operator.
            name: the state.
            upserts: whole rows, in the state's columns and in the forms that :meth:`keyed` takes.
                Each replaces the row with its key, namespace and entry columns, or is new.
            deletes: rows to delete. A key deletes all rows of the key. A key and namespace deletes
                the rows of both. With the entry columns too it deletes one element of a list, one
                map entry or one timer. Other columns are ignored. A list of dictionaries may mix
                the three.
            cleared: deletes too, of keys that upserts of the same checkpoint may write anew.
            base: the checkpoint that the changes build on. A job that was restored from an older
                one gives its number.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            DuplicateKeyError: for an entry that comes twice, or comes and is deleted.
            NullKeyError: for a null in a key.
            SchemaMismatchError or ParallelismError: when columns, hash scheme or max parallelism
                are not those of the base.
            CheckpointNotFoundError: when the base has expired.
        """
        request = self._changed(uid, name, base, **options)
        with self._attempt.measuring.writing(uid, name):
            entry = write_changes(self._collected, request, upserts, deletes, cleared, base)
        if base != LATEST:
            manifest = self._attempt.history.load(base)
            self._collected.bases[manifest.checkpoint_id] = manifest
        return entry

    def changes_against(
        self,
        uid: str,
        name: str,
        rows: Any,
        *,
        base: int | str = LATEST,
        **options: Unpack[ChangeOptions],
    ) -> KeyedEntry:
        """Compare all rows of a keyed state with a checkpoint, and write the differences.

        It is for callers who do not know what changed. The options are those of :meth:`changes`.

        Key groups whose stored digest equals that of the rows are not read. The others are merged
        and compared one after another, in Spark by the tasks that write. When nothing changed, no
        file is written. When the newest checkpoint lacks the state, the rows are written in full,
        and a warning is logged.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows of the state.
            base: the checkpoint to compare with: its number, ``latest``, or a savepoint's name. The
                new checkpoint builds on it, whatever came after it.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            MissingFileError or DamagedFileError: when a file of ``base`` is not what was written.
            StateStoreError: as :meth:`changes`.
        """
        request = self._changed(uid, name, base, **options)
        with self._attempt.measuring.writing(uid, name):
            entry = write_against(self._collected, request, rows, base)
        self._collected.rewritten.add((uid, name))
        return entry

    def _request(self, uid: str, name: str, **options: Any) -> KeyedRequest:
        self._collected.refuse_twice(uid, name)
        return keyed_request(self._attempt, uid, name, **options)

    def _changed(
        self, uid: str, name: str, base: int | str, **options: Unpack[ChangeOptions]
    ) -> KeyedRequest:
        self._collected.refuse_twice(uid, name)
        return changed_request(self._attempt, uid, name, base, **options)

    def acknowledge(self, acknowledgement: Acknowledgement) -> bool:
        """Take a subtask's answer: the checkpoint will have its files. May be called from threads.

        The first answer of a subtask counts, and its repetition changes nothing. When a subtask was
        run twice, the files of its other answer are deleted.

        Args:
            acknowledgement: what ``writer.subtask(i).write(…)`` returned.

        Returns:
            Whether the checkpoint has the files of this answer.

        Raises:
            InvalidArgumentError: for an answer to another checkpoint or attempt, or of a state that
                is not awaited; its files are left alone.
        """
        if self._collected.left:
            raise InvalidArgumentError(USED)
        state, attempted = acknowledgement.entry.state, self._attempt.id
        if acknowledgement.attempt != attempted:
            raise InvalidArgumentError(
                f"the acknowledgement of subtask {acknowledgement.subtask} of {state} is of "
                f"{acknowledgement.attempt}, and this is {attempted}; write again with the writer "
                "that this checkpoint's declare(…) returned"
            )
        awaited = self._collected.awaited.get((state.uid, state.name))
        if awaited is None:
            raise InvalidArgumentError(
                f"{state} is not awaited here; declare it with checkpoint.declare(…)"
            )
        is_new = awaited.add(acknowledgement)
        if is_new:
            self._attempt.measuring.answered(state.uid, state.name)
        return is_new

    def list(
        self,
        uid: str,
        name: str,
        rows: Any,
        *,
        position: str = "position",
        **options: Unpack[StateOptions],
    ) -> KeyedEntry:
        """Write a list state: one row per element, ordered by an integer column.

        The options and errors are those of :meth:`keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`keyed`.
            position: the integer column.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.keyed(uid, name, rows, kind=StateKind.LIST, entry=position, **options)

    def map(
        self, uid: str, name: str, rows: Any, *, map_key: Columns, **options: Unpack[StateOptions]
    ) -> KeyedEntry:
        """Write a map state: one row per key and map key.

        The options and errors are those of :meth:`keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`keyed`.
            map_key: the columns of the map key.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.keyed(uid, name, rows, kind=StateKind.MAP, entry=map_key, **options)

    def reducing(
        self, uid: str, name: str, rows: Any, **options: Unpack[StateOptions]
    ) -> KeyedEntry:
        """Write a reducing state: one row per key, the reduced value.

        The options and errors are those of :meth:`keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`keyed`.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.keyed(uid, name, rows, kind=StateKind.REDUCING, **options)

    def aggregating(
        self, uid: str, name: str, rows: Any, **options: Unpack[StateOptions]
    ) -> KeyedEntry:
        """Write an aggregating state: one row per key, the accumulator.

        The options and errors are those of :meth:`keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`keyed`.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.keyed(uid, name, rows, kind=StateKind.AGGREGATING, **options)

    def timers(
        self,
        uid: str,
        name: str,
        rows: Any,
        *,
        time_domain: TimeDomain | str,
        timestamp: str = "timestamp",
        **options: Unpack[StateOptions],
    ) -> KeyedEntry:
        """Write timers: one row per key, namespace and time.

        The options and errors are those of :meth:`keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`keyed`.
            time_domain: ``event`` or ``processing`` time.
            timestamp: the column of the time.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.keyed(
            uid,
            name,
            rows,
            kind=StateKind.TIMERS,
            entry=timestamp,
            time_domain=time_domain,
            **options,
        )

    def split(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write list state of an operator: on a rescale each element goes to one new subtask.

        Args:
            uid: the operator.
            name: the state.
            elements: a list of elements per subtask, or a DataFrame or table of elements with or
                without the columns ``subtask`` and ``position``.

        Returns:
            The state as the checkpoint will name it.
        """
        return self._operator(uid, name, elements, RedistributionMode.SPLIT)

    def union(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write union state: on a restore every subtask gets every element.

        Args:
            uid: the operator.
            name: the state.
            elements: as in :meth:`split`.

        Returns:
            The state as the checkpoint will name it.
        """
        return self._operator(uid, name, elements, RedistributionMode.UNION)

    def broadcast(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write broadcast state, which is the same in every subtask.

        Args:
            uid: the operator.
            name: the state.
            elements: one list of elements.

        Returns:
            The state as the checkpoint will name it.
        """
        return self._operator(uid, name, elements, RedistributionMode.BROADCAST)

    def _operator(
        self, uid: str, name: str, elements: Any, mode: RedistributionMode
    ) -> OperatorEntry:
        entry = write_operator(self._collected, uid, name, elements, mode)
        self._collected.rewritten.add((uid, name))
        return entry

    def carry(self, uid: str, name: str, *, base: int | str = LATEST) -> Entry:
        """Take a state over from the newest checkpoint, or from ``base``.

        Its files are named again, and no row is read. Elements of an operator are redistributed
        when its parallelism has changed.

        Args:
            uid: the operator.
            name: the state.
            base: the checkpoint that has the state.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            InvalidArgumentError: for a state that is in this checkpoint already.
            StateNotFoundError, CheckpointNotFoundError, MalformedManifestError or ParallelismError:
                when the state cannot be taken over.
        """
        return self._carrying.carry(uid, name, base=base)

    def carry_rest(self, *, base: int | str = LATEST) -> None:
        """Take over the other states of the newest checkpoint, or of ``base``, as the block ends.

        These are the states that are neither in this checkpoint by then nor dropped. Each is taken
        over as by :meth:`carry`.
        """
        self._carrying.carry_rest(base=base)

    def drop(self, uid: str, name: str) -> None:
        """Leave a state of the newest checkpoint out of this one, and so of those that follow.

        Nothing happens when there is no such state.

        Args:
            uid: the operator.
            name: the state.
        """
        self._carrying.drop(uid, name)

    def left_out(self, naming: Iterable[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
        """Return the states that would be lost if the block ended now.

        These are the states of the newest checkpoint that this one does not have.

        Args:
            naming: operator and name of states that count as written already.

        Returns:
            Operator and name of each state.
        """
        return self._carrying.left_out(naming)

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Count the time of a block as compaction of the states that are carried."""
        with self._attempt.measuring.phase("compaction"):
            yield

    def say_origin(self, origin: Mapping[str, Any]) -> None:
        """Record which checkpoint this one is made of, and how.

        Args:
            origin: plain JSON values, for the manifest.
        """
        self._commit.origin = origin

    def keep_times(self, manifest: Manifest) -> None:
        """Keep the times of a checkpoint whose place this one takes.

        Args:
            manifest: the checkpoint that is replaced. Its rows are as old as they were, for readers
                and for ``expire``.
        """
        self._commit.replaced = manifest

    def record_left_out(self, records: Iterable[LeftOutState], *, inherit: bool = True) -> None:
        """Record state of the source that this checkpoint does not have (I16).

        Args:
            records: what is missing, and why.
            inherit: whether the records of the checkpoint before hold as well. A command that
                brings all state of its source anew says False.
        """
        self._commit.left_out = (*self._commit.left_out, *records)
        self._commit.inherits_left_out = inherit

    def give_up(self) -> None:
        """Take no checkpoint after all; nothing was written yet.

        Raises:
            InvalidArgumentError: within the block.
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
        if self._attempt.background is not None:
            self._attempt.background.snapshot_began()
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
            self._end(error)
        finally:
            if self._attempt.background is not None:
                self._attempt.background.snapshot_ended(self._commit.manifest, self._attempt.now_ms)

    def _end(self, error: BaseException | None) -> None:
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
