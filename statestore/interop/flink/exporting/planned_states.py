"""Plan the export of states that a compiled plan of Flink SQL describes.

The types of such a state follow from the plan, not from its columns. A part of an entry, such as
the key or the row, is made of columns by name, and several parts can have the same column.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    SchemaMismatchError,
)
from statestore.format.state import KeyedState
from statestore.interop.flink.columns.part_columns import empty_key_part
from statestore.interop.flink.columns.store_types import (
    Part,
    no_columns,
    sql_cast,
    sql_field,
    value_column,
)
from statestore.interop.flink.exporting.export_types import KeyedExport, stored_columns
from statestore.interop.flink.metadata.logical_types import row_fields
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.read.keyed_states import FlinkState, flink_state
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import TtlType
from statestore.interop.flink.types.java_types import ListType, MapType, TupleType
from statestore.interop.flink.types.scalars import Scalar
from statestore.interop.flink.types.sql_types import RowDataType
from statestore.interop.flink_plans.layouts import (
    NO_KEY,
    Counter,
    ListOfRows,
    Pair,
    PlanState,
    Row,
    Seen,
    ValueLayout,
)
from statestore.interop.flink_plans.plan_file import FlinkPlan
from statestore.rows.column_types import arrow_schema

_NO_NAMESPACE = Scalar("VoidNamespace")
_INTEGER, _BOOLEAN = Scalar("Integer"), Scalar("Boolean")
_PAIR = "org.apache.flink.api.java.tuple.Tuple2"


def row_type(row: Row) -> RowDataType:
    """Return the type of a row of Flink SQL."""
    columns = tuple(field.type for field in row.fields)
    return RowDataType(columns, tuple(map(sql_field, columns)), is_key=row.is_projected)


def value_type(value: ValueLayout) -> FlinkType:
    """Return the type of a value."""
    match value:
        case Row():
            return row_type(value)
        case Counter():
            return _INTEGER
        case Seen():
            return _BOOLEAN
        case Pair(first, second):
            return TupleType(_PAIR, (value_type(first), value_type(second)))
        case ListOfRows(row):
            return ListType(row_type(row))


def describe_planned(state: PlanState) -> FlinkState:
    """Return a state of a plan as the header of a savepoint describes it."""
    inner = value_type(state.value)
    if state.ttl_ms:
        inner = TtlType(inner)
    if state.map_key is not None:
        inner = MapType(row_type(state.map_key), inner)
    return flink_state(state.state, state.kind, row_type(state.key), _NO_NAMESPACE, inner)


def _value_part(value: ValueLayout, stored: pa.Schema) -> Part:
    """Return the columns of a value, or of the elements of a list."""
    match value:
        case Row() | ListOfRows(Row()):
            return _row_part(value if isinstance(value, Row) else value.row, stored)
        case Counter(column):
            return value_column(pa.int32()).with_names((column,))
        case Seen():
            return _seen_part()
        case Pair(first, second):
            return _pair_part(_value_part(first, stored), _value_part(second, stored))


def _row_part(row: Row, stored: pa.Schema) -> Part:
    """Return columns as a row of Flink SQL. A field without a column is always null."""
    names = tuple(field.column for field in row.fields if field.column is not None)
    if not row.fields and NO_KEY in stored.names:
        no_key = stored.field(NO_KEY).type
        return empty_key_part(row_type(row), no_key, NO_KEY).with_names((NO_KEY,))
    struct = pa.struct([stored.field(name) for name in names])
    first, *fields = row_fields(tuple(field.type for field in row.fields))

    def to_flink(array: pa.Array) -> pa.Array:
        given = iter(array.flatten() if names else ())
        arrays = [pa.array(np.zeros(len(array), np.int8))]
        for field, target in zip(row.fields, fields, strict=True):
            if field.column is None:
                arrays.append(pa.nulls(len(array), target.type))
                continue
            try:
                arrays.append(sql_cast(next(given), target.type))
            except pa.ArrowInvalid as error:
                raise InvalidArgumentError(
                    f"a value of the column {field.column!r} is not of the type "
                    f"{field.type.text}: {error}"
                ) from error
        return pa.StructArray.from_arrays(arrays, fields=[first, *fields])

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        _, *arrays = array.flatten()
        own = [
            column
            for field, column in zip(row.fields, arrays, strict=True)
            if field.column is not None
        ]
        converted = [
            sql_cast(column, field.type) for column, field in zip(own, stored, strict=True)
        ]
        return pa.StructArray.from_arrays(converted, fields=list(stored))

    return Part(struct, row_type(row), to_flink, from_flink, names, is_flat=True)


def _pair_part(first: Part, second: Part) -> Part:
    """Return the columns of two parts as a ``Tuple2``."""
    flink_type = TupleType(_PAIR, (first.flink_type, second.flink_type))
    names, types = (*first.names, *second.names), (*first.types, *second.types)
    struct = pa.struct([pa.field(*column) for column in zip(names, types, strict=True)])

    def to_flink(array: pa.Array) -> pa.Array:
        arrays, count = array.flatten(), len(first.names)
        sides = first.join(arrays[:count], len(array)), second.join(arrays[count:], len(array))
        return pa.StructArray.from_arrays(sides, fields=list(flink_type.arrow_type()))

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        left, right = array.flatten()
        arrays = [*first.split(left), *second.split(right)]
        return pa.StructArray.from_arrays(arrays, fields=list(stored))

    return Part(struct, flink_type, to_flink, from_flink, names, is_flat=True)


def _seen_part() -> Part:
    """Return a part without columns, whose value is ``true``."""

    def from_flink(array: pa.Array, stored: pa.DataType) -> pa.Array:
        if array.null_count or array.false_count:
            raise InvalidArgumentError("a key has a value other than true")
        return array

    true = pa.scalar(value=True)
    return Part(pa.null(), _BOOLEAN, lambda array: pa.repeat(true, len(array)), from_flink)


def plan_planned(state: KeyedState, planned: PlanState) -> KeyedExport:
    """Return the export plan of a state of a store with the types of a compiled plan.

    Raises SchemaMismatchError if the state has other columns than the plan.
    """
    stored = arrow_schema(state.schema)
    _refuse_other_columns(stored, planned)
    key = _row_part(planned.key, stored)
    map_key = None if planned.map_key is None else _row_part(planned.map_key, stored)
    value = _value_part(planned.value, stored)
    flink, namespace = describe_planned(planned), no_columns(_NO_NAMESPACE)
    columns = stored_columns(
        state, flink, key=key, namespace=namespace, map_key=map_key, value=value
    )
    return KeyedExport(state, columns, planned=planned)


def refuse_older_flink(plan: FlinkPlan | None, target: FlinkTarget) -> None:
    """Raise IncompatibleStateError if the job has an older Flink than the one of its plan."""
    if plan is None or target.version is None:
        return
    wanted, own = (
        tuple(map(int, version.split("."))) for version in (target.version, plan.version)
    )
    if wanted[: len(own)] < own[: len(wanted)]:
        raise IncompatibleStateError(
            f"the plan {plan.place} was compiled by Flink {plan.version}, and Flink "
            f"{target.version} cannot run it: compile the statement with that version, and "
            "bootstrap the states of the new plan"
        )


def _refuse_other_columns(stored: pa.Schema, planned: PlanState) -> None:
    wrong = [
        f"{column.name} {column.type}"
        for column in planned.columns
        if column.name not in stored.names or stored.field(column.name).type != column.stored
    ]
    if wrong:
        raise SchemaMismatchError(
            f"{planned} cannot be written with the types of its plan: the store does not have the "
            f"columns {', '.join(wrong)}. Bootstrap the state again, or leave it out"
        )
