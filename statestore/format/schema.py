"""The column names and types of a table, as values.

A type is written in Delta's schema serialization format (Delta protocol, "Schema Serialization
Format"): a name such as ``"long"``, ``"string"``, ``"decimal(10,2)"``, or a dictionary for
``struct``, ``array`` and ``map``. So Delta, Spark and delta-rs can also read a manifest's schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from statestore.errors import InvalidArgumentError, UnsupportedTypeError

PRIMITIVES = frozenset(
    [
        "string",
        "long",
        "integer",
        "short",
        "byte",
        "float",
        "double",
        "boolean",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    ]
)
_DECIMAL = re.compile(r"decimal\(([0-9]+),\s*(-?[0-9]+)\)")
MOST_DIGITS = 38
MOST_LEVELS = 100
"""The most levels of a type that can be read."""
MOST_WRITTEN_LEVELS = 32
"""The most levels of a type that can be written."""
MOST_REPEATED_LEVELS = 16
"""The most of them that can be arrays or maps."""

DataType = str | Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """One column: its name, and its type in Delta's notation."""

    name: str
    type: DataType

    def to_json(self) -> dict[str, Any]:
        """Return the field in Delta's format; all stored columns are nullable."""
        return {"name": self.name, "type": self.type, "nullable": True, "metadata": {}}


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        """Refuse duplicate names (case-insensitive, as in Spark) and unknown types."""
        names: dict[str, str] = {}
        for field in self.fields:
            folded = field.name.lower()
            if folded in names:
                raise InvalidArgumentError(
                    f"two columns are named {names[folded]!r} and {field.name!r}; Spark "
                    "ignores case in column names, so rename one"
                )
            if not field.name:
                raise InvalidArgumentError("a column has an empty name; give it one")
            names[folded] = field.name
            try:
                check_type(field.type, field.name)
            except (AttributeError, LookupError, TypeError) as error:
                message = f"column {field.name!r} has a type without {error}"
                raise UnsupportedTypeError(message) from error

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple([field.name for field in self.fields])

    def type_of(self, name: str) -> DataType:
        """Return the type of a column; InvalidArgumentError lists the existing columns."""
        for field in self.fields:
            if field.name == name:
                return field.type
        raise InvalidArgumentError(f"no column {name!r}; the columns are {', '.join(self.names)}")

    def select(self, names: Iterable[str]) -> Schema:
        """Return the schema with only these columns, in this order."""
        return Schema(tuple(Field(name, self.type_of(name)) for name in names))

    def renamed(self, names: Mapping[str, str]) -> Schema:
        """Return the schema with some columns renamed, by old name."""
        return Schema(tuple(Field(names.get(f.name, f.name), f.type) for f in self.fields))

    def to_json(self) -> dict[str, Any]:
        """Return the schema in the format of Delta's ``schemaString``."""
        return {"type": "struct", "fields": [field.to_json() for field in self.fields]}

    def __str__(self) -> str:
        """Return ``name type, name type, …``."""
        return ", ".join(f"{field.name} {type_text(field.type)}" for field in self.fields)


def schema_from_json(document: Mapping[str, Any]) -> Schema:
    """Parse the result of :meth:`Schema.to_json`; KeyError or TypeError for anything else."""
    return Schema(tuple(Field(field["name"], field["type"]) for field in document["fields"]))


def check_type(data_type: DataType, column: str, levels: int = MOST_LEVELS) -> None:
    """Raise UnsupportedTypeError if a part of the type cannot be stored, or exceeds ``levels``."""
    if isinstance(data_type, str):
        if data_type not in PRIMITIVES and not _is_decimal(data_type):
            raise UnsupportedTypeError(
                f"column {column!r} has type {data_type}, which cannot be stored; cast it to "
                f"one of {', '.join(sorted(PRIMITIVES))}, decimal (at most {MOST_DIGITS} "
                "digits, with a scale from 0 to the number of digits), struct, array or map"
            )
        return
    if levels == 1:
        raise too_deep_error(column)
    children = _children(data_type)
    if data_type["type"] == "struct":
        names = [field["name"].lower() for field in data_type["fields"]]
        if not names or len(set(names)) < len(names) or not all(names):
            raise UnsupportedTypeError(
                f"column {column!r} has type {type_text(data_type)}, which cannot be stored: "
                "a struct must have fields, and their names must differ in more than case"
            )
    for child in children:
        check_type(child, column, levels - 1)


def too_deep_error(column: str) -> UnsupportedTypeError:
    """Return the error for a type with more than ``MOST_LEVELS`` levels."""
    return UnsupportedTypeError(
        f"the type of column {column!r} has more than {MOST_LEVELS} nested levels; store the inner "
        "part as JSON or as binary"
    )


