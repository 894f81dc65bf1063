"""Updates: how a query computes the changes of a micro-batch to its states.

A query uses a function of DataFrames, a function that is called for each key, or a processor.
:class:`UpdateStrategy` is what a query needs from each of them. The strategy of a processor is
:class:`statestore.streaming.processor.Processing`.

A function that is called for each key uses pandas. Spark passes rows to its workers as Arrow
tables. pandas sees them in columns of Arrow types, so a value that the function does not touch is
never converted. Returned rows are converted exactly.

Spark reports the error of a Python worker as text. :func:`worker_errors` converts it to an error of
this package.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import BooleanType, StructField, StructType

from statestore.errors import (
    InvalidArgumentError,
    ProcessorError,
    SchemaMismatchError,
    StateStoreError,
)
from statestore.format.schema import schema_from_json
from statestore.restore.restored import RestoredCheckpoint
from statestore.rows.column_types import arrow_schema
from statestore.rows.lossless_cast import is_list
from statestore.rows.pandas_rows import arrow_frame, is_pandas, pandas_as_stored
from statestore.rows.python_values import display_values, rows_to_dicts
from statestore.snapshot.state_spec import Changes
from statestore.spark.cached_rows import coalesce_small
from statestore.spark.compat import Py4JJavaError, arrow_schema_of
from statestore.spark.hashing import column_of
from statestore.spark.tasks import number_columns
from statestore.spark.workers import warm_up_worker
from statestore.streaming.planned import MicroBatch
from statestore.streaming.progress import Progress
from statestore.streaming.query_options import QueryState

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Updated:
    """The result of an update: changes by state, and rows for the query's ``output``.

    ``shared`` has DataFrames that several changes derive from. Each is computed once, and cached
    until the micro-batch is committed.
    """

    changes: Mapping[str, DataFrame | Changes]
    output: DataFrame | None = None
    shared: Sequence[DataFrame] = ()


_MESSAGE = re.compile(r"ProcessorError: (the (?:processor|function) of operator .*)")


@contextmanager
def worker_errors() -> Iterator[None]:
    """Raise a ProcessorError for Spark's wrapper of a worker's ProcessorError."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        message = _MESSAGE.search(str(error))
        if message is None:
            raise
        raise ProcessorError(message[1]) from error


Function = Callable[[tuple[Any, ...], "pd.DataFrame", "pd.DataFrame"], "pd.DataFrame"]

_CLEARED = "__the_key_is_cleared"


def by_key(
    key: str | Sequence[str], function: Function, *, entry: str | Sequence[str] = ()
) -> ByKey:
    """Return an update of one state that calls ``function`` for each touched key.

    ``function(key, events, state)`` gets the key's events in the micro-batch and its stored rows,
    which are empty for a new key. It returns the new rows of the key. Stored rows that it does not
    return are deleted.

    The columns of both DataFrames are ``pandas.ArrowDtype``. A long next to a null stays a long, a
    null is ``pandas.NA``, and a timestamp is an instant in UTC, in microseconds. Each returned
    value is stored as an equal one, or refused. In that case the query ends with a ProcessorError
    that names operator, state, key, column and value.

    Args:
        key: The columns that events and rows are grouped by.
        function: Called once for each key. Its result needs the columns of the state, in any order
            and in any types that have equal values; its index is ignored.
        entry: The columns that distinguish the rows of a key (namespace, map key, position), if a
            key can have several rows.

    Returns:
        The update.
    """
    return ByKey(_names(key), function, _names(entry))


