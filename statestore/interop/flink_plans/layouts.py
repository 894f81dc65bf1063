"""The layout of a state that an operator of a compiled plan keeps: its columns, and its parts.

A row of the table is an entry of the state, except in a top-N, where it is one row of a list. Each
part of an entry is made of columns by name, so several parts can have the same column. For example,
the row of a join has the column of the key, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.names import RESERVED_COLUMNS
from statestore.format.schema import type_text
from statestore.format.state import StateKind
from statestore.interop.flink.columns.part_columns import empty_key_part
from statestore.interop.flink.columns.state_columns import first_free
from statestore.interop.flink.columns.store_types import (
    Part,
    columns_part,
    no_columns,
    sql_column,
    sql_field,
    value_column,
)
from statestore.interop.flink.metadata.logical_types import LogicalType, key_logical_type, sql_type
from statestore.interop.flink.read.keyed_states import FlinkState, flink_state
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import TtlType
from statestore.interop.flink.types.java_types import ListType, MapType, Scalar, TupleType
from statestore.interop.flink.types.sql_types import RowDataType
from statestore.interop.flink_plans.plan_types import PlanField
from statestore.rows.column_types import schema_of_arrow

LAST_ACCESS, POSITION, NO_KEY = "last_access", "position", "no_key"
"""Columns that a table may lack: the time for a TTL, and the place among rows with equal sort keys.

``NO_KEY`` is never in a table: it stands for the key of an operator that has none.
"""

NO_NAMESPACE = Scalar("VoidNamespace")
_PAIR = "org.apache.flink.api.java.tuple.Tuple2"
_RESERVED = (*RESERVED_COLUMNS, LAST_ACCESS, POSITION, NO_KEY)
_NOT_NULL = " NOT NULL"
_NO_TEXT_FORM = ("BINARY", "VARBINARY", "TIME_WITHOUT_TIME_ZONE")
_STORED = {
    "TIME_WITHOUT_TIME_ZONE": pa.int64(),
    "TIMESTAMP_WITHOUT_TIME_ZONE": pa.timestamp("us"),
    "TIMESTAMP_WITH_LOCAL_TIME_ZONE": pa.timestamp("us", "UTC"),
}
"""The types of columns in a store that differ from those of the same fields in a row."""


@dataclass(frozen=True)
class RowField:
    """A field of a row of Flink SQL, and its column; without a column it is always null."""

    column: str | None
    type: LogicalType


@dataclass(frozen=True)
class Row:
    """A row of Flink SQL. ``is_projected`` if the planner's projection writes it, as for keys."""

    fields: tuple[RowField, ...]
    is_projected: bool = False

    @property
    def flink_type(self) -> RowDataType:
        """The type of the row."""
        columns = tuple(field.type for field in self.fields)
        return RowDataType(columns, tuple(map(sql_field, columns)), is_key=self.is_projected)

    def part(self, stored: pa.Schema) -> Part:
        """Return the columns of the row, which have the types of ``stored``."""
        if not self.fields and NO_KEY in stored.names:
            no_key = stored.field(NO_KEY).type
            return empty_key_part(self.flink_type, no_key, NO_KEY).with_names((NO_KEY,))
        parts = [
            sql_column(field.type, pa.null())
            if field.column is None
            else sql_column(field.type, stored.field(field.column).type).with_names((field.column,))
            for field in self.fields
        ]
        return columns_part(self.flink_type, parts, has_kind=True)


@dataclass(frozen=True)
class Counter:
    """A Java ``Integer``."""

    column: str
    flink_type: ClassVar[FlinkType] = Scalar("Integer")

    def part(self, stored: pa.Schema) -> Part:
        """Return the column of the number."""
        return value_column(pa.int32()).with_names((self.column,))


@dataclass(frozen=True)
class Seen:
    """A Java ``Boolean`` that is always true."""

    flink_type: ClassVar[FlinkType] = Scalar("Boolean")

    def part(self, stored: pa.Schema) -> Part:
        """Return a part without columns."""
        return replace(no_columns(self.flink_type), to_flink=_repeat_true, from_flink=_only_true)


