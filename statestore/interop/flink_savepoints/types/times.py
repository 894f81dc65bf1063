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

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.types.arrow_types import INSTANT
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor, Rows
from statestore.interop.flink_savepoints.types.byte_slices import Places

__all__ = ["TIMES", "WRITTEN_TIMES"]

_LOWEST = -(1 << 63)
_LOWEST_INT = -(1 << 31)
_DAY = 86_400
_SECOND = 1_000_000_000
_MOST_DAYS = (1 << 31) - 1

_Bytes = npt.NDArray[np.uint8]


def _of_instants(second: Places, nano: Places, nulls: Rows) -> pa.Array:
    parts = [pa.array(second), pa.array(nano.astype(np.int32))]
    fields = [INSTANT.field(0), INSTANT.field(1)]
    return pa.StructArray.from_arrays(parts, fields=fields, mask=pa.array(nulls))


def _millis(cursor: Cursor) -> pa.Array:
    found = cursor.numbers(">i8")
    return pa.array(found, pa.int64(), mask=found == _LOWEST).cast(pa.timestamp("ms", "UTC"))


def _sql_timestamps(cursor: Cursor) -> pa.Array:
    millis = cursor.numbers(">i8")
    nano = cursor.numbers(">i4").astype(np.int64)
    nulls = millis == _LOWEST
    second = millis // 1000
    wrong = ~nulls & ((nano < 0) | (nano >= _SECOND) | (nano // 1_000_000 != millis % 1000))
    cursor.refuse(wrong, "the nanoseconds of a timestamp do not fit its milliseconds")
    return _of_instants(second, nano, nulls)


def _instants(cursor: Cursor) -> pa.Array:
    second = cursor.numbers(">i8")
    nano = cursor.numbers(">i4").astype(np.int64)
    nulls = second == _LOWEST
    cursor.refuse(~nulls & ((nano < 0) | (nano >= _SECOND)), "an instant has an invalid nanosecond")
    return _of_instants(second, nano, nulls)


def _days(cursor: Cursor) -> tuple[Places, Rows]:
    year = cursor.numbers(">i4").astype(np.int64)
    rest = cursor.fixed(2).astype(np.int64)
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


def _of_day(cursor: Cursor) -> tuple[Places, Places, Rows]:
    """Return the seconds of the day, the nanoseconds of the second, and the null mask."""
    parts = cursor.fixed(3).view(np.int8).astype(np.int64)
    nano = cursor.numbers(">i4").astype(np.int64)
    hour, minute, second = parts.T
    nulls = hour == -128
    wrong = (hour < 0) | (hour > 23) | (minute < 0) | (minute > 59) | (second < 0) | (second > 59)
    wrong |= (nano < 0) | (nano >= _SECOND)
    cursor.refuse(wrong & ~nulls, "a time has an invalid hour, minute, second or nanosecond")
    return (hour * 60 + minute) * 60 + second, nano, nulls


def _local_dates(cursor: Cursor) -> pa.Array:
    days, nulls = _days(cursor)
    if bool((np.abs(days) > _MOST_DAYS).any()):
        raise UnsupportedTypeError("a date is more than 5.8 million years away from 1970")
    return pa.array(days.astype(np.int32), pa.int32(), mask=nulls).cast(pa.date32())


def _local_times(cursor: Cursor) -> pa.Array:
    second, nano, nulls = _of_day(cursor)
    found = pa.array(second * _SECOND + nano, pa.int64(), mask=nulls)
    return found.cast(pa.time64("ns"))


def _local_datetimes(cursor: Cursor) -> pa.Array:
    days, no_date = _days(cursor)
    second, nano, no_time = _of_day(cursor)
    cursor.refuse(no_date != no_time, "a date without a time, or a time without a date")
    return _of_instants(days * _DAY + second, nano, no_date)


TIMES: dict[str, Callable[[Cursor], pa.Array]] = {
    "Date": _millis,
    "SqlDate": _millis,
    "SqlTime": _millis,
    "SqlTimestamp": _sql_timestamps,
    "Instant": _instants,
    "LocalDate": _local_dates,
    "LocalTime": _local_times,
    "LocalDateTime": _local_datetimes,
}
"""Decoding functions by type name."""


def _numbers(array: pa.Array, kind: pa.DataType, null: int) -> Any:
    return array.cast(kind).fill_null(null).to_numpy(zero_copy_only=False)


def _side_by_side(*parts: tuple[Any, str]) -> _Bytes:
    columns = [
        one.astype(dtype).view(np.uint8).reshape(len(one), np.dtype(dtype).itemsize)
        for one, dtype in parts
    ]
    return np.concatenate(columns, axis=1)


def _seconds(array: pa.Array) -> tuple[Places, Places, Rows]:
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    second, nano = (_numbers(one, pa.int64(), 0) for one in array.flatten())
    return second, nano, nulls


def _written_millis(array: pa.Array) -> _Bytes:
    return _side_by_side((_numbers(array, pa.int64(), _LOWEST), ">i8"))


def _written_sql_timestamps(array: pa.Array) -> _Bytes:
    second, nano, nulls = _seconds(array)
    millis = np.where(nulls, _LOWEST, second * 1000 + nano // 1_000_000)
    return _side_by_side((millis, ">i8"), (np.where(nulls, 0, nano), ">i4"))


def _written_instants(array: pa.Array) -> _Bytes:
    second, nano, nulls = _seconds(array)
    second, nano = np.where(nulls, _LOWEST, second), np.where(nulls, _LOWEST_INT, nano)
    return _side_by_side((second, ">i8"), (nano, ">i4"))


def _written_days(days: Places, nulls: Rows) -> _Bytes:
    dates = days.view("M8[D]")
    months = dates.astype("M8[M]")
    day = (dates - months).view(np.int64) + 1
    since = months.view(np.int64)
    year = np.where(nulls, _LOWEST_INT, since // 12 + 1970)
    rest = np.where(nulls, -(1 << 15), (since % 12 + 1) << 8 | day)
    return _side_by_side((year, ">i4"), (rest, ">i2"))


def _written_of_day(second: Places, nano: Places, nulls: Rows) -> _Bytes:
    hour = np.where(nulls, -128, second // 3600)
    minute, rest = np.where(nulls, -128, second // 60 % 60), np.where(nulls, 0, second % 60)
    parts = (hour, ">i1"), (minute, ">i1"), (rest, ">i1")
    return _side_by_side(*parts, (np.where(nulls, _LOWEST_INT, nano), ">i4"))


def _written_local_dates(array: pa.Array) -> _Bytes:
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    return _written_days(_numbers(array.cast(pa.int32()), pa.int64(), 0), nulls)


def _written_local_times(array: pa.Array) -> _Bytes:
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    nanos = _numbers(array, pa.int64(), 0)
    return _written_of_day(nanos // _SECOND, nanos % _SECOND, nulls)


def _written_local_datetimes(array: pa.Array) -> _Bytes:
    second, nano, nulls = _seconds(array)
    days = second // _DAY
    date = _written_days(days, nulls)
    return np.concatenate([date, _written_of_day(second - days * _DAY, nano, nulls)], axis=1)


WRITTEN_TIMES: dict[str, Callable[[pa.Array], _Bytes]] = {
    "Date": _written_millis,
    "SqlDate": _written_millis,
    "SqlTime": _written_millis,
    "SqlTimestamp": _written_sql_timestamps,
    "Instant": _written_instants,
    "LocalDate": _written_local_dates,
    "LocalTime": _written_local_times,
    "LocalDateTime": _written_local_datetimes,
}
"""Encoding functions by type name; the result has a row of bytes for each value."""