@dataclass(frozen=True)
class ByKey:
    """The update that :func:`by_key` returns; ``operator`` is for messages."""

    key: tuple[str, ...]
    function: Function
    entry: tuple[str, ...] = ()
    operator: str = ""

    def __call__(
        self, events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch
    ) -> Updated:
        """Return the changes of the one state.

        Raises:
            InvalidArgumentError: When the query has several states.
        """
        if len(states) != 1:
            raise InvalidArgumentError(
                f"by_key updates only one state, but the query has {len(states)} "
                f"({', '.join(states)}): write a StatefulProcessor, and use "
                "StatefulQuery.of_processor"
            )
        ((name, state),) = states.items()
        left, right = (
            number_columns(frame).groupBy(*(f"c{frame.columns.index(name)}" for name in self.key))
            for frame in (events, state)
        )
        task = _KeyTask(self, name, events.schema, state.schema)

        def run(events: pa.Table, state: pa.Table) -> pa.Table:  # Spark counts the arguments
            return task.run(events, state)

        both = left.cogroup(right).applyInArrow(run, task.marked)
        changes = Changes(
            upserts=both.where(~both[_CLEARED]).drop(_CLEARED),
            cleared=both.where(both[_CLEARED]).select(*map(column_of, self.key)),
        )
        return Updated({name: changes}, shared=[both])


@dataclass(frozen=True)
class _KeyTask:
    """The work of a worker for each key of a micro-batch; it is sent from the driver."""

    update: ByKey
    name: str
    events: StructType
    state: StructType

    @property
    def marked(self) -> StructType:
        """The columns of the state, and a mark that the row clears its key."""
        fields = [StructField(field.name, field.dataType) for field in self.state.fields]
        return StructType([*fields, StructField(_CLEARED, BooleanType())])

    @cached_property
    def _stored(self) -> pa.Schema:
        return arrow_schema(schema_from_json(self.state.jsonValue()))

    @cached_property
    def _events_schema(self) -> pa.Schema:
        return arrow_schema_of(self.events)

    @cached_property
    def _marked_schema(self) -> pa.Schema:
        return arrow_schema_of(self.marked)

    def run(self, events: pa.Table, state: pa.Table) -> pa.Table:
        """Return the new rows of a key, and a mark if stored rows must be deleted.

        Raises:
            ProcessorError: For an error in the function, and for a result that cannot be stored.
        """
        warm_up_worker()
        events, old = cast_rows(events, self._events_schema), cast_rows(state, self._stored)
        first = events if events.num_rows else old
        values: tuple[Any, ...] = ()
        try:
            [named] = rows_to_dicts(first.select(self.update.key).slice(0, 1), "the key")
            values = tuple(named.values())
            result = self.update.function(values, arrow_frame(events), arrow_frame(old))
            rows = self._rows(result)
        except Exception as error:
            text = str(error) if isinstance(error, StateStoreError) else _shown_error(error)
            raise ProcessorError(
                f"the function of operator {self.update.operator!r} failed for the key {values!r} "
                f"of state {self.name!r}: {text}"
            ) from error
        marked = rows.append_column(_CLEARED, pa.repeat(False, rows.num_rows))
        if not self._has_all_entries(old, rows):
            marked = pa.concat_tables([self._mark(old), marked])
        return cast_rows(marked, self._marked_schema)

    def _mark(self, old: pa.Table) -> pa.Table:
        """Return a row that marks a key as cleared; all columns but the key's are null."""
        columns = [
            old.column(field.name).slice(0, 1)
            if field.name in self.update.key
            else pa.nulls(1, field.type)
            for field in self._stored
        ]
        return pa.table(columns, schema=self._stored).append_column(_CLEARED, pa.repeat(True, 1))

    def _rows(self, result: Any) -> pa.Table:
        """Return the function's result as rows of the state."""
        names = self._stored.names
        if not is_pandas(result):
            raise InvalidArgumentError(
                f"the function must return a pandas DataFrame, not {type(result).__name__}"
            )
        if sorted(result.columns, key=str) != sorted(names):
            raise SchemaMismatchError(
                f"the function returned the columns ({', '.join(map(str, result.columns))}), "
                f"but the state has ({', '.join(names)}); return exactly these columns"
            )
        return pandas_as_stored(result, self._stored, "the returned rows")

    def _has_all_entries(self, old: pa.Table, rows: pa.Table) -> bool:
        """Return whether the returned rows replace every stored row of the key."""
        if not self.update.entry:
            return not old.num_rows or rows.num_rows > 0
        both = pa.concat_tables([old, rows]).select(self.update.entry)
        columns = [map(_comparable, display_values(column)) for column in both.columns]
        entries = [*zip(*columns, strict=True)]
        return {*entries[: old.num_rows]} <= {*entries[old.num_rows :]}


