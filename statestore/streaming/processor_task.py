"""A ``StatefulProcessor`` at work: the tasks that call it, one key after another.

A task gets the rows of a micro-batch and of the states of the same keys, sorted by key, and gives
rows that come out and rows that change in one table: ``what`` says which a row is, and each of them
has columns of its own, that are null in the others. Rows are taken out of Arrow, and put back, by
whole batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.conversion import (
    ArrowBatchTransformer,
    ArrowTableToRowsConversion,
    LocalDataToArrowConversion,
    PandasToArrowConversion,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from statestore.errors import ProcessorError
from statestore.keys.arrow import key_groups
from statestore.spark.tasks import settle
from statestore.streaming.handle import Changed, Clock, Handle, Variable
from statestore.streaming.processor_states import HASH_SCHEME, ProcessorState
from statestore.streaming.timer_index import index_of, index_rows

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CLEARED", "DELETED", "OUT", "UPSERTED", "WHAT", "Columns", "ProcessorTask"]

WHAT = "what"
OUT = 0
UPSERTED, DELETED, CLEARED = range(3)
EVENTS, INITIAL, STATES = 0, 1, 2
_AT_ONCE = 4096
"""Rows that are put into Arrow together."""

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Columns:
    """Tables side by side in one: ``what`` says whose row it is, columns of the others are null.

    Columns are numbered through, as tables may have the same ones.
    """

    tables: tuple[T.StructType, ...]

    @cached_property
    def schema(self) -> T.StructType:
        """All columns: ``what``, then those of the first table, and so on."""
        fields = [T.StructField(WHAT, T.IntegerType())]
        for table in self.tables:
            fields += [
                T.StructField(f"c{len(fields) + at}", one.dataType) for at, one in enumerate(table)
            ]
        return T.StructType(fields)

    @cached_property
    def arrow(self) -> pa.Schema:
        """The same in Arrow."""
        return to_arrow_schema(self.schema, timezone="UTC")

    def of(self, table: int) -> list[str]:
        """Return the names of the columns of a table."""
        first = 1 + sum(len(one.fields) for one in self.tables[:table])
        return self.schema.names[first : first + len(self.tables[table].fields)]

    def rows(self, what: int, table: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a table among the columns of all; of a narrower one the first columns."""
        names = self.of(table)[: rows.num_columns]
        own = dict(zip(names, rows.columns, strict=True))
        own[WHAT] = pa.array([what], pa.int32()).take(
            pa.nulls(rows.num_rows, pa.int32()).fill_null(0)
        )
        arrays = [
            own[field.name] if field.name in own else pa.nulls(rows.num_rows, field.type)
            for field in self.arrow
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


@dataclass(frozen=True)
class ProcessorTask:
    """What a task does; sent from the driver.

    ``states`` are by the variables' names, ``timers`` are None where there are none. With
    ``pandas`` the processor gets and gives frames, else Spark's ``Row``. ``key_types`` are what the
    key's columns are hashed as, None for their own types.
    """

    uid: str
    processor: StatefulProcessor
    pandas: bool
    clock: Clock
    variables: Mapping[str, Variable]
    states: Mapping[str, ProcessorState]
    timers: ProcessorState | None
    key: T.StructType
    events: T.StructType
    initial: T.StructType | None
    output: T.StructType
    timezone: str
    batch: int
    max_parallelism: int
    key_types: tuple[str, ...] | None

    @property
    def stored(self) -> list[ProcessorState]:
        """The states in the order of their tables, the timers last."""
        return [*self.states.values(), *([] if self.timers is None else [self.timers])]

    @cached_property
    def written(self) -> list[ProcessorState]:
        """The states that changes are given of: those, and the index of the timers."""
        return self.stored if self.timers is None else [*self.stored, index_of(self.timers)]

    @cached_property
    def taken(self) -> Columns:
        """The tables that a task gets: key, events, initial rows, states without the key."""
        initial = T.StructType() if self.initial is None else self.initial
        return Columns((self.key, self.events, initial, *(one.own for one in self.stored)))

    @cached_property
    def given(self) -> Columns:
        """The tables that a task gives: what comes out, and rows of the states."""
        return Columns((self.output, *(one.schema for one in self.written)))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what the processor makes of the rows of a Spark partition, sorted by key.

        Raises ProcessorError for an error in the processor, with the key at work and its key group.
        """
        settle()
        out = _Given(self)
        handle = Handle(self.clock, self.variables)
        self._guarded("init", None, lambda: self.processor.init(handle))  # type: ignore[arg-type]
        handle.is_open = False
        for key, parts in _by_key(self, batches):
            self._guarded("", key, partial(self._run, key, parts, handle, out))
            yield from out.full()
        self._guarded("close", None, self.processor.close)
        yield from out.rest()

    def _run(self, key: Values, parts: _Rows, handle: Handle, out: _Given) -> None:
        """Call the processor with all that there is of a key."""
        rows = {name: parts.of_state(at) for at, name in enumerate(self.states)}
        timers = [] if self.timers is None else parts.of_state(len(self.states))
        handle.begin(rows, timers)
        processor, times = self.processor, TimerValues(self.clock.now_ms, self.clock.watermark_ms)
        for row in parts.initial(one_by_one=not self.pandas):
            processor.handleInitialState(key, row, times)
        events = parts.events()
        if events is not None:
            out.add(processor.handleInputRows(key, events, times))
        for at in handle.due():
            fired = ExpiredTimerInfo(at)
            out.add(
                processor.handleExpiredTimer(key=key, timerValues=times, expiredTimerInfo=fired)
            )
            handle.deleteTimer(at)
        changed, changed_timers = handle.changed()
        for number, name in enumerate(self.states):
            out.change(number, key, changed[name])
        if self.timers is not None:
            out.change(len(self.states), key, changed_timers)

    def _guarded(self, what: str, key: Values | None, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:
            where = f"in {what}()" if key is None else self._place_of(key)
            text = f"{type(error).__name__}: {error}"
            raise ProcessorError(
                f"the processor of operator {self.uid!r} failed in micro-batch {self.batch}, "
                f"{where}: {text}"
            ) from error

    def _place_of(self, key: Values) -> str:
        """Return how an error names a key: it is hashed as the rows that are written of it are."""
        (group,) = key_groups(
            _table([key], self.key).columns,
            max_parallelism=self.max_parallelism,
            hash_scheme=HASH_SCHEME,
            key_types=self.key_types,
        )
        return f"key group {group}, of key {key!r}"


class _Rows:
    """What there is of one key, by table."""

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
        """Return frames, or all rows; None for a key without events."""
        if not self._frames:
            return None
        if self._task.pandas:
            return iter(self._frames)
        return (row for rows in self._frames for row in rows)

    def initial(self, *, one_by_one: bool) -> Iterator[Any]:
        if one_by_one:
            return (row for rows in self._initial for row in rows)
        return iter(self._initial)


def _by_key(
    task: ProcessorTask, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[Values, _Rows]]:
    """Yield keys with all their rows, which lie side by side, also over the end of a batch."""
    key: Values | None = None
    own = _Rows(task)
    for batch in batches:
        if not batch.num_rows:
            continue
        for found, table, rows in _runs(task, batch):
            if key is None or _told(found) != _told(key):
                if key is not None:
                    yield key, own
                key, own = found, _Rows(task)
            own.take(table, rows)
    if key is not None:
        yield key, own


def _runs(task: ProcessorTask, batch: pa.RecordBatch) -> Iterator[tuple[Values, int, Any]]:
    """Yield the rows of a batch that are of one key and one table, in the form that is wanted."""
    columns = task.taken
    keys = _tuples(batch, columns.of(0), task.key)
    tables = batch.column(WHAT).to_pylist()
    takers = {table: _taker(task, batch, table) for table in set(tables)}
    begins = 0
    told = zip(map(_told, keys), tables, strict=True)
    for (_, table), run in groupby(told):
        length = sum(1 for _ in run)
        yield keys[begins], table, takers[table](length)
        begins += length


def _told(key: Values) -> Values:
    """Return a key as one that equals itself, with NaN in it too."""
    return tuple("NaN" if isinstance(one, float) and one != one else one for one in key)


def _taker(task: ProcessorTask, batch: pa.RecordBatch, table: int) -> Callable[[int], Any]:
    """Return what takes the next so many rows of a table."""
    rows = batch.filter(pc.equal(batch.column(WHAT), table))
    names = task.taken.of(table + 1)
    if table >= STATES:
        schema = task.stored[table - STATES].own
        return _in_turn(_tuples(rows, names, schema))
    schema = task.events if table == EVENTS else task.initial or T.StructType()
    if not task.pandas:
        row = T.Row(*schema.names)
        columns = [rows.column(name).to_pylist() for name in names]
        return _in_turn([row(*values) for values in zip(*columns, strict=True)])
    return _frames_in_turn(_frame(rows, names, schema, task.timezone))


def _in_turn(rows: list[Any]) -> Callable[[int], list[Any]]:
    coming = deque(rows)
    return lambda length: [coming.popleft() for _ in range(length)]


def _frames_in_turn(frame: pd.DataFrame) -> Callable[[int], pd.DataFrame]:
    at = 0

    def take(length: int) -> pd.DataFrame:
        nonlocal at
        at += length
        return frame.iloc[at - length : at].reset_index(drop=True)

    return take


def _frame(
    rows: pa.RecordBatch, names: Sequence[str], schema: T.StructType, timezone: str
) -> pd.DataFrame:
    """Return rows as a frame, with values as Spark gives them to functions of pandas."""
    import pandas as pd

    own = pa.RecordBatch.from_arrays([rows.column(name) for name in names], names=schema.names)
    series = ArrowBatchTransformer.to_pandas(own, timezone=timezone, schema=schema)
    frame = pd.concat(series, axis=1)
    frame.columns = pd.Index(schema.names)
    return frame


def _tuples(rows: pa.RecordBatch, names: Sequence[str], schema: T.StructType) -> list[Values]:
    """Return rows as tuples, with values as Spark gives them to Python."""
    arrays = [rows.column(name) for name in names]
    own = pa.Table.from_arrays(arrays, names=[f"f{at}" for at in range(len(names))])
    numbered = T.StructType(
        [T.StructField(f"f{at}", one.dataType) for at, one in enumerate(schema)]
    )
    return ArrowTableToRowsConversion.convert(own, numbered, return_as_tuples=True)


class _Given:
    """Rows on their way out, put into Arrow together."""

    def __init__(self, task: ProcessorTask) -> None:
        self._task, self._columns = task, task.given
        self._out: list[Any] = []
        self._out_rows = 0
        self._rows: dict[tuple[int, int], list[Values]] = {}
        self._waiting = 0

    def add(self, given: Iterable[Any] | None) -> None:
        """Take what the processor yields."""
        for one in given or ():
            self._out.append(one)
            self._out_rows += len(one) if self._task.pandas else 1

    def change(self, state: int, key: Values, changed: Changed) -> None:
        """Take what was changed of a key."""
        for how, rows in (
            (UPSERTED, changed.upserts),
            (DELETED, changed.deletes),
            (CLEARED, ((),) if changed.cleared else ()),
        ):
            if rows:
                self._rows.setdefault((state, how), []).extend((*key, *row) for row in rows)
                self._waiting += len(rows)

    def full(self) -> Iterator[pa.RecordBatch]:
        """Yield what waits, once it is enough."""
        if self._waiting + self._out_rows >= _AT_ONCE:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all that waits."""
        if self._out:
            with self._fitting("yields rows", self._task.output):
                out = self._output()
            yield self._columns.rows(OUT, 0, out)
        for (state, how), rows in self._rows.items():
            own = self._task.stored[state]
            narrow = T.StructType(own.schema.fields[: len(rows[0])])
            with self._fitting(f"gives state {own.name!r} values", own.schema):
                table = _table(rows, narrow).combine_chunks()
            for part in table.to_batches():
                yield self._columns.rows(1 + 3 * state + how, 1 + state, part)
                if state == len(self._task.states):
                    yield self._indexed(how, part)
        self._out, self._out_rows, self._rows, self._waiting = [], 0, {}, 0

    @contextmanager
    def _fitting(self, what: str, schema: T.StructType) -> Iterator[None]:
        """Say in one error what the processor gave that is not of the columns."""
        try:
            yield
        except Exception as error:
            task = self._task
            raise ProcessorError(
                f"the processor of operator {task.uid!r} in micro-batch {task.batch} {what} that "
                f"do not fit ({_text(schema)}): {error}"
            ) from error

    def _indexed(self, how: int, timers: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of the index that belong to rows of the timers."""
        due, number = self._task.clock.due_ms, len(self._task.states) + 1
        assert due is not None
        rows = index_rows(timers, due, gone=how == DELETED)
        rows = rows.select(range(3)) if how == DELETED else rows
        return self._columns.rows(1 + 3 * number + how, 1 + number, rows)

    def _output(self) -> pa.RecordBatch:
        schema = self._task.output
        if self._task.pandas:
            import pandas as pd

            frames = [one for one in self._out if len(one)] or self._out[:1]
            return PandasToArrowConversion.convert(
                pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0],
                schema,
                timezone=self._task.timezone,
                arrow_cast=True,
                assign_cols_by_name=True,
            )
        arrow = to_arrow_schema(schema, timezone="UTC")
        return pa.RecordBatch.from_pylist([row.asDict(True) for row in self._out], schema=arrow)


def _text(schema: T.StructType) -> str:
    return ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in schema)


def _table(rows: list[Values], schema: T.StructType) -> pa.Table:
    """Return rows of Python's values in Arrow."""
    nullable = T.StructType([T.StructField(one.name, one.dataType) for one in schema])
    table = LocalDataToArrowConversion.convert(rows, nullable, False)
    return table.cast(to_arrow_schema(nullable, timezone="UTC"))
