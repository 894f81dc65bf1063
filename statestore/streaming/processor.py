"""Runs a ``StatefulProcessor``, written for Spark's ``transformWithState``, on a store's states.

For each micro-batch the driver finds the keys to process: the keys of the events, and the keys with
due timers. One shuffle brings the rows of all states of these keys together with the events, and
tasks call the processor. The behavior around it follows Spark: late events are dropped, a key's due
timers fire after its events, and a timer is removed after it has fired
(TransformWithStateInPySparkExec, TransformWithStateInPandasUdfUtils).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statestore.errors import InvalidArgumentError
from statestore.keys.groups import DEFAULT_LOWER_BOUND, default_max_parallelism
from statestore.restore.restored import RestoredCheckpoint
from statestore.snapshot.state_spec import Changes
from statestore.spark.cached_rows import collect_if_small, compute
from statestore.spark.compat import arrow_schema_of
from statestore.spark.hashing import column_of
from statestore.spark.state_writer import frame_of, spark_schema
from statestore.spark.tasks import map_in_arrow, number_columns
from statestore.streaming.handle import (
    EVENT,
    NONE,
    PROCESSING,
    ProcessorClock,
    Variable,
    declared_by,
)
from statestore.streaming.planned import TICKS, MicroBatch
from statestore.streaming.processor_states import (
    INDEX,
    TIMERS,
    ProcessorState,
    due_keys,
    index_of,
    index_rows,
    key_rows,
    states_of,
    timers_of,
)
from statestore.streaming.processor_task import (
    EVENTS,
    INITIAL,
    OUTPUT,
    STATES,
    WHAT,
    Change,
    ProcessorTask,
    RowTag,
)
from statestore.streaming.progress import Progress
from statestore.streaming.query_options import ProcessorOptions, QueryState, stored_states
from statestore.streaming.updates import Updated, UpdateStrategy, worker_errors

_WATERMARK = "spark.watermarkDelayMs"
"""The metadata key with which Spark marks the column of ``withWatermark``."""
_NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_FEW_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Processing(UpdateStrategy):
    """The update of a query that runs a processor: the processor, its states and its modes."""

    uid: str
    processor: StatefulProcessor
    key: tuple[str, ...]
    output: T.StructType
    mode: str
    pandas: bool
    variables: tuple[Variable, ...]
    deleted: tuple[str, ...]
    max_parallelism: int | None = None
    initial: DataFrame | None = None

    needs_keys = True

    @property
    def has_timers(self) -> bool:
        """Whether the passage of time alone can require a call of the processor."""
        return self.mode != NONE

    def states(self, events: T.StructType) -> dict[str, QueryState]:
        """Return the states that the query keeps, for events of these columns.

        Raises InvalidArgumentError when the events lack a column of the key.
        """
        states = {state.name: state.query_state for state in self._task(events).written}
        if self.max_parallelism is None:
            return states
        return {
            name: state.with_defaults({"max_parallelism": self.max_parallelism})
            for name, state in states.items()
        }

    def owns(self, name: str) -> bool:
        """Return True: all keyed states of the operator are the processor's."""
        return True

    def keys(
        self,
        keys: pa.Table,
        restored: RestoredCheckpoint | None,
        batch: MicroBatch,
        progress: Progress,
    ) -> pa.Table:
        """Return the keys of the events, and the keys that have due timers.

        They are normalized like the keys of stored rows, if there are any.
        """
        if restored is None:
            return keys
        columns = [_normalize_floats(column) for column in keys.columns]
        own = pa.Table.from_arrays(columns, schema=keys.schema)
        due = self.due(restored, batch, progress)
        return own if due is None else pa.concat_tables([own, due.cast(own.schema)])

    def due(
        self, restored: RestoredCheckpoint, batch: MicroBatch, progress: Progress
    ) -> pa.Table | None:
        """Return the keys that have due timers, or None if no timers are due."""
        limit = self._clock(batch).due_ms
        if limit is None or TIMERS not in stored_states(restored, self.uid):
            return None
        is_known = batch.before is not None and self.is_indexed(restored, progress)
        since = self._clock(batch.before).due_ms if batch.before and is_known else None
        return due_keys(restored, self.uid, TIMERS, since, limit)

    def is_indexed(self, restored: RestoredCheckpoint, progress: Progress) -> bool:
        """Return whether the timer index matches the stored timers; True without timers."""
        if not self.has_timers or TIMERS not in stored_states(restored, self.uid):
            return True
        return progress.indexed == restored.checkpoint_id

    def outdated(self, restored: RestoredCheckpoint, progress: Progress) -> list[str]:
        """Return the name of the timer index, if it does not match the stored timers."""
        return [] if self.is_indexed(restored, progress) else [INDEX]

    def rebuild(
        self, name: str, restored: RestoredCheckpoint, batch: MicroBatch
    ) -> pa.RecordBatchReader | None:
        """Build the index of a checkpoint's timers; due timers are indexed as overdue.

        Return None for any other state.
        """
        if name != INDEX:
            return None
        due_ms = self._clock(batch).due_ms
        assert due_ms is not None
        stored = restored.keyed(self.uid, TIMERS)
        key = T.StructType(spark_schema(stored.entry.state.schema).fields[1:-1])
        schema = arrow_schema_of(index_of(timers_of(key, self.mode)).schema)
        indexed = (
            index_rows(rows.drop_columns(["key_group"]), due_ms, gone=False)
            .rename_columns(schema.names)
            .cast(schema)
            for rows in key_rows(stored)
        )
        return pa.RecordBatchReader.from_batches(schema, indexed)

    def run(
        self,
        events: DataFrame,
        states: Mapping[str, DataFrame],
        batch: MicroBatch,
        keep: Callable[[DataFrame], DataFrame],
        *,
        restored: RestoredCheckpoint | None,
        parallelism: int,
        is_first: bool,
    ) -> Updated:
        """Call the processor for each key of the events and of the stored rows.

        Raises ProcessorError for an error in the processor. Raises InvalidArgumentError for events
        without a watermark if the timers use event time.
        """
        task = self._task(events.schema)
        stored = [*stored_states(restored, self.uid).values()]
        names = {state.name for state in task.stored}
        unstored = self.max_parallelism or default_max_parallelism(parallelism)
        task = replace(
            task,
            clock=self._clock(batch),
            batch=batch.number,
            max_parallelism=next((state.max_parallelism for state in stored), unstored),
            key_types=next((state.key_types for state in stored if state.name in names), None),
        )
        tables = [(EVENTS, self._drop_late_events(events, batch))]
        if is_first and self.initial is not None:
            tables.append((INITIAL, self.initial))
        tables += [
            (STATES + number, states[state.name]) for number, state in enumerate(task.stored)
        ]
        rows = reduce(
            DataFrame.unionAll, (_align_columns(task, number, frame) for number, frame in tables)
        )
        keys = task.input_columns.names_of(0)
        rows = rows.repartition(parallelism, *keys).sortWithinPartitions(*keys, WHAT)
        produced = keep(map_in_arrow(rows, task, task.output_columns.schema))
        with worker_errors():
            compute(produced)
            few = collect_if_small(produced, _FEW_BYTES)
        changes = {
            state.name: Changes(
                *(
                    _part(task, few, produced, RowTag.of_state(number, change), state)
                    for change in Change
                )
            )
            for number, state in enumerate(task.written)
        }
        return Updated(changes, _output(task, few, produced))

    def _task(self, events: T.StructType) -> ProcessorTask:
        missing = [name for name in self.key if name not in events.names]
        if missing:
            raise InvalidArgumentError(
                f"the events lack the column {missing[0]!r}, which is in the key of operator "
                f"{self.uid!r}; they have ({', '.join(events.names)}). Add the column to the events"
            )
        key = T.StructType([events[name] for name in self.key])
        timers = None if self.mode == NONE else timers_of(key, self.mode)
        initial = None if self.initial is None else self.initial.schema
        return ProcessorTask(
            uid=self.uid,
            processor=self.processor,
            pandas=self.pandas,
            clock=ProcessorClock(self.mode),
            variables={variable.name: variable for variable in self.variables},
            states=states_of(self.variables, key, self.uid),
            timers=timers,
            key=key,
            events=events,
            initial=initial,
            output=self.output,
            batch=0,
            max_parallelism=self.max_parallelism or DEFAULT_LOWER_BOUND,
            key_types=None,
        )

    def _clock(self, batch: MicroBatch) -> ProcessorClock:
        if self.mode == NONE:
            return ProcessorClock(NONE)
        return ProcessorClock(self.mode, batch.planned_at_ms or 0, batch.watermark_ms)

    def _drop_late_events(self, events: DataFrame, batch: MicroBatch) -> DataFrame:
        """Drop events that are later than the previous micro-batch's watermark allows."""
        if self.mode != EVENT:
            return events
        time_column = next((field for field in events.schema if _WATERMARK in field.metadata), None)
        if time_column is None:
            raise InvalidArgumentError(
                f"operator {self.uid!r} has event-time timers, but its events have no "
                "watermark: add one with withWatermark(…)"
            )
        column = column_of(time_column.name)
        if isinstance(time_column.dataType, T.StructType):  # a window
            column = column["end"]
        limit = 0 if batch.before is None else batch.before.watermark_ms
        is_late = column.cast("timestamp") <= F.timestamp_millis(F.lit(limit))
        return events.where(~F.coalesce(is_late, F.lit(False)))


