"""Writes keyed state from a Spark DataFrame: shuffled and sorted in the JVM, written by Arrow.

If Spark's cache has only few rows, and they go into few files, they are collected on the driver and
written like an Arrow table. A task would cost more than it saves.

Otherwise there is one shuffle, to the subtask that owns the row's key group, and one sort by key
group within each Spark partition, which spills to disk when memory is short. A Python task then
sorts and writes one key group after another. Rows that are co-located and in order need neither
shuffle nor sort.

The key group that the JVM computes decides where a row is sent; the key group that Arrow computes
is stored. A row for which they differ is refused. No row passes through a Python function before
the shuffle, except in a session of Spark Connect: some servers allow no expression that calls Java,
as the hash of a text does, so Arrow computes the key group there, too.
"""

from __future__ import annotations

import logging
import pickle
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from statestore.engines.rows import ArrowRows, Rows
from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    StateStoreError,
)
from statestore.format.digest import RowSet
from statestore.format.handles import KeyedStateHandle
from statestore.format.names import KEY_GROUP, MARK
from statestore.format.schema import Schema, schema_from_json, type_text
from statestore.format.state import KeyedState, Layout
from statestore.keys.groups import Assignment
from statestore.layers.base_comparison import BaseComparison, ObservedRows
from statestore.parquet.keyed_writer import KeyedTarget, write_grouped, write_pieces
from statestore.parquet.writer import UncommittedFiles
from statestore.rows.column_types import arrow_schema
from statestore.rows.delete_markers import Deletion, mark_of, named_columns
from statestore.rows.fit_columns import fits_by_type, refuse_invalid_values
from statestore.rows.key_group_runs import (
    NullKeys,
    check_groups,
    find_null_keys,
    key_groups_of,
    with_key_group,
    without_groups,
)
from statestore.spark.arithmetic import problem_of
from statestore.spark.cached_rows import (
    cached_row_count,
    collect_if_small,
    is_known_large,
    record_size_hint,
)
from statestore.spark.compat import arrow_schema_of, has_jvm, in_partitions, schema_of_arrow
from statestore.spark.hashing import check_spark_key, column_of, key_group_column
from statestore.spark.tasks import Task, map_in_arrow, with_arrow_column
from statestore.spark.workers import warm_up_worker

_log = logging.getLogger(__name__)
_IN_PLAN_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_FEWEST_BATCH_ROWS = 10_000
_SETTING = Lock()


def keyed_batches(batches: Iterable[pa.RecordBatch], state: KeyedState) -> Iterator[pa.RecordBatch]:
    """Yield the rows in their stored form, with the key group as the first column.

    Raises NullKeyError with the number of rows, after all rows were read, errors of hashing a key,
    and the errors of :func:`check_groups`.
    """
    stored = arrow_schema(state.schema)
    schema = pa.schema([pa.field(KEY_GROUP, pa.int32()), *stored])
    nulls = NullKeys(state)
    for batch in batches:
        if nulls.add(batch):
            continue
        rows = batch.select(stored.names).cast(stored)
        refuse_invalid_values(rows, str(state), key=state.key)
        try:
            groups = key_groups_of(rows, state)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{state}: {error}") from error
        check_groups(pa.Table.from_batches([batch]), groups, state)
        yield pa.RecordBatch.from_arrays([pa.array(groups), *rows.columns], schema=schema)
    nulls.refuse()


class _OutOfOrderError(Exception):
    """Co-located rows are not in order of key group, and need a sort first."""


@dataclass(frozen=True)
class _TaskResults:
    """The combined result of some tasks.

    It has the files that they wrote, their errors, the subtasks whose key groups were all compared,
    and the rows that each of these has observed.
    """

    handles: list[KeyedStateHandle]
    errors: list[StateStoreError | _OutOfOrderError]
    compared: list[int | None]
    observed: list[RowSet]

    @classmethod
    def collect(cls, written: DataFrame, state: KeyedState) -> _TaskResults:
        """Run the tasks; each returns one row."""
        try:
            rows = written.collect()
        except PySparkException as error:
            problem = problem_of(error)
            if problem is None:
                raise
            raise InvalidArgumentError(f"{state}: {problem}") from error
        handles = [row.handles for row in rows if row.handles is not None]
        errors = [row.error for row in rows if row.error is not None]
        return cls(
            [handle for of_task in map(pickle.loads, handles) for handle in of_task],
            [*map(pickle.loads, errors)],
            [row.compared for row in rows],
            [pickle.loads(row.seen) for row in rows if row.seen is not None],
        )