@dataclass(frozen=True)
class Pair:
    """A ``Tuple2``."""

    first: Row | Counter
    second: Row | Counter

    @property
    def flink_type(self) -> FlinkType:
        """The type of the pair."""
        return TupleType(_PAIR, (self.first.flink_type, self.second.flink_type))

    def part(self, stored: pa.Schema) -> Part:
        """Return the columns of both values."""
        return columns_part(self.flink_type, [self.first.part(stored), self.second.part(stored)])


@dataclass(frozen=True)
class ListOfRows:
    """A list of rows that have the same sort key, in the order of their positions."""

    row: Row

    @property
    def flink_type(self) -> FlinkType:
        """The type of the list."""
        return ListType(self.row.flink_type)

    def part(self, stored: pa.Schema) -> Part:
        """Return the columns of a row of the list."""
        return self.row.part(stored)


def _repeat_true(array: pa.Array) -> pa.Array:
    return pa.repeat(pa.scalar(value=True), len(array))


def _only_true(array: pa.Array, stored: pa.DataType) -> pa.Array:
    if array.null_count or array.false_count:
        raise InvalidArgumentError("a key has a value other than true")
    return array


ValueLayout: TypeAlias = Row | Counter | Seen | Pair | ListOfRows


@dataclass(frozen=True, kw_only=True)
class PlanColumn:
    """A column of a state.

    ``type`` is the type in SQL's notation. ``is_required`` is true if no value may be null.
    ``least`` is the smallest number that is allowed. ``copy_of`` is the column of the table that
    is stored under this name a second time, because the state's key has it twice.
    """

    name: str
    type: str
    logical: LogicalType
    is_required: bool
    least: int | None = None
    copy_of: str | None = None

    @property
    def stored(self) -> pa.DataType:
        """The type of the column in a store."""
        return _STORED.get(self.logical.root) or sql_type(self.logical)


@dataclass(frozen=True, kw_only=True)
class PlanState:
    """A state of an operator in a plan.

    ``key``, ``map_key`` and ``value`` are its parts. ``ttl_ms`` is 0 without a TTL. ``most_rows``
    is the number of rows that a top-N keeps per key. ``is_single`` is true if the operator has one
    key group, because all rows go to one subtask.
    """

    operator: str
    state: str
    columns: tuple[PlanColumn, ...]
    key: Row
    value: ValueLayout
    map_key: Row | None = None
    ttl_ms: int = 0
    most_rows: int | None = None
    is_single: bool = False

    @property
    def kind(self) -> Literal["value", "map"]:
        """The kind of the state in Flink."""
        return "value" if self.map_key is None else "map"

    @property
    def flink_state(self) -> FlinkState:
        """The state as the header of a savepoint describes it."""
        value: FlinkType = self.value.flink_type
        if self.ttl_ms:
            value = TtlType(value)
        if self.map_key is not None:
            value = MapType(self.map_key.flink_type, value)
        return flink_state(self.state, self.kind, self.key.flink_type, NO_NAMESPACE, value)

    @property
    def has_lists(self) -> bool:
        """Whether the values are lists, of which each row of the table is an element."""
        return isinstance(self.value, ListOfRows)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The key columns in the store."""
        return _column_names(self.key) or (NO_KEY,)

    @property
    def map_key_columns(self) -> tuple[str, ...]:
        """The columns that distinguish the map entries of one key."""
        if self.map_key is None:
            return ()
        return tuple(
            dict.fromkeys(
                name for name in _column_names(self.map_key) if name not in self.key_columns
            )
        )

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace columns in the store: the sort key of lists."""
        return self.map_key_columns if self.has_lists else ()

    @property
    def entry(self) -> tuple[str, ...]:
        """The entry columns in the store."""
        return (POSITION,) if self.has_lists else self.map_key_columns

    @property
    def stored_kind(self) -> StateKind:
        """The kind of the state in the store: ``value`` for a map whose keys add no column."""
        if self.has_lists:
            return StateKind.LIST
        return StateKind.MAP if self.entry else StateKind.VALUE

    @property
    def table_columns(self) -> tuple[PlanColumn, ...]:
        """The columns that a table must have."""
        return tuple(column for column in self.columns if column.copy_of is None)

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """The columns that a table may have in addition."""
        times = (LAST_ACCESS,) if self.ttl_ms else ()
        return (*times, POSITION) if self.has_lists else times

    def text_types(self, names: Collection[str]) -> dict[str, str]:
        """Return the types that columns of text get, in Delta's notation, for some names."""
        fields = [
            pa.field(column.name, column.stored)
            for column in self.table_columns
            if column.name in names and column.logical.root not in _NO_TEXT_FORM
        ]
        schema = schema_of_arrow(pa.schema(fields))
        return {field.name: type_text(field.type) for field in schema.fields}

    def role(self, column: PlanColumn) -> str:
        """Return the role of a column: ``key``, ``namespace``, ``entry`` or ``value``."""
        roles = {"key": self.key_columns, "namespace": self.namespace, "entry": self.entry}
        return next((role for role, names in roles.items() if column.name in names), "value")

    def __str__(self) -> str:
        """Return the state's name in messages."""
        return f"state {self.state!r} of operator {self.operator!r}"


