"""pandas DataFrames as Arrow tables, with every column unchanged and no additional column.

NaN in a float column stays NaN. In an object column, pandas uses NaN for missing values. It then
becomes null, unless the column holds floats; None, NaT and NA always become null. The index does
not become a column: an index other than row numbers is refused.

Floats in the place of integers or decimals are refused if they may have been rounded. From a
certain size on, a float type cannot represent every integer. A larger float may have been another
integer before, so it is not stored as an exact number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.keys.arrow_types import arrow_type_text
from statestore.rows.column_types import for_each_column, refuse_repeated_names
from statestore.rows.fit_columns import fit_column, refuse_invalid_column
from statestore.rows.lossless_cast import is_list
from statestore.rows.python_values import ROWS, column_of, guess_column, row_place

if TYPE_CHECKING:
    import pandas as pd

_ADVICE = (
    'give the column an integer type, for example "int64[pyarrow]", or take the frame from '
    "to_pandas() of the restored state"
)


def is_pandas(rows: Any) -> bool:
    """Return whether the value is a pandas DataFrame, without importing pandas."""
    rows_type = type(rows)
    return rows_type.__module__.partition(".")[0] == "pandas" and rows_type.__name__ == "DataFrame"


def table_of_pandas(frame: Any, subject: str = ROWS) -> pa.Table:
    """Return a DataFrame as a table.

    Raises InvalidArgumentError, which names ``subject``, for an index other than row numbers, for
    column names that are not strings or not unique, and for values without a common type.
    """
    named = frame_columns(frame, subject)
    columns = for_each_column(
        named, lambda column: column_of_series(column[1], column[0], subject), subject
    )
    return pa.Table.from_arrays(columns, names=[name for name, _ in named])


def frame_columns(frame: Any, subject: str = ROWS) -> list[tuple[str, Any]]:
    """Return the columns of a DataFrame, each with its name.

    Raises InvalidArgumentError, which names ``subject``, for an index other than row numbers, and
    for column names that are not strings or not unique.
    """
    _refuse_index(frame.index, subject)
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"the column names of {subject} must be strings, not {names!r:.80}; rename them "
            "with frame.columns = […]"
        )
    refuse_repeated_names(names, subject)
    return [(name, frame.iloc[:, index]) for index, name in enumerate(names)]


def _refuse_index(index: Any, subject: str) -> None:
    if type(index).__name__ == "RangeIndex" and index.name is None:
        return
    named = [name for name in index.names if name is not None]
    index_text = f"an index named {', '.join(map(repr, named))}" if named else "an index of its own"
    raise InvalidArgumentError(
        f"the pandas frame of {subject} has {index_text}, which is not a column: "
        "frame.reset_index() turns it into columns, frame.reset_index(drop=True) removes it"
    )


def column_of_series(series: Any, name: str, subject: str = ROWS) -> pa.Array | pa.ChunkedArray:
    """Return a column of a DataFrame in Arrow's type for it, or in the type of its objects.

    Raises InvalidArgumentError for a type that Arrow lacks, and objects without a common type.
    """
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        return _of_objects(series.tolist(), name, subject)
    is_float = isinstance(dtype, np.dtype) and dtype.kind == "f"
    try:
        column = pa.array(series.to_numpy()) if is_float else pa.array(series, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the column {name!r} of {subject} has the pandas type {dtype}, which cannot be "
            f"converted to Arrow: {error}; convert it with astype"
        ) from error
    refuse_invalid_column(column, name=name, subject=subject, place=row_place)
    return column


def _of_objects(values: list[Any], name: str, subject: str) -> pa.Array:
    if any(_is_nan(value) for value in values):
        known = [value for value in values if value is not None and not _is_nan(value)]
        if not all(isinstance(value, float | int) for value in known):
            values = [None if _is_nan(value) else value for value in values]
    return guess_column(values, name=name, subject=subject)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(value != value)


def _from_pandas(value: Any, data_type: pa.DataType) -> Any:
    """Return a value of a stored type; a float for an integer or decimal is checked.

    pandas has NaN for a null in an object column. In an array of integers in a list, it has NaN and
    the other integers as floats. Raises _RoundedError for a float that may have been another
    integer.
    """
    types = pa.types
    if types.is_list(data_type) and is_list(value):
        return [_from_pandas(item, data_type.value_type) for item in value]
    if types.is_struct(data_type) and isinstance(value, Mapping):
        types_by_name = {field.name: field.type for field in data_type}
        return {
            name: _from_pandas(item, types_by_name[name]) if name in types_by_name else item
            for name, item in value.items()
        }
    if types.is_map(data_type) and isinstance(value, Mapping | list):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [
            (_from_pandas(pair[0], data_type.key_type), _from_pandas(pair[1], data_type.item_type))
            if isinstance(pair, tuple | list) and len(pair) == 2
            else pair
            for pair in pairs
        ]
    if not isinstance(value, float | np.floating) or types.is_floating(data_type):
        return value
    if value != value:
        return None
    is_exact = types.is_integer(data_type) or types.is_decimal(data_type)
    if is_exact and abs(float(value)) >= EXACT_END[_float_type(value)]:
        raise _RoundedError(value)
    return value


def _float_type(value: Any) -> pa.DataType:
    return pa.from_numpy_dtype(value.dtype) if isinstance(value, np.floating) else pa.float64()


class _RoundedError(Exception):
    """A float that stands for an integer, and may have been rounded."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.value = value