def cast_rows(rows: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Cast rows to types with the same values: timestamps in UTC, other offset sizes."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _comparable(value: Any) -> Any:
    """Return a value in a hashable form that is equal only for equal entries."""
    if isinstance(value, Mapping):
        return tuple((name, _comparable(part)) for name, part in value.items())
    if is_list(value):
        return tuple(map(_comparable, value))
    is_special = isinstance(value, float) and (value == 0 or value != value)
    return repr(float(value)) if is_special else value


def _shown_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)


Update = Callable[
    [DataFrame, Mapping[str, DataFrame], MicroBatch],
    "Mapping[str, DataFrame | Changes] | Updated",
]


class UpdateStrategy(ABC):
    """The update of a query, and the states and keys that it needs.

    The defaults are those of an update that is only called for events.
    """

    deleted: tuple[str, ...] = ()
    """The names of stored states that the update has deleted."""
    needs_keys: ClassVar[bool] = False
    """Whether a micro-batch without keys changes nothing, except the first one."""

    @property
    def has_timers(self) -> bool:
        """Whether the passage of time alone can require an update."""
        return False

    @abstractmethod
    def states(self, events: StructType) -> dict[str, QueryState]:
        """Return the states that the query keeps, for events of these columns."""

    @abstractmethod
    def owns(self, name: str) -> bool:
        """Return whether a stored state of the operator is a state of this update."""

    def keys(
        self,
        keys: pa.Table,
        restored: RestoredCheckpoint | None,
        batch: MicroBatch,
        progress: Progress,
    ) -> pa.Table:
        """Return the keys to process, from the keys of the events."""
        return keys

    def outdated(self, restored: RestoredCheckpoint, progress: Progress) -> list[str]:
        """Return the names of derived states that must be rebuilt."""
        return []

    def rebuild(
        self, name: str, restored: RestoredCheckpoint, batch: MicroBatch
    ) -> pa.RecordBatchReader | None:
        """Return the rows of a derived state, built again; None for a state that is not derived."""
        return None

    @abstractmethod
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
        """Return the changes of a micro-batch, from its events and the stored rows of its keys."""


@dataclass(frozen=True)
class FunctionUpdate(UpdateStrategy):
    """The update of a query that calls a function with DataFrames."""

    operator: str
    declared: Mapping[str, str | QueryState]
    update: Update

    def states(self, events: StructType) -> dict[str, QueryState]:
        """Return the declared states."""
        return {
            name: state if isinstance(state, QueryState) else QueryState(state)
            for name, state in self.declared.items()
        }

    def owns(self, name: str) -> bool:
        """Return whether the state is declared."""
        return name in self.declared

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
        """Return the function's result.

        Raises InvalidArgumentError for a result of another type, or rows of an unknown state.
        """
        held = {name: coalesce_small(rows) or keep(rows) for name, rows in states.items()}
        update = self.update
        if isinstance(update, ByKey):
            update = replace(update, operator=self.operator)
        updated = update(events, held, batch)
        if isinstance(updated, Mapping):
            updated = Updated(updated)
        if not isinstance(updated, Updated):
            raise InvalidArgumentError(
                f"update must return rows by state name, or Updated, not {type(updated).__name__}"
            )
        unknown = sorted(updated.changes.keys() - states.keys())
        if unknown:
            raise InvalidArgumentError(
                f"update returned rows of {unknown[0]!r}, but the query has the states "
                f"({', '.join(states)}); return rows of these states only"
            )
        return updated
