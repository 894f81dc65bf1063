"""Arrow columns as columns of stored types: each value stays equal, or the column is refused.

A value that its own type does not have is refused, such as a decimal with too many digits. Then the
types alone decide if every value of one type fits the other, such as ``int32`` in ``int64``.
Otherwise values are checked: by Arrow if its cast refuses losses, by Python if it does not. The
rules are the same as for scalars (:mod:`statestore.rows.lossless_cast`). Nanoseconds fit
microseconds if they are whole microseconds. A number never fits a boolean, and a time of day
never fits a date.

Arrow accepts any bytes as text and any number as a decimal with few digits. It checks offsets and
indices only on request. Such a value would be stored as another one, fail when it is read, or crash
the process that copies it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.format.schema import DataType, Schema
from statestore.keys.arrow_types import arrow_type_text, is_binary, is_text
from statestore.rows.column_types import arrow_schema, arrow_type, for_each_column
from statestore.rows.lossless_cast import brief_text
from statestore.rows.python_values import ROWS, column_of, display_values, row_place

_REASONS = {
    "Decimal": (
        "it has more digits than the type; cast the column to a type with more digits (at most "
        "38), or to a string"
    ),
    "Invalid UTF8": (
        "it is not UTF-8; decode the bytes with their actual encoding, or store them as binary"
    ),
}
"""The problem and the advice, by the beginning of Arrow's message."""


def refuse_invalid_values(
    rows: pa.RecordBatch | pa.Table,
    subject: str,
    *,
    first_row: int = 0,
    key: Sequence[str] = (),
) -> None:
    """Raise InvalidArgumentError for values that are invalid at any depth of a column's type.

    Args:
        rows: Rows from a caller, or from Spark.
        subject: The name of the rows in messages.
        first_row: The position of the first row in messages.
        key: The columns that identify a row of a batch in messages, instead of its position.
    """

    def place(row: int) -> str:
        parts = (f"{name}={_value_text(rows.column(name).slice(row, 1))}" for name in key)
        return f"the row with {', '.join(parts)}" if key else f"row {first_row + row}"

    for_each_column(
        zip(rows.schema.names, rows.columns, strict=True),
        lambda named: refuse_invalid_column(named[1], name=named[0], subject=subject, place=place),
        subject,
    )


def refuse_invalid_column(
    column: pa.Array | pa.ChunkedArray, *, name: str, subject: str, place: Callable[[int], str]
) -> None:
    """Raise InvalidArgumentError for the first value of a column that its type does not have.

    The message names ``subject``, the column, the value, and the row, which ``place`` names.
    """
    first = 0
    for chunk in [column] if isinstance(column, pa.Array) else column.chunks:
        if not _is_valid(chunk):
            row = _first_invalid(chunk)
            raise _invalid_error(chunk.slice(row, 1), place(first + row), name, subject)
        first += len(chunk)


def _invalid_error(value: pa.Array, place: str, name: str, subject: str) -> InvalidArgumentError:
    reason = (_problem(value) or "").rpartition("Invalid: ")[2]
    default = f"{reason}; build the column with pa.array(…), or cast it with safe=True"
    reason = next((text for begin, text in _REASONS.items() if reason.startswith(begin)), default)
    is_readable = _leaves(value) is not None
    shown = _value_text(value) if is_readable else "invalid offsets or indices"
    return InvalidArgumentError(
        f"{place} of {subject} has {shown} in the column {name!r} of type "
        f"{arrow_type_text(value.type)}: {reason}"
    )


def _is_valid(column: pa.Array) -> bool:
    if _problem(column) is None:
        return True
    # For a slice, Arrow validates all values of lists and dictionaries, and not only its own.
    leaves = _leaves(column)
    return leaves is not None and all(_problem(leaf) is None for leaf in leaves)


def _problem(column: pa.Array, *, full: bool = True) -> str | None:
    """Return why Arrow considers an array invalid."""
    try:
        column.validate(full=full)
    except pa.ArrowException as error:
        return str(error)
    return None