_ONE_OUTCOME = pa.schema(
    {"handles": pa.binary(), "error": pa.binary(), "compared": pa.int32(), "seen": pa.binary()}
)
_OUTCOME = schema_of_arrow(_ONE_OUTCOME)


@dataclass(frozen=True, eq=False)
class SparkRows(Rows):
    """The rows of a Spark DataFrame, which its tasks write."""

    frame: DataFrame

    syncs_later = False

    @property
    def schema(self) -> Schema:
        """The DataFrame's stored columns; UnsupportedTypeError for types that Delta lacks."""
        return without_groups(schema_from_json(self.frame.schema.jsonValue()))

    @property
    def count(self) -> int | None:
        """The number of cached rows, or None: a count would run the query twice."""
        return cached_row_count(self.frame)

    def key_types(
        self, key: tuple[str, ...], hash_scheme: str, wanted: Sequence[str | None]
    ) -> tuple[str, ...]:
        """Return the type that each key column is hashed as, by default (None) its own type.

        Raises UnsupportedTypeError, which names the column, when it cannot be hashed as that type.
        """
        names: tuple[str, ...] = check_spark_key(self.frame.schema, key, hash_scheme, wanted)
        return names

    def collect(self, names: Sequence[str], most_bytes: int) -> ArrowRows | None:
        """Return some columns in this process; None when a Spark partition has more bytes.

        It costs one job, which ends early if there are many rows; its Python workers end with it.
        If Spark's cache shows that there are many rows, it returns None without a job.
        """
        columns = _with_columns(self.frame, names)
        cached = collect_if_small(columns, most_bytes)
        if cached is not None or is_known_large(columns, most_bytes):
            return None if cached is None else ArrowRows.of(cached)

        def few(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            warm_up_worker()
            held, size = [], 0
            for batch in batches:
                held.append(batch)
                size += batch.nbytes
                if size > most_bytes:
                    yield pa.RecordBatch.from_pydict({"rows": [b""]})
                    return
            if held:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, held[0].schema) as stream:
                    for batch in held:
                        stream.write_batch(batch)
                yield pa.RecordBatch.from_pydict({"rows": [sink.getvalue().to_pybytes()]})

        parts = [row.rows for row in map_in_arrow(columns, few, "rows binary").collect()]
        if not all(parts):
            return None
        tables = [pa.ipc.open_stream(pa.py_buffer(part)).read_all() for part in parts]
        empty = arrow_schema_of(columns.schema).empty_table()
        return ArrowRows.of(
            pa.concat_tables([table.cast(empty.schema) for table in tables]) if tables else empty
        )

    def refuse_narrowing(self, names: Sequence[str], state: KeyedState) -> None:
        """Refuse columns whose types have values that the state's types cannot represent.

        Spark's cast would change such values. Raises SchemaMismatchError with both types.
        """
        schema = self.schema
        for name in names:
            own_type, stored_type = schema.type_of(name), state.schema.type_of(name)
            if not fits_by_type(own_type, stored_type):
                raise SchemaMismatchError(
                    f"the column {name!r} of changes of {state} is {type_text(own_type)} but is "
                    f"stored as {type_text(stored_type)}, which cannot represent every "
                    f"{type_text(own_type)}; cast it to {type_text(stored_type)} in the "
                    "DataFrame first"
                )

    def ungrouped(self) -> SparkRows:
        """Return the rows without the column ``key_group``."""
        return SparkRows(self.frame.drop(KEY_GROUP))

    def with_time(self, column: str, time_type: str, now_ms: int) -> SparkRows:
        """Return the rows with a ``long`` or ``timestamp`` column added that holds one time."""
        time = F.lit(now_ms).cast("long")
        times = time if time_type == "long" else F.timestamp_millis(time)
        return SparkRows(self.frame.select("*", times.alias(column)))

    def write(self, owners: Assignment, target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
        """Write a keyed state with a task for each subtask; return its handles in key-group order.

        Raises NullKeyError with the number of rows, DuplicateKeyError, or StorageError; the files
        of all tasks are then deleted. An error of the DataFrame itself is raised unchanged.
        """
        names = target.state.schema.names
        # If there are many files, the tasks send them to the store in parallel.
        if target.state.layout is Layout.RANGED and not target.co_located:
            few = collect_if_small(_with_columns(self.frame, names), target.options.driver_bytes)
            if few is not None:
                return ArrowRows.of(few).write(owners, target)
        if target.co_located:
            task = _write(target, owners, is_sorted=False)
            placed = _with_columns(self.frame, names)
            outcome = _TaskResults.collect(map_in_arrow(placed, task, _OUTCOME), target.state)
            disorder = next(
                (error for error in outcome.errors if isinstance(error, _OutOfOrderError)), None
            )
            if disorder is None:
                return _handles(outcome, target)
            _delete(outcome, target, disorder)  # the files are written again, sorted
            for note in getattr(disorder, "__notes__", ()):
                _log.warning(
                    (
                        "cannot delete a file that was written out of order; 'statestore gc' "
                        "deletes it later: %s"
                    ),
                    note,
                )
        ordered = _sort_by_key_group(
            self.frame, target.state, None if target.co_located else owners
        )
        task = _write(target, owners, is_sorted=True)
        return _handles(
            _TaskResults.collect(map_in_arrow(ordered, task, _OUTCOME), target.state), target
        )

    def write_against(
        self, owners: Assignment, against: BaseComparison, target: KeyedTarget
    ) -> tuple[tuple[KeyedStateHandle, ...], RowSet]:
        """Compare the rows with the stored rows, and write the changes with a task per subtask.

        Return the handles of the written files, and the number and digest of the rows. Each task
        processes all key groups of its subtask, including key groups that no longer have rows.
        Raises the errors of :meth:`write`, and MissingFileError or DamagedFileError.
        """
        state = against.state
        ordered = _sort_by_key_group(self.frame, state, owners)
        task = _write_against(against, target, owners)
        outcome = _TaskResults.collect(map_in_arrow(ordered, task, _OUTCOME), state)
        unseen = [
            subtask for subtask in range(owners.parallelism) if subtask not in outcome.compared
        ]
        if unseen and not outcome.errors:
            # Spark starts no tasks for a DataFrame that it knows to be empty.
            nothing = self.frame.sparkSession.range(0, len(unseen), numPartitions=len(unseen))
            task = _write_against(against, target, owners, unseen)
            try:
                rest = _TaskResults.collect(map_in_arrow(nothing, task, _OUTCOME), state)
            except BaseException as error:
                _delete(outcome, target, error)
                raise
            outcome.handles.extend(rest.handles)
            outcome.errors.extend(rest.errors)
        observed = ObservedRows()
        observed.add((rows.rows, rows.digest) for rows in outcome.observed)
        return _handles(outcome, target), RowSet(observed.rows, observed.digest)


def spark_schema(schema: Schema) -> StructType:
    """Return the Spark schema of a restored state: ``key_group``, then the stored columns."""
    stored = StructType.fromJson(schema.to_json())
    return StructType([StructField(KEY_GROUP, IntegerType()), *stored.fields])


def collect(df: DataFrame) -> pa.Table:
    """Return the rows of a small DataFrame on the driver."""
    return df.toArrow()


def _with_columns(df: DataFrame, names: Iterable[str]) -> DataFrame:
    """Return the named columns of the rows, and the key-group column if the rows have it."""
    wanted = with_key_group(names, df.columns)
    return df if [*wanted] == df.columns else df.select(*map(column_of, wanted))


def change_frame(
    inputs: Sequence[tuple[SparkRows | ArrowRows, Deletion | None]],
    state: KeyedState,
    changes: KeyedState,
) -> SparkRows:
    """Return rows, some of which are in Spark, as changes of a state.

    Rows with a deletion become deletes; the others become upserts.
    """
    spark = next(rows.frame.sparkSession for rows, _ in inputs if isinstance(rows, SparkRows))
    frames = [
        (rows.frame if isinstance(rows, SparkRows) else frame_of(spark, rows.read_all()), deletion)
        for rows, deletion in inputs
    ]
    types = StructType.fromJson(changes.schema.to_json())
    parts = []
    has_groups = any(KEY_GROUP in frame.columns for frame, _ in frames)
    for frame, deletion in frames:
        names = named_columns(deletion, state)
        own = column_of(KEY_GROUP) if KEY_GROUP in frame.columns else F.lit(None)
        columns = [own.cast("long").alias(KEY_GROUP)] if has_groups else []
        for field in types.fields:
            if field.name == MARK:
                column = F.lit(mark_of(deletion))
            else:
                column = column_of(field.name) if field.name in names else F.lit(None)
            columns.append(column.cast(field.dataType).alias(field.name))
        parts.append(frame.select(*columns))
    return SparkRows(reduce(DataFrame.unionAll, parts))


def frame_of(spark: SparkSession, rows: pa.Table, schema: StructType | None = None) -> DataFrame:
    """Return the rows in Spark; timestamps without a zone stay without one.

    The rows are in an RDD, and tasks convert them. Rows inside a plan would be traversed by each
    optimizer rule for each step on top of them, which soon takes longer than the computation.
    """
    schema = schema or schema_of_arrow(rows.schema)
    # As one batch: Spark drops rows after an empty batch if it keeps the rows on the driver.
    rows = rows.combine_chunks()
    if not rows.num_rows:
        return spark.createDataFrame(rows, schema)
    with _SETTING:  # without the lock, one thread could restore over another's setting
        before = {name: str(spark.conf.get(name)) for name in (_IN_PLAN_BYTES, _BATCH_ROWS)}
        # A batch becomes a Spark partition. 0, Spark's value for no limit, does not work here.
        most = max(int(before[_BATCH_ROWS]), _FEWEST_BATCH_ROWS)
        try:
            for name, value in ((_IN_PLAN_BYTES, "0"), (_BATCH_ROWS, str(most))):
                spark.conf.set(name, value)
            frame = spark.createDataFrame(rows, schema)
        finally:
            for name, value in before.items():
                spark.conf.set(name, value)
    record_size_hint(frame, rows.num_rows, rows.nbytes)
    return frame


def _handles(outcome: _TaskResults, target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
    """Return the handles of all tasks in order; after an error delete their files and raise it."""
    if outcome.errors:
        reason = _error_to_raise(outcome.errors, target.state)
        _delete(outcome, target, reason)
        raise reason
    return tuple(sorted(outcome.handles, key=lambda handle: handle.key_groups.first))


def _delete(outcome: _TaskResults, target: KeyedTarget, reason: BaseException) -> None:
    written = UncommittedFiles(target.storage)
    written.add(target.folder, outcome.handles)
    written.delete(reason)


def _sort_by_key_group(df: DataFrame, state: KeyedState, owners: Assignment | None) -> DataFrame:
    """Return the stored columns and the key group, with rows in order of key group.

    With ``owners`` each row is in the Spark partition of its subtask. Rows with a null key are in
    the first one.
    """
    types = StructType.fromJson(state.schema.to_json())
    names = with_key_group(state.schema.names, df.columns)
    columns = {name: column_of(name) for name in names}
    keys = {name: columns[name].cast(types[name].dataType).alias(name) for name in state.key}
    typed = df.select(*(columns | keys).values())
    name = max(names, key=len) + "_"  # a name that no column has
    if has_jvm(typed):
        group = key_group_column(
            typed.schema,
            state.key,
            max_parallelism=state.max_parallelism,
            hash_scheme=state.hash_scheme,
            key_types=state.key_types,
        )
        grouped = typed.withColumn(name, F.coalesce(group, F.lit(0)))
    else:
        task = partial(_arrow_key_groups, state=state)
        grouped = with_arrow_column(typed, name, state.key, task)
    if owners is not None:
        # As one text that Spark splits once: an array with a literal per element takes seconds.
        numbers = ",".join(str(owners.subtask_of(group)) for group in range(state.max_parallelism))
        subtasks = F.split(F.lit(numbers), ",").cast("array<int>")
        grouped = in_partitions(grouped, owners.parallelism, subtasks[column_of(name)])
    return grouped.sortWithinPartitions(column_of(name))


def _arrow_key_groups(rows: pa.RecordBatch, state: KeyedState) -> pa.Array:
    """Return the key group of each row, from its key columns; null if the row is refused.

    A row is refused if its key is null or cannot be hashed. Spark sends these rows to subtask 0 and
    sorts them first, so the task raises the error before it sees another row. Thus only the first
    key of a batch that cannot be hashed is found, and the batch's other rows are sent there, too.
    """
    warm_up_worker()
    groups = np.zeros(rows.num_rows, np.int32)
    is_refused = find_null_keys(rows, state)
    if is_refused is None:
        is_refused = np.zeros(rows.num_rows, np.bool_)
    else:
        rows = rows.filter(pa.array(~is_refused))
    places = np.flatnonzero(~is_refused)
    try:
        groups[places] = key_groups_of(rows, state)
    except StateStoreError:
        first = bisect_left(
            range(rows.num_rows), True, key=lambda row: not _can_hash(rows.slice(0, row + 1), state)
        )
        is_refused[places[first]] = True
    return pa.array(groups, pa.int32(), mask=is_refused)


def _can_hash(rows: pa.RecordBatch, state: KeyedState) -> bool:
    try:
        key_groups_of(rows, state)
    except StateStoreError:
        return False
    return True


def _write(target: KeyedTarget, owners: Assignment, *, is_sorted: bool) -> Task:
    """Return the task that writes rows in the Spark partition where they are."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        rows = _pass_on_ordered(keyed_batches(batches, target.state), target, owners, is_sorted)
        yield _task_result(lambda: write_grouped(rows, target))

    return write


def _write_against(
    against: BaseComparison,
    target: KeyedTarget,
    owners: Assignment,
    unseen: Sequence[int] | None = None,
) -> Task:
    """Return the task that runs after the shuffle for all rows of a state.

    With ``unseen`` it is the task for subtasks without rows.
    """
    state = against.state

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        warm_up_worker()
        subtask = _partition() if unseen is None else unseen[_partition()]
        # For subtasks without rows the batches are empty, but they must still be consumed.
        rows = keyed_batches(batches, state) if unseen is None else _consume(batches)
        placed = _pass_on_ordered(rows, target, owners, is_sorted=True)
        observed = ObservedRows()
        changes = against.changes(against.pieces(placed), owners.range_of(subtask), observed)
        yield _task_result(lambda: write_pieces(changes, target), subtask, observed)

    return write


def _consume(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Consume all batches, and yield nothing."""
    deque(batches, maxlen=0)
    yield from ()


def _task_result(
    write: Callable[[], tuple[KeyedStateHandle, ...]],
    compared: int | None = None,
    observed: ObservedRows | None = None,
) -> pa.RecordBatch:
    """Return the result of a task for the driver: its handles, or its error.

    ``compared`` and ``observed`` are included if they are given.
    """
    try:
        row: dict[str, Any] = {"handles": pickle.dumps(write()), "compared": compared}
        if observed is not None:
            row["seen"] = pickle.dumps(RowSet(observed.rows, observed.digest))
    except (StateStoreError, _OutOfOrderError) as error:  # the driver raises it unchanged
        row = {"error": pickle.dumps(error)}
    return pa.RecordBatch.from_pylist([row], _ONE_OUTCOME)


def _pass_on_ordered(
    batches: Iterable[pa.RecordBatch], target: KeyedTarget, owners: Assignment, is_sorted: bool
) -> Iterator[pa.RecordBatch]:
    """Pass rows on; they must be in order of key group, and belong to this subtask.

    If Spark sorted them, this only fails for keys whose hash differs between Spark and Arrow.
    """
    last = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        groups = np.asarray(batch.column(0))
        for group in (groups.min(), groups.max()):
            _refuse_foreign(int(group), target, owners)
        if groups[0] < last or (np.diff(groups) < 0).any():
            if is_sorted:
                raise _hash_mismatch_error(target.state)
            raise _OutOfOrderError(f"rows of {target.state} are not sorted by key group")
        last = groups[-1]
        yield batch


def _refuse_foreign(key_group: int, target: KeyedTarget, owners: Assignment) -> None:
    here, subtask = _partition(), owners.subtask_of(key_group)
    if subtask == here:
        return
    if not target.co_located:
        raise _hash_mismatch_error(target.state)
    raise InvalidArgumentError(
        f"{target.state} was declared co-located, but Spark partition {here} has a row of a key "
        f"group that belongs to subtask {subtask} of {owners.parallelism}; remove "
        "co_located=True"
    )


def _hash_mismatch_error(state: KeyedState) -> StateStoreError:
    return StateStoreError(
        f"{state}: Spark and Arrow compute different hashes for a key, so its rows cannot be "
        "placed; nothing was stored. Please report the types of its key, "
        f"{', '.join(state.key_types)}, and pass the rows as an Arrow table meanwhile"
    )


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None  # this runs in a task
    return context.partitionId()


def _error_to_raise(errors: Sequence[Exception], state: KeyedState) -> Exception:
    """Return the error to raise; null keys are counted over all tasks."""
    nulls = NullKeys(state)
    return nulls.error() if nulls.add_errors(errors) else errors[0]
