"""Open the result of a query of DuckDB, which may read files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError
from statestore.interop.tables.source_table import SourceTable, convert_text
from statestore.restore.duck import (
    duckdb,
    error_text,
    is_select,
    run_interruptibly,
    with_arrow_types,
)

_BATCH_ROWS = 8192
_SETTINGS = ("SET TimeZone = 'UTC'", "SET preserve_insertion_order = false")


def open_query(sql: str, *, types: Mapping[str, str] | None = None) -> SourceTable:
    """Return the result of a SELECT of DuckDB, which may read files, as a table.

    The query runs each time its rows are read. It can do whatever DuckDB can do in this process.

    Args:
        sql: the statement.
        types: types of columns of text, as in :func:`open_table`.

    Returns:
        The table.

    Raises:
        InvalidArgumentError: if it is not a single SELECT, or fails.
        MissingDependencyError: if DuckDB is not installed.
    """
    library = duckdb()

    def read() -> Iterator[pa.RecordBatch]:
        with _running(sql), closing(library.connect()) as connection:
            rows = run_interruptibly(
                lambda: _result(library, connection, sql).to_arrow_reader(_BATCH_ROWS),
                connection.interrupt,
            )
            next_batch = partial(next, rows, None)
            while (batch := run_interruptibly(next_batch, connection.interrupt)) is not None:
                yield batch

    with _running(sql), closing(library.connect()) as connection:
        schema = _result(library, connection, sql).limit(0).to_arrow_table().schema
    return convert_text(SourceTable(f"the query {sql!r:.200}", schema, read), types or {})


def _result(library: Any, connection: Any, sql: str) -> Any:
    for setting in _SETTINGS:
        connection.execute(setting)
    if not is_select(library, connection, sql):
        raise InvalidArgumentError(f"{sql!r:.200} is not a single SELECT: pass one SELECT")
    return with_arrow_types(connection.sql(sql.rstrip().rstrip(";")))


@contextmanager
def _running(sql: str) -> Iterator[None]:
    library = duckdb()
    try:
        yield
    except (library.Error, pa.ArrowException) as error:
        raise InvalidArgumentError(f"cannot run {sql!r:.200}: {error_text(error)}") from error
