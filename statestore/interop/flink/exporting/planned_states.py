"""Plan the export of states that a compiled plan of Flink SQL describes.

The types of such a state follow from the plan, not from its columns. A part of an entry, such as
the key or the row, is made of columns by name, and several parts can have the same column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.errors import (
    IncompatibleStateError,
    InvalidArgumentError,
    SchemaMismatchError,
)
from statestore.format.state import KeyedState
from statestore.interop.flink.columns.state_columns import empty_key
from statestore.interop.flink.columns.store_types import sql_cast, sql_field, value_column
from statestore.interop.flink.exporting.export_types import NO_VALUE, ExportPart, KeyedExport
from statestore.interop.flink.options import FlinkTarget
from statestore.interop.flink.read.keyed_states import KeyedStateInfo as FlinkState
from statestore.interop.flink.types.arrow_types import row_fields
from statestore.interop.flink.types.flink_types import (
    FlinkType,
    ListType,
    MapType,
    RowDataType,
    Scalar,
    TtlType,
    TupleType,
)
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


@dataclass(frozen=True, kw_only=True)
class RowPart(ExportPart):
    """Columns that are a row of Flink SQL.

    ``stored`` are the columns' types in the store. A field without a column is always null.
    """

    row: Row
    stored: pa.Schema

    def to_flink(self, rows: pa.Table) -> pa.Array:
        """Convert the columns to rows; InvalidArgumentError for a value that does not fit."""
        first, *fields = row_fields(tuple(field.type for field in self.row.fields))
        arrays = [pa.array(np.zeros(len(rows), np.int8))]
        for field, target in zip(self.row.fields, fields, strict=True):
            if field.column is None:
                arrays.append(pa.nulls(len(rows), target.type))
                continue
            column = rows.column(field.column).combine_chunks()
            try:
                arrays.append(sql_cast(column, target.type))
            except pa.ArrowInvalid as error:
                raise InvalidArgumentError(
                    f"a value of the column {field.column!r} is not of the type "
                    f"{field.type.text}: {error}"
                ) from error
        return pa.StructArray.from_arrays(arrays, fields=[first, *fields])

    def from_flink(self, values: pa.Array) -> dict[str, pa.Array]:
        """Convert rows to columns, by name."""
        if not self.row.fields and NO_KEY in self.stored.names:
            return {NO_KEY: pa.repeat(empty_key(self.stored.field(NO_KEY).type), len(values))}
        _, *arrays = values.flatten()
        return {
            field.column: sql_cast(array, self.stored.field(field.column).type)
            for field, array in zip(self.row.fields, arrays, strict=True)
            if field.column is not None
        }


@dataclass(frozen=True, kw_only=True)
class PairPart(ExportPart):
    """Columns that are a ``Tuple2``."""

    first: ExportPart
    second: ExportPart

    def to_flink(self, rows: pa.Table) -> pa.Array:
        """Convert the columns to tuples."""
        sides = [self.first.to_flink(rows), self.second.to_flink(rows)]
        return pa.StructArray.from_arrays(sides, fields=list(self.flink_type.arrow_type()))

    def from_flink(self, values: pa.Array) -> dict[str, pa.Array]:
        """Convert tuples to columns, by name."""
        first, second = values.flatten()
        return self.first.from_flink(first) | self.second.from_flink(second)


@dataclass(frozen=True)
class SeenPart(ExportPart):
    """No columns: the value is ``true``."""

    def to_flink(self, rows: pa.Table) -> pa.Array:
        """Return one value for each row."""
        return pa.repeat(pa.scalar(value=True), len(rows))

    def from_flink(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return no columns; InvalidArgumentError for another value."""
        if values.null_count or values.false_count:
            raise InvalidArgumentError("a key has a value other than true")
        return {}


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
    return FlinkState(state.state, state.kind, row_type(state.key), _NO_NAMESPACE, inner)


def _value_part(value: ValueLayout, stored: pa.Schema) -> ExportPart:
    """Return the columns of a value, or of the elements of a list."""
    match value:
        case Row():
            return _row_part(value, stored)
        case Counter(column):
            integer = value_column(pa.int32())
            return ExportPart((column,), integer.flink_type, integer)
        case Seen():
            return SeenPart((), _BOOLEAN)
        case Pair(first, second):
            left, right = _value_part(first, stored), _value_part(second, stored)
            names = (*left.names, *right.names)
            return PairPart(names, value_type(value), first=left, second=right)
        case ListOfRows(row):
            return _row_part(row, stored)


def _row_part(row: Row, stored: pa.Schema) -> RowPart:
    names = tuple(field.column for field in row.fields if field.column is not None)
    return RowPart(names, row_type(row), row=row, stored=stored)


def plan_planned(state: KeyedState, planned: PlanState) -> KeyedExport:
    """Return the export plan of a state of a store with the types of a compiled plan.

    Raises SchemaMismatchError if the state has other columns than the plan.
    """
    stored = arrow_schema(state.schema)
    _refuse_other_columns(stored, planned)
    key = _row_part(planned.key, stored)
    map_key = ExportPart((), NO_VALUE)
    if planned.map_key is not None:
        map_key = _row_part(planned.map_key, stored)
    value = _value_part(planned.value, stored)
    namespace = ExportPart((), _NO_NAMESPACE)
    flink = describe_planned(planned)
    return KeyedExport(state, flink, key, namespace, map_key, value, planned=planned)


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
