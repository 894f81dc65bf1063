"""Keyed state from a Spark DataFrame: hashed and packed in Arrow, exchanged in the JVM, written in
Arrow.

One shuffle, to the subtask that owns the row's key group, of rows packed by key group
(:mod:`statestore.spark.write`), and one sort of the packed values by key group within each Spark
partition, which spills to disk when memory is short. A Python task then takes one key group after
another, sorts and writes it. Rows that lie right already are written without either.

No row passes through a Python function.
"""

from __future__ import annotations

import itertools
import logging
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegerType, StructField, StructType

from statestore.errors import (
    InvalidArgumentError,
    NullKeyError,
    SchemaMismatchError,
    StateStoreError,
)
from statestore.files.against import Against
from statestore.files.given import beside, check_groups, without_groups
from statestore.files.keyed import KeyedTarget, write_grouped, write_runs
from statestore.files.marks import Deletion, mark_of, named_columns
from statestore.files.runs import key_groups_of, null_key_error, null_keys, runs_of
from statestore.files.types import arrow_schema
from statestore.files.values import fits_by_type
from statestore.files.written import WrittenFiles
from statestore.format.handles import KeyedStateHandle
from statestore.format.layers import MARK
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema, schema_from_json, type_text
from statestore.format.state import KeyedState
from statestore.keys.ranges import Assignment
from statestore.spark.hashing import check_spark_key, column_of
from statestore.spark.tasks import Task, map_in_arrow, settle

__all__ = [
    "PACKED",
    "change_frame",
    "collect",
    "key_types",
    "keyed_batches",
    "on_driver",
    "pack",
    "refuse_narrowing",
    "rows_known",
    "schema_of",
    "spark_schema",
    "ungrouped",
    "unpack",
    "with_time",
    "write_against",
    "write_keyed",
]

_log = logging.getLogger(__name__)


# Rows on their way through an exchange: those of one key group packed together, as one value.
#
# The JVM exchanges and sorts some thousand values instead of millions of rows. These stay columns
# all the way: hashed, divided and packed in Arrow, and unpacked where they are written.


_INT, _BYTES = pa.int32(), pa.binary()
PACKED = pa.schema({"subtask": _INT, "bundle": _INT, "rows": _BYTES, "error": _BYTES})
"""What :func:`pack` yields: whose rows, of which part of the key groups, and the rows. A task that
fails hands on its error instead, in a row that has nothing else but a subtask.
"""

_ROWS_AT_A_TIME = 1 << 18
_BYTES_AT_A_TIME = 32 * 2**20

# A bundle is a key group, or where there are very many of them, neighbours.
_MOST_BUNDLES = 1024


