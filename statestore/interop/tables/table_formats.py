"""Open a Parquet file or folder, a Delta table, a CSV file, or the result of a query of DuckDB."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError, NotFoundError, StorageError
from statestore.interop.tables.csv_reader import read_csv
from statestore.interop.tables.delta_tables import open_delta
from statestore.interop.tables.parquet_files import open_parquet
from statestore.interop.tables.source_table import QUERY_HINT, SourceTable, convert_text
from statestore.restore.duck import (
    duckdb,
    error_text,
    is_select,
    run_interruptibly,
    with_arrow_types,
)
from statestore.sources.table_files import TableFiles, find_table

FORMATS = ("parquet", "delta", "csv")
"""The formats of tables that can be opened by their place."""

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_CSV = (".csv", *(f".csv{suffix}" for suffix in _CODECS))

_BATCH_ROWS = 8192
_SETTINGS = ("SET TimeZone = 'UTC'", "SET preserve_insertion_order = false")


def open_table(
    place: str,
    *,
    file_format: str | None = None,
    types: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SourceTable:
    """Open a table at a path or URL; only its schema is read.

    Columns of a CSV file, and columns in the names of folders (``day=2026-01-02``), are text unless
    ``types`` says otherwise. In a CSV file, an empty value without quotes is null. The file can be
    compressed with gzip, bzip2 or Zstandard.

    Args:
        place: a Parquet or CSV file, a folder of Parquet files, or a Delta table.
        file_format: ``parquet``, ``delta`` or ``csv``; by default it follows from the place.
        types: types of columns of text, in Delta's notation, such as ``{"total": "long"}``.
        storage_options: options for the service's fsspec file system.

    Returns:
        The table.

    Raises:
        NotFoundError: there is nothing at ``place``.
        InvalidArgumentError: for another format, for a file that is not Parquet or not CSV, for
            files with different columns, and for types that do not fit.
        CorruptionError: if a Parquet file or a Delta log cannot be read.
        StorageError: if reading fails.
    """
    if file_format not in (None, *FORMATS):
        raise InvalidArgumentError(
            f"unknown format {file_format!r}; the formats are {', '.join(FORMATS)}"
        )
    files = find_table(place, storage_options)
    if file_format is None:
        file_format = _guess_format(files)
    if file_format == "delta":
        table = open_delta(place, files.storage)
    elif files.is_delta or files.log is not None:
        log = files.log or f"{files.storage.url}/_delta_log"
        raise InvalidArgumentError(
            f"{place} cannot be read as {file_format}: {log} says which files are current (Delta, "
            "Iceberg, Hudi, a streaming query of Spark, or a store). Name the folder of the Delta "
            f"table, or read the table with Spark or {QUERY_HINT}"
        )
    elif file_format == "csv":
        table = _open_csv(place, files)
    else:
        table = open_parquet(place, files)
    return convert_text(table, types or {})


def _guess_format(files: TableFiles) -> str:
    if files.is_delta:
        return "delta"
    return "csv" if all(name.lower().endswith(_CSV) for name in files.names) else "parquet"


def _open_csv(place: str, files: TableFiles) -> SourceTable:
    storage = files.storage
    if len(files.names) != 1:
        raise InvalidArgumentError(
            f"{place} is a folder: name one CSV file, or read several with {QUERY_HINT}: "
            "\"SELECT * FROM read_csv('…/*.csv', all_varchar = true)\""
        )
    (name,) = files.names
    codec = _CODECS.get(Path(name.lower()).suffix)

    def read() -> Generator[pa.RecordBatch, None, None]:
        try:
            with storage.open_read(name) as source, pa.input_stream(source, codec) as file:
                yield from read_csv(file, place)
        except FileNotFoundError:
            raise NotFoundError(f"{place} does not exist: check the path") from None
        except OSError as error:
            if codec is None or error.errno is not None:
                raise StorageError(f"cannot read {place}: {error}") from error
            raise InvalidArgumentError(
                f"{place} is not a complete {codec} file: {error}. Copy it again"
            ) from error

    with closing(read()) as batches:
        schema = next(batches).schema
    return SourceTable(place, schema, read, untyped=tuple(schema.names))


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
