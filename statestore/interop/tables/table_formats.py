"""Open a Parquet file or folder, a Delta table, or a CSV file."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore.errors import InvalidArgumentError, NotFoundError, StorageError
from statestore.interop.tables.csv_reader import read_csv
from statestore.interop.tables.delta_tables import open_delta
from statestore.interop.tables.parquet_files import open_parquet
from statestore.interop.tables.source_table import SourceTable, convert_text
from statestore.sources.table_files import TableFiles, find_table

FORMATS = ("parquet", "delta", "csv")
"""The formats of tables that can be opened by their place."""

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_CSV = (".csv", *(f".csv{suffix}" for suffix in _CODECS))


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
            "table without --format, or read the table with Spark or a query (--sql)"
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
            f"{place} is a folder: name one CSV file, or read several with a query, as --sql "
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
