"""Values of Flink SQL outside of rows: raw values, user functions' values, and internal data."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from statestore.interop.flink_savepoints.types.byte_cursor import Cursor
from statestore.interop.flink_savepoints.types.encode import write_sized
from statestore.interop.flink_savepoints.types.families.base import (
    FlinkType,
    OpaqueType,
    generic_name,
)
from statestore.interop.flink_savepoints.types.families.scalar_texts import read_sized
from statestore.interop.flink_savepoints.types.value_lengths import Skip, skip_sized

__all__ = ["ExternalType", "RawType", "SqlScalar"]


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