def processing_of(
    uid: str,
    processor: StatefulProcessor,
    key: str | Sequence[str],
    options: ProcessorOptions,
) -> Processing:
    """Return the update for a processor; runs ``init`` on a copy to find out its states.

    Raises InvalidArgumentError for unknown modes, and for invalid declarations in ``init``.
    """
    mode = options.time_mode.lower()
    if mode not in (NONE, PROCESSING, EVENT):
        raise InvalidArgumentError(
            f'invalid time_mode={options.time_mode!r}: pass "None", "ProcessingTime" or "EventTime"'
        )
    if options.output_mode.lower() not in ("append", "update"):
        raise InvalidArgumentError(
            f'invalid output_mode={options.output_mode!r}: pass "Append" or "Update"'
        )
    names = (key,) if isinstance(key, str) else tuple(key)
    copy = cloudpickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
    variables, deleted = declared_by(copy.init, mode, _struct)
    copy.close()
    schema = options.output_schema
    output = _struct(schema) if isinstance(schema, str) else schema
    return Processing(
        uid,
        processor,
        names,
        output,
        mode,
        options.pandas,
        variables,
        deleted,
        options.max_parallelism,
        options.initial_state,
    )


def with_ticks(events: DataFrame) -> DataFrame:
    """Return a stream of events together with a source that only produces a tick per trigger.

    Spark plans a micro-batch when a source has new data. For its own stateful operators it also
    plans one when the watermark or the clock has advanced (StateStoreWriter.shouldRunAnotherBatch).
    It does not do so for this project's operator. The ticks therefore let timers of keys without
    events fire. They are the last source of the query, and they get a name if Spark requires every
    source to have one.
    """
    spark = events.sparkSession
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1)
    reader = reader.option("numPartitions", 1)
    if spark.conf.get(_NAMED_SOURCES, "false") == "true":
        reader = reader.name(TICKS)
    ticks = reader.load()
    nothing = (F.lit(None).cast(field.dataType).alias(field.name) for field in events.schema)
    return events.unionAll(ticks.where(F.col("value") < 0).select(*nothing))


