"""Decimals and timestamps of Flink SQL that are not part of a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import i32, utf
from statestore.interop.flink.metadata.logical_types import LogicalType
from statestore.interop.flink.metadata.snapshot_format import TABLE, inner_class
from statestore.interop.flink.types.arrow_types import EXACT_IN_MILLIS, sql_type
from statestore.interop.flink.types.binary_rows import (
    COMPACT_DIGITS,
    build_decimals,
    build_timestamps,
    to_plain_values,
)
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, join_parts
from statestore.interop.flink.types.encode import refuse_nulls, write_numbers, write_sized
from statestore.interop.flink.types.families.base import FlinkType, SnapshotReader, SnapshotReaders
from statestore.interop.flink.types.families.scalar_texts import read_sized
from statestore.interop.flink.types.value_lengths import Skip, skip_sized

_DECIMAL = f"{TABLE}DecimalDataSerializer$DecimalSerializerSnapshot"
_TIMESTAMP = inner_class(TABLE, "TimestampDataSerializer")
_MOST_DIGITS = 38
_MOST_FRACTIONAL_DIGITS = 9
_MOST_NANOS = 999_999
_LONG, _INT = 8, 4


@dataclass(frozen=True, slots=True)
class DecimalDataType(FlinkType):
    """A decimal: the unscaled number, in eight bytes or as a length and bytes."""

    precision: int
    scale: int
    version: int = 3

    @property
    def _column(self) -> LogicalType:
        text = f"DECIMAL({self.precision}, {self.scale})"
        return LogicalType(text, b"", "DECIMAL", self.precision, self.scale)

    @property
    def _is_compact(self) -> bool:
        return self.precision <= COMPACT_DIGITS

    def _java_name(self) -> str:
        return f"DecimalData({self.precision}, {self.scale})"

    def _arrow_type(self) -> pa.DataType:
        return sql_type(self._column)

    def _fixed_width(self) -> int | None:
        return _LONG if self._is_compact else None

    def _skipper(self) -> Skip:
        return skip_sized

    def _read(self, cursor: Cursor) -> pa.Array:
        if self._is_compact:
            unscaled = cursor.numbers(">i8").tolist()
        else:
            raw = read_sized(cursor).to_pylist()
            unscaled = [int.from_bytes(value, "big", signed=True) for value in raw]
        return build_decimals(self._column, unscaled, cursor)

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        unscaled = to_plain_values(self._column, array)
        if self._is_compact:
            return write_numbers(pa.array(unscaled, pa.int64()), ">i8")
        return write_sized(pa.array(map(_shortest_bytes, unscaled), BYTES))

    def _snapshot(self) -> bytes:
        return utf(_DECIMAL) + i32(self.version) + i32(self.precision) + i32(self.scale)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_DECIMAL: _parse_decimal}


@dataclass(frozen=True, slots=True)
class TimestampDataType(FlinkType):
    """A timestamp: milliseconds since 1970, and nanoseconds if it has more than three digits.

    Its serializer does not say whether it has a time zone.
    """

    precision: int
    version: int = 1

    @property
    def _column(self) -> LogicalType:
        text = f"TIMESTAMP({self.precision})"
        return LogicalType(text, b"", "TIMESTAMP_WITHOUT_TIME_ZONE", self.precision)

    def _java_name(self) -> str:
        return f"TimestampData({self.precision})"

    def _arrow_type(self) -> pa.DataType:
        return sql_type(self._column)

    def _fixed_width(self) -> int | None:
        return _LONG if self.precision <= EXACT_IN_MILLIS else _LONG + _INT

    def _serializer_length(self) -> int | None:
        return self.fixed_width

    def _skipper(self) -> Skip:
        raise AssertionError("the width of a timestamp must be fixed")

    def _read(self, cursor: Cursor) -> pa.Array:
        millis = cursor.numbers(">i8")
        nanos = np.zeros(len(millis), np.int64)
        if self.precision > EXACT_IN_MILLIS:
            nanos = cursor.numbers(">i4").astype(np.int64)
            is_outside = (nanos < 0) | (nanos > _MOST_NANOS)
            cursor.refuse(is_outside, "a millisecond does not have this nanosecond")
        return build_timestamps(self._column, millis, nanos, np.zeros(len(millis), np.bool_))

    def _write(self, array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        values = to_plain_values(self._column, array)
        if self.precision <= EXACT_IN_MILLIS:
            return write_numbers(pa.array(values, pa.int64()), ">i8")
        millis, nanos = ([pair[side] for pair in values] for side in range(2))
        return join_parts(
            write_numbers(pa.array(millis, pa.int64()), ">i8"),
            write_numbers(pa.array(nanos, pa.int32()), ">i4"),
        )

    def _snapshot(self) -> bytes:
        return utf(_TIMESTAMP) + i32(self.version) + i32(self.precision)

    @classmethod
    def _snapshot_readers(cls) -> SnapshotReaders:
        return {_TIMESTAMP: _parse_timestamp}


def _shortest_bytes(unscaled: int) -> bytes:
    """Return the bytes of ``BigInteger.toByteArray``: two's complement without spare bytes."""
    width = (unscaled + (unscaled < 0)).bit_length() // 8 + 1
    return unscaled.to_bytes(width, "big", signed=True)


def _parse_decimal(snapshot: SnapshotReader) -> FlinkType:
    precision = _read_digits(snapshot, 1, _MOST_DIGITS)
    return DecimalDataType(precision, _read_digits(snapshot, 0, precision), snapshot.version)


def _parse_timestamp(snapshot: SnapshotReader) -> FlinkType:
    return TimestampDataType(_read_digits(snapshot, 0, _MOST_FRACTIONAL_DIGITS), snapshot.version)


def _read_digits(snapshot: SnapshotReader, least: int, most: int) -> int:
    digits = snapshot.reader.i32()
    if not least <= digits <= most:
        raise snapshot.reader.error(f"a type of Flink SQL has {digits} digits")
    return digits
