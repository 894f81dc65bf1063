"""The states of a ``StatefulProcessor`` as tables: their columns, and their keys.

They have the same names as the states of an imported query that used Spark's own
``transformWithState``. Such a query can therefore continue here, and can be exported again.

- A value has the key's columns and its own columns.
- A list also has a ``position``.
- A map also has the columns of its keys (``user_key_…``).
- Timers have an ``expiration``.

If a state has a TTL, its last column has the expiration time of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import types as T

from statestore.errors import UnsupportedTypeError
from statestore.format.state import StateKind, TimeDomain
from statestore.format.ttl import TimeToLive
from statestore.spark.structs import (
    TAKEN,
    first_free,
    is_column,
    is_key,
    key_leaves,
    name_leaves,
)
from statestore.streaming.handle import EVENT, Variable
from statestore.streaming.query_states import QueryState

__all__ = ["HASH_SCHEME", "TIMERS", "TTL", "ProcessorState", "states_of", "timers_of"]

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
