"""Take a snapshot: write the states, then commit one manifest.

Tables are published first, and the manifest is put last (I5). :class:`CheckpointWriter` is what
``with store.snapshot(…) as checkpoint`` yields. Each call writes one state's files immediately;
leaving the block publishes the tables and commits the manifest. An exception in the block deletes
what was written and commits nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from statestore.arguments import checked_methods
from statestore.engines.arrow_engine import is_schema
from statestore.errors import InvalidArgumentError
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Entry, KeyedEntry, Manifest, OperatorEntry, Writer
from statestore.format.metrics import CheckpointMetrics
from statestore.format.state import Layout, StateKind, TimeDomain, TimeToLive
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.snapshot.carry import LATEST, Carrying
from statestore.snapshot.change_writer import changed_request, write_against, write_changes
from statestore.snapshot.checkpoint_context import CheckpointContext
from statestore.snapshot.commit import Commit
from statestore.snapshot.full_writer import declare, write_full, write_operator
from statestore.snapshot.pending_checkpoint import NOT_ENTERED, USED, PendingCheckpoint
from statestore.snapshot.state_request import Columns, KeyedRequest, KeyTypes, keyed_request
from statestore.snapshot.subtask_writer import Acknowledgement, KeyedWriter

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
    """Options for writing a keyed state of any kind; see :meth:`CheckpointWriter.write_keyed`."""

    co_located: bool


class KeyedOptions(StateOptions, _Kind, total=False):
    """The options of :meth:`CheckpointWriter.write_keyed`, including the state's kind."""


class ChangeOptions(_Common, _Kind, total=False):
    """Options for writing changes of a keyed state; the defaults are the stored values."""

    key: Columns


