"""Column names and types, as values: what a table's columns are called and hold.

A type is written as in Delta's schema serialization format (Delta protocol, "Schema Serialization
Format"): a name such as ``"long"``, ``"string"``, ``"decimal(10,2)"``, or a dictionary for
``struct``, ``array`` and ``map``. So a manifest's schema is what Delta, Spark and delta-rs read
too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from statestore.errors import InvalidArgumentError, UnsupportedTypeError

__all__ = ["Field", "Schema", "names_with_nul", "same_columns", "schema_from_json", "type_text"]

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

DataType = str | Mapping[str, Any]


@dataclass(frozen=True)
class Field:
    """One column: its name, and its type in Delta's notation."""

    name: str
    type: DataType

    def to_json(self) -> dict[str, Any]:
        """Return the field as Delta writes it; every column of ours may hold null."""
        return {"name": self.name, "type": self.type, "nullable": True, "metadata": {}}


@dataclass(frozen=True)
class Schema:
    """The columns of a table, in order."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        """Refuse duplicate names (Spark does not tell case apart) and unknown types."""
        seen: dict[str, str] = {}
        for field in self.fields:
            folded = field.name.lower()
            if folded in seen:
                raise InvalidArgumentError(
                    f"two columns are named {seen[folded]!r} and {field.name!r}; Spark does not "
                    "tell upper from lower case, so rename one"
                )
            if not field.name:
                raise InvalidArgumentError("a column has an empty name; give it one")
            seen[folded] = field.name
            check_type(field.type, field.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple(field.name for field in self.fields)

    def type_of(self, name: str) -> DataType:
        """Return the type of a column; InvalidArgumentError naming the columns when there is
        none.
        """
        for field in self.fields:
            if field.name == name:
                return field.type
        raise InvalidArgumentError(f"no column {name!r}; the columns are {', '.join(self.names)}")

    def select(self, names: Iterable[str]) -> Schema:
        """Return the schema of these columns, in this order."""
        return Schema(tuple(Field(name, self.type_of(name)) for name in names))

    def renamed(self, names: Mapping[str, str]) -> Schema:
        """Return the schema with other names for some columns, by old name."""
        return Schema(tuple(Field(names.get(f.name, f.name), f.type) for f in self.fields))

    def to_json(self) -> dict[str, Any]:
        """Return the schema as Delta's ``schemaString`` holds it."""
        return {"type": "struct", "fields": [field.to_json() for field in self.fields]}

    def __str__(self) -> str:
        """Return ``name type, name type, …``."""
        return ", ".join(f"{field.name} {type_text(field.type)}" for field in self.fields)


def schema_from_json(document: Mapping[str, Any]) -> Schema:
    """Return the schema that :meth:`Schema.to_json` wrote; KeyError or TypeError when it is not
    one.
    """
    return Schema(tuple(Field(field["name"], field["type"]) for field in document["fields"]))


def check_type(data_type: DataType, column: str, levels: int = MOST_LEVELS) -> None:
    """Raise UnsupportedTypeError unless every part of the type can be stored, within ``levels``."""
    if isinstance(data_type, str):
        if data_type not in PRIMITIVES and not _is_decimal(data_type):
            raise UnsupportedTypeError(
                f"column {column!r} has type {data_type}, which cannot be stored; cast it to one "
                f"of {', '.join(sorted(PRIMITIVES))}, decimal (at most {MOST_DIGITS} digits, a "
                "scale from 0 to their number), struct, array or map"
            )
        return
    if levels == 1:
        raise UnsupportedTypeError(
            f"column {column!r} has a type of more than {MOST_LEVELS} levels, one in another"
        )
    children = _children(data_type)
    if data_type["type"] == "struct":
        names = [field["name"].lower() for field in data_type["fields"]]
        if not names or len(set(names)) < len(names) or not all(names):
            raise UnsupportedTypeError(
                f"column {column!r} has type {type_text(data_type)}, which cannot be stored: a "
                "struct has fields, and their names differ, not in case alone"
            )
    for child in children:
        check_type(child, column, levels - 1)


def _is_decimal(data_type: str) -> bool:
    parts = decimal_parts(data_type)
    return parts is not None and 0 <= parts[1] <= parts[0] <= MOST_DIGITS and parts[0] > 0


def decimal_parts(data_type: str) -> tuple[int, int] | None:
    """Return (precision, scale) of ``decimal(p,s)``, None for any other type."""
    match = _DECIMAL.fullmatch(data_type)
    return (int(match[1]), int(match[2])) if match else None


def names_with_nul(schema: Schema) -> tuple[str, ...]:
    """Return the names of columns, and of fields in them, that have a NUL character.

    A name ends there for whoever takes Arrow's columns in C, as DuckDB and Polars do, and is then
    another column's.
    """
    found = [name for field in schema.fields for name in (field.name, *_field_names(field.type))]
    return tuple(name for name in found if "\0" in name)


def _field_names(data_type: DataType) -> list[str]:
    if isinstance(data_type, str):
        return []
    names = [field["name"] for field in data_type.get("fields", ())]
    return names + [name for child in _children(data_type) for name in _field_names(child)]


def type_text(data_type: DataType) -> str:
    """Return a type as SQL writes it: ``struct<a: long>``, ``array<string>``."""
    if isinstance(data_type, str):
        return data_type
    if data_type["type"] == "struct":
        inner = ", ".join(f"{f['name']}: {type_text(f['type'])}" for f in data_type["fields"])
        return f"struct<{inner}>"
    return f"{data_type['type']}<{', '.join(type_text(child) for child in _children(data_type))}>"


def is_ordered(data_type: DataType) -> bool:
    """Return whether values of the type can be sorted and compared: no map in it."""
    if isinstance(data_type, str):
        return True
    return data_type["type"] != "map" and all(map(is_ordered, _children(data_type)))


def same_type(left: DataType, right: DataType) -> bool:
    """Return whether two types are equal, nullability and metadata aside."""
    return json.dumps(_bare(left)) == json.dumps(_bare(right))


def same_columns(left: Schema, right: Schema) -> bool:
    """Return whether two schemas have columns of the same names and types, in any order."""
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


def _bare(data_type: DataType) -> Any:
    if isinstance(data_type, str):
        return data_type.replace(" ", "")
    names = [field["name"] for field in data_type.get("fields", ())]
    return [data_type["type"], names, [_bare(child) for child in _children(data_type)]]
