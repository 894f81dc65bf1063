"""Prepares rows from callers so that they can be read again.

A stream can be read only once: an Arrow reader, or a generator of batches or dictionaries. If its
columns were inspected first, its rows would be silently lost for the writer. A stream that fits in
memory becomes a table. A longer one stays a stream, :class:`StreamedRows`, which is written while
it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.rows.fitting_tables import fit_or_stream
from statestore.rows.pandas_rows import is_pandas, table_of_pandas
from statestore.rows.valid_values import refuse_invalid_values

__all__ = [
    "StreamedRows",
    "is_dicts",
    "is_lazy",
    "read_stream",
    "rereadable",
    "streamed",
    "without_empty_chunks",
]


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
    fitting = fit_or_stream(_valid_tables(tables, subject), most_bytes)
    if not isinstance(fitting, list):
        return StreamedRows(schema, fitting)
    return pa.concat_tables(fitting) if fitting else schema.empty_table()


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
    with _report_conversion_errors(rows, subject):
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
