"""The door for rows from callers: whatever is passed becomes rows that a writer can use.

A stream can be read only once: an Arrow reader, or a generator of batches or dictionaries. If its
columns were inspected first, its rows would be silently lost for the writer. A stream that fits in
memory becomes a table. A longer one stays a stream, which is written while it is read.

Dictionaries and pandas DataFrames stay as they are, because their types depend on the stored ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from statestore.engines.rows import ArrowRows, Rows
from statestore.engines.spark_modules import is_spark, spark_module
from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.rows.column_types import refuse_repeated_names
from statestore.rows.fit_columns import refuse_invalid_values
from statestore.rows.pandas_rows import is_pandas
from statestore.rows.python_values import ROWS, is_dicts, row_place
from statestore.rows.sorting import fit_or_stream
from statestore.rows.untyped_rows import UntypedRows

_read: WeakSet[Any] = WeakSet()
"""Streams that were already read: if passed again, they would look like no rows at all."""


def read_rows(given: Any, subject: str = ROWS, most_bytes: int | None = None) -> Rows | UntypedRows:
    """Return rows from a caller. Rows that were already read are returned unchanged.

    Args:
        given: a Spark DataFrame, an Arrow table, a list of dictionaries, or any frame with the
            Arrow interface, such as results of pandas, Polars and DuckDB. A schema is a table
            without rows. An iterator is read to its end.
        subject: the name of the rows in messages.
        most_bytes: a longer Arrow stream stays a stream. By default it becomes a table.

    Raises:
        InvalidArgumentError: for anything else, a stream that was already read or that fails, two
            columns with one name, and values that their type does not have.
        SchemaMismatchError: for batches with different columns.
    """
    if isinstance(given, Rows | UntypedRows):
        return given
    if isinstance(given, pa.Table):
        return ArrowRows.of(_read_table(given, subject))
    if is_spark(given):
        rows: Rows = spark_module("state_writer").SparkRows(given)
        return rows
    if most_bytes is not None:
        given = _streamed(given, subject, most_bytes)
        if isinstance(given, ArrowRows):
            return given
    given = rereadable(given)
    if is_dicts(given) or is_pandas(given):
        return UntypedRows(given, subject)
    return ArrowRows.of(_read_table(given, subject))


def typed_rows(
    rows: Rows | UntypedRows, convert: Callable[[UntypedRows], pa.Table] = UntypedRows.guessed
) -> Rows:
    """Return rows; those without types of their own are converted.

    By default they get the types of their values.
    """
    return ArrowRows.of(convert(rows)) if isinstance(rows, UntypedRows) else rows


def as_table(
    given: Any,
    subject: str = ROWS,
    convert: Callable[[UntypedRows], pa.Table] = UntypedRows.guessed,
) -> pa.Table:
    """Return rows of this process as an Arrow table; see :func:`read_rows`, :func:`typed_rows`.

    Raises InvalidArgumentError also for a Spark DataFrame.
    """
    rows = typed_rows(read_rows(given, subject), convert)
    if not isinstance(rows, ArrowRows):
        raise InvalidArgumentError(
            f"{subject} must be in this process, not in {type(given).__name__}; pass toArrow()"
        )
    return rows.read_all()


def is_frame(rows: Any) -> bool:
    """Return whether the value is a table of rows, and not a list of lists of elements."""
    return is_spark(rows) or _is_lazy(rows) or hasattr(rows, "__arrow_c_stream__")


def is_schema(rows: Any) -> bool:
    """Return whether the value is an Arrow schema, which declares rows that others provide."""
    return isinstance(rows, pa.Schema)


def rows_on_driver(rows: Any, subject: str = ROWS) -> pa.Table:
    """Collect few rows as an Arrow table in this process, wherever they are."""
    if is_spark(rows):
        table: pa.Table = spark_module("state_writer").collect(rows)
        return table
    return as_table(rows, subject)


def rereadable(rows: Any) -> Any:
    """Return rows unchanged if they can be read again; otherwise as a list or an Arrow table.

    An iterator becomes a list, record batches become a table, and a lazy Polars DataFrame is
    computed. Rows with the Arrow interface are returned unchanged. Raises InvalidArgumentError
    for an iterator that was already read.
    """
    if isinstance(rows, Iterator) and not hasattr(rows, "__arrow_c_stream__"):
        _claim_stream(rows)
        rows = list(rows)
    if isinstance(rows, tuple):
        rows = list(rows)
    if isinstance(rows, list) and rows and all(isinstance(row, pa.RecordBatch) for row in rows):
        return _concat_batches(rows)
    return rows.collect() if _is_lazy(rows) else rows


def _read_table(rows: Any, subject: str) -> pa.Table:
    """Return a schema, a table or rows with the Arrow interface as a checked table."""
    if is_schema(rows):
        rows = rows.empty_table()
    elif not isinstance(rows, pa.Table):
        if not hasattr(rows, "__arrow_c_stream__"):
            raise InvalidArgumentError(_wrong_rows(rows, subject))
        if isinstance(rows, Iterator):
            _claim_stream(rows)
        with _report_conversion_errors(rows, subject):
            rows = pa.table(rows)
    refuse_repeated_names(rows.schema.names, subject)
    refuse_invalid_values(rows, subject)  # before anything is computed, which could crash
    return _without_empty_chunks(rows)


def _wrong_rows(rows: Any, subject: str) -> str:
    """Return why rows have no supported form; for a list, name the first wrong row."""
    forms = (
        "rows must be a Spark DataFrame, an Arrow table, a pandas, Polars or DuckDB frame, or a "
        "list of dictionaries"
    )
    if not isinstance(rows, list):
        return f"{forms}, not {type(rows).__name__} ({subject})"
    batches = isinstance(rows[0], pa.RecordBatch)
    expected, form = (pa.RecordBatch, "a record batch") if batches else (Mapping, "a dictionary")
    index, row = next(
        (index, row) for index, row in enumerate(rows) if not isinstance(row, expected)
    )
    return f"{row_place(index)} of {subject} is of type {type(row).__name__}, not {form}: {forms}"


def _streamed(rows: Any, subject: str, most_bytes: int) -> Any:
    """Return a stream as ArrowRows, which are a table if it has at most ``most_bytes``.

    An iterator of anything but record batches becomes a list. Other rows are returned unchanged.

    Raises InvalidArgumentError for a stream that was already read, or that fails, and
    SchemaMismatchError for batches with different columns. An error of the caller's own iterator is
    raised unchanged.
    """
    if is_pandas(rows) or _is_lazy(rows):
        return rows
    if hasattr(rows, "__arrow_c_stream__"):
        if isinstance(rows, Iterator):
            _claim_stream(rows)
        with _report_conversion_errors(rows, subject):
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
    refuse_repeated_names(schema.names, subject)
    fitting = fit_or_stream(_valid_tables(tables, subject), most_bytes)
    if not isinstance(fitting, list):
        return ArrowRows(schema, fitting)
    table = pa.concat_tables(fitting) if fitting else schema.empty_table()
    return ArrowRows.of(_without_empty_chunks(table))


def _valid_tables(tables: Iterable[pa.Table], subject: str) -> Iterator[pa.Table]:
    first_row = 0
    for table in tables:
        refuse_invalid_values(table, subject, first_row=first_row)
        first_row += table.num_rows
        yield table


def _tables_of(reader: pa.RecordBatchReader, rows: Any, subject: str) -> Iterator[pa.Table]:
    while True:
        with _report_conversion_errors(rows, subject):
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
def _report_conversion_errors(rows: Any, subject: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"cannot convert {type(rows).__name__} to Arrow ({subject}): {error}"
        ) from error


def _is_lazy(rows: Any) -> bool:
    """Return whether the value is a lazy Polars DataFrame, which must be computed first."""
    rows_type = type(rows)
    return rows_type.__module__.startswith("polars.") and rows_type.__name__ == "LazyFrame"


def _without_empty_chunks(rows: pa.Table) -> pa.Table:
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
