"""Open a Parquet file or folder, a Delta table, a CSV file, or the result of a query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, DeltaProtocolError

from statestore.delta.backend import error_text as delta_error_text
from statestore.delta.backend import refuse_escaped
from statestore.delta.log_entry import missing_part
from statestore.delta.process_check import refuse_forked
from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.interop.tables.source import SourceTable, convert_text
from statestore.restore.duck import duckdb, error_text, with_arrow_types
from statestore.storage import Storage, open_storage

__all__ = ["FORMATS", "open_query", "open_table"]

FORMATS = ("parquet", "delta", "csv")
"""The formats of tables that can be opened by their place."""

_BATCH_ROWS = 65_536
_CSV_BLOCK_BYTES = 8 * 2**20
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_QUERY_SETTINGS = ("SET TimeZone = 'UTC'", "SET preserve_insertion_order = false")


def open_table(
    place: str,
    *,
    file_format: str | None = None,
    types: Mapping[str, str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SourceTable:
    """Open a table at a path or URL; only its schema is read.

    Columns of a CSV file, and columns in the names of folders (``day=2026-01-02``), are text unless
    ``types`` says otherwise. In a CSV file, an empty value without quotes is null.

    Args:
        place: a Parquet or CSV file, a folder of Parquet files, or a Delta table.
        file_format: ``parquet``, ``delta`` or ``csv``; by default it follows from the place.
        types: types of columns of text, in Delta's notation, such as ``{"total": "long"}``.
        storage_options: options for the service's fsspec file system.

    Returns:
        The table.

    Raises:
        NotFoundError: there is nothing at ``place``.
        InvalidArgumentError: for another format, for files with different columns, and for types
            that do not fit.
        CorruptionError: if a file or a Delta log cannot be read.
        StorageError: if reading fails.
    """
    if file_format not in (None, *FORMATS):
        raise InvalidArgumentError(
            f"unknown format {file_format!r}; the formats are {', '.join(FORMATS)}"
        )
    storage, names = _list_files(place, storage_options)
    if file_format is None:
        file_format = _guess_format(names)
    if file_format == "delta":
        table = _open_delta(place, storage)
    elif file_format == "csv":
        table = _open_csv(place, storage, names)
    else:
        table = _open_parquet(place, storage, _data_files(place, names))
    return convert_text(table, types or {})


def open_query(sql: str, *, types: Mapping[str, str] | None = None) -> SourceTable:
    """Return the result of a SELECT of DuckDB, which may read files, as a table.

    It runs each time when its rows are read. It can do whatever DuckDB can do in this process.

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
            yield from _result(library, connection, sql).to_arrow_reader(_BATCH_ROWS)

    with _running(sql), closing(library.connect()) as connection:
        schema = _result(library, connection, sql).limit(0).to_arrow_table().schema
    return convert_text(SourceTable(f"the query {sql!r:.200}", schema, read), types or {})


def _result(library: Any, connection: Any, sql: str) -> Any:
    for setting in _QUERY_SETTINGS:
        connection.execute(setting)
    statements = connection.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != library.StatementType.SELECT:
        raise InvalidArgumentError(f"{sql!r:.200} is not a single SELECT")
    return with_arrow_types(connection.sql(sql.rstrip().rstrip(";")))


@contextmanager
def _running(sql: str) -> Iterator[None]:
    library = duckdb()
    try:
        yield
    except (library.Error, pa.ArrowException) as error:
        raise InvalidArgumentError(f"cannot run {sql!r:.200}: {error_text(error)}") from error


def _list_files(place: str, options: Mapping[str, Any] | None) -> tuple[Storage, tuple[str, ...]]:
    """Return the storage and the names in it: of the files in a folder, or of a single file."""
    storage = open_storage(place, options)
    path = storage.native_path("")
    if path is None or Path(path).is_dir():
        names = tuple(sorted(storage.list("")))
        if names:
            return storage, names
        if path is not None:
            raise _missing_error(place)
    elif not Path(path).exists():
        raise _missing_error(place)
    folder, _, name = storage.url.rpartition("/")
    if not name or folder.endswith(":/"):  # a bucket, and nothing in it
        raise _missing_error(place)
    storage = open_storage(folder or "/", options)
    try:
        storage.open_read(name).close()
    except (FileNotFoundError, IsADirectoryError):
        raise _missing_error(place) from None
    return storage, (name,)


def _missing_error(place: str) -> NotFoundError:
    return NotFoundError(f"there is no table at {place}: check the path")


def _guess_format(names: Sequence[str]) -> str:
    if any(name.startswith("_delta_log/") for name in names):
        return "delta"
    return (
        "csv" if len(names) == 1 and names[0].lower().endswith((".csv", ".csv.gz")) else "parquet"
    )


