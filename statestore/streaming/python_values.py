"""The Python values of a processor: converts Arrow columns to PySpark's values, and back.

The forms are PySpark's: a struct is a ``Row``, a map is a dictionary, and a timestamp is a naive
datetime in the worker's local time zone. When clocks are set back, ``fold`` distinguishes the two
instants with the same local time. Each value that is read and written again stays equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from statestore.rows.lossless_cast import UnfitError, brief_text, is_list, is_missing, unwrap_numpy
from statestore.rows.python_values import Place, column_of, display_values, row_place
from statestore.spark.compat import arrow_type_of

Convert = Callable[[Any], Any]

_SAME_CALENDAR = {1: 400, 9999: -400}
"""Years in which Python cannot find the UTC offset of some local times, because it also needs the
adjacent days. 400 years later, each date has the same weekday, and so the same offset."""

_INFINITE, _QUIET, _MAGNITUDE = 0x7F800000, 0x7FC00000, 0x7FFFFFFF
"""Bits of a float: its exponent, the same with the bit of a quiet NaN, and all but its sign."""


def python_values(column: pa.Array, data_type: T.DataType) -> list[Any]:
    """Return the values of a column in PySpark's forms.

    Args:
        column: The column, of the Arrow type that belongs to ``data_type``.
        data_type: Its Spark type.

    Returns:
        One value per row, None for null.

    Raises:
        UnfitError: For a map whose keys are not distinct in Python, and for a signalling NaN of the
            type ``float``, to which Python's own type gives other bits.
        ValueError: For a time that a datetime cannot hold. OverflowError means the same.
        TypeError: For a map key that is not hashable.
    """
    if isinstance(data_type, T.TimestampType):
        # Spark's columns are in the session's time zone. In an hour that occurs twice, Python
        # compares two equal instants as different unless both are in the same zone.
        instants = column.cast(pa.timestamp("us", "UTC")).to_pylist()
        return [None if value is None else _local_time(value) for value in instants]
    if isinstance(data_type, T.StructType):
        fields = zip(column.flatten(), data_type, strict=True)
        parts = [python_values(field, own.dataType) for field, own in fields]
        row = T.Row(*data_type.names)
        return _where_valid(column, [row(*values) for values in zip(*parts, strict=True)])
    if isinstance(data_type, T.ArrayType):
        elements = python_values(_own(column, column.values), data_type.elementType)
        return _where_valid(column, _slices(column, elements))
    if isinstance(data_type, T.MapType):
        keys = python_values(_own(column, column.keys), data_type.keyType)
        items = python_values(_own(column, column.items), data_type.valueType)
        entries = _where_valid(column, _slices(column, [*zip(keys, items, strict=True)]))
        return [None if pairs is None else _dictionary(pairs, data_type) for pairs in entries]
    if isinstance(data_type, T.FloatType):
        _refuse_signalling(column)
    values: list[Any] = column.to_pylist()
    return values


def _refuse_signalling(column: pa.FloatArray) -> None:
    """Refuse the NaNs that become quiet when a float becomes Python's double."""
    bits = column.view(pa.int32()).fill_null(0).to_numpy()
    is_signalling = (bits & _QUIET == _INFINITE) & (bits & ~_QUIET & _MAGNITUDE != 0)
    if is_signalling.any():
        pattern = int(bits[is_signalling][0]) & 0xFFFFFFFF
        reason = f"its bits 0x{pattern:08X} are a signalling NaN, which Python would change"
        raise UnfitError(math.nan, "float", reason)


