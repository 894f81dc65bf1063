"""Values of Flink SQL outside of rows: raw values, user functions' values, and internal data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import i32, utf
from statestore.interop.flink.metadata.java_objects import read_java_object
from statestore.interop.flink.metadata.logical_types import LogicalType, read_logical_type
from statestore.interop.flink.metadata.snapshot_format import TABLE, inner_class
from statestore.interop.flink.types.arrow_types import sql_type
from statestore.interop.flink.types.binary_rows import decode_collections, encode_collections
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES
from statestore.interop.flink.types.encode import refuse_nulls, write_sized
from statestore.interop.flink.types.families.base import (
    FlinkType,
    SnapshotReader,
    SnapshotReaders,
    WrapperType,
    encode_parts,
    generic_name,
)
from statestore.interop.flink.types.families.scalar_texts import read_sized
from statestore.interop.flink.types.value_lengths import Skip, skip_sized

_EXTERNAL = inner_class(TABLE, "ExternalSerializer")
_RAW = inner_class(TABLE, "RawValueDataSerializer")
_COLLECTIONS = {
    "ARRAY": ("ArrayData", inner_class(TABLE, "ArrayDataSerializer")),
    "MAP": ("MapData", inner_class(TABLE, "MapDataSerializer")),
}


@dataclass(frozen=True, slots=True)
class ExternalType(WrapperType):
    """A user function's value in Flink SQL's internal format; ``outer`` is the serialized type."""

    outer: bytes
    value: FlinkType

    @property
    def _wrapped(self) -> FlinkType:
        return self.value

    def _snapshot(self) -> bytes:
        return encode_parts(_EXTERNAL, 1, self.outer, self.value)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_EXTERNAL: _parse_external}


@dataclass(frozen=True, slots=True)
class RawType(FlinkType):
    """A value of another serializer with a length prefix, which Flink SQL treats as opaque."""

    value: FlinkType

    def _java_name(self) -> str:
        return generic_name("Raw", self.value)

    def _arrow_type(self) -> pa.DataType:
        return pa.binary()

    def _skipper(self) -> Skip:
        return skip_sized

    def _read(self, cursor: Cursor) -> pa.Array:
        return read_sized(cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return write_sized(array)

    def _snapshot(self) -> bytes:
        return encode_parts(_RAW, 0, b"", self.value)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_RAW: _parse_raw_value}


@dataclass(frozen=True, slots=True)
class SqlCollection(FlinkType):
    """An array or map outside of a row: a length, and the bytes of Flink SQL's binary format.

    ``column`` is its type in a row. ``serializers`` are the serializers of its elements, as Java
    serialized them.
    """

    column: LogicalType
    version: int
    serializers: bytes

    def _java_name(self) -> str:
        name, _ = _COLLECTIONS[self.column.root]
        return f"{name}<{', '.join(child.text for child in self.column.children)}>"

    def _arrow_type(self) -> pa.DataType:
        return sql_type(self.column)

    def _skipper(self) -> Skip:
        return skip_sized

    def _read(self, cursor: Cursor) -> pa.Array:
        return decode_collections(self.column, cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return write_sized(pa.array(encode_collections(self.column, array), BYTES))

    def _snapshot(self) -> bytes:
        _, class_name = _COLLECTIONS[self.column.root]
        java = b"".join(child.java for child in self.column.children)
        return utf(class_name) + i32(self.version) + java + self.serializers

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {
            class_name: _make_collection_reader(root)
            for root, (_, class_name) in _COLLECTIONS.items()
        }


def _parse_external(snapshot: SnapshotReader) -> FlinkType:
    """Read ``ExternalSerializer``: a Java ``DataType``, and a flag for internal input."""
    snapshot.outer_version()
    begin = snapshot.reader.position
    read_java_object(snapshot.reader)
    snapshot.reader.bool()
    return ExternalType(snapshot.bytes_since(begin), snapshot.part())


def _parse_raw_value(snapshot: SnapshotReader) -> FlinkType:
    snapshot.outer_version()
    return RawType(snapshot.part())


def _make_collection_reader(root: str) -> Callable[[SnapshotReader], FlinkType]:
    """Return a function for the types of the elements, then their serializers as Java objects."""
    parts = 1 if root == "ARRAY" else 2

    def read(snapshot: SnapshotReader) -> FlinkType:
        children = tuple(read_logical_type(snapshot.reader) for _ in range(parts))
        text = f"{root}<{', '.join(child.text for child in children)}>"
        begin = snapshot.reader.position
        for _ in children:
            read_java_object(snapshot.reader)
        column = LogicalType(text, b"", root, children=children)
        return SqlCollection(column, snapshot.version, snapshot.bytes_since(begin))

    return read
