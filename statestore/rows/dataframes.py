"""Converts results to pandas or Polars DataFrames, for any class with ``to_arrow()``.

A class gets both conversions with ``to_pandas, to_polars = as_pandas, as_polars``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.extras import needs_extra

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class Tabular(Protocol):
    """A result that can be returned as an Arrow table."""

    def to_arrow(self) -> pa.Table:
        """Return the result as an Arrow table."""


def as_pandas(result: Tabular) -> pd.DataFrame:
    """Return the result of ``to_arrow()`` as a pandas DataFrame.

    Its columns are ``pandas.ArrowDtype``: a long next to a null stays a long, and null is not NaN.

    Raises:
        MissingDependencyError: without pandas.
    """
    return pandas_of(result.to_arrow())


def as_polars(result: Tabular) -> pl.DataFrame:
    """Return the result of ``to_arrow()`` as a Polars DataFrame.

    Raises:
        MissingDependencyError: without Polars.
    """
    return polars_of(result.to_arrow())


def pandas_of(table: pa.Table) -> pd.DataFrame:
    """Return a table as :func:`as_pandas` does."""
    with needs_extra("pandas", "to_pandas()"):
        import pandas as pd
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def polars_of(table: pa.Table) -> pl.DataFrame:
    """Return a table as :func:`as_polars` does."""
    with needs_extra("polars", "to_polars()"):
        import polars as pl
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)  # of a table
    return frame


def table_of(columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Return rows as a table; ``columns`` has the columns' types as Arrow's short names."""
    schema = pa.schema([(name, pa.type_for_alias(alias)) for name, alias in columns.items()])
    values = [*zip(*rows, strict=True)] or [()] * len(columns)
    arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.table(arrays, schema=schema)


_READ_METHODS = frozenset({"read_all", "read_pandas"})


class RowStream:
    """Rows as a stream of Arrow batches.

    It has all methods of a ``pyarrow.RecordBatchReader``, and can return the remaining rows as one
    DataFrame. Rows are read on demand, once. Every function that takes an Arrow stream accepts it.
    When all rows were read, another read raises InvalidArgumentError, because it would return
    nothing.
    """

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        """Take the reader."""
        self._ends: list[None] = []
        self._reader = pa.RecordBatchReader.from_batches(
            reader.schema, _note_end(reader, self._ends)
        )

    def to_arrow(self) -> pa.Table:
        """Return the remaining rows as one table."""
        return self._unread().read_all()

    def to_batches(self) -> pa.RecordBatchReader:
        """Return the remaining rows as a stream of Arrow batches."""
        return self._unread()

    to_pandas = as_pandas
    to_polars = as_polars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._unread() if name in _READ_METHODS else self._reader, name)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._unread())

    def __enter__(self) -> RowStream:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._unread().__arrow_c_stream__(requested_schema)

    def _unread(self) -> pa.RecordBatchReader:
        if self._ends:
            raise InvalidArgumentError(
                "all rows of this result were already read, and they can be read only once: keep "
                "them with rows = result.to_arrow(), or request the result again"
            )
        return self._reader


def _note_end(reader: pa.RecordBatchReader, ends: list[None]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a reader, and append to ``ends`` after the last one."""
    yield from reader
    ends.append(None)
