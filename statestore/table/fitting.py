"""Arrow columns as columns of stored types: each value comes out equal, or the column is refused.

By type where every value of the one is a value of the other, as of ``int32`` in ``int64``; else by
value, in Arrow where its cast refuses what would be lost, in Python where it would not. What goes
in is the same as of scalars (:mod:`statestore.table.exact`): nanoseconds go into microseconds where
they are whole, and no number is a boolean, no time of day a date.
"""

from __future__ import annotations

from enum import IntEnum

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.format.schema import DataType, Schema
from statestore.keys.arrow_types import is_binary, is_text
from statestore.table.exact import kind_text
from statestore.table.types import arrow_schema, arrow_type
from statestore.table.values import ROWS, column_of

__all__ = ["fits_by_type", "fitted", "fitted_table"]

_DIGITS = {1: 3, 2: 5, 4: 10, 8: 19}
"""Of a signed integer of so many bytes."""


class _Fit(IntEnum):
    """How it is known that values of one type are values of another."""

    TYPE = 0  # all of them are
    CAST = 1  # Arrow's cast refuses those that are not
    VALUE = 2  # each has to be looked at
    NEAREST = 3  # double in float, where a Python float, that has no width, is the nearest one
    NEVER = 4


def fitted_table(
    rows: pa.Table, schema: Schema, subject: str = ROWS, *, nearest: bool = True
) -> pa.Table:
    """Return the columns of ``schema``, in its order and types; others are left out. Without
    ``nearest`` no double is a float.

    InvalidArgumentError names ``subject``, the column and the first row with another value.
    """
    stored = arrow_schema(schema)
    columns = [
        fitted(
            rows.column(field.name),
            field.type,
            name=field.name,
            subject=subject,
            nearest=nearest,
        )
        for field in stored
    ]
    return pa.table(columns, schema=stored)


def fitted(
    column: pa.ChunkedArray,
    kind: pa.DataType,
    *,
    name: str,
    subject: str = ROWS,
    nearest: bool = True,
) -> pa.ChunkedArray:
    """Return a column as one of a stored type, in which each value comes out equal; of doubles in a
    float column the nearest floats, as of Python's, unless ``nearest`` is false.

    InvalidArgumentError names ``subject``, the column and the first row with another value.
    """
    if column.type == kind:
        return column
    fit = _fit(column.type, kind)
    if fit is _Fit.NEVER or (fit is _Fit.NEAREST and not nearest):
        raise InvalidArgumentError(
            f"the column {name!r} of {subject} holds {kind_text(column.type)}, which is no "
            f"{kind_text(kind)}; give it that type"
        )
    found = _cast(column, kind) if fit <= _Fit.CAST else None
    if found is not None:
        return found
    try:
        values = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise InvalidArgumentError(
            f"the column {name!r} of {subject} holds {kind_text(column.type)} with times outside "
            f"the years 1 to 9999, which cannot become {kind_text(kind)}: {error}"
        ) from error
    return pa.chunked_array([column_of(values, kind, name=name, subject=subject)], kind)


def fits_by_type(source: DataType, target: DataType) -> bool:
    """Return whether every value of a stored type is a value of another."""
    return _fit(arrow_type(source), arrow_type(target)) is _Fit.TYPE


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Return what Arrow's cast makes of a column; None where a value does not fit, or Arrow lacks
    the cast.
    """
    try:
        return _decoded(column).cast(kind)
    except pa.ArrowException:
        return None


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a dictionary column as one of its values, and UUIDs as their bytes.

    Polars' dictionaries have views, which Arrow cannot take from.
    """
    if isinstance(column.type, pa.UuidType):
        return column.cast(column.type.storage_type)
    if not pa.types.is_dictionary(column.type):
        return column
    kind = column.type.value_type
    if pa.types.is_string_view(kind):
        kind = pa.large_string()
    elif pa.types.is_binary_view(kind):
        kind = pa.large_binary()
    chunks = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(chunks, kind)


def _fit(source: pa.DataType, target: pa.DataType) -> _Fit:
    types = pa.types
    if source == target or types.is_null(source):
        return _Fit.TYPE
    if types.is_dictionary(source):
        return _fit(source.value_type, target)
    if isinstance(source, pa.UuidType):
        return _fit(source.storage_type, target)
    if types.is_struct(target):
        return _of_structs(source, target) if types.is_struct(source) else _Fit.NEVER
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
        return _of_numbers(source, target)
    return _Fit.TYPE if _family(source) == _family(target) != "" else _Fit.NEVER


def _of_structs(source: pa.DataType, target: pa.DataType) -> _Fit:
    """Arrow would leave out a field that the target has not, and fill one that the source has
    not.
    """
    names = [field.name for field in source]
    if sorted(names) != sorted(field.name for field in target):
        return _Fit.NEVER
    return max(_fit(source.field(field.name).type, field.type) for field in target)


def _of_numbers(source: pa.DataType, target: pa.DataType) -> _Fit:
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


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _family(kind: pa.DataType) -> str:
    """Return a word for types that hold the same values, "" for what cannot be stored."""
    if is_text(kind):
        return "text"
    if is_binary(kind):
        return "bytes"
    return "date" if pa.types.is_date32(kind) else ""
