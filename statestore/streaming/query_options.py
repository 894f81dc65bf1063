"""The declaration of a query: its options, the states that it keeps, and their evolution.

A query may be started with new, renamed or wider columns, or with another TTL. It then first takes
an extra checkpoint with all rows of such states in the new form, all other states unchanged, and
the query's progress. A state that cannot be converted is refused, and nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Unpack

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from statestore.arguments import checked_fields
from statestore.durations import Duration, milliseconds_of
from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Manifest
from statestore.format.schema import schema_from_json
from statestore.format.state import KeyedState, TimeToLive
from statestore.keys.groups import KeyGroupRange
from statestore.restore.restored import RestoredCheckpoint, RestoredKeyedState
from statestore.rows.column_types import arrow_schema
from statestore.snapshot.state_spec import StateOptions


@checked_fields
@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints a query keeps; savepoints and pins are always kept.

    Attributes:
        keep: the number of checkpoints that are kept when older ones expire.
        every: older checkpoints expire each time when the id is a multiple of this number.

    Raises:
        InvalidArgumentError: for a number below 1.
    """

    keep: int
    every: int = 16

    def __post_init__(self) -> None:
        """Refuse numbers below 1."""
        for name, number in (("keep", self.keep), ("every", self.every)):
            if number < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {number}")


@checked_fields
@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """Options of a query that most queries do not need.

    Attributes:
        source: the operator under which the query keeps its progress.
        succeeds: True if the query continues the state of a query with another checkpoint location.
            Its sources must start where that query ended.
        cache_bytes: the most bytes of decoded files that the driver, or each Spark Python worker
            that looks rows up, caches for the next micro-batch; by default 256 MiB.
        retention: which checkpoints are kept; by default all.
        on_commit: called with the manifest of each checkpoint.
        leave_out: states that an import left out and that the query starts without, as ``operator``
            or ``operator/state``.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    source: str = "source"
    succeeds: bool = False
    cache_bytes: int = 256 * 2**20
    retention: RetentionPolicy | None = None
    on_commit: Callable[[Manifest], object] | None = None
    leave_out: Collection[str] = ()


DEFAULTS = QueryOptions()


@checked_fields
@dataclass(frozen=True, kw_only=True)
class ProcessorOptions:
    """How Spark's ``transformWithState`` would call a processor.

    Attributes:
        output_schema: the columns of the rows that the processor yields.
        output_mode: ``Append`` or ``Update``.
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``. ``EventTime`` requires events with
            a watermark.
        pandas: True if the processor was written for ``transformWithStateInPandas``.
        initial_state: rows for ``handleInitialState``, with the columns ``key``.
        max_parallelism: the number of key groups. The default is the stored number, or Flink's
            default for a new state.

    Raises:
        InvalidArgumentError: for a value of another type.
    """

    output_schema: str | StructType
    output_mode: str
    time_mode: str
    pandas: bool = False
    initial_state: DataFrame | None = None
    max_parallelism: int | None = None


@checked_fields
class QueryState:
    """A keyed state of a query: its columns, and how it is written.

    Args:
        schema: the columns as Spark DDL (``"user string, n long"``), or as a struct.
        is_derived: whether the state is computed from the others; an update does not get its rows.
        life: what is added to the current time in the time column when a TTL is turned on.
        **options: what describes the state, as in ``checkpoint.write_keyed``. The default of
            ``key`` is the query's.
    """

    def __init__(
        self,
        schema: str | StructType,
        *,
        is_derived: bool = False,
        life: Duration = "0",
        **options: Unpack[StateOptions],
    ) -> None:
        self.schema, self.is_derived, self.life, self.options = schema, is_derived, life, options

    def with_defaults(self, defaults: StateOptions) -> QueryState:
        """Return the state with other defaults of its options."""
        options: StateOptions = {**defaults, **self.options}
        return QueryState(self.schema, is_derived=self.is_derived, life=self.life, **options)

    @property
    def kept_options(self) -> StateOptions:
        """The options without the one-time changes: renamed or dropped columns."""
        options = self.options.copy()
        options.pop("renamed", None)
        options.pop("dropped", None)
        return options

    @property
    def dropped(self) -> list[str]:
        """The columns that the query drops."""
        names = self.options.get("dropped", ())
        return [names] if isinstance(names, str) else list(names)

    @property
    def renamed(self) -> Mapping[str, str]:
        """The new names of the columns that the query renames."""
        return self.options.get("renamed") or {}

    @property
    def ttl(self) -> TimeToLive | str | None:
        """The TTL; None if it is the stored one."""
        return self.options.get("ttl")

    @property
    def struct(self) -> StructType:
        """The columns."""
        if isinstance(self.schema, StructType):
            return self.schema
        struct = DataType.fromDDL(self.schema)
        assert isinstance(struct, StructType)  # the type of a list of columns is always a struct
        return struct


def stored_states(restored: RestoredCheckpoint | None, uid: str) -> dict[str, KeyedState]:
    """Return the keyed states of an operator in a checkpoint, by name; none without one."""
    entries = () if restored is None else restored.manifest.keyed
    return {entry.state.name: entry.state for entry in entries if entry.state.uid == uid}


def states_to_evolve(
    restored: RestoredCheckpoint, uid: str, states: Mapping[str, QueryState]
) -> list[str]:
    """Return the names of stored states whose columns or TTL differ from the query's."""
    stored = stored_states(restored, uid)
    return [
        name for name, state in states.items() if name in stored and _differs(stored[name], state)
    ]


