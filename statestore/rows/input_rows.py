"""Prepares rows from callers so that they can be read again.

A stream can be read only once: an Arrow reader, or a generator of batches or dictionaries. If its
columns were inspected first, its rows would be silently lost for the writer. A stream that fits in
memory becomes a table. A longer one stays a stream, :class:`StreamedRows`, which is written while
it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState
from statestore.rows.lossless_cast import arrow_type_text
from statestore.rows.python_values import ROWS, column_of, fit_column, guess_column

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "StreamedRows",
    "arrow_frame",
    "check_groups",
    "is_dicts",
    "is_lazy",
    "is_pandas",
    "key_group_column",
    "pandas_as_stored",
    "read_stream",
    "rereadable",
    "streamed",
    "table_of_pandas",
    "with_groups",
    "with_key_group",
    "without_empty_chunks",
    "without_groups",
]


# pandas DataFrames as Arrow tables, with every column unchanged and no additional column.
#
# NaN in a float column stays NaN. In an object column, pandas uses NaN for missing values. It then
# becomes null, unless the column holds floats; None, NaT and NA always become null. The index does
# not become a column: an index other than row numbers is refused.


def is_pandas(rows: Any) -> bool:
    """Return whether the value is a pandas DataFrame, without importing pandas."""
    rows_type = type(rows)
    return rows_type.__module__.partition(".")[0] == "pandas" and rows_type.__name__ == "DataFrame"


def table_of_pandas(frame: Any, subject: str = ROWS) -> pa.Table:
    """Return a DataFrame as a table.

    Raises InvalidArgumentError, which names ``subject``, for an index other than row numbers, for
    column names that are not strings or not unique, and for values without a common type.
    """
    _refuse_index(frame.index, subject)
    names = list(frame.columns)
    if not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"the column names of {subject} must be strings, not {names!r:.80}; rename them "
            "with frame.columns = […]"
        )
    columns = [_column(frame.iloc[:, index], name, subject) for index, name in enumerate(names)]
    return pa.Table.from_arrays(columns, names=names)


def _refuse_index(index: Any, subject: str) -> None:
    if type(index).__name__ == "RangeIndex" and index.name is None:
        return
    named = [name for name in index.names if name is not None]
    what = f"an index named {', '.join(map(repr, named))}" if named else "an index of its own"
    raise InvalidArgumentError(
        f"the pandas frame of {subject} has {what}, which is not a column: "
        "frame.reset_index() turns it into columns, frame.reset_index(drop=True) removes it"
    )


def _column(series: Any, name: str, subject: str) -> pa.Array | pa.ChunkedArray:
    dtype = series.dtype
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        return _of_objects(series.tolist(), name, subject)
    is_float = isinstance(dtype, np.dtype) and dtype.kind == "f"
    try:
        return pa.array(series.to_numpy()) if is_float else pa.array(series, from_pandas=True)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the column {name!r} of {subject} has the pandas type {dtype}, which cannot be "
            f"converted to Arrow: {error}; convert it with astype"
        ) from error


def _of_objects(values: list[Any], name: str, subject: str) -> pa.Array:
    if any(_is_nan(value) for value in values):
        known = [value for value in values if value is not None and not _is_nan(value)]
        if not all(isinstance(value, float | int) for value in known):
            values = [None if _is_nan(value) else value for value in values]
    return guess_column(values, name=name, subject=subject)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


# pandas DataFrames as columns of known types: each value stays equal, or is refused.
#
# In a column of objects, or of a numpy type, pandas uses NaN for a missing value. It becomes null,
# unless the column's type has NaN. A float that represents an integer may have been rounded: pandas
# converts integers to floats if a value is missing.


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
        frame: A pandas DataFrame that has each column of ``schema`` once. schema: The columns, of
        types that :func:`statestore.rows.column_types.arrow_schema` returns. subject: The name of
        the rows in messages.

    Returns:
        The columns of ``schema``, in its order.

    Raises:
        InvalidArgumentError: For a value that would not stay equal; it names ``subject``, the
            column, the row and the value.
    """
    columns = [_as_stored(frame[field.name], field, subject) for field in schema]
    return pa.table(columns, schema=schema)


def _as_stored(series: Any, field: pa.Field, subject: str) -> pa.ChunkedArray:
    name, data_type = field.name, field.type
    has_nan = pa.types.is_floating(data_type)
    if isinstance(series.dtype, np.dtype) and series.dtype.kind == "O":
        values = series.tolist()
        if not has_nan:
            values = [None if _is_nan(value) else value for value in values]
        return pa.chunked_array(
            [column_of(values, data_type, name=name, subject=subject)], data_type
        )
    column = _column(series, name, subject)
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    if pa.types.is_floating(column.type) and not has_nan:
        if isinstance(series.dtype, np.dtype):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        _refuse_rounded(column, field, subject)
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), data_type)])
    return fit_column(column, data_type, name=name, subject=subject)