def _struct(ddl: str) -> T.StructType:
    data_type = T.DataType.fromDDL(ddl)
    return (
        data_type
        if isinstance(data_type, T.StructType)
        else T.StructType([T.StructField("value", data_type)])
    )


def _align_columns(task: ProcessorTask, table: int, rows: DataFrame) -> DataFrame:
    """Return a table's rows in the columns of all tables: other tables' columns are null."""
    names = list(rows.columns)
    values = dict(
        zip(names, (F.col(column) for column in number_columns(rows).columns), strict=True)
    )
    key = [values[name] for name in task.key.names]
    if table < STATES:  # the keys of stored rows are already normalized
        key = [_one_in_spark(column, field) for column, field in zip(key, task.key, strict=True)]
    wanted = task.input_columns.tables[table + 1].names
    inputs = task.input_columns
    filled: dict[str, Column] = dict(zip(inputs.names_of(0), key, strict=True))
    filled |= dict(zip(inputs.names_of(table + 1), (values[name] for name in wanted), strict=True))
    filled[WHAT] = F.lit(table)
    columns = (
        filled.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
        for field in inputs.schema
    )
    return number_columns(rows).select(*columns)


def _normalize_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return floats whose zeros all have the same bits, and whose NaNs do.

    All zeros are one key, and all NaNs are one key, as in Spark's aggregations
    (``NormalizeFloatingNumbers``).
    """
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = (pa.scalar(number, column.type) for number in (0.0, math.nan))
    column = pc.if_else(pc.equal(column, zero), zero, column)
    return pc.if_else(pc.is_nan(column), nan, column)


def _one_in_spark(column: Column, field: T.StructField) -> Column:
    if not isinstance(field.dataType, T.FloatType | T.DoubleType):
        return column
    nan = F.when(F.isnan(column), F.lit(math.nan)).otherwise(column)
    return F.when(column == 0, F.lit(0.0)).otherwise(nan)


def _part(
    task: ProcessorTask,
    collected: pa.Table | None,
    produced: DataFrame,
    tag: RowTag,
    state: ProcessorState,
) -> Any:
    """Return the rows of one kind of change to a state; None if ``collected`` has none."""
    width = {
        Change.UPSERTED: len(state.schema.fields),
        Change.DELETED: len(state.key) + len(state.entry),
        Change.CLEARED: len(state.key),
    }
    names = state.schema.names[: width[tag.change]]
    columns = task.output_columns.names_of(tag.table)
    if collected is not None:
        rows = collected.filter(pc.equal(collected.column(WHAT), tag.number)).select(columns)
        rows = rows.select(range(len(names))).rename_columns(names)
        return rows if rows.num_rows else None
    renamed = (F.col(a).alias(b) for a, b in zip(columns, names, strict=False))
    return produced.where(F.col(WHAT) == tag.number).select(*renamed)


def _output(task: ProcessorTask, collected: pa.Table | None, produced: DataFrame) -> DataFrame:
    columns, names = task.output_columns.names_of(0), task.output.names
    if collected is None:
        return produced.where(F.col(WHAT) == OUTPUT.number).select(*columns).toDF(*names)
    rows = collected.filter(pc.equal(collected.column(WHAT), OUTPUT.number)).select(columns)
    if not rows.num_rows:  # Spark's conversion from Arrow fails for lists without rows
        return produced.sparkSession.createDataFrame([], task.output)
    return frame_of(produced.sparkSession, rows.rename_columns(names), task.output)