def refuse_too_deep(schema: Schema, subject: str) -> None:
    """Raise UnsupportedTypeError for a type that one of the readers could not read.

    Parquet's own reader supports 98 levels, of which a list or a map takes two. delta-rs supports
    at most 40 nested structs. DuckDB's time doubles with each nesting of lists.
    """
    for field in schema.fields:
        levels, repeated = _nesting(field.type)
        if levels > MOST_WRITTEN_LEVELS or repeated > MOST_REPEATED_LEVELS:
            raise UnsupportedTypeError(
                f"the type of column {field.name!r} of {subject} has {levels} levels, "
                f"{repeated} of them arrays or maps; at most {MOST_WRITTEN_LEVELS} levels and "
                f"{MOST_REPEATED_LEVELS} arrays or maps can be stored, because some readers "
                "support no more. Store the inner part as JSON or as binary"
            )


def _nesting(data_type: DataType) -> tuple[int, int]:
    """Return the number of nested levels of a type, and how many of them are arrays or maps."""
    if isinstance(data_type, str):
        return 1, 0
    inner = [_nesting(child) for child in _children(data_type)]
    own = data_type["type"] != "struct"
    return 1 + max(levels for levels, _ in inner), own + max(repeated for _, repeated in inner)


def _is_decimal(data_type: str) -> bool:
    parts = decimal_parts(data_type)
    return parts is not None and 0 <= parts[1] <= parts[0] <= MOST_DIGITS and parts[0] > 0


def decimal_parts(data_type: str) -> tuple[int, int] | None:
    """Return (precision, scale) of ``decimal(p,s)``; None for any other type."""
    match = _DECIMAL.fullmatch(data_type)
    return (int(match[1]), int(match[2])) if match else None


def names_with_nul(schema: Schema) -> tuple[str, ...]:
    """Return the names of columns, and of fields in them, that contain a NUL character.

    Readers that use Arrow's C interface, such as DuckDB and Polars, cut a name at NUL, and could
    confuse it with another column.
    """
    names = [name for field in schema.fields for name in (field.name, *_field_names(field.type))]
    return tuple(name for name in names if "\0" in name)


def _field_names(data_type: DataType) -> list[str]:
    if isinstance(data_type, str):
        return []
    names = [field["name"] for field in data_type.get("fields", ())]
    return names + [name for child in _children(data_type) for name in _field_names(child)]


def type_text(data_type: DataType) -> str:
    """Return a type in SQL notation: ``struct<a: long>``, ``array<string>``."""
    if isinstance(data_type, str):
        return data_type
    if data_type["type"] == "struct":
        inner = ", ".join(f"{f['name']}: {type_text(f['type'])}" for f in data_type["fields"])
        return f"struct<{inner}>"
    return f"{data_type['type']}<{', '.join(type_text(child) for child in _children(data_type))}>"


def is_ordered(data_type: DataType) -> bool:
    """Return whether values of the type can be sorted and compared: it contains no map."""
    if isinstance(data_type, str):
        return True
    return data_type["type"] != "map" and all(map(is_ordered, _children(data_type)))


def same_type(left: DataType, right: DataType) -> bool:
    """Return whether two types are equal, ignoring nullability and metadata."""
    return json.dumps(_without_nullability(left)) == json.dumps(_without_nullability(right))


def same_columns(left: Schema, right: Schema) -> bool:
    """Return whether two schemas have the same column names and types, in any order."""
    return set(left.names) == set(right.names) and all(
        same_type(field.type, right.type_of(field.name)) for field in left.fields
    )


def _children(data_type: Mapping[str, Any]) -> list[DataType]:
    match data_type.get("type"):
        case "struct":
            return [field["type"] for field in data_type["fields"]]
        case "array":
            return [data_type["elementType"]]
        case "map":
            return [data_type["keyType"], data_type["valueType"]]
        case other:
            raise UnsupportedTypeError(f"a column has type {other}, which cannot be stored")


def _without_nullability(data_type: DataType) -> Any:
    if isinstance(data_type, str):
        return data_type.replace(" ", "")
    names = [field["name"] for field in data_type.get("fields", ())]
    return [
        data_type["type"],
        names,
        [_without_nullability(child) for child in _children(data_type)],
    ]


def struct_types(struct: Mapping[str, Any]) -> dict[str, DataType]:
    """Return the types of a struct's fields, by name."""
    return {field["name"]: field["type"] for field in struct["fields"]}
