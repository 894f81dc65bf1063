"""The states of a ``StatefulProcessor`` as tables: columns, keys, and the index of due timers.

They have the same names as the states of an imported query that used Spark's own
``transformWithState``. Such a query can therefore continue here, and can be exported again.

- A value has the key's columns and its own columns.
- A list also has a ``position``.
- A map also has the columns of its keys (``user_key_…``).
- Timers have an ``expiration``.

If a state has a TTL, its last column has the expiration time of the row.

Timers are a state by key. Their index is a second state with the same timers, whose key is a
minute. It finds due timers without reading the others: a micro-batch looks up the minutes that have
passed since the previous one. A timer can already be due when it is written, for example if a
firing timer registers it in the past. It is stored under :data:`OVERDUE`, which every micro-batch
looks up.

If the newest checkpoint does not belong to the query's last micro-batch, the index is rebuilt from
the timers, because another writer may have changed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from statestore.errors import UnsupportedTypeError
from statestore.format.state import StateKind, TimeDomain, TimeToLive
from statestore.keys.groups import KeyGroupRange
from statestore.restore.restored import RestoredCheckpoint, RestoredKeyedState
from statestore.spark.structs import TAKEN, first_free, is_column, is_key, key_leaves, name_leaves
from statestore.streaming.handle import EVENT, Variable
from statestore.streaming.query_options import QueryState

TTL = "ttlExpirationMs"
TIMERS = "timers"
HASH_SCHEME = "flink-sql"
"""This hash scheme allows null keys, as Spark's grouping does."""
_BYTES = "default"
"""The name of a state that an import writes in addition to the states of the variables."""


@dataclass(frozen=True)
class ProcessorState:
    """A processor's variable or its timers, as a keyed state.

    ``schema`` has the columns of the key, then the entry columns that distinguish the rows of one
    key, then the values.
    """

    name: str
    kind: StateKind
    schema: T.StructType
    key: tuple[str, ...]
    entry: tuple[str, ...] = ()
    ttl_ms: int | None = None
    time_domain: TimeDomain | None = None
    is_derived: bool = False

    @cached_property
    def own(self) -> T.StructType:
        """The columns other than the key's."""
        return T.StructType(self.schema.fields[len(self.key) :])

    @property
    def query_state(self) -> QueryState:
        """The query's declaration of this state."""
        return QueryState(
            self.schema,
            key=self.key,
            # The column has the row's expiration time: the store keeps the row for the shortest
            # possible time after it. The processor itself no longer sees the row.
            ttl="off" if self.ttl_ms is None else TimeToLive("1ms", TTL),
            kind=self.kind,
            entry=self.entry,
            time_domain=self.time_domain,
            hash_scheme=HASH_SCHEME,
            is_derived=self.is_derived,
            life=f"{self.ttl_ms or 0}ms",
        )


def states_of(
    variables: Sequence[Variable], key: T.StructType, uid: str
) -> dict[str, ProcessorState]:
    """Return the states of a processor's variables, by variable name.

    Raises UnsupportedTypeError for a column of a type that tables do not support.
    """
    names, used_names = {}, [_BYTES, TIMERS]
    for variable in sorted(variables, key=lambda variable: variable.name):
        names[variable.name] = first_free(variable.name, used_names)
        used_names.append(names[variable.name])
    return {
        variable.name: _state_of(variable, names[variable.name], key, uid) for variable in variables
    }


def timers_of(key: T.StructType, mode: str) -> ProcessorState:
    """Return the state of the timers of a time mode."""
    domain = TimeDomain.EVENT if mode == EVENT else TimeDomain.PROCESSING
    fields = [*key, _entry_field("expiration", T.LongType(), key)]
    names = _named(fields)
    schema = T.StructType([*key, T.StructField(names[-1], T.LongType(), nullable=False)])
    return ProcessorState(
        TIMERS, StateKind.TIMERS, schema, tuple(key.names), (names[-1],), time_domain=domain
    )


def _state_of(variable: Variable, name: str, key: T.StructType, uid: str) -> ProcessorState:
    entry = _entry_of(variable, key)
    subject = f"{variable} of operator {uid!r}"
    for field in variable.entry or ():
        if not is_key(field) or isinstance(field.dataType, T.StructType):
            raise UnsupportedTypeError(
                f"{subject}: {field.name!r} has type {field.dataType.simpleString()}, which "
                "cannot be a key column; use simple types for the key columns of a map"
            )
    for field in variable.value:
        if not is_column(field.dataType):
            raise UnsupportedTypeError(
                f"{subject}: {field.name!r} has type {field.dataType.simpleString()}, which "
                "has no column form; store it as text or bytes"
            )
    keys = _named([*key, *entry])
    values = list(variable.value)
    if variable.ttl_ms is not None:
        values.append(T.StructField(TTL, T.LongType(), nullable=False))
    own = name_leaves(
        ((field.name, (position,), False) for position, field in enumerate(values)), (*TAKEN, *keys)
    )
    data_types = [
        *(field.dataType for field in key),
        *_flat(entry),
        *(value.dataType for value in values),
    ]
    columns = [*keys, *(leaf.name for leaf in own)]
    schema = T.StructType(
        [
            T.StructField(column, data_type)
            for column, data_type in zip(columns, data_types, strict=True)
        ]
    )
    width = len(key.fields)
    return ProcessorState(
        name,
        variable.kind,
        schema,
        tuple(columns[:width]),
        tuple(keys[width:]),
        ttl_ms=variable.ttl_ms,
    )


def _entry_of(variable: Variable, key: T.StructType) -> list[T.StructField]:
    if variable.kind is StateKind.LIST:
        return [_entry_field("position", T.IntegerType(), key)]
    if variable.entry is not None:
        return [_entry_field("user_key", variable.entry, key)]
    return []


def _entry_field(wanted: str, data_type: T.DataType, key: T.StructType) -> T.StructField:
    return T.StructField(first_free(wanted, key.names), data_type, nullable=False)


def _flat(entry: Sequence[T.StructField]) -> list[T.DataType]:
    return [
        data_type
        for field in entry
        for data_type in (
            [field.dataType for field in field.dataType]
            if isinstance(field.dataType, T.StructType)
            else [field.dataType]
        )
    ]


def _named(fields: Sequence[T.StructField]) -> list[str]:
    leaves = key_leaves(T.StructType(list(fields)))
    return [leaf.name for leaf in name_leaves(leaves, TAKEN)]


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