def _leaves(column: pa.Array) -> list[pa.Array] | None:
    """Return the plain arrays that have a column's values, and no values of other rows.

    Returns:
        None if offsets or indices are invalid: reading such values could crash the process.
    """
    types, data_type = pa.types, column.type
    if _problem(column, full=False) is not None:
        return None
    if types.is_struct(data_type):
        # Unlike field(), flatten() has no value where the struct is null.
        parts = [_leaves(field) for field in column.flatten()]
        return None if None in parts else [leaf for part in parts for leaf in part or ()]
    if types.is_list(data_type) or types.is_large_list(data_type) or types.is_map(data_type):
        if (np.diff(np.asarray(column.offsets)) < 0).any():
            return None
        column = column.drop_null()  # a null may have offsets of hidden values
        offsets = np.asarray(column.offsets)
        return _leaves(column.values.slice(offsets[0], offsets[-1] - offsets[0]))
    if types.is_fixed_size_list(data_type):
        return _leaves(column.flatten())
    if types.is_dictionary(data_type):
        bounds = pc.min_max(column.indices).as_py().values()
        if _leaves(column.dictionary) is None or not all(
            place is None or 0 <= place < len(column.dictionary) for place in bounds
        ):
            return None
        return _leaves(column.dictionary.take(column.indices))
    if is_text(data_type):
        return [column] if _problem(_as_bytes(column)) is None else None
    if types.is_decimal(data_type) or types.is_temporal(data_type):
        return [column]
    return [column] if _problem(column) is None else None


def _as_bytes(text: pa.Array) -> pa.Array:
    if pa.types.is_string_view(text.type):
        return text.view(pa.binary_view())
    is_large = pa.types.is_large_string(text.type)
    return text.view(pa.large_binary() if is_large else pa.binary())


def _first_invalid(column: pa.Array) -> int:
    """Return the first row whose value is invalid; at least one must be."""
    first, stop = 0, len(column)
    while stop - first > 1:
        middle = (first + stop) // 2
        if _is_valid(column.slice(first, middle - first)):
            first = middle
        else:
            stop = middle
    return first


def _value_text(value: pa.Array) -> str:
    """Return the value of an array with one row as text; undecodable text is shown as bytes."""
    if is_text(value.type) and _problem(value) is not None:
        value = _as_bytes(value)
    try:
        return brief_text(value.to_pylist()[0], 200)
    except (OverflowError, ValueError):  # a part that Python cannot hold
        return f"a value of {arrow_type_text(value.type)}"


_DIGITS = {1: 3, 2: 5, 4: 10, 8: 19}
"""The number of digits of a signed integer, by its bytes."""


class _Fit(IntEnum):
    """How to determine that values of one type fit another."""

    TYPE = 0  # all values fit
    CAST = 1  # Arrow's cast refuses values that do not fit
    VALUE = 2  # each value has to be checked
    NEAREST = 3  # double to float: rounded to the nearest float, like Python's floats
    NEVER = 4


def fit_table(
    rows: pa.Table,
    schema: Schema,
    subject: str = ROWS,
    *,
    nearest: bool = True,
    first_row: int = 0,
) -> pa.Table:
    """Return the columns of ``schema``, in its order and types; other columns are dropped.

    Without ``nearest``, doubles do not fit float columns. Messages count rows from ``first_row``.

    Raises InvalidArgumentError, which names ``subject``, each column that does not fit, and the
    first row whose value does not.
    """
    stored = arrow_schema(schema)

    def fitted(field: pa.Field) -> pa.ChunkedArray:
        return fit_column(
            rows.column(field.name),
            field.type,
            name=field.name,
            subject=subject,
            nearest=nearest,
            first_row=first_row,
        )

    return pa.table(for_each_column(stored, fitted, subject), schema=stored)


def fit_column(
    column: pa.ChunkedArray,
    data_type: pa.DataType,
    *,
    name: str,
    subject: str = ROWS,
    nearest: bool = True,
    first_row: int = 0,
) -> pa.ChunkedArray:
    """Return a column as a column of a stored type, in which each value stays equal.

    Doubles in a float column are rounded to the nearest floats, like Python's floats, unless
    ``nearest`` is False.

    Raises InvalidArgumentError, which names ``subject``, the column and the first row whose value
    does not fit.
    """

    def place(row: int) -> str:
        return row_place(first_row + row)

    refuse_invalid_column(column, name=name, subject=subject, place=place)
    if column.type == data_type:
        return column
    fit = _fit(column.type, data_type)
    if fit is _Fit.NEVER or (fit is _Fit.NEAREST and not nearest):
        raise InvalidArgumentError(
            f"the column {name!r} of {subject} has type {arrow_type_text(column.type)} instead of "
            f"{arrow_type_text(data_type)}; cast it to {arrow_type_text(data_type)}"
        )
    cast = _cast(column, data_type) if fit <= _Fit.CAST else None
    if cast is not None:
        return cast
    if pa.types.is_timestamp(column.type) and column.type.tz:  # Python may lack another zone
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    values = _python_values(column)
    if values is None:
        rows = range(len(column))
        row = next(row for row in rows if _python_values(column.slice(row, 1)) is None)
        [shown] = display_values(column.slice(row, 1))
        raise InvalidArgumentError(
            f"{place(row)} of {subject} has {brief_text(shown)} in the column {name!r} of type "
            f"{column.type}, which {arrow_type_text(data_type)} cannot represent; cast the column "
            "first"
        )
    converted = column_of(values, data_type, name=name, subject=subject, place=place)
    return pa.chunked_array([converted], data_type)


