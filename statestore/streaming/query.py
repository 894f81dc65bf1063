"""A stateful query whose state lives in a store: each micro-batch is one checkpoint.

Of a micro-batch only the keys that it touches are brought in. What the update returns, where each
source ended, and the number of the micro-batch are in one manifest: so a micro-batch that Spark
runs again, because it does not know whether it was done, finds its checkpoint and writes nothing,
and a query that was killed goes on at any parallelism.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, NullKeyError
from statestore.format.left_out import LeftOutState, refuse_left_out
from statestore.format.manifest import Manifest
from statestore.restarts import brief
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.writer import CheckpointWriter
from statestore.spark.cached import compute, few_of_driver
from statestore.spark.compat import refuse_connect
from statestore.spark.read import at_hand, keys_in_use
from statestore.spark.session import hand_on
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.planned import MicroBatch, planned, source_folders
from statestore.streaming.processor import Processing, processing_of, with_ticks
from statestore.streaming.progress import Progress
from statestore.streaming.states import QueryState, brought_over, options_of, to_evolve
from statestore.streaming.timer_index import INDEX
from statestore.streaming.updates import ByKey, Changes, Updated
from statestore.streaming.worker_errors import worker_errors

__all__ = ["StatefulQuery", "Trials"]

_log = logging.getLogger(__name__)


class QueryOptions(TypedDict, total=False):
    """Fields of a :class:`StatefulQuery` that a query of a processor has too."""

    source: str
    succeeds: bool
    cache_bytes: int
    retain: int | None
    expire_every: int
    on_commit: Callable[[Manifest], object] | None
    leave_out: Collection[str]


Update = Callable[
    [DataFrame, Mapping[str, DataFrame], MicroBatch],
    "Mapping[str, DataFrame | Changes] | Updated",
]


@dataclass(frozen=True)
class _Step:
    """What a micro-batch begins with: its events and keys, and the checkpoint before it."""

    events: DataFrame
    states: Mapping[str, QueryState]
    keys: pa.Table
    restored: RestoredCheckpoint | None
    done: Progress
    in_other_form: tuple[str, ...]


class Trials:
    """When it is tried whether the events of a micro-batch are few, which costs a job if they are
    not: of those behind one that had many, or had them in several partitions, only now and then.
    """

    _LEFT_OUT = 15

    def __init__(self) -> None:
        self._left_out = 0

    def next(self) -> bool:
        """Return whether it is tried with the next micro-batch."""
        self._left_out = max(self._left_out - 1, 0)
        return not self._left_out

    def was(self, *, few: bool) -> None:
        """Note what came of it."""
        self._left_out = 0 if few else self._LEFT_OUT + 1


@dataclass(frozen=True, kw_only=True)
class StatefulQuery:
    """Keyed states of an operator, and how a micro-batch changes them.

    ``states`` are by name, each its columns in Spark's words (``"user string, n long"``) or a
    :class:`QueryState`; all have the columns ``key``. ``update(events, states, batch)`` gets a
    micro-batch and, by state, the stored rows of the keys in it, as DataFrames of one session. It
    returns, by state, rows to put in their place, or :class:`Changes`; a state that it does not
    name stays as it is. Times to live go by when Spark planned the micro-batch, which is the same
    when it runs again. :meth:`of_processor` makes a query of a ``StatefulProcessor``.

    Rows that come out (``Updated.output``) go to ``output(frame, batch)`` before the micro-batch is
    committed. When it runs again, that is called again, with the same ``batch.number``.

    The number of the micro-batch, and where the sources end, are kept as operator state of
    ``source``; other states of the newest checkpoint are in each new one as they are. A query with
    another checkpoint location than the last one is refused unless it ``succeeds`` that.

    The driver, or each of Spark's Python workers where those look rows up, holds up to
    ``cache_bytes`` of decoded files, so that they are not read again for the next micro-batch. With
    ``retain`` no more than about so many checkpoints are kept (savepoints and pins stay): of every
    ``expire_every`` one expires what is beyond. ``on_commit`` is called with each manifest.

    If the store lacks the state of the operator because an import left it out, the query is refused
    (``LeftOutStateError``). ``leave_out`` names state to begin without: ``operator`` or
    ``operator/state``.
    """

    store: StateStore
    uid: str
    key: str | Sequence[str]
    states: Mapping[str, str | QueryState]
    update: Update | Processing
    parallelism: int
    source: str = "source"
    succeeds: bool = False
    cache_bytes: int = 256 * 2**20
    retain: int | None = None
    expire_every: int = 16
    output: Callable[[DataFrame, MicroBatch], object] | None = None
    on_commit: Callable[[Manifest], object] | None = None
    leave_out: Collection[str] = ()
    _trials: Trials = field(default_factory=Trials, init=False, repr=False, compare=False)
    _logged: set[LeftOutState] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def of_processor(
        cls,
        *,
        store: StateStore,
        uid: str,
        processor: StatefulProcessor,
        key: str | Sequence[str],
        output_schema: str | StructType,
        output_mode: str,
        time_mode: str,
        parallelism: int,
        output: Callable[[DataFrame, MicroBatch], object] | None = None,
        initial_state: DataFrame | None = None,
        pandas: bool = False,
        max_parallelism: int | None = None,
        **options: Unpack[QueryOptions],
    ) -> StatefulQuery:
        """Return a query of a processor that was written for Spark's ``transformWithState``.

        Its class is used as it is. Each of its states is a keyed state of the operator by its own
        name, and so are its ``timers``; they are named as an import of a query on Spark's own state
        names them, so that it goes on with what was imported.

        Args:
            store: where the states are.
            uid: the operator.
            processor: what ``transformWithState`` takes as ``statefulProcessor``.
            key: the columns that events are grouped by.
            output_schema: the columns of the rows that it yields.
            output_mode: ``Append`` or ``Update``.
            time_mode: ``None``, ``ProcessingTime`` or ``EventTime``; with the last the events have
                a watermark.
            parallelism: how many tasks call it, and subtasks of the states.
            output: is called with the rows of each micro-batch that it yields.
            initial_state: rows for ``handleInitialState``, with the columns ``key``.
            pandas: says that it was written for ``transformWithStateInPandas``.
            max_parallelism: the number of key groups; by default as stored, else Flink's default.
            **options: other fields of the query.

        Returns:
            The query.

        Raises:
            InvalidArgumentError: for modes that are not known, two states of one name, a time to
                live or a timer that the time mode does not have.
        """
        processing = processing_of(
            uid,
            processor,
            key,
            output_schema,
            output_mode=output_mode,
            time_mode=time_mode,
            pandas=pandas,
            max_parallelism=max_parallelism,
            initial_state=initial_state,
        )
        return cls(
            store=store,
            uid=uid,
            key=key,
            states={},
            update=processing,
            parallelism=parallelism,
            output=output,
            **options,
        )

    def start(
        self,
        events: DataFrame,
        checkpoint_location: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **trigger: Any,
    ) -> StreamingQuery:
        """Start the query over a streaming DataFrame; return Spark's handle of it.

        ``checkpoint_location`` is Spark's, a path or URL for this query alone: a query that is
        started again with it goes on. ``storage_options`` say how to read it, as those of a store;
        ``trigger`` is what ``DataStreamWriter.trigger`` takes; by default a query of a processor
        with timers looks once a second, and any other at once. An error ends the query, and
        :meth:`process` says which there are; it is logged in one line, as Spark's own exception
        has it among the stacks of two languages.
        """
        refuse_connect(events, "a StatefulQuery")
        location = open_storage(checkpoint_location, storage_options)
        hand_on(events.sparkSession, location)
        ticks = isinstance(self.update, Processing) and self.update.has_timers
        if ticks:
            events = with_ticks(events)
            trigger = trigger or {"processingTime": "1 second"}
        folders = source_folders(events)

        def run(batch: DataFrame, number: int) -> None:
            try:
                self.process(batch, planned(location, number, ticks=ticks, folders=folders))
            except Exception as error:
                _log.error(
                    "micro-batch %d of operator %r is not committed: %s",
                    *(number, self.uid, brief(error)),
                )
                raise

        writer = events.writeStream.foreachBatch(run)
        # As a URL: a relative path would be one of the JVM's working folder, if that is another.
        writer = writer.option("checkpointLocation", location.spark_url("").rstrip("/"))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def process(self, events: DataFrame, batch: MicroBatch) -> Manifest | None:
        """Commit one micro-batch; return its manifest, None when the store has it already, and for
        one of a processor that has no events, and no timers that are due.

        Raises CommitConflictError when another writer has taken the store over, NullKeyError for
        events without a key, SchemaMismatchError when the update returns other columns than the
        state's, InvalidArgumentError for a query or a micro-batch that cannot be the next one, and
        what ``checkpoint.changes`` raises; nothing is committed.
        """
        # The store is claimed before it is looked at: what is newest then stays so until we commit.
        checkpoint = self.store.snapshot(parallelism=self.parallelism, now_ms=batch.planned_at_ms)
        with _kept() as keep:
            try:
                step = self._step(events, batch, keep)
            except BaseException:
                checkpoint.give_up()
                raise
            if step is None:
                checkpoint.give_up()
                return None
            if step.in_other_form:
                checkpoint.give_up()
                self._evolve(step, batch)
                return self.process(events, batch)
            with checkpoint:
                updated = self._updated(step, batch, keep)
                if self.output is not None and updated.output is not None:
                    self.output(updated.output, batch)
                done = step.done.with_done(batch)
                for name, one in step.states.items():
                    changes = self._changes(name, updated)
                    if changes.shared is not None:
                        with worker_errors():
                            compute(keep(changes.shared))
                    self._write(checkpoint, name, one, changes, step)
                self._drop_deleted(checkpoint, step)
                self._put(done, checkpoint)
                checkpoint.carry_rest()
        self._after(checkpoint.manifest)
        return checkpoint.manifest

    def _step(
        self, events: DataFrame, batch: MicroBatch, keep: Callable[[DataFrame], DataFrame]
    ) -> _Step | None:
        """Return what a micro-batch begins with; None when there is nothing to do."""
        restored = self._newest(batch)
        done = self._progress(restored, batch)
        if done.has(batch):
            return None
        rows = None
        if self._trials.next():
            events, rows = at_hand(events)
            self._trials.was(few=rows is not None)
        if rows is None:
            # What is in Spark's cache has a known size: few rows then need no Python worker.
            events = keep(events)
            compute(events)
        states = self._states(events)
        self._refuse_left_out(restored, states)
        keys = self._keys(events, rows, batch, restored, states, done)
        others = [] if restored is None else to_evolve(restored, self.uid, states)
        if restored is not None and isinstance(self.update, Processing):
            others += [] if self.update.is_indexed(restored, done) else [INDEX]
        step = _Step(events, states, keys, restored, done, tuple(others))
        is_tick = isinstance(self.update, Processing) and batch.before is not None
        is_idle = not keys.num_rows and is_tick and done.ends_like(batch)
        return None if is_idle and not self._is_first(step) else step

    def _refuse_left_out(
        self, restored: RestoredCheckpoint | None, states: Mapping[str, QueryState]
    ) -> None:
        """Refuse to begin with no rows where the store lacks the rows of its source (I16).

        A state that lacks a part of its rows goes on. That is logged, once for each part.
        """
        if restored is None:
            return
        missing = [
            record
            for record in restored.manifest.left_out
            if record.operator == self.uid
            and (
                record.state is None
                or (record.state in states and not self._has(restored, record.state))
            )
        ]
        refuse_left_out(missing, self.leave_out, restored.checkpoint_id, "the query")
        for record in restored.manifest.left_out:
            is_known = record in missing or record in self._logged
            if not is_known and any(record.lacks(self.uid, name) for name in states):
                self._logged.add(record)
                _log.warning(
                    "operator %r goes on without rows that checkpoint %d lacks of its source: %s",
                    *(self.uid, restored.checkpoint_id, record),
                )

    def _evolve(self, step: _Step, batch: MicroBatch) -> None:
        """Take a checkpoint of the stored states in the form that the query has them in."""
        assert step.restored is not None
        _log.info(
            "operator %r: rows of %s get the columns and the time to live of the query",
            *(self.uid, ", ".join(step.in_other_form)),
        )
        restored, update = step.restored, self.update
        now_ms = batch.planned_at_ms
        with self.store.snapshot(parallelism=self.parallelism, now_ms=now_ms) as checkpoint:
            for name in step.in_other_form:
                state = step.states[name]
                if isinstance(update, Processing) and name == INDEX:
                    rows = update.index(restored, batch)
                else:
                    rows = brought_over(restored.keyed(self.uid, name), state)
                options = {"key": self._key, **state.options}
                if name != INDEX:
                    options |= options_of(restored.keyed(self.uid, name).entry.state, state)
                checkpoint.keyed(self.uid, name, rows, **options)
            # The same rows in another form do not bring back what was missing before.
            checkpoint.record_left_out(restored.manifest.left_out)
            self._put(step.done, checkpoint)
            checkpoint.carry_rest()

    def _put(self, done: Progress, checkpoint: CheckpointWriter) -> None:
        """Write the progress; with a processor's timers a checkpoint has their index."""
        if isinstance(self.update, Processing) and self.update.has_timers:
            done = replace(done, indexed=checkpoint.planned[0])
        done.write(checkpoint, self.source, self.parallelism)

    def _is_first(self, step: _Step) -> bool:
        """Return whether none of the states is stored."""
        return not any(self._has(step.restored, name) for name in step.states)

    @property
    def _key(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else list(self.key)

    def _states(self, events: DataFrame) -> dict[str, QueryState]:
        if isinstance(self.update, Processing):
            return self.update.states(events.schema)
        return {
            name: one if isinstance(one, QueryState) else QueryState(one)
            for name, one in self.states.items()
        }

    def _newest(self, batch: MicroBatch) -> RestoredCheckpoint | None:
        try:
            return self.store.restore(parallelism=self.parallelism, now_ms=batch.planned_at_ms)
        except CheckpointNotFoundError:
            return None

    def _progress(self, restored: RestoredCheckpoint | None, batch: MicroBatch) -> Progress:
        """Return what the newest checkpoint says; InvalidArgumentError for a micro-batch that
        cannot be the next one.
        """
        has_state = restored is not None and self._has_any(restored)
        done = Progress() if restored is None else Progress.of(restored, self.source)
        subject = f"operator {self.uid!r}"
        done.check(batch, subject, has_state=has_state, succeeds=self.succeeds)
        return done

    def _has_any(self, restored: RestoredCheckpoint) -> bool:
        """Return whether a checkpoint has a state of the query, of a processor one of any name."""
        own = None if isinstance(self.update, Processing) else set(self.states)
        return any(
            entry.state.uid == self.uid and (own is None or entry.state.name in own)
            for entry in restored.manifest.keyed
        )

    def _has(self, restored: RestoredCheckpoint | None, name: str) -> bool:
        return restored is not None and any(
            (entry.state.uid, entry.state.name) == (self.uid, name)
            for entry in restored.manifest.keyed
        )

    def _keys(
        self,
        events: DataFrame,
        rows: pa.Table | None,
        batch: MicroBatch,
        restored: RestoredCheckpoint | None,
        states: Mapping[str, QueryState],
        done: Progress,
    ) -> pa.Table:
        """Return the keys of the events, whose rows may be at hand, and those with timers that are
        due.
        """
        keys = keys_in_use(events, self._key, rows)
        schemes = {self._hash_scheme(name, one, restored) for name, one in states.items()}
        if keys.null_keys and schemes != {"flink-sql"}:
            raise NullKeyError(
                f"{keys.null_keys} events of micro-batch {batch.number} have a null key "
                f"({', '.join(self._key)}), which has no key group: leave them out of the "
                "streaming DataFrame, or fill them",
                keys.null_keys,
            )
        if restored is None or not isinstance(self.update, Processing):
            return keys.rows
        own, due = self.update.keys(keys.rows), self.update.due(restored, batch, done)
        return own if due is None else pa.concat_tables([own, due.cast(own.schema)])

    def _hash_scheme(
        self, name: str, state: QueryState, restored: RestoredCheckpoint | None
    ) -> str | None:
        """Return how keys are hashed, if that is not the default: there may be null ones then."""
        if restored is None or not self._has(restored, name):
            return state.options.get("hash_scheme")
        return restored.keyed(self.uid, name).entry.state.hash_scheme

    def _touched(self, name: str, step: _Step) -> DataFrame:
        """Return the stored rows of the keys in a micro-batch, in the columns of the schema."""
        state, spark = step.states[name], step.events.sparkSession
        if step.restored is None or not step.keys.num_rows or not self._has(step.restored, name):
            return spark.createDataFrame([], state.struct)
        stored = step.restored.keyed(self.uid, name)
        names = state.struct.names
        return stored.lookup_in_spark(step.keys, names, cache_bytes=self.cache_bytes, spark=spark)

    def _updated(
        self, step: _Step, batch: MicroBatch, keep: Callable[[DataFrame], DataFrame]
    ) -> Updated:
        is_first = self._is_first(step)
        if isinstance(self.update, Processing) and not (step.keys.num_rows or is_first):
            return Updated({})
        touched = {
            name: self._touched(name, step)
            for name, one in step.states.items()
            if not one.is_derived
        }
        if isinstance(self.update, Processing):
            return self.update.run(
                step.events,
                touched,
                batch,
                keep,
                restored=step.restored,
                parallelism=self.parallelism,
                is_first=is_first,
            )
        held = {name: few_of_driver(one) or keep(one) for name, one in touched.items()}
        update = self.update
        if isinstance(update, ByKey):
            update = replace(update, operator=self.uid)
        updated = update(step.events, held, batch)
        if isinstance(updated, Mapping):
            updated = Updated(updated)
        if not isinstance(updated, Updated):
            raise InvalidArgumentError(
                "update returns rows by the name of the state, or Updated, not "
                f"{type(updated).__name__}"
            )
        unknown = sorted(updated.changes.keys() - touched.keys())
        if unknown:
            raise InvalidArgumentError(
                f"update returns rows of {unknown[0]!r}, and the query has the states "
                f"({', '.join(touched)})"
            )
        return updated

    def _changes(self, name: str, updated: Updated) -> Changes:
        changes = updated.changes.get(name, Changes())
        if isinstance(changes, DataFrame):
            return Changes(upserts=changes)
        if not isinstance(changes, Changes):
            raise InvalidArgumentError(
                f"update returns a DataFrame or Changes for state {name!r}, not "
                f"{type(changes).__name__}"
            )
        return changes

    def _write(
        self,
        checkpoint: CheckpointWriter,
        name: str,
        state: QueryState,
        changes: Changes,
        step: _Step,
    ) -> None:
        """Write what changed; of a state that is not stored yet all rows, if only none."""
        options = {"key": self._key, **state.kept_options}
        upserts, restored = changes.upserts, step.restored
        if restored is None or not self._has(restored, name):
            if upserts is None:
                upserts = step.events.sparkSession.createDataFrame([], state.struct)
            checkpoint.keyed(self.uid, name, upserts, **options)
            return
        if upserts is None and changes.deletes is None and changes.cleared is None:
            return
        checkpoint.changes(
            self.uid,
            name,
            upserts,
            changes.deletes,
            cleared=changes.cleared,
            base=restored.checkpoint_id,
            **options,
        )

    def _drop_deleted(self, checkpoint: CheckpointWriter, step: _Step) -> None:
        """Leave out the states that the processor says are no longer there."""
        if not isinstance(self.update, Processing):
            return
        for name in self.update.deleted:
            if name not in step.states and self._has(step.restored, name):
                checkpoint.drop(self.uid, name)

    def _after(self, manifest: Manifest) -> None:
        if self.retain is not None and manifest.checkpoint_id % self.expire_every == 0:
            self.store.maintenance.expire(retain=self.retain)
        if self.on_commit is not None:
            self.on_commit(manifest)


@contextmanager
def _kept() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Return what keeps DataFrames, computed once, until the block ends."""
    frames: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        frames.append(frame.persist())
        return frame

    try:
        yield keep
    finally:
        for frame in reversed(frames):
            frame.unpersist()
