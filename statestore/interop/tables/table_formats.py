"""Open a Parquet file or folder, a Delta table, or a CSV file."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError, DeltaProtocolError
from pyarrow.dataset import Fragment, get_partition_keys

from statestore.delta.backend import error_text
from statestore.delta.log_entry import missing_part
from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError, StorageError
from statestore.interop.tables.csv_reader import read_csv
from statestore.interop.tables.source_table import SourceTable, convert_text, schema_text
from statestore.sources.table_files import (
    TableFiles,
    find_table,
    open_delta_table,
    parquet_bytes,
)
from statestore.storage import Storage

__all__ = ["FORMATS", "open_table"]

FORMATS = ("parquet", "delta", "csv")
"""The formats of tables that can be opened by their place."""

_BATCH_ROWS = 8192
_BUFFER_BYTES = 2**20
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
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
        table = _open_delta(place, files.storage)
    elif file_format == "csv":
        table = _open_csv(place, files)
    else:
        table = _open_parquet(place, files)
    return convert_text(table, types or {})


def _guess_format(files: TableFiles) -> str:
    if files.is_delta:
        return "delta"
    return "csv" if all(name.lower().endswith(_CSV) for name in files.names) else "parquet"


def _open_parquet(place: str, files: TableFiles) -> SourceTable:
    """Open Parquet files, which must have the same columns, and columns of their folders."""
    storage, names = files.storage, files.names
    schema: pa.Schema | None = None
    rows = 0
    for name in names:
        parquet_bytes(storage, name)
        with _parquet_file(storage, name) as file:
            own = _with_folders(file.schema_arrow.remove_metadata(), name)
            rows += file.metadata.num_rows
        schema = schema or own
        if not own.equals(schema):
            raise InvalidArgumentError(
                f"{storage.url}/{name} has other columns than {names[0]}: ({schema_text(own)}) "
                f'instead of ({schema_text(schema)}). Read them with a query: --sql "SELECT * '
                "FROM read_parquet('…', union_by_name = true)\""
            )
    assert schema is not None, "there is at least one file"

    def read() -> Iterator[pa.RecordBatch]:
        for name in names:
            with _parquet_file(storage, name) as file:
                for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                    yield _add_folders(batch, name)

    return SourceTable(place, schema, read, rows, untyped=tuple(_folders(names[0])))


def _parquet_stream(source: Any) -> pq.ParquetFile:
    """Return a file whose row groups, which can have any size, are read through a buffer."""
    return pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)


@contextmanager
def _parquet_file(storage: Storage, name: str) -> Iterator[pq.ParquetFile]:
    where = f"{storage.url}/{name}"
    try:
        with storage.open_read(name) as source, _parquet_stream(source) as file:
            yield file
    except FileNotFoundError:
        raise NotFoundError(f"{where} does not exist: it was deleted while it was read") from None
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{where} cannot be read as a Parquet file: {error}") from error


def _folders(name: str) -> dict[str, str | None]:
    """Return the columns in the names of a file's folders, such as ``day=2026-01-02``."""
    pairs = (part.partition("=") for part in name.split("/")[:-1] if "=" in part)
    return {
        unquote(column): None if value == _NULL_PARTITION else unquote(value)
        for column, _, value in pairs
    }


def _with_folders(schema: pa.Schema, name: str) -> pa.Schema:
    for column in _folders(name):
        schema = schema.append(pa.field(column, pa.string()))
    return schema


def _add_folders(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    schema = _with_folders(batch.schema.remove_metadata(), name)
    values = _folders(name).values()
    added = [pa.array([value] * batch.num_rows, pa.string()) for value in values]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)


def _open_delta(place: str, storage: Storage) -> SourceTable:
    table = open_delta_table(storage)
    with _reading_delta(place, storage):
        dataset = table.to_pyarrow_dataset()
        schema, rows = dataset.schema.remove_metadata(), dataset.count_rows()
        missing = missing_part(table.metadata().description)

    def read() -> Iterator[pa.RecordBatch]:
        with _reading_delta(place, storage):
            for fragment in dataset.get_fragments():
                with fragment.open() as source, _parquet_stream(source) as file:
                    for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                        yield _add_partition(batch, fragment, schema)

    return SourceTable(place, schema, read, rows, missing)


def _add_partition(batch: pa.RecordBatch, fragment: Fragment, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a file with the columns of the table, which the file may lack."""
    values = get_partition_keys(fragment.partition_expression)
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in batch.schema.names
        else pa.repeat(pa.scalar(values.get(field.name), field.type), batch.num_rows)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _reading_delta(place: str, storage: Storage) -> Iterator[None]:
    try:
        yield
    except DeltaProtocolError as error:
        raise InvalidArgumentError(
            f"{place} uses a feature of Delta that cannot be read here: "
            f"{error_text(error, storage)}. Read it with a query (--sql), or pass a DataFrame of "
            "Spark in Python"
        ) from error
    except (DeltaError, pa.ArrowInvalid) as error:
        raise CorruptionError(
            f"{place} cannot be read as a Delta table: {error_text(error, storage)}"
        ) from error
    except OSError as error:  # a file is missing or damaged, or the service does not answer
        raise StorageError(f"cannot read {place}: {error_text(error, storage)}") from error


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
