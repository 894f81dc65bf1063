"""The tasks that run a ``StatefulProcessor``, one key after another.

A task gets the rows of a micro-batch and of the states of the same keys, sorted by key. It returns
output rows and changed rows in one table. The column ``what`` has the type of each row, and each
type has its own columns, which are null in other rows. Rows are converted from and to Arrow by
whole batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from statestore.errors import (
    InvalidArgumentError,
    ProcessorError,
    SchemaMismatchError,
    StateStoreError,
)
from statestore.keys.arrow import key_groups
from statestore.rows.lossless_cast import UnfitError
from statestore.rows.pandas_rows import arrow_frame, is_pandas, pandas_as_stored
from statestore.rows.python_values import Place, display_rows, row_place
from statestore.spark.compat import arrow_schema_of
from statestore.spark.workers import warm_up_worker
from statestore.streaming.handle import Changed, Handle, ProcessorClock, Variable
from statestore.streaming.processor_states import HASH_SCHEME, ProcessorState, index_of, index_rows
from statestore.streaming.python_values import arrow_column, first_unreadable, python_values
from statestore.streaming.updates import cast_rows

if TYPE_CHECKING:
    import pandas as pd

WHAT = "what"
EVENTS, INITIAL, STATES = 0, 1, 2
_AT_ONCE = 4096
"""The number of rows that are converted to Arrow together."""

Values = tuple[Any, ...]


class Change(IntEnum):
    """The kinds of changes to a state that a task returns."""

    UPSERTED = 0
    DELETED = 1
    CLEARED = 2


class RowTag(NamedTuple):
    """The table that a returned row belongs to, and for a state's table the kind of change.

    Table 0 is the output. The tables of the states follow in their order.
    """

    table: int
    change: Change = Change.UPSERTED

    @classmethod
    def of_state(cls, number: int, change: Change) -> RowTag:
        """Return the tag of changes to the state with this number."""
        return cls(1 + number, change)

    @property
    def number(self) -> int:
        """The tag as a value of the column ``what``."""
        return len(Change) * self.table + self.change


OUTPUT = RowTag(0)


@dataclass(frozen=True)
class Columns:
    """Several tables in one: ``what`` names a row's table, and other tables' columns are null.

    The columns are numbered across all tables, since tables may have columns of the same name.
    """

    tables: tuple[T.StructType, ...]

    @cached_property
    def schema(self) -> T.StructType:
        """All columns: ``what``, then the columns of the first table, and so on."""
        fields = [T.StructField(WHAT, T.IntegerType())]
        for table in self.tables:
            fields += [
                T.StructField(f"c{len(fields) + offset}", field.dataType)
                for offset, field in enumerate(table)
            ]
        return T.StructType(fields)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The same schema in Arrow."""
        return arrow_schema_of(self.schema)

    def names_of(self, table: int) -> list[str]:
        """Return the column names of a table."""
        first = 1 + sum(len(struct.fields) for struct in self.tables[:table])
        return self.schema.names[first : first + len(self.tables[table].fields)]

    def rows(self, tag: RowTag, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return a table's rows in the columns of all; narrow rows fill the first columns."""
        names = self.names_of(tag.table)[: rows.num_columns]
        own = dict(zip(names, rows.columns, strict=True))
        own[WHAT] = pa.array([tag.number], pa.int32()).take(
            pa.nulls(rows.num_rows, pa.int32()).fill_null(0)
        )
        arrays = [
            own[field.name] if field.name in own else pa.nulls(rows.num_rows, field.type)
            for field in self.arrow
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


@dataclass(frozen=True)
class ProcessorTask:
    """The work of a task; it is sent from the driver.

    ``states`` are keyed by the variables' names; ``timers`` is None without timers. With
    ``pandas`` the processor gets and returns DataFrames, otherwise Spark's ``Row``. ``key_types``
    are the types that the key's columns are hashed as, None for their own types.
    """

    uid: str
    processor: StatefulProcessor
    pandas: bool
    clock: ProcessorClock
    variables: Mapping[str, Variable]
    states: Mapping[str, ProcessorState]
    timers: ProcessorState | None
    key: T.StructType
    events: T.StructType
    initial: T.StructType | None
    output: T.StructType
    batch: int
    max_parallelism: int
    key_types: tuple[str, ...] | None

    @property
    def stored(self) -> list[ProcessorState]:
        """The states in the order of their tables, the timers last."""
        return [*self.states.values(), *([] if self.timers is None else [self.timers])]

    @cached_property
    def written(self) -> list[ProcessorState]:
        """The states that a task returns changes for: the stored ones, and the timer index."""
        return self.stored if self.timers is None else [*self.stored, index_of(self.timers)]

    @cached_property
    def input_columns(self) -> Columns:
        """The input tables of a task: key, events, initial rows, and states without the key."""
        initial = T.StructType() if self.initial is None else self.initial
        return Columns((self.key, self.events, initial, *(state.own for state in self.stored)))

    @cached_property
    def output_columns(self) -> Columns:
        """The output tables of a task: the output rows, and rows of the states."""
        return Columns((self.output, *(state.schema for state in self.written)))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the processor's results for the rows of a Spark partition, sorted by key.

        Raises ProcessorError for an error in the processor, with the current key and its key group.
        """
        warm_up_worker()
        out = _TaskOutput(self)
        handle = Handle(self.clock, self.variables)
        self._call_guarded("init", None, lambda: self.processor.init(handle))  # type: ignore[arg-type]
        handle.is_open = False
        for key, parts in _group_by_key(self, batches):
            self._call_guarded("", key, partial(self._run, key, parts, handle, out))
            yield from out.full()
        yield from out.rest()
        self._call_guarded("close", None, self.processor.close)

    def _run(self, key: Values, parts: _Rows, handle: Handle, out: _TaskOutput) -> None:
        """Call the processor with all rows of a key."""
        rows = {name: parts.of_state(number) for number, name in enumerate(self.states)}
        timers = [] if self.timers is None else parts.of_state(len(self.states))
        handle.begin(rows, timers)
        processor, times = self.processor, TimerValues(self.clock.now_ms, self.clock.watermark_ms)
        for row in parts.initial(one_by_one=not self.pandas):
            processor.handleInitialState(key, row, times)
        events = parts.events()
        if events is not None:
            out.add(key, processor.handleInputRows(key, events, times))
        for due_ms in handle.due():
            fired = ExpiredTimerInfo(due_ms)
            out.add(
                key,
                processor.handleExpiredTimer(key=key, timerValues=times, expiredTimerInfo=fired),
            )
            handle.deleteTimer(due_ms)
        changed, changed_timers = handle.changed()
        for number, name in enumerate(self.states):
            out.change(number, key, changed[name])
        if self.timers is not None:
            out.change(len(self.states), key, changed_timers)

    def _call_guarded(self, method: str, key: Values | None, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            where = f"in {method}()" if key is None else self._place_of(key)
            is_own = isinstance(error, StateStoreError)
            text = str(error) if is_own else f"{type(error).__name__}: {error}"
            raise ProcessorError(
                f"the processor of operator {self.uid!r} failed in micro-batch {self.batch}, "
                f"{where}: {text}"
            ) from error

    @property
    def subject(self) -> str:
        """The name of the processor and the micro-batch in error messages."""
        return f"the processor of operator {self.uid!r} in micro-batch {self.batch}"

    def _place_of(self, key: Values) -> str:
        """Return a key's name in errors; its key group is computed as for its written rows."""
        (group,) = key_groups(
            _table([key], self.key, "the keys").columns,
            max_parallelism=self.max_parallelism,
            hash_scheme=HASH_SCHEME,
            key_types=self.key_types,
        )
        return f"key group {group}, key {key!r}"


class _Rows:
    """All rows of one key, by table."""

    def __init__(self, task: ProcessorTask) -> None:
        self._task = task
        self._frames: list[Any] = []
        self._initial: list[Any] = []
        self._states: list[list[Values]] = [[] for _ in task.stored]

    def take(self, table: int, rows: Any) -> None:
        if table == EVENTS:
            self._frames.append(rows)
        elif table == INITIAL:
            self._initial.append(rows)
        else:
            self._states[table - STATES] += rows

    def of_state(self, number: int) -> list[Values]:
        return self._states[number]

    def events(self) -> Iterator[Any] | None:
        """Return the events as DataFrames or as rows; None for a key without events."""
        if not self._frames:
            return None
        if self._task.pandas:
            return iter(self._frames)
        return (row for rows in self._frames for row in rows)

    def initial(self, *, one_by_one: bool) -> Iterator[Any]:
        if one_by_one:
            return (row for rows in self._initial for row in rows)
        return iter(self._initial)


def _group_by_key(
    task: ProcessorTask, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[Values, _Rows]]:
    """Yield keys with all their rows; the rows of a key are adjacent, and may span batches."""
    key: Values | None = None
    own = _Rows(task)
    for batch in batches:
        if not batch.num_rows:
            continue
        for row_key, table, rows in _key_runs(task, batch):
            if key is None or _comparable(row_key) != _comparable(key):
                if key is not None:
                    yield key, own
                key, own = row_key, _Rows(task)
            own.take(table, rows)
    if key is not None:
        yield key, own


def _key_runs(task: ProcessorTask, batch: pa.RecordBatch) -> Iterator[tuple[Values, int, Any]]:
    """Yield the runs of rows with one key and one table, converted to that table's form."""
    columns = task.input_columns
    keys = _tuples(task, batch, columns.names_of(0), task.key, "of any table")
    tables = batch.column(WHAT).to_pylist()
    takers = {table: _taker(task, batch, table) for table in set(tables)}
    begins = 0
    rows = zip(map(_comparable, keys), tables, strict=True)
    for (_, table), run in groupby(rows):
        length = sum(1 for _ in run)
        yield keys[begins], table, takers[table](length)
        begins += length


def _comparable(key: Values) -> Values:
    """Return a key in a form that is equal only for equal keys.

    NaN equals NaN. Two instants with the same local time, when clocks are set back, are different
    keys.
    """
    return tuple(
        ("NaN" if isinstance(value, float) and value != value else value, getattr(value, "fold", 0))
        for value in key
    )


def _taker(task: ProcessorTask, batch: pa.RecordBatch, table: int) -> Callable[[int], Any]:
    """Return a function that takes the next ``n`` rows of a table."""
    rows = batch.filter(pc.equal(batch.column(WHAT), table))
    names = task.input_columns.names_of(table + 1)
    if table >= STATES:
        state = task.stored[table - STATES]
        return _in_turn(_tuples(task, rows, names, state.own, f"of state {state.name!r}"))
    schema = task.events if table == EVENTS else task.initial or T.StructType()
    if task.pandas:
        return _frames_in_turn(cast_rows(rows.select(names), arrow_schema_of(schema)))
    origin = "of the events" if table == EVENTS else "of the initial state"
    row = T.Row(*schema.names)
    plain = [
        _python_column(task, rows, *own, origin, pa.Array.to_pylist)
        for own in zip(names, schema, strict=True)
    ]
    return _in_turn([row(*values) for values in zip(*plain, strict=True)])


def _in_turn(rows: list[Any]) -> Callable[[int], list[Any]]:
    coming = deque(rows)
    return lambda length: [coming.popleft() for _ in range(length)]


def _frames_in_turn(rows: pa.Table) -> Callable[[int], pd.DataFrame]:
    start = 0

    def take(length: int) -> pd.DataFrame:
        nonlocal start
        start += length
        return arrow_frame(rows.slice(start - length, length))

    return take


def _tuples(
    task: ProcessorTask,
    rows: pa.RecordBatch,
    names: Sequence[str],
    schema: T.StructType,
    origin: str,
) -> list[Values]:
    """Return rows as tuples, with values as Spark passes them to Python."""
    columns = [
        _python_column(
            task, rows, name, field, origin, partial(python_values, data_type=field.dataType)
        )
        for name, field in zip(names, schema, strict=True)
    ]
    return [*zip(*columns, strict=True)] if columns else [()] * rows.num_rows


def _python_column(
    task: ProcessorTask,
    rows: pa.RecordBatch,
    name: str,
    field: T.StructField,
    origin: str,
    read: Callable[[pa.Array], list[Any]],
) -> list[Any]:
    """Convert a column with ``read``; an error names the key, the column and the value."""
    column = rows.column(name)
    try:
        return read(column)
    except (UnfitError, OverflowError, TypeError, ValueError) as error:
        row, value, reason = first_unreadable(column, read)
        [key] = display_rows(rows.select(task.input_columns.names_of(0)).slice(row, 1))
        raise ProcessorError(
            f"{task.subject} cannot receive a row {origin} with the key "
            f"{tuple(key.values())!r}: column {field.name!r} of type "
            f"{field.dataType.simpleString()} has the value {value}; {reason}"
        ) from error


class _TaskOutput:
    """Buffers output rows, and converts them to Arrow together."""

    def __init__(self, task: ProcessorTask) -> None:
        self._task, self._columns = task, task.output_columns
        self._frames: list[pa.RecordBatch] = []
        self._out: list[tuple[Values, T.Row]] = []
        self._out_rows = 0
        self._rows: dict[tuple[int, Change], list[Values]] = {}
        self._waiting = 0

    def add(self, key: Values, yielded: Iterable[Any] | None) -> None:
        """Take the rows that the processor yields for a key.

        DataFrames are converted here, one by one. Concatenated in pandas, the longs of one
        DataFrame would become floats if another one has floats.
        """
        for rows in yielded or ():
            if self._task.pandas and is_pandas(rows) and not len(rows):
                continue  # a frame without rows may have no columns either
            if self._task.pandas:
                self._frames.append(self._of_frame(rows))
                self._out_rows += len(rows)
            elif isinstance(rows, T.Row):
                self._out.append((key, rows))
                self._out_rows += 1
            else:
                raise InvalidArgumentError(
                    f"the processor yields {type(rows).__name__} instead of Row(…) with the "
                    f"columns ({_text(self._task.output)})"
                )

    def change(self, state: int, key: Values, changed: Changed) -> None:
        """Add the changes to a state of one key to the buffered rows."""
        for change, rows in (
            (Change.UPSERTED, changed.upserts),
            (Change.DELETED, changed.deletes),
            (Change.CLEARED, ((),) if changed.cleared else ()),
        ):
            if rows:
                self._rows.setdefault((state, change), []).extend((*key, *row) for row in rows)
                self._waiting += len(rows)

    def full(self) -> Iterator[pa.RecordBatch]:
        """Yield the buffered rows, once there are enough."""
        if self._waiting + self._out_rows >= _AT_ONCE:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all buffered rows."""
        if self._frames:
            for part in pa.Table.from_batches(self._frames).combine_chunks().to_batches():
                yield self._columns.rows(OUTPUT, part)
        if self._out:
            for part in self._of_rows().combine_chunks().to_batches():
                yield self._columns.rows(OUTPUT, part)
        for (state, change), rows in self._rows.items():
            own = self._task.stored[state]
            narrow = T.StructType(own.schema.fields[: len(rows[0])])
            width = len(own.key)
            with self._report_unfit_values(f"sets values of state {own.name!r}", own.schema):
                places = _places([row[:width] for row in rows])
                table = _table(rows, narrow, f"state {own.name!r}", places).combine_chunks()
            for part in table.to_batches():
                yield self._columns.rows(RowTag.of_state(state, change), part)
                if state == len(self._task.states):
                    yield self._indexed(change, part)
        self._frames, self._out, self._out_rows = [], [], 0
        self._rows, self._waiting = {}, 0

    @contextmanager
    def _report_unfit_values(self, action: str, schema: T.StructType) -> Iterator[None]:
        """Turn an error about values that do not fit the columns into one ProcessorError."""
        try:
            yield
        except Exception as error:
            raise ProcessorError(
                f"{self._task.subject} {action} that do not fit ({_text(schema)}): {error}"
            ) from error

    def _indexed(self, change: Change, timers: pa.RecordBatch) -> pa.RecordBatch:
        """Return the index rows that belong to rows of the timers."""
        due, number = self._task.clock.due_ms, len(self._task.states) + 1
        assert due is not None
        rows = index_rows(timers, due, gone=change is Change.DELETED)
        rows = rows.select(range(3)) if change is Change.DELETED else rows
        return self._columns.rows(RowTag.of_state(number, change), rows)

    def _of_frame(self, frame: Any) -> pa.RecordBatch:
        """Return a DataFrame that the processor yields as rows of the output."""
        names = self._task.output.names
        if not is_pandas(frame):
            raise InvalidArgumentError(
                f"the processor yields {type(frame).__name__} instead of pandas DataFrames "
                f"with the columns ({_text(self._task.output)})"
            )
        if sorted(frame.columns, key=str) != sorted(names):
            raise SchemaMismatchError(
                f"the processor yields the columns ({', '.join(map(str, frame.columns))}), "
                f"but the output has ({', '.join(names)}); yield exactly these columns"
            )
        schema = arrow_schema_of(self._task.output)
        rows = pandas_as_stored(frame, schema, "the yielded rows")
        return pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in rows.columns], schema=schema
        )

    def _of_rows(self) -> pa.Table:
        """Return the rows that the processor yields; missing columns are null."""
        schema = self._task.output
        keys = [key for key, _ in self._out]
        rows_of_key = [row.asDict() for _, row in self._out]
        with self._report_unfit_values("yields rows", schema):
            for key, row in zip(keys, rows_of_key, strict=True):
                if other := [name for name in row if name not in schema.names]:
                    raise SchemaMismatchError(
                        f"the row of the key {key!r} has the column {other[0]!r}, which the "
                        "output lacks"
                    )
            rows = [tuple(map(row.get, schema.names)) for row in rows_of_key]
            return _table(rows, schema, "the output", _places(keys))


def _places(keys: Sequence[Values]) -> Place:
    """Return a function that names rows by their keys, for messages."""
    return lambda row: f"a row of the key {keys[row]!r}"


def _text(schema: T.StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)


def _table(
    rows: list[Values], schema: T.StructType, subject: str, place: Place = row_place
) -> pa.Table:
    """Convert rows of Python values to Arrow; each value stays equal, or is refused."""
    columns = [
        arrow_column(values, field.dataType, name=field.name, subject=subject, place=place)
        for values, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.table(columns, names=schema.names)
