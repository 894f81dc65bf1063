"""Conversions of column types between the manifest's notation and Arrow's, and their errors.

:func:`for_each_column` collects the errors of a table, so that one error names all columns that do
not fit.

Python UUIDs are accepted only in keys that are hashed as UUIDs. They are stored as the 16 bytes or
the text that the column holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.format.schema import (
    MOST_LEVELS,
    DataType,
    Field,
    Schema,
    decimal_parts,
    too_deep_error,
)
from statestore.format.state import KeyedState
from statestore.keys.arrow_types import SIMPLE_TYPES

C = TypeVar("C")
T = TypeVar("T")
_NAMES = {str(arrow): name for name, arrow in SIMPLE_TYPES.items()} | {
    "large_string": "string",
    "string_view": "string",
    "large_binary": "binary",
    "binary_view": "binary",
}


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of stored columns; every column may hold null."""
    return pa.schema([pa.field(field.name, arrow_type(field.type)) for field in schema.fields])


def arrow_type(data_type: DataType) -> pa.DataType:
    """Return the Arrow type of a stored type; timestamps are in microseconds, zoned ones in UTC."""
    if isinstance(data_type, str):
        simple = SIMPLE_TYPES.get(data_type)
        return simple or pa.decimal128(*(decimal_parts(data_type) or ()))
    match data_type["type"]:
        case "struct":
            fields = [(f["name"], arrow_type(f["type"])) for f in data_type["fields"]]
            return pa.struct([pa.field(name, data_type) for name, data_type in fields])
        case "array":
            return pa.list_(pa.field("element", arrow_type(data_type["elementType"])))
        case _:
            return pa.map_(arrow_type(data_type["keyType"]), arrow_type(data_type["valueType"]))


def schema_of_arrow(schema: pa.Schema) -> Schema:
    """Return the stored schema of an Arrow table's columns.

    Raises UnsupportedTypeError, which names the columns, for types that Delta and Spark lack.
    """

    def stored(field: pa.Field) -> Field:
        return Field(field.name, _stored_type(field.type, field.name))

    return Schema(tuple(for_each_column(schema, stored, "the table")))


def _stored_type(data_type: pa.DataType, column: str, levels: int = MOST_LEVELS) -> DataType:
    types = pa.types
    if not levels:
        raise too_deep_error(column)
    inner = partial(_stored_type, column=column, levels=levels - 1)
    if types.is_struct(data_type):
        fields = [Field(child.name, inner(child.type)).to_json() for child in data_type]
        return {"type": "struct", "fields": fields}
    if types.is_map(data_type):
        key, value = inner(data_type.key_type), inner(data_type.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if types.is_list(data_type) or types.is_large_list(data_type):
        element = inner(data_type.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    if types.is_decimal128(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if types.is_dictionary(data_type):
        return inner(data_type.value_type)
    if types.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    if types.is_fixed_size_binary(data_type) or isinstance(data_type, pa.UuidType):
        return "binary"
    name = _NAMES.get(str(data_type))
    if name is None:
        raise UnsupportedTypeError(
            f"column {column!r} has Arrow type {data_type}, which cannot be stored; "
            f"{_advice(data_type)}"
        )
    return name


def _advice(data_type: pa.DataType) -> str:
    advice: list[tuple[Callable[[pa.DataType], bool], str]] = [
        (
            pa.types.is_unsigned_integer,
            "cast it to a signed integer (Spark and Delta have no unsigned integers)",
        ),
        (
            pa.types.is_time,
            (
                "cast it to nanoseconds of the day (long); for a key column also pass "
                "key_types='LocalTime' ('TIME(3)' in flink-sql), which keeps its "
                "key groups"
            ),
        ),
        (
            pa.types.is_duration,
            (
                "cast it to nanoseconds (long); for a key column also pass "
                "key_types='Duration', which keeps its key groups"
            ),
        ),
        (pa.types.is_null, "the column has only nulls; give it a type"),
    ]
    return next(
        (text for test, text in advice if test(data_type)), "cast it to a type that Delta supports"
    )


def for_each_column(columns: Iterable[C], convert: Callable[[C], T], subject: str) -> list[T]:
    """Return the results of a function for all columns of some rows.

    ``subject`` names the rows in messages. If several columns raise InvalidArgumentError, one error
    names all of them, in order.
    """
    results: list[T] = []
    errors: list[InvalidArgumentError] = []
    for column in columns:
        try:
            results.append(convert(column))
        except InvalidArgumentError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        lines = [f"{len(errors)} columns of {subject} do not fit:", *errors]
        are_types = all(isinstance(error, UnsupportedTypeError) for error in errors)
        kind = UnsupportedTypeError if are_types else InvalidArgumentError
        raise kind("\n  ".join(map(str, lines)))
    return results


def refuse_repeated_names(names: Sequence[str], subject: str) -> None:
    """Raise InvalidArgumentError if two columns have one name."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError(f"two columns of {subject} are named {twice!r}; rename one")


_NAME = "UUID"
Rows = Sequence[Mapping[str, Any]]


def is_uuid(key_type: str | None) -> bool:
    """Return whether a type name, from a caller or from a state, stands for Java's UUID."""
    return (key_type or "").lower().removeprefix("java.util.") == _NAME.lower()


def uuid_columns(state: KeyedState) -> dict[str, bool]:
    """Return the key columns that are hashed as UUIDs, each with whether it holds text."""
    return {
        name: state.schema.type_of(name) == "string"
        for name, key_type in zip(state.key, state.key_types, strict=True)
        if key_type == _NAME
    }


def with_uuids(rows: Rows, columns: Mapping[str, bool]) -> Rows:
    """Return dictionaries with the UUIDs of these columns in their stored form."""
    if not columns:
        return rows
    return [
        {
            name: uuid_as_stored(value, columns[name]) if name in columns else value
            for name, value in row.items()
        }
        for row in rows
    ]


def uuid_as_stored(value: Any, is_text: bool) -> Any:
    """Return a UUID as its text or bytes; any other value unchanged."""
    if not isinstance(value, UUID):
        return value
    return str(value) if is_text else value.bytes
