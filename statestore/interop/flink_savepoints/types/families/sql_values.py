"""Values of Flink SQL outside of rows: raw values, user functions' values, and internal data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink_savepoints.metadata.java_binary import i32, utf
from statestore.interop.flink_savepoints.metadata.java_objects import read_java_object
from statestore.interop.flink_savepoints.metadata.snapshot_format import TABLE, inner_class
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor
from statestore.interop.flink_savepoints.types.encode import write_sized
from statestore.interop.flink_savepoints.types.families.base import (
    FlinkType,
    OpaqueType,
    SnapshotReader,
    SnapshotReaders,
    encode_parts,
    generic_name,
)
from statestore.interop.flink_savepoints.types.families.scalar_texts import read_sized
from statestore.interop.flink_savepoints.types.value_lengths import Skip, skip_sized

__all__ = ["ExternalType", "RawType", "SqlScalar"]

_EXTERNAL = inner_class(TABLE, "ExternalSerializer")
_RAW = inner_class(TABLE, "RawValueDataSerializer")
_SCALARS = {
    "DecimalData": f"{TABLE}DecimalDataSerializer$DecimalSerializerSnapshot",
    "TimestampData": inner_class(TABLE, "TimestampDataSerializer"),
    "ArrayData": inner_class(TABLE, "ArrayDataSerializer"),
    "MapData": inner_class(TABLE, "MapDataSerializer"),
}
_BODIES = {"DecimalData": (2, 0), "TimestampData": (1, 0), "ArrayData": (0, 2), "MapData": (0, 4)}
"""How many numbers, and how many Java objects, the body of a snapshot has."""


@dataclass(frozen=True, slots=True)
class ExternalType(FlinkType):
    """A user function's value in Flink SQL's internal format; ``outer`` is the serialized type."""

    outer: bytes
    value: FlinkType

    def _java_name(self) -> str:
        return self.value.java_name

    def _arrow_type(self) -> pa.DataType:
        return self.value.arrow_type()

    def _skipper(self) -> Skip:
        return self.value.skipper()

    def _read(self, cursor: Cursor) -> pa.Array:
        return self.value.read(cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        return self.value.write(array)

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
class SqlScalar(OpaqueType):
    """A type of Flink SQL's internal data whose snapshot body is kept as it is.

    These are decimals, timestamps, arrays and maps.
    """

    name: str
    version: int
    body: bytes

    def _java_name(self) -> str:
        return self.name

    def _snapshot(self) -> bytes:
        return utf(_SCALARS[self.name]) + i32(self.version) + self.body

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_SCALARS[name]: _make_scalar_reader(name, *body) for name, body in _BODIES.items()}


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


def _make_scalar_reader(
    name: str, numbers: int, objects: int
) -> Callable[[SnapshotReader], FlinkType]:
    def read(snapshot: SnapshotReader) -> FlinkType:
        begin = snapshot.reader.position
        snapshot.reader.take(4 * numbers)
        for _ in range(objects):
            read_java_object(snapshot.reader)
        return SqlScalar(name, snapshot.version, snapshot.bytes_since(begin))

    return read