def _python_values(column: pa.ChunkedArray) -> list[Any] | None:
    """Return the values of a column; None if Python lacks one of its times or time zones."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError, KeyError):
        return None
    return values


def fits_by_type(source: DataType, target: DataType) -> bool:
    """Return whether every value of one stored type fits another."""
    return _fit(arrow_type(source), arrow_type(target)) is _Fit.TYPE


def _cast(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray | None:
    """Return Arrow's cast of a column; None if a value does not fit, or Arrow lacks the cast."""
    try:
        return _decode_column(column).cast(data_type)
    except pa.ArrowException:
        return None


def _decode_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary column as a column of its values, and UUIDs as their bytes.

    Polars' dictionaries have view types, which Arrow's ``take`` does not support.
    """
    if isinstance(column.type, pa.UuidType):
        return column.cast(column.type.storage_type)
    if not pa.types.is_dictionary(column.type):
        return column
    value_type = column.type.value_type
    if pa.types.is_string_view(value_type):
        value_type = pa.large_string()
    elif pa.types.is_binary_view(value_type):
        value_type = pa.large_binary()
    chunks = [chunk.dictionary.cast(value_type).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, value_type)


def _fit(source: pa.DataType, target: pa.DataType) -> _Fit:
    types = pa.types
    if source == target or types.is_null(source):
        return _Fit.TYPE
    if types.is_dictionary(source):
        return _fit(source.value_type, target)
    if isinstance(source, pa.UuidType):
        return _fit(source.storage_type, target)
    if types.is_struct(target):
        return _fit_structs(source, target) if types.is_struct(source) else _Fit.NEVER
    if types.is_map(target):
        if not types.is_map(source):
            return _Fit.NEVER
        return max(_fit(source.key_type, target.key_type), _fit(source.item_type, target.item_type))
    if types.is_list(target):
        return _fit(source.value_type, target.value_type) if _is_list(source) else _Fit.NEVER
    if types.is_timestamp(target):
        if not types.is_timestamp(source) or (source.tz is None) != (target.tz is None):
            return _Fit.NEVER
        return _Fit.TYPE if source.unit == target.unit else _Fit.CAST
    if _is_number(source) and _is_number(target):
        return _fit_numbers(source, target)
    return _Fit.TYPE if _family(source) == _family(target) != "" else _Fit.NEVER


def _fit_structs(source: pa.DataType, target: pa.DataType) -> _Fit:
    """Return how one struct type fits another; never if their fields differ.

    Arrow would drop a field that the target lacks, and fill a field that the source lacks.
    """
    names = [field.name for field in source]
    if sorted(names) != sorted(field.name for field in target):
        return _Fit.NEVER
    return max(_fit(source.field(field.name).type, field.type) for field in target)


def _fit_numbers(source: pa.DataType, target: pa.DataType) -> _Fit:
    types = pa.types
    if types.is_decimal(source):
        if types.is_decimal(target):
            wide = target.scale >= source.scale
            wide = wide and target.precision - target.scale >= source.precision - source.scale
            return _Fit.TYPE if wide else _Fit.CAST
        return _Fit.CAST if types.is_integer(target) else _Fit.VALUE
    if types.is_floating(source):
        if types.is_floating(target):
            return _Fit.TYPE if target.bit_width >= source.bit_width else _Fit.NEAREST
        return _Fit.CAST if types.is_integer(target) else _Fit.VALUE
    if types.is_decimal(target):
        digits = _DIGITS[source.bit_width // 8] + types.is_unsigned_integer(source)
        return _Fit.TYPE if target.precision - target.scale >= digits else _Fit.VALUE
    bits = source.bit_width - types.is_signed_integer(source)
    if types.is_floating(target):
        return _Fit.TYPE if bits <= (53 if target.bit_width == 64 else 24) else _Fit.VALUE
    return _Fit.TYPE if bits < target.bit_width else _Fit.CAST


def _is_list(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
    )


def _is_number(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type)
    )


def _family(data_type: pa.DataType) -> str:
    """Return a name for types with the same values, "" for types that cannot be stored."""
    if is_text(data_type):
        return "text"
    if is_binary(data_type):
        return "bytes"
    return "date" if pa.types.is_date32(data_type) else ""
