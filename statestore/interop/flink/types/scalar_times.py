"""Convert Java's dates and times to columns and back, vectorized and with nanosecond precision.

- ``DateSerializer``, ``SqlDateSerializer`` and ``SqlTimeSerializer``: milliseconds since 1970.
- ``SqlTimestampSerializer``: these, and the nanoseconds of the second.
- ``InstantSerializer``: seconds and nanoseconds.
- ``LocalDateSerializer``: year, month and day.
- ``LocalTimeSerializer``: hour, minute, second and nanosecond.
- ``LocalDateTimeSerializer``: a date and a time.

A null is the lowest number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import NullKeyError, UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import INSTANT, to_nanos
from statestore.interop.flink.metadata.snapshot_format import BASE, inner_class
from statestore.interop.flink.types.byte_cursor import Cursor, Places, Rows
from statestore.interop.flink.types.column_bytes import matrix_bytes, refuse_outside
from statestore.interop.flink.types.key_hash import KeyHash, plain_hash
from statestore.interop.flink.types.layouts import Leaf
from statestore.interop.flink.types.scalar_values import ScalarForm
from statestore.keys.hashing import key_hash

_LOWEST = -(1 << 63)
_LOWEST_INT = -(1 << 31)
_DAY = 86_400
_SECOND = 1_000_000_000
_MOST_DAYS = (1 << 31) - 1

_Bytes = npt.NDArray[np.uint8]


def _build_instants(second: Places, nano: Places, nulls: Rows) -> pa.Array:
    parts = [pa.array(second), pa.array(nano.astype(np.int32))]
    fields = [INSTANT.field(0), INSTANT.field(1)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array(nulls))


def _read_millis(cursor: Cursor) -> pa.Array:
    millis = cursor.numbers(">i8")
    return pa.array(millis, pa.int64(), mask=millis == _LOWEST).cast(pa.timestamp("ms", "UTC"))


def _read_sql_timestamps(cursor: Cursor) -> pa.Array:
    millis = cursor.numbers(">i8")
    nano = cursor.numbers(">i4").astype(np.int64)
    nulls = millis == _LOWEST
    second = millis // 1000
    wrong = ~nulls & ((nano < 0) | (nano >= _SECOND) | (nano // 1_000_000 != millis % 1000))
    cursor.refuse(wrong, "the nanoseconds of a timestamp do not fit its milliseconds")
    return _build_instants(second, nano, nulls)


def _read_instants(cursor: Cursor) -> pa.Array:
    second = cursor.numbers(">i8")
    nano = cursor.numbers(">i4").astype(np.int64)
    nulls = second == _LOWEST
    cursor.refuse(~nulls & ((nano < 0) | (nano >= _SECOND)), "an instant has an invalid nanosecond")
    return _build_instants(second, nano, nulls)


def _read_days(cursor: Cursor) -> tuple[Places, Rows]:
    year = cursor.numbers(">i4").astype(np.int64)
    rest = cursor.take(2).astype(np.int64)
    nulls = year == _LOWEST_INT
    month, day = np.where(nulls, 1, rest[:, 0]), np.where(nulls, 1, rest[:, 1])
    wrong = (month < 1) | (month > 12) | (day < 1) | (day > 31) | (np.abs(year) > 999_999_999)
    cursor.refuse(wrong & ~nulls, "a date has an invalid month or day")
    months = np.where(nulls, 0, (year - 1970) * 12 + month - 1)
    first = months.astype("M8[M]").astype("M8[D]")
    days = first.view(np.int64) + day - 1
    last = (months + 1).astype("M8[M]").astype("M8[D]").view(np.int64)
    cursor.refuse(days >= last, "a month does not have this day")
    return days, nulls


def _read_time_of_day(cursor: Cursor) -> tuple[Places, Places, Rows]:
    """Return the seconds of the day, the nanoseconds of the second, and the null mask."""
    parts = cursor.take(3).view(np.int8).astype(np.int64)
    nano = cursor.numbers(">i4").astype(np.int64)
    hour, minute, second = parts.T
    nulls = hour == -128
    wrong = (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59) | (second < 0) | (second > 59)
    wrong |= (nano < 0) | (nano >= _SECOND)
    cursor.refuse(wrong & ~nulls, "a time has an invalid hour, minute, second or nanosecond")
    return (hour * 60 + minute) * 60 + second, nano, nulls


def _read_local_dates(cursor: Cursor) -> pa.Array:
    days, nulls = _read_days(cursor)
    if bool((np.abs(days) > _MOST_DAYS).any()):
        raise UnsupportedTypeError("a date is more than 5.8 million years away from 1970")
    return pa.array(days.astype(np.int32), pa.int32(), mask=nulls).cast(pa.date32())


def _read_local_times(cursor: Cursor) -> pa.Array:
    second, nano, nulls = _read_time_of_day(cursor)
    nanos = pa.array(second * _SECOND + nano, pa.int64(), mask=nulls)
    return nanos.cast(pa.time64("ns"))


def _read_local_datetimes(cursor: Cursor) -> pa.Array:
    days, no_date = _read_days(cursor)
    second, nano, no_time = _read_time_of_day(cursor)
    cursor.refuse(no_date != no_time, "a date without a time, or a time without a date")
    return _build_instants(days * _DAY + second, nano, no_date)


def _to_numbers(array: pa.Array, data_type: pa.DataType, null: int) -> Any:
    return array.cast(data_type).fill_null(null).to_numpy(zero_copy_only=False)


def _join_columns(*parts: tuple[Any, str]) -> _Bytes:
    columns = [
        values.astype(dtype).view(np.uint8).reshape(len(values), np.dtype(dtype).itemsize)
        for values, dtype in parts
    ]
    return np.concatenate(columns, axis=1)


def _split_instants(array: pa.Array) -> tuple[Places, Places, Rows]:
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    second, nano = (_to_numbers(part, pa.int64(), 0) for part in array.flatten())
    refuse_outside(nano[~nulls], 0, _SECOND - 1, "the nanosecond (nano) of a time")
    return second, nano, nulls


def _encode_millis(array: pa.Array) -> _Bytes:
    return _join_columns((_to_numbers(array, pa.int64(), _LOWEST), ">i8"))


def _encode_sql_timestamps(array: pa.Array) -> _Bytes:
    second, nano, nulls = _split_instants(array)
    millis = np.where(nulls, _LOWEST, second * 1000 + nano // 1_000_000)
    return _join_columns((millis, ">i8"), (np.where(nulls, 0, nano), ">i4"))


def _encode_instants(array: pa.Array) -> _Bytes:
    second, nano, nulls = _split_instants(array)
    second, nano = np.where(nulls, _LOWEST, second), np.where(nulls, _LOWEST_INT, nano)
    return _join_columns((second, ">i8"), (nano, ">i4"))


def _encode_days(days: Places, nulls: Rows) -> _Bytes:
    dates = days.view("M8[D]")
    months = dates.astype("M8[M]")
    day = (dates - months).view(np.int64) + 1
    since = months.view(np.int64)
    year = np.where(nulls, _LOWEST_INT, since // 12 + 1970)
    rest = np.where(nulls, -(1 << 15), (since % 12 + 1) << 8 | day)
    return _join_columns((year, ">i4"), (rest, ">i2"))


def _encode_time_of_day(second: Places, nano: Places, nulls: Rows) -> _Bytes:
    hour = np.where(nulls, -128, second // 3600)
    minute, rest = np.where(nulls, -128, second // 60 % 60), np.where(nulls, 0, second % 60)
    parts = (hour, ">i1"), (minute, ">i1"), (rest, ">i1")
    return _join_columns(*parts, (np.where(nulls, _LOWEST_INT, nano), ">i4"))


def _encode_local_dates(array: pa.Array) -> _Bytes:
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return _encode_days(_to_numbers(array.cast(pa.int32()), pa.int64(), 0), nulls)


def _encode_local_times(array: pa.Array) -> _Bytes:
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    nanos = _to_numbers(array, pa.int64(), 0)
    refuse_outside(nanos, 0, _DAY * _SECOND - 1, "the nanosecond of a day")
    return _encode_time_of_day(nanos // _SECOND, nanos % _SECOND, nulls)


def _encode_local_datetimes(array: pa.Array) -> _Bytes:
    second, nano, nulls = _split_instants(array)
    days = second // _DAY
    date = _encode_days(days, nulls)
    return np.concatenate([date, _encode_time_of_day(second - days * _DAY, nano, nulls)], axis=1)


def _define_time(
    name: str,
    arrow: pa.DataType,
    width: int,
    read: Callable[[Cursor], pa.Array],
    encode: Callable[[pa.Array], _Bytes],
    key_hash: KeyHash | None,
    single_key_hashes: Callable[[pa.Array], list[int]] | None = None,
) -> ScalarForm:
    def write(array: pa.Array) -> pa.Array:
        return matrix_bytes(encode(array))

    layout = Leaf(arrow, width, read, write)
    snapshot = inner_class(BASE, f"{name}Serializer")
    return ScalarForm(name, snapshot, layout, key_hash, single_key_hashes)


def _to_millis(array: pa.Array) -> pa.Array:
    """Return the milliseconds since 1970, the only part of a Timestamp that its hash uses."""
    second, nano, nulls = _split_instants(array)
    return pa.array(second * 1000 + nano // 1_000_000, pa.int64(), mask=nulls)


def _make_hashes(key_type: str, per_second: int) -> Callable[[pa.Array], list[int]]:
    """Return a function that hashes times of any year, with ``per_second`` units per second."""

    def hash_times(column: pa.Array) -> list[int]:
        if column.null_count:
            raise NullKeyError(f"{column.null_count} keys are null", rows=column.null_count)
        return [
            key_hash(
                value["second"] * per_second + value["nano"] // (_SECOND // per_second),
                key_type=key_type,
            )
            for value in column.to_pylist()
        ]

    return hash_times


_MILLIS = pa.timestamp("ms", "UTC")
# java.util.Date hashes its milliseconds like a Long; the java.sql classes extend it.
_MILLIS_HASH = KeyHash("Long", lambda column: column.cast(pa.int64()))

TIMES = (
    _define_time("Date", _MILLIS, 8, _read_millis, _encode_millis, _MILLIS_HASH),
    _define_time("SqlDate", _MILLIS, 8, _read_millis, _encode_millis, _MILLIS_HASH),
    _define_time("SqlTime", _MILLIS, 8, _read_millis, _encode_millis, _MILLIS_HASH),
    _define_time(
        "SqlTimestamp",
        INSTANT,
        12,
        _read_sql_timestamps,
        _encode_sql_timestamps,
        KeyHash("Long", _to_millis, is_column=False),
        _make_hashes("Long", 1000),
    ),
    _define_time(
        "Instant",
        INSTANT,
        12,
        _read_instants,
        _encode_instants,
        KeyHash("Instant", to_nanos),
        _make_hashes("Instant", _SECOND),
    ),
    _define_time(
        "LocalDate", pa.date32(), 6, _read_local_dates, _encode_local_dates, plain_hash("LocalDate")
    ),
    _define_time(
        "LocalTime",
        pa.time64("ns"),
        7,
        _read_local_times,
        _encode_local_times,
        plain_hash("LocalTime"),
    ),
    _define_time(
        "LocalDateTime",
        INSTANT,
        13,
        _read_local_datetimes,
        _encode_local_datetimes,
        KeyHash("LocalDateTime", to_nanos),
        _make_hashes("LocalDateTime", _SECOND),
    ),
)