def refuse_other_form(stored: KeyedState, state: QueryState) -> None:
    """Refuse a converted state that still differs from the query's, so that it is not committed.

    The query would otherwise convert it again and again. Raises InvalidArgumentError.
    """
    if _differs(stored, state):
        wanted = ", ".join(f"{field.name} {field.type}" for field in _wanted(state))
        raise InvalidArgumentError(
            f"{stored} cannot be converted to the columns ({wanted}) and the TTL of the query: "
            f"after a conversion it has the columns ({stored.schema}). Declare these columns, and "
            "do not drop a column that the query declares"
        )


def _differs(stored: KeyedState, state: QueryState) -> bool:
    ttl = stored.ttl if state.ttl is None else state.ttl
    column, before = (
        field.column if isinstance(field, TimeToLive) else None for field in (ttl, stored.ttl)
    )
    kinds = dict(zip(stored.schema.names, arrow_schema(stored.schema).types, strict=True))
    return (
        column != before
        or not kinds.keys().isdisjoint(state.dropped)
        or any(kinds.get(field.name) != field.type for field in _wanted(state))
    )


def _wanted(state: QueryState) -> pa.Schema:
    return arrow_schema(schema_from_json(state.struct.jsonValue()))


def options_of(stored: KeyedState, state: QueryState) -> StateOptions:
    """Return the options that convert a stored state to the query's form.

    The time column of a TTL that was turned off is dropped.
    """
    names = [name for name in state.dropped if name in stored.schema.names]
    if stored.ttl is not None and stored.ttl.column not in state.struct.names:
        names.append(stored.ttl.column)
    known = {old: new for old, new in state.renamed.items() if old in stored.schema.names}
    return {**state.options, "dropped": names, "renamed": known}


def convert_stored_rows(stored: RestoredKeyedState, state: QueryState) -> pa.RecordBatchReader:
    """Return all rows of a state in the query's columns.

    New columns are null, except the time column of a TTL.
    """
    wanted, ttl = _wanted(state), state.ttl
    clock = time.time_ns() // 1_000_000 if stored.now_ms is None else stored.now_ms
    ends = pa.scalar(clock + milliseconds_of(state.life), pa.int64())
    before = {new: old for old, new in state.renamed.items()}
    groups = KeyGroupRange.every(stored.assignment.max_parallelism)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in stored.key_groups(groups):
            names = set(batch.schema.names)
            arrays = []
            for column in wanted:
                name = before.get(column.name, column.name)
                if name in names:
                    arrays.append(batch.column(name).cast(column.type))
                elif isinstance(ttl, TimeToLive) and name == ttl.column:
                    times = pa.nulls(batch.num_rows, pa.int64()).fill_null(ends)
                    is_time = pa.types.is_timestamp(column.type)
                    timestamps = times.cast(pa.timestamp("ms", "UTC")) if is_time else times
                    arrays.append(timestamps.cast(column.type))
                else:
                    arrays.append(pa.nulls(batch.num_rows, column.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    return pa.RecordBatchReader.from_batches(wanted, batches())
