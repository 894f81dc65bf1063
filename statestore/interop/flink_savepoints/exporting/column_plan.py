"""Plan states that were not imported: their types in Flink follow from their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.format.schema import Schema
from statestore.format.state import KeyedState, OperatorState, StateKind, TimeDomain
from statestore.interop.flink_savepoints.exporting.export_types import (
    NO_VALUE,
    ExportPart,
    KeyedExport,
    OperatorStatePlan,
)
from statestore.interop.flink_savepoints.metadata.handles import Mode
from statestore.interop.flink_savepoints.read.keyed_states import KeyedStateInfo as FlinkState
from statestore.interop.flink_savepoints.types.arrow_types import WINDOW
from statestore.interop.flink_savepoints.types.flink_types import (
    FlinkType,
    ListType,
    MapType,
    PythonType,
    Scalar,
    TimerType,
    TtlType,
)
from statestore.interop.flink_savepoints.types.python_types import python_name, to_python_type
from statestore.interop.flink_savepoints.types.store_types import (
    FlinkColumn,
    as_millis,
    combine_columns,
    from_millis,
    key_column,
    python_key,
    sql_key,
    value_column,
)
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.key_types import java_type
from statestore.rows.column_types import arrow_schema

__all__ = ["MODES", "plan_keyed", "plan_operator_state"]

_NO_NAMESPACE = Scalar("VoidNamespace")
_TIMERS = "_timer_state/"
_OFFSETS = {"topic", "partition", "offset"}

MODES: Mapping[RedistributionMode, Mode] = {
    RedistributionMode.SPLIT: "split",
    RedistributionMode.UNION: "union",
    RedistributionMode.BROADCAST: "broadcast",
}
"""The modes of operator state in Flink."""


def plan_keyed(state: KeyedState, *, as_tuple: bool) -> KeyedExport:
    """Return the plan of a keyed state.

    Args:
        state: the state.
        as_tuple: whether several value columns are a tuple in Flink, or else a ``Row``.

    Returns:
        The plan.

    Raises:
        UnsupportedTypeError: for a type that Flink does not support, with the state and column.
    """
    key = _plan_key(state)
    namespace, value = _plan_namespace(state), _plan_value(state, as_tuple=as_tuple)
    map_key, name = ExportPart((), NO_VALUE), state.name
    if state.kind is StateKind.MAP:
        entry = _find_columns(state, state.entry, state.schema)
        map_key = _build_part(state.entry, entry, as_tuple=as_tuple)
    if state.kind is StateKind.TIMERS:
        name = _timer_name(state, namespace.flink_type)
    elif state.hash_scheme == "pyflink":
        if state.namespace:
            raise UnsupportedTypeError(
                f"{state} has the namespace {', '.join(state.namespace)}: PyFlink windows "
                "cannot be written from the columns of a store; leave the state out"
            )
        name = python_name(state.name)
        map_key = _to_python_part(state, map_key) if state.kind is StateKind.MAP else map_key
        value = _to_python_part(state, value)
    flink_value = _build_value_type(
        state, key.flink_type, namespace.flink_type, map_key.flink_type, value.flink_type
    )
    flink = FlinkState(name, state.kind.value, key.flink_type, namespace.flink_type, flink_value)
    return KeyedExport(state, flink, key, namespace, map_key, value)


def _to_python_part(state: KeyedState, part: ExportPart) -> ExportPart:
    """Return columns as the bytes that PyFlink's coders write."""
    with _column_in_errors(state, ", ".join(part.names)):
        return replace(part, flink_type=PythonType(to_python_type(part.flink_type)))


def _plan_key(state: KeyedState) -> ExportPart:
    """Return the key: a Java object or a row of Flink SQL.

    Several columns are a Java tuple. For PyFlink, the key is wrapped in a row.
    """
    types = arrow_schema(state.schema)
    if state.hash_scheme == "flink-sql":
        stored = [types.field(column).type for column in state.key]
        row = sql_key(state.key, stored, state.key_types)
        return ExportPart(state.key, row.flink_type, row)
    keys = []
    for column, java in zip(state.key, state.key_types, strict=True):
        with _column_in_errors(state, column):
            keys.append(key_column(types.field(column).type, java_type(java)))
    part = _build_part(state.key, keys, as_tuple=True)
    if state.hash_scheme != "pyflink" or part.column is None:
        return part
    row = python_key(part.column)
    return ExportPart(state.key, row.flink_type, row)


def _build_value_type(
    state: KeyedState, key: FlinkType, namespace: FlinkType, map_key: FlinkType, value: FlinkType
) -> FlinkType:
    """Return the type of a state's values in the header of a savepoint."""
    element = value if state.ttl is None else TtlType(value)
    match state.kind:
        case StateKind.LIST:
            return ListType(element)
        case StateKind.MAP:
            return MapType(map_key, element)
        case StateKind.TIMERS:
            return TimerType(key, namespace)
        case _:
            return element