def _refuse_rounded(column: pa.ChunkedArray, field: pa.Field, subject: str) -> None:
    """Refuse floats so large that they cannot represent every integer."""
    end = 2.0 ** (53 if column.type.bit_width == 64 else 24)
    index = pc.index(pc.greater(pc.abs(column), pa.scalar(end, column.type)), True).as_py()
    if index >= 0:
        raise InvalidArgumentError(
            f"row {index} of {subject} has {column[index].as_py()!r} in the column {field.name!r} "
            f"of type {arrow_type_text(field.type)}: the value is a "
            f"{arrow_type_text(column.type)}, which cannot represent every integer above "
            f"{end:.0f} and may have been rounded; give "
            'the column an integer type, for example "int64[pyarrow]"'
        )


_read: WeakSet[Any] = WeakSet()
"""Streams that were already read: if passed again, they would look like no rows at all."""


def rereadable(rows: Any) -> Any:
    """Return rows unchanged if they can be read again; otherwise as a list or an Arrow table.

    An iterator becomes a list, record batches become a table, and a lazy Polars DataFrame is
    computed. :func:`read_stream` handles rows with the Arrow interface. Raises InvalidArgumentError
    for an iterator that was already read.
    """
    if isinstance(rows, Iterator) and not hasattr(rows, "__arrow_c_stream__"):
        _claim_stream(rows)
        rows = list(rows)
    if isinstance(rows, tuple):
        rows = list(rows)
    if isinstance(rows, list) and rows and all(isinstance(row, pa.RecordBatch) for row in rows):
        return _concat_batches(rows)
    return rows.collect() if is_lazy(rows) else rows


@dataclass(frozen=True, eq=False)
class StreamedRows:
    """Rows that do not fit in memory and can be read once, as tables of one schema."""

    schema: pa.Schema
    tables: Iterator[pa.Table]

    def select(self, names: Sequence[str]) -> StreamedRows:
        """Return some columns of the rows."""
        return self.map(lambda table: table.select(names))

    def map(self, change: Callable[[pa.Table], pa.Table]) -> StreamedRows:
        """Return the rows with a function applied to each table, including empty ones."""
        return StreamedRows(change(self.schema.empty_table()).schema, map(change, self.tables))

    def read_all(self) -> pa.Table:
        """Return all rows in memory."""
        return pa.concat_tables([self.schema.empty_table(), *self.tables])


def streamed(rows: Any, subject: str, most_bytes: int) -> Any:
    """Return a stream as a table if it has at most ``most_bytes``, or as StreamedRows.

    An iterator of anything but record batches becomes a list. Other rows are returned unchanged.

    Raises InvalidArgumentError for a stream that was already read, or that fails, and
    SchemaMismatchError for batches with different columns. An error of the caller's own iterator is
    raised unchanged.
    """
    if isinstance(rows, pa.Table) or is_pandas(rows) or is_lazy(rows):
        return rows
    if hasattr(rows, "__arrow_c_stream__"):
        if isinstance(rows, Iterator):
            _claim_stream(rows)
        with _reading(rows, subject):
            reader = pa.RecordBatchReader.from_stream(rows)
        schema, tables = reader.schema, _tables_of(reader, rows, subject)
    elif isinstance(rows, Iterator):
        _claim_stream(rows)
        first = next(rows, None)
        if not isinstance(first, pa.RecordBatch):
            return [] if first is None else [first, *rows]
        schema, tables = first.schema, _tables_alike(chain([first], rows))
    else:
        return rows
    held: deque[pa.Table] = deque()
    size = 0
    for table in tables:
        held.append(table)
        size += table.nbytes
        if size > most_bytes:
            return StreamedRows(schema, chain(_drain(held), tables))
    return pa.concat_tables(held) if held else schema.empty_table()


def _drain(held: deque[pa.Table]) -> Iterator[pa.Table]:
    while held:  # a yielded table is not kept in memory
        yield held.popleft()


def _tables_of(reader: pa.RecordBatchReader, rows: Any, subject: str) -> Iterator[pa.Table]:
    while True:
        with _reading(rows, subject):
            batch = next(reader, None)
        if batch is None:
            return
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


def _tables_alike(batches: Iterable[Any]) -> Iterator[pa.Table]:
    schema: pa.Schema | None = None
    for number, batch in enumerate(batches):
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidArgumentError(
                f"an iterator of record batches yielded {type(batch).__name__} as item "
                f"{number}; it must yield only record batches"
            )
        schema = schema or batch.schema
        if not batch.schema.equals(schema):
            raise SchemaMismatchError(
                f"batch {number} has other columns ({batch.schema}) than the first batch "
                f"({schema}); give all batches the same schema"
            )
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