def pack(
    batches: Iterable[pa.RecordBatch],
    state: KeyedState,
    owners: Assignment,
    rows_at_a_time: int = _ROWS_AT_A_TIME,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows as :data:`PACKED`, each value with rows of one subtask and bundle.

    Bundles are in order of key group. Some 32 MB of rows are held. Raises NullKeyError with the
    number of rows, after all of them, and what hashing a key raises.
    """
    subtasks = np.array([owners.subtask_of(group) for group in range(state.max_parallelism)])
    bundles = np.arange(state.max_parallelism) * _bundles(state) // state.max_parallelism
    for rows in _pieces(keyed_batches(batches, state), rows_at_a_time):
        groups = np.asarray(rows.column(0))
        # Few small numbers: numpy sorts them by radix.
        order = np.argsort(groups.astype(np.uint16), kind="stable")
        groups = groups[order]
        part = bundles[groups] * owners.parallelism + subtasks[groups]
        starts = np.concatenate(([0], np.flatnonzero(np.diff(part)) + 1))
        [sorted_rows] = rows.take(pa.array(order)).combine_chunks().to_batches()
        first_groups = groups[starts]
        columns = [
            pa.array(subtasks[first_groups].astype(np.int32)),
            pa.array(bundles[first_groups].astype(np.int32)),
            _values(sorted_rows, [*starts.tolist(), len(groups)]),
            pa.nulls(len(starts), _BYTES),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=PACKED)


def unpack(packed: Iterable[pa.RecordBatch], state: KeyedState) -> Iterator[pa.RecordBatch]:
    """Yield the rows in order of key group, which stands first; the bundles come in order."""
    single = _bundles(state) == state.max_parallelism
    held: list[pa.RecordBatch] = []
    last = -1
    for batch in packed:
        bundles = batch.column("bundle").to_pylist()
        for bundle, value in zip(bundles, batch.column("rows"), strict=True):
            if bundle != last:
                yield from _in_order(held, single)
                held, last = [], bundle
            held.extend(pa.ipc.open_stream(value.as_buffer()))
    yield from _in_order(held, single)


def keyed_batches(batches: Iterable[pa.RecordBatch], state: KeyedState) -> Iterator[pa.RecordBatch]:
    """Yield the rows as they are stored, their key group first.

    Raises NullKeyError with the number of rows, after all of them, what hashing a key raises, and
    what :func:`check_groups` raises.
    """
    stored = arrow_schema(state.schema)
    schema = pa.schema([pa.field(KEY_GROUP, pa.int32()), *stored])
    nulls = 0
    for batch in batches:
        nulls += null_keys(batch, state)
        if nulls:
            continue
        rows = batch.select(stored.names).cast(stored)
        groups = key_groups_of(rows, state)
        check_groups(pa.Table.from_batches([batch]), groups, state)
        yield pa.RecordBatch.from_arrays([pa.array(groups), *rows.columns], schema=schema)
    if nulls:
        raise null_key_error(state, nulls)


def _bundles(state: KeyedState) -> int:
    return min(state.max_parallelism, _MOST_BUNDLES)


def _pieces(batches: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= most_rows or size >= _BYTES_AT_A_TIME:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


def _values(rows: pa.RecordBatch, borders: list[int]) -> pa.BinaryArray:
    """Return the rows between each two borders as an Arrow stream."""
    sink = pa.BufferOutputStream()
    ends = [0]
    for first, stop in itertools.pairwise(borders):
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows.slice(first, stop - first))
        ends.append(sink.tell())
    offsets = pa.py_buffer(np.array(ends, np.int32))
    return pa.Array.from_buffers(pa.binary(), len(borders) - 1, [None, offsets, sink.getvalue()])


def _in_order(held: list[pa.RecordBatch], single: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a bundle in order of key group."""
    if single or not held:
        yield from held
        return
    rows = pa.Table.from_batches(held)
    groups: npt.NDArray[np.int32] = np.asarray(rows.column(0))
    order = np.argsort(groups.astype(np.uint16), kind="stable")
    yield from rows.take(pa.array(order)).to_batches()


class _OutOfOrderError(Exception):
    """Placed rows do not come in order of key group, so they have to be sorted first."""


@dataclass(frozen=True)
class _Outcome:
    """What came of some tasks: the files that they wrote, the errors that they met, and the
    subtasks of which all key groups were compared.
    """

    handles: list[KeyedStateHandle]
    errors: list[StateStoreError | _OutOfOrderError]
    compared: list[int | None]

    @classmethod
    def of(cls, written: DataFrame) -> _Outcome:
        """Run the tasks; each returns one row."""
        rows = written.collect()
        handles, errors = (
            [one for row in rows if row[name] is not None for one in pickle.loads(row[name])]
            for name in ("handles", "errors")
        )
        return cls(handles, errors, [row.compared for row in rows])


_ONE_OUTCOME = pa.schema({"handles": _BYTES, "errors": _BYTES, "compared": _INT})
_OUTCOME, _PACKED = from_arrow_schema(_ONE_OUTCOME), from_arrow_schema(PACKED)


def schema_of(df: DataFrame) -> Schema:
    """Return the stored columns of a DataFrame; UnsupportedTypeError for types Delta has not."""
    return without_groups(schema_from_json(df.schema.jsonValue()))


def spark_schema(schema: Schema) -> StructType:
    """Return what a restored state looks like in Spark: ``key_group``, then the stored columns."""
    stored = StructType.fromJson(schema.to_json())
    return StructType([StructField(KEY_GROUP, IntegerType()), *stored.fields])


def key_types(
    df: DataFrame, key: tuple[str, ...], hash_scheme: str, wanted: Sequence[str | None]
) -> tuple[str, ...]:
    """Return per key column the type whose hash is taken, None in ``wanted`` for its own.

    Raises UnsupportedTypeError, naming the column, when it cannot be hashed so.
    """
    names: tuple[str, ...] = check_spark_key(df.schema, key, hash_scheme, wanted)
    return names


def rows_known(df: DataFrame) -> int | None:
    """Return None: counting would run the query twice."""
    return None


def collect(df: DataFrame) -> pa.Table:
    """Return the rows of a small DataFrame on the driver."""
    return df.toArrow()


def on_driver(df: DataFrame, names: Sequence[str], most_bytes: int) -> pa.Table | None:
    """Return some columns in this process; None when a Spark partition has more bytes.

    Costs one job, which ends early where rows are many.
    """

    def few(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
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

    columns = df.select(*map(column_of, beside(names, df.columns)))
    parts = [row.rows for row in map_in_arrow(columns, few, "rows binary").collect()]
    if not all(parts):
        return None
    tables = [pa.ipc.open_stream(pa.py_buffer(part)).read_all() for part in parts]
    empty = to_arrow_schema(columns.schema, timezone="UTC").empty_table()
    return pa.concat_tables([table.cast(empty.schema) for table in tables]) if tables else empty


def change_frame(
    given: Sequence[tuple[Any, Deletion | None]], state: KeyedState, changes: KeyedState
) -> DataFrame:
    """Return rows, DataFrames and Arrow tables, as changes of a state: those with a deletion go so,
    the others come.
    """
    frames = [rows for rows, _ in given if isinstance(rows, DataFrame)]
    spark = frames[0].sparkSession
    types = StructType.fromJson(changes.schema.to_json())
    parts = []
    has_groups = any(
        KEY_GROUP in (rows.columns if isinstance(rows, DataFrame) else rows.column_names)
        for rows, _ in given
    )
    for rows, deletion in given:
        frame = rows if isinstance(rows, DataFrame) else _frame_of(spark, rows)
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
    return reduce(DataFrame.unionAll, parts)


def _frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return the rows in Spark, times without a zone as they are: not as the session's zone."""
    return spark.createDataFrame(rows, from_arrow_schema(rows.schema, prefer_timestamp_ntz=True))


def refuse_narrowing(df: DataFrame, names: Sequence[str], state: KeyedState) -> None:
    """Refuse columns whose types have values that the state's have not: in Spark's cast they would
    become others.

    Raises SchemaMismatchError with both types.
    """
    found = schema_of(df)
    for name in names:
        given, stored = found.type_of(name), state.schema.type_of(name)
        if not fits_by_type(given, stored):
            raise SchemaMismatchError(
                f"the column {name!r} of changes of {state} is {type_text(given)}, and stored is "
                f"{type_text(stored)}, which has not all of its values; cast it to "
                f"{type_text(stored)} in the DataFrame, as what it is meant to be"
            )


def ungrouped(df: DataFrame) -> DataFrame:
    """Return the rows without the store's own column."""
    return df.drop(KEY_GROUP)


def with_time(df: DataFrame, column: str, kind: str, now_ms: int) -> DataFrame:
    """Return the rows with one more column, a ``long`` or ``timestamp``, of one time."""
    time = F.lit(now_ms).cast("long")
    times = time if kind == "long" else F.timestamp_millis(time)
    return df.select("*", times.alias(column))


def write_keyed(
    df: DataFrame, owners: Assignment, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write a keyed state with a task for each subtask; return its handles in order of key group.

    Raises NullKeyError with the number of rows, DuplicateKeyError, or StorageError; the files of
    all tasks are then deleted. An error of the DataFrame itself comes out as Spark raised it.
    """
    rows = df.select(*map(column_of, beside(target.state.schema.names, df.columns)))
    if target.co_located:
        outcome = _Outcome.of(map_in_arrow(rows, _write_co_located(target, owners), _OUTCOME))
        disorder = next((one for one in outcome.errors if isinstance(one, _OutOfOrderError)), None)
        if disorder is None:
            return _handles(outcome, target)
        _delete(outcome, target, disorder)  # they are written again, sorted
        for note in getattr(disorder, "__notes__", ()):
            _log.warning("rows that lay in no order were written: %s, until gc", note)
    packed = map_in_arrow(rows, _pack(target, owners), _PACKED)
    if not target.co_located:
        packed = packed.repartitionById(owners.parallelism, F.col("subtask"))
    in_order = packed.sortWithinPartitions("bundle")
    return _handles(_Outcome.of(map_in_arrow(in_order, _write_packed(target), _OUTCOME)), target)


def write_against(
    df: DataFrame, owners: Assignment, against: Against, target: KeyedTarget
) -> tuple[KeyedStateHandle, ...]:
    """Write what makes these rows of those that are stored, as changes, a task for each subtask.

    Each task has all key groups of a subtask, also those of which there are no rows any more.
    Raises what :func:`write_keyed` raises, and MissingFileError or DamagedFileError.
    """
    state = against.state
    rows = df.select(*map(column_of, beside(state.schema.names, df.columns)))
    packed = map_in_arrow(rows, _pack(replace(target, state=state), owners), _PACKED)
    packed = packed.repartitionById(owners.parallelism, F.col("subtask")).sortWithinPartitions(
        "bundle"
    )
    task = _write_against(against, target, owners)
    outcome = _Outcome.of(map_in_arrow(packed, task, _OUTCOME))
    unseen = [subtask for subtask in range(owners.parallelism) if subtask not in outcome.compared]
    if unseen and not outcome.errors:
        # Spark starts no task for rows of which it knows that there are none at all.
        nothing = df.sparkSession.range(0, len(unseen), numPartitions=len(unseen))
        task = _write_against(against, target, owners, unseen)
        try:
            rest = _Outcome.of(map_in_arrow(nothing, task, _OUTCOME))
        except BaseException as error:
            _delete(outcome, target, error)
            raise
        outcome.handles.extend(rest.handles)
        outcome.errors.extend(rest.errors)
    return _handles(outcome, target)


def _handles(outcome: _Outcome, target: KeyedTarget) -> tuple[KeyedStateHandle, ...]:
    """Return the handles of all tasks in order; after an error delete their files and raise it."""
    if outcome.errors:
        reason = _one_of(outcome.errors, target.state)
        _delete(outcome, target, reason)
        raise reason
    return tuple(sorted(outcome.handles, key=lambda handle: handle.key_groups.first))


def _delete(outcome: _Outcome, target: KeyedTarget, reason: BaseException) -> None:
    written = WrittenFiles(target.storage)
    written.add(target.folder, outcome.handles)
    written.delete(reason)


def _pack(target: KeyedTarget, owners: Assignment) -> Task:
    """The task before the exchange; an error is packed as well, and raised on the driver."""

    def pack_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        try:
            for packed in pack(batches, target.state, owners):
                if target.co_located:
                    own = pc.unique(packed.column(0)).to_pylist()
                    _refuse_foreign(own, target.state, owners)
                yield packed
        except StateStoreError as error:
            row = {"subtask": 0, "error": pickle.dumps(error)}
            yield pa.RecordBatch.from_pylist([row], PACKED)

    return pack_rows


def _write_packed(target: KeyedTarget) -> Task:
    """The task behind the exchange."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        errors: list[StateStoreError] = []
        rows = unpack(_intact(batches, errors), target.state)
        yield _outcome(lambda: write_grouped(rows, target), errors)

    return write


def _intact(
    packed: Iterable[pa.RecordBatch], errors: list[StateStoreError]
) -> Iterator[pa.RecordBatch]:
    """Pass packed rows on until there is an error among them; collect the errors."""
    for batch in packed:
        errors.extend(map(pickle.loads, batch.column("error").drop_null().to_pylist()))
        if not errors:
            yield batch


def _write_against(
    against: Against, target: KeyedTarget, owners: Assignment, unseen: Sequence[int] | None = None
) -> Task:
    """The task behind the exchange for all rows of a state; with ``unseen`` the task for subtasks
    that have none.
    """
    state = against.state

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        subtask = _partition() if unseen is None else unseen[_partition()]
        errors: list[StateStoreError] = []

        def runs() -> Iterator[pa.Table]:
            if unseen is None:
                yield from runs_of(unpack(_intact(batches, errors), state), against.run_bytes)
            else:
                deque(batches, maxlen=0)
            if errors:  # then these are not all rows, and the others have not gone
                raise errors.pop()

        changes = against.changes(runs(), owners.range_of(subtask))
        yield _outcome(lambda: write_runs(changes, target), errors, subtask)

    return write


def _write_co_located(target: KeyedTarget, owners: Assignment) -> Task:
    """The task for rows that lie right, which is all there is."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle()
        rows = _in_place(keyed_batches(batches, target.state), target.state, owners)
        yield _outcome(lambda: write_grouped(rows, target), [])

    return write


def _outcome(
    write: Callable[[], tuple[KeyedStateHandle, ...]],
    errors: list[StateStoreError],
    compared: int | None = None,
) -> pa.RecordBatch:
    """Return what came of a task, for the driver: its handles, and the errors it met. Without one
    it has ``compared`` a subtask, if that is given.
    """
    row: dict[str, Any] = {"compared": compared}
    met: list[Exception]
    try:
        row["handles"] = pickle.dumps(write())
        met = [*errors]  # some of them came with the rows
    except (StateStoreError, _OutOfOrderError) as error:  # raised on the driver, as itself
        met = [error, *errors]
    if met:
        row |= {"compared": None, "errors": pickle.dumps(met)}
    return pa.RecordBatch.from_pylist([row], _ONE_OUTCOME)


def _in_place(
    batches: Iterable[pa.RecordBatch], state: KeyedState, owners: Assignment
) -> Iterator[pa.RecordBatch]:
    """Pass rows on while they are in order of key group and no other subtask owns one."""
    last = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        groups = np.asarray(batch.column(0))
        for group in (groups.min(), groups.max()):
            _refuse_foreign([owners.subtask_of(int(group))], state, owners)
        if groups[0] < last or (np.diff(groups) < 0).any():
            raise _OutOfOrderError(f"rows of {state} are not in order of key group")
        last = groups[-1]
        yield batch


def _refuse_foreign(subtasks: Iterable[int], state: KeyedState, owners: Assignment) -> None:
    here = _partition()
    for subtask in subtasks:
        if subtask != here:
            raise InvalidArgumentError(
                f"{state} is said to be co-located, and Spark partition {here} has a row of a key "
                f"group that belongs to subtask {subtask} of {owners.parallelism}; leave out "
                "co_located=True"
            )


def _partition() -> int:
    context = TaskContext.get()
    assert context is not None  # this runs in a task
    return context.partitionId()


def _one_of(errors: Sequence[Exception], state: KeyedState) -> Exception:
    """Return the error to raise; null keys are counted over all tasks."""
    null_keys = sum(error.rows for error in errors if isinstance(error, NullKeyError))
    return null_key_error(state, null_keys) if null_keys else errors[0]