@contextmanager
def _column_in_errors(state: KeyedState | OperatorState, column: str) -> Iterator[None]:
    """Add the operator, state and column to an UnsupportedTypeError."""
    try:
        yield
    except UnsupportedTypeError as error:
        raise UnsupportedTypeError(f"{state}: the column {column!r}: {error}") from error


def _find_columns(
    state: KeyedState | OperatorState, names: Sequence[str], schema: Schema
) -> list[FlinkColumn]:
    """Return the Flink types of value columns."""
    types = arrow_schema(schema)
    columns = []
    for name in names:
        with _column_in_errors(state, name):
            columns.append(value_column(types.field(name).type))
    return columns


def _build_part(
    names: Sequence[str], columns: Sequence[FlinkColumn], *, as_tuple: bool
) -> ExportPart:
    if not columns:
        return ExportPart((), NO_VALUE)
    column = columns[0] if len(columns) == 1 else combine_columns(columns, names, as_tuple=as_tuple)
    return ExportPart(tuple(names), column.flink_type, column)


def _plan_value(state: KeyedState, *, as_tuple: bool) -> ExportPart:
    clock = None if state.ttl is None else state.ttl.column
    names = [name for name in state.values if name != clock]
    if state.kind is StateKind.TIMERS and state.values:
        raise UnsupportedTypeError(
            f"{state} are timers with the value column {state.values[0]!r}, but a Flink timer has "
            "only a time, a key and a namespace; remove the column, or leave the state out"
        )
    return _build_part(names, _find_columns(state, names, state.schema), as_tuple=as_tuple)


def _plan_namespace(state: KeyedState) -> ExportPart:
    """Return the namespace: none, a window of two times, or a value, such as a tuple."""
    names, types = state.namespace, arrow_schema(state.schema)
    column_types = [types.field(name).type for name in names]
    if not names:
        return ExportPart((), _NO_NAMESPACE)
    if len(names) == 2 and all(map(_is_time, column_types)):
        window = _build_window(names, column_types)
        return ExportPart(names, window.flink_type, window)
    if len(names) == 1 and column_types[0] == WINDOW:
        window = _build_window(("start", "end"), [pa.int64(), pa.int64()])
        return ExportPart(names, window.flink_type, window)
    return _build_part(names, _find_columns(state, names, state.schema), as_tuple=True)


def _is_time(column_type: pa.DataType) -> bool:
    return bool(pa.types.is_int64(column_type) or pa.types.is_timestamp(column_type))


def _build_window(names: Sequence[str], column_types: Sequence[pa.DataType]) -> FlinkColumn:
    """Return two columns of times as a ``TimeWindow``, which uses milliseconds."""
    stored = pa.struct([pa.field(*field) for field in zip(names, column_types, strict=True)])

    def to_flink(array: pa.Array) -> pa.Array:
        return pa.StructArray.from_arrays(
            [as_millis(side) for side in array.flatten()], fields=list(WINDOW)
        )

    def from_flink(array: pa.Array) -> pa.Array:
        sides = zip(array.flatten(), column_types, strict=True)
        return pa.StructArray.from_arrays(
            [from_millis(side, column_type) for side, column_type in sides], fields=list(stored)
        )

    return FlinkColumn(stored, Scalar("TimeWindow"), to_flink, from_flink)


def _timer_name(state: KeyedState, namespace: FlinkType) -> str:
    """Return Flink's name for a timer queue, of functions or of windows."""
    if state.name.startswith(_TIMERS):
        return state.name
    domain = "event" if state.time_domain is TimeDomain.EVENT else "processing"
    service = "window-timers" if namespace.serializer_length == 16 else "user-timers"
    return f"{_TIMERS}{domain}_{service}"


def plan_operator_state(state: OperatorState, *, as_tuple: bool) -> OperatorStatePlan:
    """Return the plan of an operator state; ``as_tuple`` and errors as in :func:`plan_keyed`."""
    names = state.schema.names
    if set(names) >= _OFFSETS:
        raise UnsupportedTypeError(
            f"{state} has Kafka offsets, which cannot be written without the state of the "
            "source's coordinator: the source would read all topics from its configured "
            "start. Leave the state out, and start the job's source at these offsets "
            "(OffsetsInitializer.offsets) under another uid"
        )
    columns = _find_columns(state, names, state.schema)
    mode = MODES[RedistributionMode(state.mode)]
    if mode != "broadcast":
        return OperatorStatePlan(state, mode, _build_part(names, columns, as_tuple=as_tuple), None)
    key = _build_part(names[:1], columns[:1], as_tuple=as_tuple)
    value = _build_part(names[1:], columns[1:], as_tuple=as_tuple)
    return OperatorStatePlan(state, mode, value, key)
