"""An index of timers by minute, which finds due timers without reading the others.

The timers of a processor are a state by key. The index is a second state with the same timers,
whose key is a minute. A micro-batch looks up the minutes that have passed since the previous one. A
timer can already be due when it is written, for example if a firing timer registers it in the past.
It is stored under :data:`OVERDUE`, which every micro-batch looks up.

If the newest checkpoint does not belong to the query's last micro-batch, the index is rebuilt from
the timers, because another writer may have changed them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from statestore.format.state import StateKind
from statestore.keys.groups import KeyGroupRange
from statestore.restore.restored import RestoredCheckpoint, RestoredKeyedState
from statestore.spark.structs import first_free
from statestore.streaming.processor_states import ProcessorState

__all__ = [
    "INDEX",
    "due_keys",
    "index_of",
    "index_rows",
    "key_rows",
]

INDEX = "timers_by_minute"
OVERDUE = -1
_MINUTE = 60_000
_MOST_MINUTES = 200_000
"""For a longer period, all timers are scanned instead of a lookup per minute."""


def index_of(timers: ProcessorState) -> ProcessorState:
    """Return the index state for the state of the timers."""
    names = list(timers.schema.names)
    minute, key = (first_free(name, names) for name in ("minute", "key_bytes"))
    columns = [
        T.StructField(minute, T.LongType()),
        T.StructField(key, T.BinaryType()),
        T.StructField(names[-1], T.LongType()),
        *(T.StructField(field.name, field.dataType) for field in timers.schema.fields[:-1]),
    ]
    entry = (key, names[-1])
    schema = T.StructType(columns)
    return ProcessorState(INDEX, StateKind.MAP, schema, (minute,), entry, is_derived=True)


def index_rows(timers: pa.RecordBatch, due_ms: int, *, gone: bool) -> pa.RecordBatch:
    """Return the index rows for rows of the timers: to add, or with ``gone``, to delete.

    ``due_ms`` is the clock of the micro-batch. A deleted timer may have been stored as overdue, so
    both possible rows are returned for it.
    """
    *key, times = timers.columns
    minutes = pc.divide(pc.max_element_wise(times, 0), _MINUTE)
    is_due = pc.less_equal(times, due_ms)
    columns = [_key_bytes(timers.num_rows, key), times, *key]
    names = [str(number) for number in range(len(columns) + 1)]
    if not gone:
        minutes = pc.if_else(is_due, OVERDUE, minutes)
        return pa.RecordBatch.from_arrays([minutes, *columns], names=names)
    rows = pa.RecordBatch.from_arrays([minutes, *columns], names=names)
    overdue = rows.filter(is_due)
    overdue = overdue.set_column(0, names[0], pa.nulls(len(overdue), pa.int64()).fill_null(OVERDUE))
    return pa.Table.from_batches([rows, overdue]).combine_chunks().to_batches()[0]


def _key_bytes(rows: int, key: list[pa.Array]) -> pa.Array:
    """Encode keys as bytes, with each column's length as a prefix: distinct keys stay distinct."""
    parts = [pa.nulls(rows, pa.binary()).fill_null(b"")]
    for column in key:
        data_type = column.type
        is_text = pa.types.is_string(data_type) or pa.types.is_binary(data_type)
        values = (column if is_text else column.cast(pa.string())).cast(pa.binary())
        length = pc.binary_length(values).cast(pa.string()).cast(pa.binary())
        parts += [pc.fill_null(length, b"-"), pc.fill_null(values, b"")]
    return pc.binary_join_element_wise(*parts, b":")


def due_keys(
    restored: RestoredCheckpoint, uid: str, timers: str, since_ms: int | None, due_ms: int
) -> pa.Table | None:
    """Return the keys of the due timers, in rows with the columns of the key.

    All timers up to ``since_ms`` have fired. If it is None, this time is unknown and all timers are
    scanned.
    """
    stored = restored.keyed(uid, timers)
    names, (column,) = list(stored.entry.state.key), stored.entry.state.entry
    first = None if since_ms is None else max(since_ms, 0) // _MINUTE
    last = max(due_ms, 0) // _MINUTE
    if first is None or last - first > _MOST_MINUTES:
        batches = [_due(rows, column, due_ms) for rows in key_rows(stored)]
        due = pa.Table.from_batches(batches) if batches else None
    else:
        minutes = pa.array([OVERDUE, *range(first, last + 1)], pa.int64())
        index = restored.keyed(uid, INDEX)
        rows = index.lookup(pa.table([minutes], names=list(index.entry.state.key)))
        due = _due(rows, column, due_ms)
    return due.select(names) if due is not None and due.num_rows else None


def key_rows(stored: RestoredKeyedState) -> Iterator[pa.RecordBatch]:
    """Yield all rows of a state, batch by batch."""
    return iter(stored.key_groups(KeyGroupRange.every(stored.assignment.max_parallelism)))


def _due(rows: pa.RecordBatch | pa.Table, column: str, due_ms: int) -> pa.RecordBatch | pa.Table:
    return rows.filter(pc.less_equal(rows.column(column), due_ms))