def _data_files(place: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the files that Spark reads as data, by their names and those of their folders."""
    data = tuple(
        name
        for name in names
        if not any(
            part.startswith(".") or (part.startswith("_") and "=" not in part)
            for part in name.split("/")
        )
    )
    if not data:
        raise InvalidArgumentError(
            f"{place} contains no data files: name a folder of Parquet files"
        )
    return data


def _open_parquet(place: str, storage: Storage, names: tuple[str, ...]) -> SourceTable:
    """Open Parquet files, which must have the same columns, and columns of their folders."""
    schema: pa.Schema | None = None
    rows = 0
    for name in names:
        with _parquet_file(storage, name) as file:
            own = _with_folders(file.schema_arrow.remove_metadata(), name)
            rows += file.metadata.num_rows
        schema = schema or own
        if not own.equals(schema):
            raise InvalidArgumentError(
                f"{storage.url}/{name} has other columns than {names[0]}: ({_schema_text(own)}) "
                f'instead of ({_schema_text(schema)}). Read them with a query: --sql "SELECT * '
                "FROM read_parquet('…', union_by_name = true)\""
            )
    assert schema is not None, "there is at least one file"

    def read() -> Iterator[pa.RecordBatch]:
        for name in names:
            with _parquet_file(storage, name) as file:
                for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                    yield _add_folders(batch, name, schema)

    return SourceTable(place, schema, read, rows)


@contextmanager
def _parquet_file(storage: Storage, name: str) -> Iterator[pq.ParquetFile]:
    where = f"{storage.url}/{name}"
    try:
        with storage.open_read(name) as source, pq.ParquetFile(source) as file:
            yield file
    except FileNotFoundError:
        raise NotFoundError(f"{where} does not exist: it was deleted while it was read") from None
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{where} cannot be read as a Parquet file: {error}") from error


def _schema_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


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


def _add_folders(batch: pa.RecordBatch, name: str, schema: pa.Schema) -> pa.RecordBatch:
    values = _folders(name).values()
    added = [pa.array([value] * batch.num_rows, pa.string()) for value in values]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=schema)


def _open_delta(place: str, storage: Storage) -> SourceTable:
    refuse_escaped(storage.url, "choose a path of the table without these characters")
    refuse_forked(storage.url)
    with _reading_delta(place, storage):
        table = DeltaTable(storage.url, storage_options=storage.delta_options())
        dataset = table.to_pyarrow_dataset()
        rows = dataset.count_rows()
        missing = missing_part(table.metadata().description)

    def read() -> Iterator[pa.RecordBatch]:
        with _reading_delta(place, storage):
            # One file and few batches ahead, because memory is bounded by buffers.
            yield from dataset.to_batches(
                batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1
            )

    return SourceTable(place, dataset.schema.remove_metadata(), read, rows, missing)


@contextmanager
def _reading_delta(place: str, storage: Storage) -> Iterator[None]:
    try:
        yield
    except DeltaProtocolError as error:
        raise InvalidArgumentError(
            f"{place} uses a feature of Delta that cannot be read here: "
            f"{delta_error_text(error, storage)}. Read it with a query (--sql), or pass a "
            "DataFrame of Spark in Python"
        ) from error
    except (DeltaError, pa.ArrowException, OSError) as error:
        raise CorruptionError(
            f"{place} cannot be read as a Delta table: {delta_error_text(error, storage)}"
        ) from error


def _open_csv(place: str, storage: Storage, names: tuple[str, ...]) -> SourceTable:
    if len(names) != 1:
        raise InvalidArgumentError(
            f"{place} is a folder: name one CSV file, or read several with a query, as --sql "
            "\"SELECT * FROM read_csv('…/*.csv', all_varchar = true)\""
        )
    (name,) = names
    with _csv_reader(place, storage, name) as reader:
        header = reader.schema

    def read() -> Iterator[pa.RecordBatch]:
        with _csv_reader(place, storage, name, header.names) as reader:
            yield from reader

    return SourceTable(place, pa.schema([(column, pa.string()) for column in header.names]), read)


@contextmanager
def _csv_reader(
    place: str, storage: Storage, name: str, columns: Sequence[str] = ()
) -> Iterator[pc_csv.CSVStreamingReader]:
    """Yield a reader that keeps the columns as text; without them, only the header is of use."""
    options = pc_csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()),
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    blocks = pc_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES, use_threads=False)
    parse = pc_csv.ParseOptions(newlines_in_values=True)
    compression = "gzip" if name.lower().endswith(".gz") else None
    try:
        with storage.open_read(name) as source, pa.input_stream(source, compression) as file:
            yield pc_csv.open_csv(
                file, read_options=blocks, parse_options=parse, convert_options=options
            )
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(f"{place} cannot be read as CSV: {error}") from error