@checked_methods
class CheckpointWriter:
    """Collects the states of one checkpoint, and commits them together when its block ends.

    ``already_committed`` is True if the store already contains this batch; then nothing is written.
    """

    already_committed = False

    def __init__(self, attempt: CheckpointContext) -> None:
        """Start with no states; see ``StateStore.snapshot``."""
        self._attempt = attempt
        self._collected = PendingCheckpoint(attempt)
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
        """The number that the checkpoint will get, and its writer; known before the commit.

        A caller that never receives the answer to a commit can look up this number. The checkpoint
        is this one if its manifest names the same writer.
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
                "the checkpoint is committed when its 'with' block ends, not earlier"
            )
        return self._commit.manifest

    @property
    def metrics(self) -> CheckpointMetrics | None:
        """The checkpoint's metrics, including the put of its manifest.

        If the checkpoint was committed earlier, these are the metrics in its manifest.

        Raises:
            InvalidArgumentError: before the block has ended.
        """
        return self.manifest.metrics if self._commit.metrics is None else self._commit.metrics

    @property
    def collected(self) -> PendingCheckpoint:
        """The states so far. Commands that derive a checkpoint from another one use this."""
        return self._collected

    def write_keyed(
        self, uid: str, name: str, rows: Any, **options: Unpack[KeyedOptions]
    ) -> KeyedEntry:
        """Write all rows of a keyed state.

        There is one row per key and namespace, unless ``kind`` says otherwise.

        Args:
            uid: the operator.
            name: the state.
            rows: a Spark DataFrame, an Arrow table or stream, a frame with Arrow's C interface, or
                dictionaries. An iterator is read to its end. The column ``key_group`` of restored
                rows is checked, and not stored again.
            key: the key columns.
            namespace: the namespace columns; none by default.
            kind: what a row is; by default ``value``.
            entry: the columns that identify the entries of one key, in a list, map or timer state.
            time_domain: ``event`` or ``processing``, for timers.
            max_parallelism: the number of key groups, fixed for the life of the operator's state.
                Defaults to the job graph's value, then the stored one, then Flink's default for
                this parallelism.
            regroup: lets ``max_parallelism`` differ from the stored one.
            hash_scheme: how keys are hashed; defaults to the stored scheme, then to Flink's scheme
                for Java objects.
            key_types: the type that a key column is hashed as, if it is not its own type. It is one
                name, one name per column, or a dictionary by column (``{"at": "TIMESTAMP(3)"}``).
                Defaults to the stored types.
            layout: ``partitioned`` (one file per key group), ``ranged`` (few files, each with a
                range of key groups) or ``auto``, which is partitioned from 2,048 rows per key group
                on and ranged below. Defaults to the store's layout, then to ``auto``.
            co_located: True if Spark partition i of a DataFrame has subtask i's rows, as after a
                restore at this parallelism. In that case nothing is shuffled. A row that belongs to
                another subtask is refused.
            renamed: ``{"old": "new"}`` gives the new name of a value column. Value columns may also
                be new, left out or wider than before.
            dropped: value columns that are removed without a replacement.
            ttl: how long rows live. It is kept until another value or ``"off"`` is given. When it
                is turned on, rows may lack its column, and get the checkpoint's clock.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            NullKeyError, DuplicateKeyError or UnsupportedTypeError: for the rows.
            SchemaMismatchError, ParallelismError or InvalidArgumentError: for a conflict with the
                stored state, or between arguments. Nothing is visible in that case either.
        """
        co_located = options.pop("co_located", False)
        request = self._request(uid, name, **options)
        if rows is None or is_schema(rows):
            raise InvalidArgumentError(
                f"{request} has no rows; write changes with checkpoint.write_changes(…), and rows "
                "of subtasks with checkpoint.declare_keyed(…)"
            )
        with self._attempt.measuring.writing(uid, name):
            entry = write_full(self._collected, request, rows, co_located=co_located)
        self._collected.rewritten.add((uid, name))
        return entry

    def declare_keyed(
        self, uid: str, name: str, schema: Any, **options: Unpack[KeyedOptions]
    ) -> KeyedWriter:
        """Declare a keyed state that subtasks write in any process; nothing is written here.

        Takes the options and raises the errors of :meth:`write_keyed`.

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
                f"{request} must be declared with a pyarrow.Schema, not "
                f"{type(schema).__name__}; write rows with checkpoint.write_keyed(…)"
            )
        with self._attempt.measuring.writing(uid, name):
            writer = declare(self._collected, request, schema, co_located=co_located)
        self._collected.rewritten.add((uid, name))
        return writer

    def write_changes(
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
        """Write the changes of a keyed state since the newest checkpoint, or since ``base``.

        Takes the options of :meth:`write_keyed`, which default to the stored values. For a state
        that may not be stored yet, ``key`` is required, and ``kind`` and ``entry`` if they apply.

        A value of another type than the column's is accepted if the conversion is lossless. If it
        is not, the error names its column and row. In a state with a TTL, upserts without its
        column get the checkpoint's clock, because a write counts as a use. If reads count too, the
        rows that were read must also be upserts. If the newest checkpoint lacks the state, the
        upserts are written in full, and a warning is logged.

        Args:
            uid: the operator.
            name: the state.
            upserts: whole rows with the state's columns, in the forms that :meth:`write_keyed`
                accepts. Each replaces the row with the same key, namespace and entry columns, or is
                new.
            deletes: rows to delete. A key deletes all rows of the key. A key and namespace deletes
                the rows of both. A row that also has the entry columns deletes one list element,
                map entry or timer. Other columns are ignored. A list of dictionaries may mix the
                three.
            cleared: deletes of keys that upserts of the same checkpoint may write again.
            base: the checkpoint that the changes build on. A job that was restored from an older
                checkpoint passes its number.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            DuplicateKeyError: for an entry that is given twice, or is both upserted and deleted.
            NullKeyError: for a null in a key.
            SchemaMismatchError or ParallelismError: if columns, hash scheme or max parallelism
                differ from the base.
            CheckpointNotFoundError: if the base has expired.
        """
        request = self._changed(uid, name, base, **options)
        with self._attempt.measuring.writing(uid, name):
            entry = write_changes(self._collected, request, upserts, deletes, cleared, base)
        if base != LATEST:
            manifest = self._attempt.history.load(base)
            self._collected.bases[manifest.checkpoint_id] = manifest
        return entry

    def write_changes_against(
        self,
        uid: str,
        name: str,
        rows: Any,
        *,
        base: int | str = LATEST,
        **options: Unpack[ChangeOptions],
    ) -> KeyedEntry:
        """Compare all rows of a keyed state with a checkpoint, and write the differences.

        Use it if the changes are not known. Takes the options of :meth:`write_changes`.

        Key groups whose stored digest equals the digest of the rows are not read. The others are
        merged and compared one after another, in Spark by the tasks that write. If nothing changed,
        no file is written. If the newest checkpoint lacks the state, the rows are written in full,
        and a warning is logged.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows of the state.
            base: the checkpoint to compare with: its number, ``latest``, or a savepoint's name. The
                new checkpoint builds on it, even if there are later ones.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            MissingFileError or DamagedFileError: if a file of ``base`` is missing or damaged.
            StateStoreError: the errors of :meth:`write_changes`.
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
        """Add a subtask's answer, so that the checkpoint has its files. This method is thread-safe.

        The first answer of a subtask counts, and its repetition changes nothing. If a subtask was
        run twice, the files of its other answer are deleted.

        Args:
            acknowledgement: what ``writer.subtask(i).write(…)`` returned.

        Returns:
            Whether the checkpoint has the files of this answer.

        Raises:
            InvalidArgumentError: for an answer to another checkpoint or attempt, or for a state
                that was not declared; its files are not touched.
        """
        if self._collected.left:
            raise InvalidArgumentError(USED)
        state, attempted = acknowledgement.entry.state, self._attempt.id
        if acknowledgement.attempt != attempted:
            raise InvalidArgumentError(
                f"the acknowledgement of subtask {acknowledgement.subtask} of {state} is for "
                f"{acknowledgement.attempt}, but this is {attempted}; write again with the "
                "writer that declare_keyed(…) of this checkpoint returned"
            )
        awaited = self._collected.awaited.get((state.uid, state.name))
        if awaited is None:
            raise InvalidArgumentError(
                f"{state} was not declared in this checkpoint; declare it with "
                "checkpoint.declare_keyed(…)"
            )
        is_new = awaited.add(acknowledgement)
        if is_new:
            self._attempt.measuring.answered(state.uid, state.name)
        return is_new

    def write_list(
        self,
        uid: str,
        name: str,
        rows: Any,
        *,
        position: str = "position",
        **options: Unpack[StateOptions],
    ) -> KeyedEntry:
        """Write a list state: one row per element, ordered by an integer column.

        Takes the options and raises the errors of :meth:`write_keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`write_keyed`.
            position: the integer column.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.write_keyed(uid, name, rows, kind=StateKind.LIST, entry=position, **options)

    def write_map(
        self, uid: str, name: str, rows: Any, *, map_key: Columns, **options: Unpack[StateOptions]
    ) -> KeyedEntry:
        """Write a map state: one row per key and map key.

        Takes the options and raises the errors of :meth:`write_keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`write_keyed`.
            map_key: the columns of the map key.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.write_keyed(uid, name, rows, kind=StateKind.MAP, entry=map_key, **options)

    def write_reducing(
        self, uid: str, name: str, rows: Any, **options: Unpack[StateOptions]
    ) -> KeyedEntry:
        """Write a reducing state: one row per key, the reduced value.

        Takes the options and raises the errors of :meth:`write_keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`write_keyed`.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.write_keyed(uid, name, rows, kind=StateKind.REDUCING, **options)

    def write_aggregating(
        self, uid: str, name: str, rows: Any, **options: Unpack[StateOptions]
    ) -> KeyedEntry:
        """Write an aggregating state: one row per key, the accumulator.

        Takes the options and raises the errors of :meth:`write_keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`write_keyed`.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.write_keyed(uid, name, rows, kind=StateKind.AGGREGATING, **options)

    def write_timers(
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

        Takes the options and raises the errors of :meth:`write_keyed`.

        Args:
            uid: the operator.
            name: the state.
            rows: all rows, as in :meth:`write_keyed`.
            time_domain: ``event`` or ``processing`` time.
            timestamp: the time column.

        Returns:
            The state as the checkpoint will name it.
        """
        return self.write_keyed(
            uid,
            name,
            rows,
            kind=StateKind.TIMERS,
            entry=timestamp,
            time_domain=time_domain,
            **options,
        )

    def write_split(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write list state of an operator: on a rescale, each element goes to one subtask.

        Args:
            uid: the operator.
            name: the state.
            elements: a list of elements per subtask, or a DataFrame or table of elements with or
                without the columns ``subtask`` and ``position``.

        Returns:
            The state as the checkpoint will name it.
        """
        return self._operator(uid, name, elements, RedistributionMode.SPLIT)

    def write_union(self, uid: str, name: str, elements: Any) -> OperatorEntry:
        """Write union state: on a restore, every subtask gets every element.

        Args:
            uid: the operator.
            name: the state.
            elements: as in :meth:`write_split`.

        Returns:
            The state as the checkpoint will name it.
        """
        return self._operator(uid, name, elements, RedistributionMode.UNION)

    def write_broadcast(self, uid: str, name: str, elements: Any) -> OperatorEntry:
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
        """Carry a state from the newest checkpoint, or from ``base``, into this one.

        Its files are named again, and no row is read. Elements of an operator are redistributed if
        its parallelism has changed.

        Args:
            uid: the operator.
            name: the state.
            base: the checkpoint that has the state.

        Returns:
            The state as the checkpoint will name it.

        Raises:
            InvalidArgumentError: for a state that this checkpoint already has. StateNotFoundError,
            CheckpointNotFoundError, MalformedManifestError or ParallelismError:
                if the state cannot be carried.
        """
        return self._carrying.carry(uid, name, base=base)

    def carry_rest(self, *, base: int | str = LATEST) -> None:
        """When the block ends, carry the other states of the newest checkpoint, or of ``base``.

        These are the states that are neither in this checkpoint by then nor dropped. Each is
        carried as by :meth:`carry`.
        """
        self._carrying.carry_rest(base=base)

    def drop(self, uid: str, name: str) -> None:
        """Leave a state of the newest checkpoint out of this one and all later ones.

        If the state does not exist, this does nothing.

        Args:
            uid: the operator.
            name: the state.
        """
        self._carrying.drop(uid, name)

    def left_out(self, naming: Iterable[tuple[str, str]] = ()) -> tuple[tuple[str, str], ...]:
        """Return the states that would be lost if the block ended now.

        These are the states of the newest checkpoint that this one does not have.

        Args:
            naming: operator uid and name of states that count as already written.

        Returns:
            Operator uid and name of each state.
        """
        return self._carrying.left_out(naming)

    @contextmanager
    def compacting(self) -> Iterator[None]:
        """Count the time of a block as compaction of carried states."""
        with self._attempt.measuring.phase("compaction"):
            yield

    def record_origin(self, origin: Mapping[str, Any]) -> None:
        """Record which checkpoint this one was derived from, and how.

        Args:
            origin: plain JSON values, for the manifest.
        """
        self._commit.origin = origin

    def keep_times(self, manifest: Manifest) -> None:
        """Keep the times of a checkpoint that this one replaces.

        Args:
            manifest: the replaced checkpoint. For readers and for ``expire``, its rows keep their
                age.
        """
        self._commit.replaced = manifest

    def record_left_out(self, records: Iterable[LeftOutState], *, inherit: bool = True) -> None:
        """Record state of the source that this checkpoint does not have (I16).

        Args:
            records: the missing state and the reasons.
            inherit: whether the records of the previous checkpoint still apply. A command that
                replaces all state of its source passes False.
        """
        self._commit.left_out = (*self._commit.left_out, *records)
        self._commit.inherits_left_out = inherit

    def abandon(self) -> None:
        """Abandon the checkpoint before anything was written.

        Raises:
            InvalidArgumentError: within the block.
        """
        if self._collected.entered and not self._collected.left:
            raise InvalidArgumentError(
                "inside its 'with' block, a snapshot is aborted by an exception"
            )
        self._collected.entered = self._collected.left = True

    def __del__(self) -> None:
        """Warn about a checkpoint whose block was never entered, because nothing was committed."""
        collected = getattr(self, "_collected", None)
        if collected is None or collected.entered or collected.left:
            return
        warnings.warn(
            (
                f"checkpoint {self._attempt.checkpoint_id} of {self._attempt.catalog.storage.url} "
                f"was begun but never taken: {NOT_ENTERED}"
            ),
            ResourceWarning,
            stacklevel=2,
            source=self,
        )

    def __enter__(self) -> Self:
        """Return the writer. Raises InvalidArgumentError if it was used before."""
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
        """Carry the rest if requested, refuse to lose a state, and commit.

        After an exception, the written files are deleted instead.
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
