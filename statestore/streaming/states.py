"""The states of a query: their columns and options, and those that are stored in another form.

A query that is started with new, renamed or wider columns, or with another time to live, first
takes a checkpoint of its own: all rows of such a state in the new form, and all else as it is, with
the query's progress. What cannot be brought over is refused, and nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from statestore.files.types import arrow_schema
from statestore.format.schema import schema_from_json
from statestore.format.state import KeyedState, TimeToLive
from statestore.keys.groups import KeyGroupRange
from statestore.restore.restored import RestoredCheckpoint, RestoredKeyedState

__all__ = ["QueryState", "brought_over", "options_of", "to_evolve"]


@dataclass(frozen=True)
class QueryState:
    """A keyed state of a query: its columns, in Spark's words or as a struct, and ``options`` of
    ``checkpoint.keyed`` (``namespace``, ``kind``, ``entry``, ``ttl``, ``max_parallelism``, …).
    One that ``is_derived`` is made of the others: an update gets no rows of it. Where a time to
    live is turned on, the column of times begins with the clock, and ``life_ms``.
    """

    schema: str | StructType
    options: Mapping[str, Any] = field(default_factory=dict)
    is_derived: bool = False
    life_ms: int = 0

    @property
    def kept_options(self) -> dict[str, Any]:
        """The options without what is done once: columns that are renamed or dropped."""
        return {k: one for k, one in self.options.items() if k not in ("renamed", "dropped")}

    @property
    def dropped(self) -> list[str]:
        """The columns that the query says are no longer there."""
        names = self.options.get("dropped") or ()
        return [names] if isinstance(names, str) else list(names)

    @property
    def struct(self) -> StructType:
        """The columns."""
        if isinstance(self.schema, StructType):
            return self.schema
        found = DataType.fromDDL(self.schema)
        assert isinstance(found, StructType)  # a list of columns is no other type
        return found


def to_evolve(
    restored: RestoredCheckpoint, uid: str, states: Mapping[str, QueryState]
) -> list[str]:
    """Return the names of states that are stored in another form than the query has them in."""
    stored = {one.state.name: one.state for one in restored.manifest.keyed if one.state.uid == uid}
    return [name for name, one in states.items() if name in stored and _differs(stored[name], one)]


def _differs(stored: KeyedState, state: QueryState) -> bool:
    ttl = state.options.get("ttl", stored.ttl)
    column, before = (
        one.column if isinstance(one, TimeToLive) else None for one in (ttl, stored.ttl)
    )
    kinds = dict(zip(stored.schema.names, arrow_schema(stored.schema).types, strict=True))
    return (
        column != before
        or not kinds.keys().isdisjoint(state.dropped)
        or any(kinds.get(one.name) != one.type for one in _wanted(state))
    )


def _wanted(state: QueryState) -> pa.Schema:
    return arrow_schema(schema_from_json(state.struct.jsonValue()))


def options_of(stored: KeyedState, state: QueryState) -> dict[str, Any]:
    """Return the options with which a stored state gets the form of the query: the column of a time
    to live that has ended is dropped.
    """
    names = [name for name in state.dropped if name in stored.schema.names]
    if stored.ttl is not None and stored.ttl.column not in state.struct.names:
        names.append(stored.ttl.column)
    renamed = state.options.get("renamed") or {}
    known = {old: new for old, new in renamed.items() if old in stored.schema.names}
    return {**state.kept_options, "dropped": names, "renamed": known}


def brought_over(stored: RestoredKeyedState, state: QueryState) -> pa.RecordBatchReader:
    """Return all rows of a state in the columns that the query has. New ones are null, but for that
    of a time to live.
    """
    wanted, ttl = _wanted(state), state.options.get("ttl")
    clock = time.time_ns() // 1_000_000 if stored.now_ms is None else stored.now_ms
    ends = pa.scalar(clock + state.life_ms, pa.int64())
    renamed = dict(state.options.get("renamed") or {})
    before = {new: old for old, new in renamed.items()}
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
                    at = times.cast(pa.timestamp("ms", "UTC")) if is_time else times
                    arrays.append(at.cast(column.type))
                else:
                    arrays.append(pa.nulls(batch.num_rows, column.type))
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    return pa.RecordBatchReader.from_batches(wanted, batches())
