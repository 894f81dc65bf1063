"""A stateful query that keeps its state in a store: each micro-batch is one checkpoint.

Only the state of the keys that a micro-batch touches is loaded. One manifest has the update's
results, the end of each source, and the number of the micro-batch. If Spark runs a micro-batch
again because it does not know whether it was done, the query finds its checkpoint and writes
nothing. A query that was killed can continue at any parallelism.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from statestore.durations import milliseconds_of
from statestore.errors import CheckpointNotFoundError, InvalidArgumentError, NullKeyError
from statestore.format.left_out import LeftOutState, refuse_left_out
from statestore.format.manifest import Manifest
from statestore.format.names import refuse_reserved
from statestore.restarts import brief
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.state_spec import Changes
from statestore.snapshot.writer import CheckpointWriter
from statestore.spark.bucket_access import configure_storage_access
from statestore.spark.cached_rows import compute
from statestore.spark.compat import refuse_connect
from statestore.spark.error_cause import example_rows
from statestore.spark.hashing import column_of
from statestore.spark.state_lookup import collect_if_few, keys_in_use
from statestore.storage import open_storage
from statestore.store import StateStore
from statestore.streaming.planned import (
    MicroBatch,
    planned,
    refuse_truncated_id,
    source_folders,
)
from statestore.streaming.processor import Processing, processing_of, with_ticks
from statestore.streaming.progress import Progress, refuse_changed_offsets
from statestore.streaming.query_options import (
    DEFAULTS,
    ProcessorOptions,
    QueryOptions,
    QueryState,
    convert_stored_rows,
    options_of,
    refuse_other_form,
    states_to_evolve,
    stored_states,
)
from statestore.streaming.updates import (
    FunctionUpdate,
    Update,
    Updated,
    UpdateStrategy,
    worker_errors,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Step:
    """The inputs of a micro-batch: its events and keys, and the previous checkpoint."""

    events: DataFrame
    states: Mapping[str, QueryState]
    keys: pa.Table
    restored: RestoredCheckpoint | None
    progress: Progress
    in_other_form: tuple[str, ...]


class SmallBatchProbe:
    """Decides when to probe whether a micro-batch is small. A failed probe costs one Spark job.

    After a micro-batch with many events, or with events in several partitions, only every 16th
    micro-batch is probed.
    """

    _LEFT_OUT = 15

    def __init__(self) -> None:
        self._left_out = 0

    def next(self) -> bool:
        """Return whether to probe the next micro-batch."""
        self._left_out = max(self._left_out - 1, 0)
        return not self._left_out

    def record(self, *, is_small: bool) -> None:
        """Record the result of a probe."""
        self._left_out = 0 if is_small else self._LEFT_OUT + 1


@dataclass(frozen=True, kw_only=True)
class StatefulQuery:
    """Keyed states of an operator, and how a micro-batch changes them.

    ``states`` maps each name to the state's columns as Spark DDL (``"user string, n long"``) or to
    a :class:`QueryState`; all states have the columns ``key``.

    ``update(events, states, batch)`` gets the events of a micro-batch and, by state, the stored
    rows of their keys, as DataFrames of one session. It returns, by state, replacement rows or
    :class:`Changes`. A state that it does not return stays unchanged. TTLs are evaluated at the
    time when Spark planned the micro-batch, which is the same when it runs again.
    :meth:`of_processor` makes a query of a ``StatefulProcessor``.

    Output rows (``Updated.output``) are passed to ``output(frame, batch)`` before the micro-batch
    is committed. When the micro-batch runs again, ``output`` is called again, with the same
    ``batch.number``.

    The number of the micro-batch and the ends of the sources are stored as operator state of
    ``options.source``. Other states of the newest checkpoint are carried into each new one. A query
    whose checkpoint location differs from the last query's is refused unless ``options.succeeds``
    is set.

    If the store lacks the operator's state because an import left it out, the query is refused
    (``LeftOutStateError``), unless ``options.leave_out`` names the state.
    """

    store: StateStore
    operator: str
    key: str | Sequence[str]
    states: Mapping[str, str | QueryState]
    update: Update | Processing
    parallelism: int
    output: Callable[[DataFrame, MicroBatch], object] | None = None
    options: QueryOptions = DEFAULTS
    _trials: SmallBatchProbe = field(
        default_factory=SmallBatchProbe, init=False, repr=False, compare=False
    )
    _logged: set[LeftOutState] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def of_processor(
        cls,
        *,
        store: StateStore,
        operator: str,
        processor: StatefulProcessor,
        processor_options: ProcessorOptions,
        key: str | Sequence[str],
        parallelism: int,
        output: Callable[[DataFrame, MicroBatch], object] | None = None,
        options: QueryOptions = DEFAULTS,
    ) -> StatefulQuery:
        """Return a query of a processor that was written for Spark's ``transformWithState``.

        Its class is used unchanged. Each of its states is a keyed state of the operator under its
        own name, and so are its ``timers``. The names are the same as in an import of a query on
        Spark's own state, so the query can continue from an import.

        Args:
            store: the store of the states.
            operator: the operator's uid.
            processor: the ``statefulProcessor`` of ``transformWithState``.
            processor_options: the other arguments of ``transformWithState``.
            key: the columns that events are grouped by.
            parallelism: the number of tasks that call it, and of subtasks of the states.
            output: called with the rows that each micro-batch yields.
            options: options of any query.

        Returns:
            The query.

        Raises:
            InvalidArgumentError: for unknown modes, two states with one name, and a TTL or a timer
                that the time mode does not support.
        """
        return cls(
            store=store,
            operator=operator,
            key=key,
            states={},
            update=processing_of(operator, processor, key, processor_options),
            parallelism=parallelism,
            output=output,
            options=options,
        )

    def start(
        self,
        events: DataFrame,
        checkpoint_location: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        available_now: bool = False,
        processing_time: timedelta | str | None = None,
    ) -> StreamingQuery:
        """Start the query over a streaming DataFrame.

        If the query is started again with the same checkpoint location, it continues. An error ends
        it; :meth:`process` lists the errors. It is logged in one line, because Spark's own
        exception has it between the stack traces of two languages.

        Args:
            events: the streaming DataFrame.
            checkpoint_location: Spark's checkpoint location, a path or URL for this query alone.
            storage_options: the options for reading the location, as for a store.
            available_now: True if the query ends when it has processed the available events.
            processing_time: the interval between micro-batches, such as ``"10s"``. By default a
                processor with timers is triggered once a second, and any other query as soon as
                possible.

        Returns:
            Spark's handle of the query.

        Raises:
            InvalidArgumentError: for both triggers, an invalid interval, a column with a name that
                is reserved for the store, or a checkpoint location with a truncated ``metadata``.
                Also for Spark Connect, where each micro-batch can be passed to :meth:`process`.
        """
        if available_now and processing_time is not None:
            raise InvalidArgumentError(
                "available_now and processing_time exclude each other; pass one of them"
            )
        interval = None if processing_time is None else milliseconds_of(processing_time)
        writer = self.writer(events, checkpoint_location, storage_options=storage_options)
        if self._strategy.has_timers and interval is None and not available_now:
            interval = 1000
        if available_now:
            writer = writer.trigger(availableNow=True)
        elif interval is not None:
            writer = writer.trigger(processingTime=f"{interval} milliseconds")
        return writer.start()

    def writer(
        self,
        events: DataFrame,
        checkpoint_location: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> DataStreamWriter:
        """Return the query as Spark starts it, without a trigger; the arguments of :meth:`start`.

        Raises:
            InvalidArgumentError: for a column with a name that is reserved for the store, or a
                checkpoint location with a truncated ``metadata``.
        """
        refuse_connect(
            events,
            "starting a StatefulQuery",
            "pass each micro-batch and its MicroBatch to process(…), for example in foreachBatch",
        )
        location = open_storage(checkpoint_location, storage_options)
        refuse_truncated_id(location)
        configure_storage_access(events.sparkSession, location)
        self.declared_states(events.schema)
        ticks = self._strategy.has_timers
        if ticks:
            events = with_ticks(events)
        folders = source_folders(events)

        def run(batch: DataFrame, number: int) -> None:
            try:
                self.process(batch, planned(location, number, ticks=ticks, folders=folders))
            except Exception as error:
                _log.error(
                    "micro-batch %d of operator %r was not committed: %s",
                    *(number, self.operator, brief(error)),
                )
                raise

        writer = events.writeStream.foreachBatch(run)
        # A URL, because the JVM would resolve a relative path in its own working folder.
        return writer.option("checkpointLocation", location.spark_url("").rstrip("/"))

    def process(self, events: DataFrame, batch: MicroBatch) -> Manifest | None:
        """Commit one micro-batch; return its manifest, or None if there is nothing to commit.

        There is nothing to commit if the store already has the micro-batch. The same holds for a
        processor's micro-batch without events and without due timers.

        Raises CommitConflictError when another writer has taken over the store, NullKeyError for
        events without a key, and SchemaMismatchError when the update returns other columns than the
        state's. Raises InvalidArgumentError for a query or a micro-batch that cannot be the next
        one, and the errors of ``checkpoint.write_changes``. In all these cases nothing is
        committed.
        """
        # Claim the store before reading it: no other writer can then commit before this one.
        checkpoint = self.store.snapshot(parallelism=self.parallelism, now_ms=batch.planned_at_ms)
        with _caching_frames() as keep:
            try:
                step = self._step(events, batch, keep)
            except BaseException:
                checkpoint.abandon()
                raise
            if step is None:
                checkpoint.abandon()
                return None
            if step.in_other_form:
                checkpoint.abandon()
                self._evolve(step, batch)
                return self.process(events, batch)
            with checkpoint:
                updated = self._updated(step, batch, keep)
                if self.output is not None and updated.output is not None:
                    self.output(updated.output, batch)
                progress = step.progress.with_done(batch)
                for frame in updated.shared:
                    with worker_errors():
                        compute(keep(frame))
                for name, state in step.states.items():
                    changes = self._changes(name, updated)
                    self._write(checkpoint, name, state, changes, step)
                self._drop_deleted(checkpoint, step)
                self._put(progress, checkpoint)
                checkpoint.carry_rest()
        self._after(checkpoint.manifest)
        return checkpoint.manifest

    def _step(
        self, events: DataFrame, batch: MicroBatch, keep: Callable[[DataFrame], DataFrame]
    ) -> _Step | None:
        """Return the inputs of a micro-batch; None when there is nothing to do."""
        restored = self._newest(batch)
        progress = self._progress(restored, batch)
        if progress.has(batch):
            return None
        rows = None
        if self._trials.next():
            events, rows = collect_if_few(events)
            self._trials.record(is_small=rows is not None)
        if rows is None:
            # A cached DataFrame has a known size: few rows then need no Python worker.
            events = keep(events)
            compute(events)
        states = self.declared_states(events.schema)
        self._refuse_left_out(restored, states)
        keys = self._keys(events, rows, batch, restored, states, progress)
        others = [] if restored is None else states_to_evolve(restored, self.operator, states)
        others += [] if restored is None else self._strategy.outdated(restored, progress)
        step = _Step(events, states, keys, restored, progress, tuple(others))
        is_tick = self._strategy.needs_keys and batch.before is not None
        is_idle = not keys.num_rows and is_tick and progress.ends_like(batch)
        return None if is_idle and not self._is_first(step) else step

    def _refuse_left_out(
        self, restored: RestoredCheckpoint | None, states: Mapping[str, QueryState]
    ) -> None:
        """Refuse to start with an empty state if an import left out the source's rows (I16).

        A state that lacks only a part of its rows is accepted. A warning is logged once for each
        part.
        """
        if restored is None:
            return
        missing = [
            record
            for record in restored.manifest.left_out
            if record.operator == self.operator
            and (
                record.state is None
                or (record.state in states and not self._has(restored, record.state))
            )
        ]
        refuse_left_out(missing, self.options.leave_out, restored.checkpoint_id, "the query")
        for record in restored.manifest.left_out:
            is_known = record in missing or record in self._logged
            if not is_known and any(record.lacks(self.operator, name) for name in states):
                self._logged.add(record)
                _log.warning(
                    (
                        "operator %r continues without rows of its source that checkpoint %d "
                        "lacks: %s"
                    ),
                    *(self.operator, restored.checkpoint_id, record),
                )

    def _evolve(self, step: _Step, batch: MicroBatch) -> None:
        """Take a checkpoint of the stored states, converted to the query's schema and TTL."""
        assert step.restored is not None
        _log.info(
            "operator %r: rows of %s get the columns and the TTL of the query",
            *(self.operator, ", ".join(step.in_other_form)),
        )
        restored = step.restored
        now_ms = batch.planned_at_ms
        with self.store.snapshot(parallelism=self.parallelism, now_ms=now_ms) as checkpoint:
            for name in step.in_other_form:
                state = step.states[name]
                rows, options = self._strategy.rebuild(name, restored, batch), state.options
                if rows is None:
                    stored = restored.keyed(self.operator, name)
                    rows, options = (
                        convert_stored_rows(stored, state),
                        options_of(stored.entry.state, state),
                    )
                entry = checkpoint.write_keyed(self.operator, name, rows, **options)
                refuse_other_form(entry.state, state)
            # Rows in another form do not restore rows that were missing before.
            checkpoint.collected.record(left_out=restored.manifest.left_out)
            self._put(step.progress, checkpoint)
            checkpoint.carry_rest()
        self._after(checkpoint.manifest)

    def declared_states(self, events: StructType) -> dict[str, QueryState]:
        """Return the states that the query keeps, with their keys.

        Args:
            events: The columns of the events. Only a query of a processor needs them.

        Returns:
            The states by name.

        Raises:
            InvalidArgumentError: for a reserved column name, and if the events lack a column of a
                processor's key.
        """
        states = {
            name: state.with_defaults({"key": self._key})
            for name, state in self._strategy.states(events).items()
        }
        for name, state in states.items():
            refuse_reserved(state.struct.names, f"state {name!r} of operator {self.operator!r}")
        return states

    def _put(self, progress: Progress, checkpoint: CheckpointWriter) -> None:
        """Write the progress; for a processor with timers, record that they are indexed."""
        if self._strategy.has_timers:
            progress = replace(progress, indexed=checkpoint.planned[0])
        progress.write(checkpoint, self.options.source, self.parallelism)

    def _is_first(self, step: _Step) -> bool:
        """Return whether the store has none of the states."""
        return not any(self._has(step.restored, name) for name in step.states)

    @property
    def _key(self) -> list[str]:
        return [self.key] if isinstance(self.key, str) else list(self.key)

    @property
    def _strategy(self) -> UpdateStrategy:
        if isinstance(self.update, Processing):
            return self.update
        return FunctionUpdate(self.operator, self.states, self.update)

    def _newest(self, batch: MicroBatch) -> RestoredCheckpoint | None:
        try:
            return self.store.restore(parallelism=self.parallelism, now_ms=batch.planned_at_ms)
        except CheckpointNotFoundError:
            return None

    def _progress(self, restored: RestoredCheckpoint | None, batch: MicroBatch) -> Progress:
        """Return the progress that the newest checkpoint records.

        Raises InvalidArgumentError for a micro-batch that cannot be the next one.
        """
        stored = stored_states(restored, self.operator)
        has_state = any(map(self._strategy.owns, stored))
        progress = Progress() if restored is None else Progress.of(restored, self.options.source)
        subject = f"operator {self.operator!r}"
        progress.check(batch, subject, has_state=has_state, succeeds=self.options.succeeds)
        if restored is not None and progress.queries and progress.queries[-1][0] == batch.query:
            refuse_changed_offsets(restored, self.options.source, progress)
        return progress

    def _has(self, restored: RestoredCheckpoint | None, name: str) -> bool:
        return name in stored_states(restored, self.operator)

    def _keys(
        self,
        events: DataFrame,
        rows: pa.Table | None,
        batch: MicroBatch,
        restored: RestoredCheckpoint | None,
        states: Mapping[str, QueryState],
        progress: Progress,
    ) -> pa.Table:
        """Return the keys of the events, and the keys with due timers.

        ``rows`` are the events as a table, if they were already collected.
        """
        keys = keys_in_use(events, self._key, rows)
        schemes = {self._hash_scheme(name, state, restored) for name, state in states.items()}
        if keys.null_keys and schemes != {"flink-sql"}:
            is_null = reduce(or_, [column_of(name).isNull() for name in self._key])
            examples = example_rows(events.where(is_null))
            raise NullKeyError(
                (
                    f"{keys.null_keys} events of micro-batch {batch.number} have a null key "
                    f"({', '.join(self._key)}), which has no key group, such as "
                    f"{'; '.join(examples)}: remove them from the streaming DataFrame, or fill the "
                    "key"
                ),
                keys.null_keys,
                examples,
            )
        return self._strategy.keys(keys.rows, restored, batch, progress)

    def _hash_scheme(
        self, name: str, state: QueryState, restored: RestoredCheckpoint | None
    ) -> str | None:
        """Return the hash scheme of a state, None for the default; some schemes allow nulls."""
        if restored is None or not self._has(restored, name):
            return state.options.get("hash_scheme")
        return restored.keyed(self.operator, name).entry.state.hash_scheme

    def _touched(self, name: str, step: _Step) -> DataFrame:
        """Return the stored rows of the keys in a micro-batch, in the columns of the schema."""
        state, spark = step.states[name], step.events.sparkSession
        if step.restored is None or not step.keys.num_rows or not self._has(step.restored, name):
            return spark.createDataFrame([], state.struct)
        stored = step.restored.keyed(self.operator, name)
        names = state.struct.names
        return stored.lookup_in_spark(
            step.keys, names, cache_bytes=self.options.cache_bytes, spark=spark
        )

    def _updated(
        self, step: _Step, batch: MicroBatch, keep: Callable[[DataFrame], DataFrame]
    ) -> Updated:
        is_first = self._is_first(step)
        if self._strategy.needs_keys and not (step.keys.num_rows or is_first):
            return Updated({})
        touched = {
            name: self._touched(name, step)
            for name, state in step.states.items()
            if not state.is_derived
        }
        return self._strategy.run(
            step.events,
            touched,
            batch,
            keep,
            restored=step.restored,
            parallelism=self.parallelism,
            is_first=is_first,
        )

    def _changes(self, name: str, updated: Updated) -> Changes:
        changes = updated.changes.get(name, Changes())
        if isinstance(changes, DataFrame):
            return Changes(upserts=changes)
        if not isinstance(changes, Changes):
            raise InvalidArgumentError(
                f"update must return a DataFrame or Changes for state {name!r}, not "
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
        """Write the changes of a state; a state that is not stored yet is written in full."""
        options = state.kept_options
        upserts, restored = changes.upserts, step.restored
        if restored is None or not self._has(restored, name):
            if upserts is None:
                upserts = step.events.sparkSession.createDataFrame([], state.struct)
            checkpoint.write_keyed(self.operator, name, upserts, **options)
            return
        if upserts is None and changes.deletes is None and changes.cleared is None:
            return
        checkpoint.write_changes(
            self.operator, name, changes, base=restored.checkpoint_id, **options
        )

    def _drop_deleted(self, checkpoint: CheckpointWriter, step: _Step) -> None:
        """Drop the states that the processor has deleted."""
        for name in self._strategy.deleted:
            if name not in step.states and self._has(step.restored, name):
                checkpoint.drop(self.operator, name)

    def _after(self, manifest: Manifest) -> None:
        options = self.options
        if options.retention and manifest.checkpoint_id % options.retention.every == 0:
            self.store.maintenance.expire(retain=options.retention.keep)
        if options.on_commit is not None:
            options.on_commit(manifest)


@contextmanager
def _caching_frames() -> Iterator[Callable[[DataFrame], DataFrame]]:
    """Yield a function that persists DataFrames until the block ends."""
    frames: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        frames.append(frame.persist())
        return frame

    try:
        yield keep
    finally:
        for frame in reversed(frames):
            frame.unpersist()
