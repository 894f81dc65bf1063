"""Records of Avro, specific and generic (``AvroSerializer``); their snapshot has the schema.

Values have Flink's own encoding (``DataOutputEncoder``). It differs from Avro's binary encoding:
numbers and the index of a union's branch have a fixed width. Only the number of elements of an
array or a map is a varint.

A record has a column for each field. Logical types keep the form of the number, text or bytes that
they annotate. A schema that refers to itself, or has a part without bytes, has no columns.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, string_value, utf, varint
from statestore.interop.flink.metadata.snapshot_format import (
    FLINK,
    Member,
    SnapshotForm,
    SnapshotReader,
    plain,
)
from statestore.interop.flink.metadata.versions import unsupported_version
from statestore.interop.flink.types.base import FlinkType, Layout, short_name
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Skip,
    Spans,
    join_parts,
)
from statestore.interop.flink.types.column_bytes import join_runs, read_lists, refuse_nulls
from statestore.interop.flink.types.java_types import EnumType, Scalar
from statestore.interop.flink.types.layouts import (
    Choice,
    Elements,
    Entries,
    Flagged,
    Leaf,
    Struct,
    Tagged,
    Tags,
    numbered_struct,
)

_WITH_CLASS, _WITH_LONG_SCHEMA = 2, 3
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
_NO_END = "an array or a map of Avro does not end after its elements"
_END_OF_BLOCK = pa.scalar(b"\0", BYTES)


def _read_text(snapshot: SnapshotReader) -> str:
    reader = snapshot.reader
    if snapshot.version == _WITH_CLASS:
        return reader.utf()
    length = reader.varint()
    if not length:
        raise reader.error("the class or the schema of an Avro type is null")
    return reader.characters(length - 1)


def _read_version(snapshot: SnapshotReader) -> int:
    if snapshot.version not in (_WITH_CLASS, _WITH_LONG_SCHEMA):
        what = "a serializer snapshot AvroSerializerSnapshot"
        raise unsupported_version(snapshot.reader.name, what, snapshot.version)
    return snapshot.version


def _form(version: int, encode: Callable[[str], bytes]) -> SnapshotForm:
    """Return the snapshot of a version; each form reads both versions."""
    text = Member(_read_text, encode)
    members = {"version": Member(_read_version, lambda _: b""), "class_name": text, "schema": text}
    name = f"{FLINK}formats.avro.typeutils.AvroSerializerSnapshot"
    return plain(name, version, members, version=version)


@dataclass(frozen=True, slots=True)
class AvroType(FlinkType):
    """A class that Avro serializes, with its schema as JSON, and the version of the snapshot."""

    class_name: str
    schema: str
    version: int = _WITH_LONG_SCHEMA

    snapshots = (_form(_WITH_LONG_SCHEMA, string_value), _form(_WITH_CLASS, utf))

    @property
    def is_record(self) -> bool:
        """Whether a value consists of named fields."""
        return isinstance(_find_layout(self.schema), Struct)

    def _java_name(self) -> str:
        return f"Avro<{short_name(self.class_name)}>"

    def _make_layout(self) -> Layout:
        layout = _find_layout(self.schema)
        if isinstance(layout, str):
            raise UnsupportedTypeError(
                f"values of {self.java_name} can only be read as bytes: {layout}"
            )
        return layout

    def _fixed_width(self) -> int | None:
        return None

    def _skipper(self) -> Skip:
        layout = _find_layout(self.schema)
        if isinstance(layout, str):
            raise UnsupportedTypeError(
                f"the length of a value of {self.java_name} is unknown, since {layout}: take a "
                "canonical savepoint, which has the length of each value"
            )
        return layout.skipper()


@dataclass(frozen=True, slots=True)
class Block(Elements):
    """A varint of the number of elements, the elements, and a 0; or only a 0 (Avro)."""

    def _skipper(self) -> Skip:
        skip_element = self.element.skipper()

        def skip(reader: Reader) -> None:
            count = reader.varint()
            if count > reader.remaining:
                raise reader.error(f"{count} elements do not fit in {reader.remaining} bytes")
            for _ in range(count):
                skip_element(reader)
            if count and reader.u8():
                raise reader.error(_NO_END, position=reader.position - 1)

        return skip

    def _read(self, cursor: Cursor) -> pa.Array:
        counts = cursor.varints()
        cursor.refuse(counts > cursor.end - cursor.position, "a count is too large for its value")
        lists = read_lists(self.element, cursor, counts)
        rows = counts > 0
        ends = cursor.select(rows)
        wrong = ends.take(1)[:, 0] != 0
        ends.position = ends.position - 1
        ends.refuse(wrong, _NO_END)
        ends.position = ends.position + 1
        cursor.move_rows(rows, ends)
        return lists

    def join(self, counts: npt.NDArray[np.int64], elements: pa.Array) -> pa.Array:
        """Return the bytes of lists of these lengths, given those of all their elements."""
        heads = pa.array([varint(count) if count else b"" for count in counts.tolist()], BYTES)
        return join_parts(heads, join_runs(elements, counts), _END_OF_BLOCK)


@lru_cache(maxsize=512)
def _find_layout(schema: str) -> Layout | str:
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
        self._named: dict[str, tuple[Layout, int]] = {}
        self._parts, self._depth = 0, 0

    def parse(self, schema: Any, namespace: str) -> Layout:
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

    def _parse(self, schema: Any, namespace: str) -> Layout:
        if isinstance(schema, list):
            return self._parse_union(schema, namespace)
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self._find_named(schema, namespace)
        if not isinstance(schema, dict):
            raise ValueError(f"{schema!r} is no schema")
        match schema.get("type"):
            case "array":
                return Block(self.parse(schema.get("items"), namespace))
            case "map":
                return make_map_layout(self.parse(schema.get("values"), namespace))
            case "record" | "enum" | "fixed" as form:
                return self._parse_named(schema, form, namespace)
            case nested:
                return self.parse(nested, namespace)

    def _parse_union(self, branches: list[Any], namespace: str) -> Layout:
        types = [None if part == "null" else self.parse(part, namespace) for part in branches]
        if all(part is None for part in types) or types.count(None) > 1:
            raise ValueError("it has a union of nothing but null, or of null twice")
        return make_union_layout(types)

    def _parse_named(self, schema: Mapping[str, Any], form: str, namespace: str) -> Layout:
        name, before = _full_name(schema, namespace), self._parts
        inner = name.rpartition(".")[0]
        if form == "record":
            layout: Layout = self._parse_record(schema, inner)
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
            layout = make_fixed_layout(size)
        self._named[name] = layout, self._parts - before
        return layout

    def _parse_record(self, schema: Mapping[str, Any], namespace: str) -> Layout:
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
        return Struct(names, tuple(self.parse(field.get("type"), namespace) for field in fields))

    def _find_named(self, name: str, namespace: str) -> Layout:
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


def make_fixed_layout(width: int) -> Layout:
    """Return the layout of a fixed number of bytes."""

    def read(cursor: Cursor) -> pa.Array:
        begins = cursor.position
        cursor.refuse(begins + width > cursor.end, "a fixed value is cut")
        cursor.position = begins + width
        spans = Spans(cursor.spans.data, begins, cursor.position, cursor.spans.name)
        return spans.arrow().cast(pa.binary())

    def write(array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        if not pc.all(pc.equal(pc.binary_length(array), width), min_count=0).as_py():
            raise InvalidArgumentError(f"each value of fixed({width}) must have {width} bytes")
        return array.cast(BYTES)

    return Leaf(pa.binary(), width, read, write)


def make_union_layout(branches: Sequence[Layout | None]) -> Layout:
    """Return the layout of a union, with None for null.

    The column of a union of null and another type has the other type. The column of other unions
    has the index of the branch, and a field for each branch except null.
    """
    last = len(branches) - 1
    tags = Tags(0, last, ">i4", "a union of Avro has no branch {}")
    types = [(index, part) for index, part in enumerate(branches) if part is not None]
    if len(types) == 1 and len(branches) == _UNION_WITH_NULL:
        ((index, value),) = types
        return Flagged(value, index, tags)
    choices = tuple(Choice(f"f{index}", part, (index,)) for index, part in types)
    return Tagged(tags, choices, pa.field("branch", pa.int32()))


def make_map_layout(value: Layout) -> Layout:
    """Return the layout of a map from text, which has the form of an array of its entries."""
    return Entries(Block(numbered_struct((Scalar("StringData"), value)), unique="key"))
