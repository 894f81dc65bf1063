"""Dates and times in the formats of PyFlink's coders."""

from __future__ import annotations

import pyarrow as pa

from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.encode import write_numbers
from statestore.interop.flink.types.scalar_form import ScalarForm, Width

_MILLIS_PER_DAY = 86_400_000


def _read_dates(cursor: Cursor) -> pa.Array:
    """Read ``DateCoderImpl`` of PyFlink: days since 1970."""
    return pa.array(cursor.numbers(">i4"), pa.int32()).cast(pa.date32())


def _read_times(cursor: Cursor) -> pa.Array:
    """Read ``TimeCoderImpl`` of PyFlink: milliseconds of the day."""
    millis = cursor.numbers(">i4")
    cursor.refuse(
        (millis < 0) | (millis >= _MILLIS_PER_DAY), "a day does not have this millisecond"
    )
    return pa.array(millis, pa.int32()).cast(pa.time32("ms"))


def _read_timestamps(cursor: Cursor) -> pa.Array:
    """Read ``TimestampCoderImpl`` of PyFlink: milliseconds since 1970, without a time zone."""
    return pa.array(cursor.numbers(">i8"), pa.int64()).cast(pa.timestamp("ms"))


def _write_days_or_millis(array: pa.Array) -> pa.Array:
    return write_numbers(array.cast(pa.int32()), ">i4")


def _write_timestamps(array: pa.Array) -> pa.Array:
    return write_numbers(array.cast(pa.int64()), ">i8")


PYTHON_SCALARS = (
    ScalarForm("PythonDate", None, pa.date32(), Width(4), _read_dates, _write_days_or_millis),
    ScalarForm("PythonTime", None, pa.time32("ms"), Width(4), _read_times, _write_days_or_millis),
    ScalarForm(
        "PythonTimestamp", None, pa.timestamp("ms"), Width(8), _read_timestamps, _write_timestamps
    ),
)
