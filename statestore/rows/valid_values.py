"""Refuse values that their Arrow type does not have, before rows are used or stored.

Arrow accepts any bytes as text and any number as a decimal with few digits. It checks offsets and
indices only on request. Such a value would be stored as another one, fail when it is read, or crash
the process that copies it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.keys.arrow_types import arrow_type_text, is_text
from statestore.rows.column_types import for_each_column
from statestore.rows.lossless_cast import brief_text

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
        parts = [_leaves(column.field(place)) for place in range(data_type.num_fields)]
        return None if None in parts else [leaf for part in parts for leaf in part or ()]
    if types.is_list(data_type) or types.is_large_list(data_type) or types.is_map(data_type):
        offsets = np.asarray(column.offsets)
        if (np.diff(offsets) < 0).any():
            return None
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
