"""Records of Avro, specific and generic (``AvroSerializer``); their snapshot has the schema.

A record has a column for each field. Logical types keep the form of the number, text or bytes that
they annotate. A schema that refers to itself, or has a part without bytes, has no columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32, string_value, utf
from statestore.interop.flink.metadata.old_versions import unsupported_version
from statestore.interop.flink.metadata.snapshot_format import FLINK
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.families.avro_parts import (
    AvroArrayType,
    AvroFixedType,
    AvroMapType,
    AvroOptionalType,
    AvroUnionType,
)
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    short_name,
)
from statestore.interop.flink.types.families.cep import RecordType
from statestore.interop.flink.types.families.enums import EnumType
from statestore.interop.flink.types.families.scalar import Scalar
from statestore.interop.flink.types.value_lengths import Skip

_CLASS = f"{FLINK}formats.avro.typeutils.AvroSerializerSnapshot"
_WITH_CLASS, _WITH_LONG_SCHEMA = 2, 3
_WRITTEN_BY = {1: "1.7 or before"}
_PRIMITIVES = {
    "boolean": Scalar("Boolean"),
    "int": Scalar("Integer"),
    "long": Scalar("Long"),
    "float": Scalar("Float"),
    "double": Scalar("Double"),
    "string": Scalar("StringData"),
    "bytes": Scalar("byte[]"),
}
_DEEPEST = 40
_MOST_PARTS = 10_000  # names can repeat a type, so that few bytes describe very many columns
_UNION_WITH_NULL = 2


@dataclass(frozen=True, slots=True)
class AvroType(FlinkType):
    """A class that Avro serializes, with its schema as JSON, and the version of the snapshot."""

    class_name: str
    schema: str
    version: int = _WITH_LONG_SCHEMA

    @property
    def is_record(self) -> bool:
        """Whether a value consists of named fields."""
        return isinstance(_find_layout(self.schema), RecordType)

    @property
    def layout(self) -> FlinkType:
        """The layout of the values.

        Raises UnsupportedTypeError for a schema that has none.
        """
        layout = _find_layout(self.schema)
        if isinstance(layout, str):
            raise UnsupportedTypeError(
                f"values of {self.java_name} can only be read as bytes: {layout}"
            )
        return layout

    def _java_name(self) -> str:
        return f"Avro<{short_name(self.class_name)}>"

    def _column_count(self) -> int:
        return self.layout.column_count

    def _arrow_type(self) -> pa.DataType:
        return self.layout.arrow_type()

    def _skipper(self) -> Skip:
        layout = _find_layout(self.schema)
        if isinstance(layout, str):
            raise UnsupportedTypeError(
                f"the length of a value of {self.java_name} is unknown, since {layout}: take a "
                "canonical savepoint, which has the length of each value"
            )
        return layout.skipper()

    def _read(self, cursor: Cursor) -> pa.Array:
        return self.layout.read(cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return self.layout.write(array)

    def _snapshot(self) -> bytes:
        write = utf if self.version == _WITH_CLASS else string_value
        return utf(_CLASS) + i32(self.version) + write(self.class_name) + write(self.schema)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_CLASS: _parse_avro}


def _parse_avro(snapshot: SnapshotReader) -> FlinkType:
    reader, version = snapshot.reader, snapshot.version
    if version not in (_WITH_CLASS, _WITH_LONG_SCHEMA):
        what = "a serializer snapshot AvroSerializerSnapshot"
        raise unsupported_version(reader.name, what, version, _WRITTEN_BY)
    if version == _WITH_CLASS:
        return AvroType(reader.utf(), reader.utf(), version)
    return AvroType(_read_text(reader), _read_text(reader), version)


def _read_text(reader: Reader) -> str:
    length = reader.varint()
    if not length:
        raise reader.error("the class or the schema of an Avro type is null")
    return reader.characters(length - 1)


@lru_cache(maxsize=512)
def _find_layout(schema: str) -> FlinkType | str:
    """Return the layout of values with a schema, or the reason why they have none."""
    try:
        return _SchemaParser().parse(json.loads(schema), "")
    except RecursionError:
        return "its schema is nested too deeply"
    except ValueError as error:  # also that the text is not JSON
        return f"its schema is not supported ({error})"


class _SchemaParser:
    """Parses a schema; named types can be referred to after their definition."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[FlinkType, int]] = {}
        self._parts, self._depth = 0, 0

    def parse(self, schema: Any, namespace: str) -> FlinkType:
        """Return the layout of a schema; ValueError with the reason if there is none."""
        self._depth += 1
        self._parts += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if self._parts > _MOST_PARTS:
            raise ValueError(f"it has more than {_MOST_PARTS} parts")
        layout = self._parse(schema, namespace)
        self._depth -= 1
        return layout

    def _parse(self, schema: Any, namespace: str) -> FlinkType:
        if isinstance(schema, list):
            return self._parse_union(schema, namespace)
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self._find_named(schema, namespace)
        if not isinstance(schema, dict):
            raise ValueError(f"{schema!r} is no schema")
        match schema.get("type"):
            case "array":
                return AvroArrayType(self.parse(schema.get("items"), namespace))
            case "map":
                return AvroMapType(self.parse(schema.get("values"), namespace))
            case "record" | "enum" | "fixed" as form:
                return self._parse_named(schema, form, namespace)
            case nested:
                return self.parse(nested, namespace)

    def _parse_union(self, branches: list[Any], namespace: str) -> FlinkType:
        types = [None if part == "null" else self.parse(part, namespace) for part in branches]
        known = [part for part in types if part is not None]
        if not known or types.count(None) > 1:
            raise ValueError("it has a union of nothing but null, or of null twice")
        if len(known) == 1 and len(types) == _UNION_WITH_NULL:
            return AvroOptionalType(known[0], types.index(None))
        return AvroUnionType(tuple(types))

    def _parse_named(self, schema: Mapping[str, Any], form: str, namespace: str) -> FlinkType:
        name, before = _full_name(schema, namespace), self._parts
        inner = name.rpartition(".")[0]
        if form == "record":
            layout = self._parse_record(schema, inner)
        elif form == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(text, str) for text in symbols):
                raise ValueError(f"the enum {name} has no symbols")
            if len(set(symbols)) < len(symbols):
                raise ValueError(f"the enum {name} has a symbol twice")
            layout = EnumType(name, tuple(symbols))
        else:
            size = schema.get("size")
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"the size of {name} is {size!r}")
            layout = AvroFixedType(size)
        self._named[name] = layout, self._parts - before
        return layout

    def _parse_record(self, schema: Mapping[str, Any], namespace: str) -> FlinkType:
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields:
            raise ValueError("it has a record without fields")
        names = tuple(
            field["name"]
            for field in fields
            if isinstance(field, dict) and isinstance(field.get("name"), str)
        )
        if len(names) < len(fields):
            raise ValueError("it has a field without a name")
        if len(set(names)) < len(names):
            raise ValueError("it has two fields of the same name")
        return RecordType(
            names, tuple(self.parse(field.get("type"), namespace) for field in fields)
        )

    def _find_named(self, name: str, namespace: str) -> FlinkType:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named:
            raise ValueError(f"it refers to {name!r}, which is not defined before")
        layout, parts = self._named[full]
        self._parts += parts
        return layout


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """Return the full name of a named type, in the namespace around it if it has none."""
    name = schema.get("name")
    if not isinstance(name, str):
        raise ValueError("it has a type without a name")
    own = schema.get("namespace", namespace)
    return name if "." in name or not own else f"{own}.{name}"