def arrow_frame(rows: pa.Table) -> pd.DataFrame:
    """Return rows as a DataFrame of Arrow types, even if column names are repeated.

    Args:
        rows: The rows.

    Returns:
        A DataFrame whose columns are ``pandas.ArrowDtype``; :func:`pandas_as_stored` converts it
        back to equal rows.
    """
    import pandas as pd

    columns = {
        index: pd.arrays.ArrowExtensionArray(column) for index, column in enumerate(rows.columns)
    }
    frame = pd.DataFrame(columns, copy=False)
    frame.columns = pd.Index(rows.schema.names)
    return frame


def pandas_as_stored(frame: Any, schema: pa.Schema, subject: str = ROWS) -> pa.Table:
    """Return a DataFrame's columns in stored types, without its index.

    Args:
        frame: A pandas DataFrame that has each column of ``schema`` once.
        schema: The columns, of types that :func:`statestore.rows.column_types.arrow_schema`
            returns.
        subject: The name of the rows in messages.

    Returns:
        The columns of ``schema``, in its order.

    Raises:
        InvalidArgumentError: For values that would not stay equal; it names ``subject``, each
            column, and its first such row and value.
    """
    columns = for_each_column(
        schema, lambda field: series_as_stored(frame[field.name], field, subject), subject
    )
    return pa.table(columns, schema=schema)


def series_as_stored(
    series: Any, field: pa.Field, subject: str = ROWS, *, nearest: bool = True
) -> pa.ChunkedArray:
    """Return one column as :func:`pandas_as_stored` does, with its errors.

    Without ``nearest``, the type double does not fit the type float.
    """
    name, data_type = field.name, field.type
    has_nan = pa.types.is_floating(data_type)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "O":
        values = series.tolist()
        for row, value in enumerate(values):
            try:
                values[row] = _from_pandas(value, data_type)
            except _RoundedError as error:
                float_type, place = _float_type(error.value), row_place(row)
                raise rounded_error(
                    place, error.value, float_type, field, subject, _ADVICE
                ) from None
        return pa.chunked_array(
            [column_of(values, data_type, name=name, subject=subject)], data_type
        )
    column = column_of_series(series, name, subject)
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    if pa.types.is_floating(column.type) and not has_nan and isinstance(series.dtype, np.dtype):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    refuse_rounded(column, field, subject, _ADVICE)
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), data_type)])
    return fit_column(column, data_type, name=name, subject=subject, nearest=nearest)


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
