"""The states of a query: their columns and options, and those that are stored in another form.

A query that is started with new, renamed or wider columns, or with another time to live, first
takes a checkpoint of its own: all rows of such a state in the new form, and all else as it is, with
the query's progress. What cannot be brought over is refused, and nothing is written.
"""

from __future__ import annotations

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

__all__ = ["QueryState", "brought_over", "to_evolve"]


@dataclass(frozen=True)
class QueryState:
    """A keyed state of a query: its columns, in Spark's words or as a struct, and ``options`` of
    ``checkpoint.keyed`` (``namespace``, ``kind``, ``entry``, ``ttl``, ``max_parallelism``, …).
    One that ``is_derived`` is made of the others: an update gets no rows of it.
    """

    schema: str | StructType
    options: Mapping[str, Any] = field(default_factory=dict)
    is_derived: bool = False

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
    return column != before or any(kinds.get(one.name) != one.type for one in _wanted(state))


def _wanted(state: QueryState) -> pa.Schema:
    return arrow_schema(schema_from_json(state.struct.jsonValue()))


def brought_over(stored: RestoredKeyedState, state: QueryState) -> pa.RecordBatchReader:
    """Return all rows of a state in the columns that the query has, new ones null."""
    wanted = _wanted(state)
    renamed = dict(state.options.get("renamed") or {})
    before = {new: old for old, new in renamed.items()}
    groups = KeyGroupRange(0, stored.assignment.max_parallelism - 1)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in stored.key_groups(groups):
            names = set(batch.schema.names)
            arrays = []
            for column in wanted:
                name = before.get(column.name, column.name)
                arrays.append(
                    batch.column(name).cast(column.type)
                    if name in names
                    else pa.nulls(batch.num_rows, column.type)
                )
            yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    return pa.RecordBatchReader.from_batches(wanted, batches())
