"""Rows as callers give them, turned once into what can be read again.

A stream can be read once: an Arrow reader, a generator of batches or of dictionaries. Whoever looks
at its columns first would have no rows to write then, and nobody would be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.table.pandas_frames import is_pandas, table_of_pandas

__all__ = ["is_dicts", "is_lazy", "read_stream", "settled", "without_empty_chunks"]

_read: WeakSet[Any] = WeakSet()
"""Streams that gave us their rows: given again, they would be taken for no rows at all."""


def settled(rows: Any) -> Any:
    """Return rows as they are if they can be read again, else a list or an Arrow table of them.

    An iterator becomes the list of what it yields, record batches become a table, and a lazy Polars
    frame is computed. What speaks Arrow is left to :func:`read_stream`. InvalidArgumentError for an
    iterator that was read before.
    """
    if isinstance(rows, Iterator) and not hasattr(rows, "__arrow_c_stream__"):
        _mark_read(rows)
        rows = list(rows)
    if isinstance(rows, tuple):
        rows = list(rows)
    if isinstance(rows, list) and rows and all(isinstance(one, pa.RecordBatch) for one in rows):
        return _joined(rows)
    return rows.collect() if is_lazy(rows) else rows


def is_lazy(rows: Any) -> bool:
    """Return whether the value is a lazy Polars frame, which speaks Arrow once it is computed."""
    kind = type(rows)
    return kind.__module__.startswith("polars.") and kind.__name__ == "LazyFrame"


def read_stream(rows: Any, subject: str) -> pa.Table:
    """Return the rows of what speaks Arrow as a table; pandas' as :mod:`pandas_frames` reads them.

    InvalidArgumentError for a stream that was read before, or that fails.
    """
    if isinstance(rows, Iterator):
        _mark_read(rows)
    if is_pandas(rows):
        return table_of_pandas(rows, subject)
    try:
        return pa.table(rows)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{type(rows).__name__} cannot be read as Arrow ({subject}): {error}"
        ) from error


def without_empty_chunks(rows: pa.Table) -> pa.Table:
    """Return rows without chunks that have none of them: Arrow cannot join the empty batches of a
    sliced stream, which begin behind the end of their buffers.
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


def _mark_read(stream: Any) -> None:
    try:
        if stream in _read:
            raise InvalidArgumentError(
                f"this {type(stream).__name__} was read before, and a stream has its rows once; "
                "make a new one, or give its rows as an Arrow table"
            )
        _read.add(stream)
    except TypeError:
        return  # some iterators, of a list for one, leave no trace


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    try:
        return pa.Table.from_batches(batches)
    except pa.ArrowInvalid as error:
        raise SchemaMismatchError(
            f"the batches do not have the same columns: {error}; give all of them one schema"
        ) from error