def _column_names(row: Row) -> tuple[str, ...]:
    return tuple(field.column for field in row.fields if field.column is not None)


def name_columns(
    fields: Sequence[PlanField], taken: Iterable[str] = ()
) -> tuple[tuple[RowField, ...], tuple[PlanColumn, ...]]:
    """Return the fields of a row with their columns, which have the names of the plan.

    A name that is taken or reserved, ignoring case, gets a number. All fields must have a type.
    """
    names = [*_RESERVED, *taken]
    row_fields, columns = [], []
    for field in fields:
        assert field.type is not None, "an operator with such a field has a problem"
        if field.is_proctime:
            row_fields.append(RowField(None, field.type))
            continue
        name = first_free(field.name, names)
        names.append(name)
        row_fields.append(RowField(name, field.type))
        is_required = field.text.endswith(_NOT_NULL)
        text = field.type.text.removesuffix(_NOT_NULL) + (_NOT_NULL if is_required else "")
        columns.append(
            PlanColumn(name=name, type=text, logical=field.type, is_required=is_required)
        )
    return tuple(row_fields), tuple(columns)


def counter_column(name: str, least: int, taken: Iterable[PlanColumn]) -> PlanColumn:
    """Return a column for a count that has no name in the plan."""
    free = first_free(name, [*_RESERVED, *(column.name for column in taken)])
    integer = key_logical_type("INT", is_nullable=False)
    return PlanColumn(name=free, type=integer.text, logical=integer, is_required=True, least=least)


def with_key(
    fields: Sequence[RowField], columns: Sequence[PlanColumn], types: Sequence[LogicalType]
) -> tuple[Row, tuple[PlanColumn, ...]]:
    """Return a key of some fields, and the state's columns with copies for fields that repeat.

    Args:
        fields: the fields of the row that are the key.
        columns: the columns of the state.
        types: the types of the key. In the right side of a join, they can differ from the fields'.
    """
    every = list(columns)
    key_fields: list[RowField] = []
    for field, key_type in zip(fields, types, strict=True):
        name = field.column
        assert name is not None, "a key has columns"
        if name in [known.column for known in key_fields]:
            original = next(column for column in columns if column.name == name)
            name = first_free(name, [*_RESERVED, *(column.name for column in every)])
            every.append(replace(original, name=name, copy_of=original.name))
        key_fields.append(RowField(name, key_type))
    return Row(tuple(key_fields), is_projected=True), tuple(every)