def _own(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return only the elements that belong to the column, which may be a slice."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return values.slice(first, last - first)


def _slices(column: pa.Array, values: list[Any]) -> list[Any]:
    ends = column.offsets.to_pylist()
    return [values[start - ends[0] : end - ends[0]] for start, end in pairwise(ends)]


def _where_valid(column: pa.Array, values: list[Any]) -> list[Any]:
    if not column.null_count:
        return values
    valid = column.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def _dictionary(pairs: list[tuple[Any, Any]], data_type: T.MapType) -> dict[Any, Any]:
    dictionary = dict(pairs)
    if len(dictionary) != len(pairs):
        reason = "two of its keys are equal in Python, so a dictionary would lose one"
        raise UnfitError(pairs, data_type.simpleString(), reason)
    return dictionary


def first_unreadable(column: pa.Array, read: Callable[[pa.Array], object]) -> tuple[int, str, str]:
    """Return the row, the value and the reason of the first value that ``read`` refuses."""
    for row in range(len(column)):
        value = column.slice(row, 1)
        try:
            read(value)
        except UnfitError as error:
            return row, brief_text(error.value), error.reason
        except (OverflowError, ValueError):
            reason = "Python's datetime supports only the years 1 to 9999"
            return row, brief_text(display_values(value)[0]), reason
        except TypeError as error:
            return row, brief_text(display_values(value)[0]), str(error)
    raise AssertionError("every value can be read alone")


def _local_time(instant: datetime) -> datetime:
    """Return an instant as a naive local time that :func:`instant_of` converts back to it."""
    local = instant.astimezone().replace(tzinfo=None)
    for own in (local, local.replace(fold=1)):
        if instant_of(own) == instant:
            return own
    reason = "this instant has no local time in the worker's time zone"
    raise UnfitError(instant, "timestamp", reason)


def instant_of(moment: datetime) -> datetime:
    """Return the instant of a datetime; a naive one is in the worker's local time zone.

    Args:
        moment: Any datetime; ``fold`` is used if it is naive.

    Returns:
        The instant in UTC.

    Raises:
        OverflowError: If it is outside the years 1 to 9999 in UTC.
    """
    if moment.tzinfo is not None:
        return moment.astimezone(UTC)
    if hasattr(moment, "to_pydatetime"):  # pandas would interpret a naive time as UTC
        moment = moment.to_pydatetime()
    same = moment.replace(year=moment.year + _SAME_CALENDAR.get(moment.year, 0))
    offset = same - same.astimezone(UTC).replace(tzinfo=None)
    return (moment - offset).replace(tzinfo=UTC, fold=0)


def arrow_column(
    values: Sequence[Any],
    data_type: T.DataType,
    *,
    name: str,
    subject: str,
    place: Place = row_place,
) -> pa.Array:
    """Convert values in PySpark's forms to a column in which each value stays equal.

    Args:
        values: One value per row. A struct is a ``Row``, a tuple, a dictionary or an object with
            attributes; a naive datetime of a ``timestamp`` is in the worker's local time zone.
        data_type: The Spark type of the column.
        name: The column, for messages.
        subject: The name of the rows in messages.
        place: Returns the name of a row in messages, by its number, counted from 0.

    Returns:
        The column, of the Arrow type that belongs to ``data_type``.

    Raises:
        InvalidArgumentError: For a value that would not stay equal; it names ``subject``, the
            column, the row and the value.
    """
    convert = _to_plain(data_type)
    return column_of(
        values if convert is None else [*map(convert, values)],
        arrow_type_of(data_type),
        name=name,
        subject=subject,
        place=place,
    )


def _to_plain(data_type: T.DataType) -> Convert | None:
    """Return a converter from PySpark's forms to the forms of :mod:`statestore.rows.lossless_cast`.

    The result is None if both forms are the same.
    """
    if isinstance(data_type, T.TimestampType):
        return _with_zone
    if isinstance(data_type, T.StructType):
        fields = {field.name: _to_plain(field.dataType) for field in data_type}
        return lambda value: _plain_struct(value, fields)
    if isinstance(data_type, T.ArrayType):
        element = _to_plain(data_type.elementType)
        if element is None:
            return None
        return lambda value: [*map(element, value)] if is_list(value) else value
    if isinstance(data_type, T.MapType):
        key, item = (_to_plain(part) or _same for part in (data_type.keyType, data_type.valueType))
        return lambda value: (
            [(key(key_value), item(item_value)) for key_value, item_value in value.items()]
            if isinstance(value, Mapping)
            else value
        )
    return None


def _same(value: Any) -> Any:
    return value


def _with_zone(value: Any) -> Any:
    """Convert a naive local time to an instant; return any other value unchanged."""
    value = unwrap_numpy(value)
    if is_missing(value) or not isinstance(value, datetime) or value.tzinfo is not None:
        return value
    if getattr(value, "nanosecond", 0):  # pandas' nanoseconds do not fit in Python's datetime
        return value
    try:
        return instant_of(value)
    except (OverflowError, ValueError):
        return value


def _names_of(row: T.Row) -> Sequence[str]:
    return row.__fields__ if hasattr(row, "__fields__") else ()


def _plain_struct(value: Any, fields: Mapping[str, Convert | None]) -> Any:
    names = [*fields]
    if isinstance(value, T.Row) and sorted(_names_of(value)) == sorted(names):
        value = value.asDict()
    elif is_list(value) and len(value) == len(names):
        value = dict(zip(names, value, strict=True))
    elif hasattr(value, "__dict__") and not isinstance(value, Mapping | tuple):
        value = {name: part for name, part in vars(value).items() if name in fields}
    if not isinstance(value, Mapping):
        return value
    return {name: (fields.get(name) or _same)(part) for name, part in value.items()}
