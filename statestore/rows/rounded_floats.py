"""Refuse floats that are to be stored as integers or decimals if they may have been rounded.

From a certain size on, a float type cannot represent every integer. A larger float may have been
another integer before, so it is not stored as an exact number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.keys.arrow_types import arrow_type_text
from statestore.rows.python_values import row_place

EXACT_END = {pa.float64(): 2**53, pa.float32(): 2**24, pa.float16(): 2**11}
"""The smallest integer to which each type rounds another integer, the next one."""


def refuse_rounded(
    column: pa.ChunkedArray, field: pa.Field, subject: str, advice: str, *, first_row: int = 0
) -> None:
    """Refuse a column with a float that may have been rounded, also in lists, structs and maps.

    Args:
        column: The column, of any type.
        field: The column as it will be stored.
        subject: The name of the rows in messages.
        advice: What the user can do.
        first_row: The number of the column's first row in messages.

    Raises:
        InvalidArgumentError: For a float that may have been rounded, in the place of an integer or
            a decimal; it names ``subject``, the column, and the first such row and value.
    """
    if _find_rounded(column, field.type) is None:
        return
    row = bisect_left(
        range(len(column)),
        True,
        key=lambda last: _find_rounded(column.slice(0, last + 1), field.type) is not None,
    )
    value = _find_rounded(column.slice(row, 1), field.type)
    assert value is not None
    place = row_place(first_row + row)
    raise rounded_error(place, value.as_py(), value.type, field, subject, advice)


def rounded_error(
    place: str, value: Any, float_type: pa.DataType, field: pa.Field, subject: str, advice: str
) -> InvalidArgumentError:
    """Return the error for a float in a place, such as ``row 0``, that may have been rounded."""
    return InvalidArgumentError(
        f"{place} of {subject} has {float(value)!r} in the column {field.name!r} of type "
        f"{arrow_type_text(field.type)}: the value is a {arrow_type_text(float_type)}, which "
        f"cannot represent every integer above {EXACT_END[float_type]} and may have been rounded; "
        f"{advice}"
    )


def _find_rounded(column: pa.ChunkedArray, data_type: pa.DataType) -> pa.Scalar | None:
    """Return the first float of a column that may have been rounded."""
    for chunk in column.chunks:
        for floats in _inexact_floats(chunk, data_type):
            end = pa.scalar(float(EXACT_END[floats.type]), floats.type)
            index = pc.index(pc.greater_equal(pc.abs(floats), end), True).as_py()
            if index >= 0:
                return floats[index]
    return None


def _inexact_floats(column: pa.Array, data_type: pa.DataType) -> Iterator[pa.Array]:
    """Yield a column's floats that are to be stored as integers or decimals."""
    types, source = pa.types, column.type
    if types.is_floating(source):
        if types.is_integer(data_type) or types.is_decimal(data_type):
            yield column
    elif types.is_dictionary(source) and types.is_floating(source.value_type):
        yield from _inexact_floats(column.dictionary_decode(), data_type)
    elif types.is_struct(source) and types.is_struct(data_type):
        children = dict(zip((field.name for field in source), column.flatten(), strict=True))
        for field in data_type:
            if field.name in children:
                yield from _inexact_floats(children[field.name], field.type)
    elif types.is_map(source) and types.is_map(data_type):
        pairs = _pairs(column)
        yield from _inexact_floats(pairs.field(0), data_type.key_type)
        yield from _inexact_floats(pairs.field(1), data_type.item_type)
    elif hasattr(source, "value_type") and types.is_list(data_type):
        yield from _inexact_floats(column.flatten(), data_type.value_type)


def _pairs(column: pa.MapArray) -> pa.StructArray:
    """Return the pairs of a slice of maps; those of null maps are left out."""
    source = column.type
    pair = pa.struct([source.key_field, source.item_field])
    return column.cast(pa.list_(pa.field("entries", pair, nullable=False))).flatten()
