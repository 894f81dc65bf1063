"""Text in rows: refuses text that is not valid UTF-8 before it is stored.

Arrow and Spark accept any bytes as text, and only check them when a value is read. ``get``, SQL and
JSON would then fail, for a row that was committed long before.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.keys.arrow_type_names import arrow_type_text

__all__ = ["refuse_invalid_text", "shorten"]

_MOST_SHOWN = 200


def refuse_invalid_text(batch: pa.RecordBatch, subject: object, key: Sequence[str] = ()) -> None:
    """Raise InvalidArgumentError for text that is not UTF-8, at any depth of a column's type.

    Args:
        batch: rows that are about to be stored.
        subject: the name of the state in messages.
        key: the columns that identify the row in messages.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not _has_text(column.type) or _is_valid(column):
            continue
        row = _first_invalid(column)
        where = ", ".join(
            f"{part}={_display_text(batch.column(part).slice(row, 1))}" for part in key
        )
        raise InvalidArgumentError(
            f"the column {name!r} of {subject} has text that is not UTF-8: "
            f"{_display_text(column.slice(row, 1))}{f' of {where}' if where else ''}. Decode the "
            "bytes with their actual encoding, or store them as binary"
        )


def shorten(text: str) -> str:
    """Return text for a message, cut off if it is long."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _has_text(data_type: pa.DataType) -> bool:
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return True
    return any(_has_text(data_type.field(place).type) for place in range(data_type.num_fields))


def _is_valid(column: pa.Array) -> bool:
    if _validates(column):
        return True
    # For a slice of lists, Arrow validates the values of all lists: a copy has only its own.
    return bool(column.type.num_fields) and _validates(column.take(pa.array(range(len(column)))))


def _validates(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


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


def _display_text(value: pa.Array) -> str:
    """Return a value as text; undecodable text is shown as bytes."""
    if _is_valid(value):
        text = repr(value.to_pylist()[0])
    elif value.type.num_fields:
        text = f"a value of {arrow_type_text(value.type)}"
    else:
        is_large = pa.types.is_large_string(value.type)
        text = repr(value.view(pa.large_binary() if is_large else pa.binary()).to_pylist()[0])
    return shorten(text)
