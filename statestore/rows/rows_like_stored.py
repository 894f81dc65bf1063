"""Rows without declared types as tables with the stored types, as far as these fit the values.

Dictionaries have no types, and pandas has no type for some stored values: it turns integers next to
a missing value into floats, and decimals into Python objects. Such columns keep the stored type if
each value stays equal. Otherwise they get the type of their values, if that is wider.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.schema import DataType, Schema, same_type
from statestore.format.schema_evolution import widens
from statestore.rows.column_errors import ColumnErrors
from statestore.rows.column_types import arrow_type, schema_of_arrow
from statestore.rows.pandas_rows import column_of_series, frame_columns, series_as_stored
from statestore.rows.python_values import column_names, column_of, guess_column

__all__ = ["frame_like", "table_like"]


def table_like(
    rows: Sequence[Mapping[str, Any]], stored: Schema, fixed: Collection[str], *, subject: str
) -> pa.Table:
    """Return dictionaries as a table of all names that occur in them.

    A stored column keeps its type if it can hold every value. Otherwise it gets the type of its
    values, if that is wider.

    Args:
        rows: The dictionaries.
        stored: The stored columns.
        fixed: The stored columns whose type cannot change.
        subject: The name of the rows in messages.

    Returns:
        The table.

    Raises:
        SchemaMismatchError: For values that fit neither the stored type nor a wider one.
        InvalidArgumentError: For values of a new column without a common type.
    """
    names, errors = column_names(rows, subject), ColumnErrors(subject)
    columns: dict[str, pa.Array] = {}
    for name in names:
        values = [row.get(name) for row in rows]
        with errors.collected():
            columns[name] = _column_like(values, name, stored, fixed, subject)
    _raise_mismatch(errors)
    return pa.table(columns)


def frame_like(frame: Any, stored: Schema, fixed: Collection[str], *, subject: str) -> pa.Table:
    """Return a pandas DataFrame as a table.

    A column with a type keeps it, if it is the stored type or a wider one. Any other column, also
    one of Python objects, keeps the stored type if it can hold every value. So does a column of
    floats that is stored with integers.

    Args:
        frame: The DataFrame.
        stored: The stored columns.
        fixed: The stored columns whose type cannot change.
        subject: The name of the rows in messages.

    Returns:
        The table, with the columns of the DataFrame.

    Raises:
        SchemaMismatchError: For values that fit neither the stored type nor a wider one.
        InvalidArgumentError: For an index or column names that :func:`table_of_pandas` refuses.
    """
    errors = ColumnErrors(subject)
    columns, names = [], []
    for name, series in frame_columns(frame, subject):
        names.append(name)
        with errors.collected():
            columns.append(_series_like(series, name, stored, fixed, subject))
    _raise_mismatch(errors)
    return pa.Table.from_arrays(columns, names=names)


def _raise_mismatch(errors: ColumnErrors) -> None:
    try:
        errors.raise_all()
    except InvalidArgumentError as error:
        raise SchemaMismatchError(str(error)) from error


def _column_like(
    values: list[Any], name: str, stored: Schema, fixed: Collection[str], subject: str
) -> pa.Array:
    if name not in stored.names:
        return guess_column(values, name=name, subject=subject)
    stored_type = stored.type_of(name)
    try:
        return column_of(values, arrow_type(stored_type), name=name, subject=subject)
    except InvalidArgumentError as error:
        try:
            column = guess_column(values, name=name, subject=subject)
        except InvalidArgumentError:
            raise error from None
        if not _may_become(column.type, stored_type, is_fixed=name in fixed):
            raise
        return column


def _series_like(
    series: Any, name: str, stored: Schema, fixed: Collection[str], subject: str
) -> pa.Array | pa.ChunkedArray:
    if name not in stored.names:
        return column_of_series(series, name, subject)
    stored_type = stored.type_of(name)
    field = pa.field(name, arrow_type(stored_type))
    own = _own_column(series, name, subject)
    if own is None or not _may_become(own.type, stored_type, is_fixed=name in fixed):
        return series_as_stored(series, field, subject, nearest=False)
    if not _is_untyped(series, own.type, field.type):
        return own
    try:
        return series_as_stored(series, field, subject, nearest=False)
    except InvalidArgumentError:
        return own


def _is_untyped(series: Any, own: pa.DataType, stored: pa.DataType) -> bool:
    """Return whether pandas may have a series in another type because it lacks the stored one."""
    is_object = isinstance(series.dtype, np.dtype) and series.dtype.kind == "O"
    return is_object or (pa.types.is_floating(own) and pa.types.is_integer(stored))


def _own_column(series: Any, name: str, subject: str) -> pa.Array | pa.ChunkedArray | None:
    """Return a column in its own type; None if it has none, as for the pairs of a map."""
    try:
        return column_of_series(series, name, subject)
    except InvalidArgumentError:
        return None


def _may_become(data_type: pa.DataType, stored: DataType, *, is_fixed: bool) -> bool:
    """Return whether a stored column may have an Arrow type from now on."""
    try:
        [field] = schema_of_arrow(pa.schema([("column", data_type)])).fields
    except InvalidArgumentError:  # it cannot be stored
        return False
    return same_type(stored, field.type) if is_fixed else widens(stored, field.type)