@contextmanager
def _reading(rows: Any, subject: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"cannot convert {type(rows).__name__} to Arrow ({subject}): {error}"
        ) from error


def is_lazy(rows: Any) -> bool:
    """Return whether the value is a lazy Polars DataFrame, which must be computed first."""
    rows_type = type(rows)
    return rows_type.__module__.startswith("polars.") and rows_type.__name__ == "LazyFrame"


def read_stream(rows: Any, subject: str) -> pa.Table:
    """Return rows with the Arrow interface as a table; for pandas, see :func:`table_of_pandas`.

    Raises InvalidArgumentError for a stream that was already read, or that fails.
    """
    if isinstance(rows, Iterator):
        _claim_stream(rows)
    if is_pandas(rows):
        return table_of_pandas(rows, subject)
    with _reading(rows, subject):
        return pa.table(rows)


def without_empty_chunks(rows: pa.Table) -> pa.Table:
    """Return rows without empty chunks.

    Arrow cannot concatenate the empty batches of a sliced stream, since they begin after the end of
    their buffers.
    """
    if all(len(chunk) for column in rows.columns for chunk in column.chunks):
        return rows
    columns = [
        pa.chunked_array([chunk for chunk in column.chunks if len(chunk)], column.type)
        for column in rows.columns
    ]
    return pa.table(columns, schema=rows.schema)


def is_dicts(rows: Any) -> bool:
    """Return whether rows are a list of dictionaries."""
    return isinstance(rows, list) and all(isinstance(row, Mapping) for row in rows)


def _claim_stream(stream: Any) -> None:
    try:
        if stream in _read:
            raise InvalidArgumentError(
                f"this {type(stream).__name__} has already been read, and a stream can be "
                "read only once; create a new one, or pass its rows as an Arrow table"
            )
        _read.add(stream)
    except TypeError:
        return  # some iterators, such as a list's, do not support weak references


def _concat_batches(batches: list[pa.RecordBatch]) -> pa.Table:
    try:
        return pa.Table.from_batches(batches)
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(
            f"the batches have different columns: {error}; give all batches the same schema"
        ) from error


# The store's own column in rows that a caller passes back: the key group of each row, as returned
# by a restore. It is checked when the key groups are computed, and not stored again.


def with_key_group(names: Iterable[str], among: Iterable[str]) -> tuple[str, ...]:
    """Return some column names, and the store's own if the rows have it."""
    return (*names, KEY_GROUP) if KEY_GROUP in among else tuple(names)


def without_groups(schema: Schema) -> Schema:
    """Return the caller's columns, without the store's own."""
    return schema.select([name for name in schema.names if name != KEY_GROUP])


def with_groups(schema: Schema, among: Iterable[str]) -> Schema:
    """Return the columns of a state, and the store's own column if the rows have it."""
    own = (Field(KEY_GROUP, "integer"),) if KEY_GROUP in among else ()
    return Schema((*schema.fields, *own))


def key_group_column(rows: pa.Table, state: KeyedState) -> pa.ChunkedArray | None:
    """Return the store's own column as integers, or None if the rows lack it."""
    if KEY_GROUP not in rows.schema.names:
        return None
    groups = rows.column(KEY_GROUP)
    if not (pa.types.is_integer(groups.type) or pa.types.is_null(groups.type)):
        raise InvalidArgumentError(
            f"the column {KEY_GROUP!r} of {state} has type {groups.type}, but it is reserved for "
            "the key group of each row, which is an integer. Remove the column; it is not stored"
        )
    return groups.cast(pa.int64(), safe=False)


def check_groups(rows: pa.Table, groups: npt.NDArray[np.int32], state: KeyedState) -> None:
    """Refuse rows whose own column has another key group than their key; nulls are accepted.

    Raises InvalidArgumentError with the key of the first such row, and both key groups.
    """
    own_groups = key_group_column(rows, state)
    if own_groups is None:
        return
    other = pc.fill_null(pc.not_equal(own_groups, pa.array(groups, pa.int64())), False)
    index = pc.index(other, True).as_py()
    if index < 0:
        return
    [key] = rows.select(state.key).slice(index, 1).to_pylist()
    raise InvalidArgumentError(
        f"the row of {state} with the key {key} has {KEY_GROUP} "
        f"{own_groups[index].as_py()}, but the "
        f"key belongs to key group {groups[index]} of {state.max_parallelism}. This column is "
        "reserved for the store: it is checked and not stored. Remove it if it comes from "
        "another max parallelism or key, or has another meaning"
    )
