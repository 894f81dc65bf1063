"""Open Parquet files, and read them without changing a value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from statestore.errors import CorruptionError, InvalidArgumentError, NotFoundError
from statestore.interop.tables.source_table import QUERY_HINT, SourceTable, schema_text
from statestore.sources.table_files import TableFiles, parquet_bytes
from statestore.storage import Storage

_BATCH_ROWS = 8192
_BUFFER_BYTES = 2**20
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def open_parquet(place: str, files: TableFiles) -> SourceTable:
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
                f'instead of ({schema_text(schema)}). Read them with {QUERY_HINT}: "SELECT * '
                "FROM read_parquet('…', union_by_name = true)\""
            )
    assert schema is not None, "there is at least one file"

    def read() -> Iterator[pa.RecordBatch]:
        for name in names:
            for batch in read_parquet(storage, name):
                yield _add_folders(batch, name)

    return SourceTable(place, schema, read, rows, untyped=tuple(_folders(names[0])))


def read_parquet(storage: Storage, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file.

    INT96 is read as microseconds, because nanoseconds would wrap around outside of 1677 to 2262. A
    second reader of nanoseconds, which may wrap around, shows if a value has more digits.

    Raises InvalidArgumentError for such a value.
    """
    with _parquet_file(storage, name) as file:
        batches = file.iter_batches(_BATCH_ROWS, use_threads=False)
        leaves = map(file.schema.column, range(len(file.schema)))
        if all(leaf.physical_type != "INT96" for leaf in leaves):
            yield from batches
            return
        with _parquet_file(storage, name, "ns") as exact:
            nanos = exact.iter_batches(_BATCH_ROWS, use_threads=False)
            for batch, other in zip(batches, nanos, strict=True):
                if not all(map(_is_exact, _times(batch), _times(other))):
                    raise InvalidArgumentError(
                        f"{storage.url}/{name} has times (INT96) that are not whole microseconds: "
                        f"round them in {QUERY_HINT}"
                    )
                yield batch


def _times(array: pa.Array | pa.RecordBatch) -> Iterator[pa.Array]:
    """Yield the columns of timestamps in rows, or in nested values."""
    types = pa.types
    if isinstance(array, pa.RecordBatch):
        children = array.columns
    elif types.is_map(array.type):
        children = [array.keys, array.items]
    elif types.is_nested(array.type):
        children = array.flatten() if types.is_struct(array.type) else [array.flatten()]
    else:
        children = []
        if types.is_timestamp(array.type):
            yield array
    for child in children:
        yield from _times(child)


def _is_exact(times: pa.Array, nanos: pa.Array) -> bool:
    """Return whether times in microseconds are equal to nanoseconds, modulo 2 to the power 64."""
    if times.type == nanos.type:  # no INT96
        return True
    micros = times.cast(pa.int64())
    return bool(pc.multiply(micros, 1000).equals(nanos.cast(pa.int64())))


@contextmanager
def _parquet_file(storage: Storage, name: str, int96_unit: str = "us") -> Iterator[pq.ParquetFile]:
    """Open a file whose row groups, which can have any size, are read through a buffer."""
    where = f"{storage.url}/{name}"
    try:
        with (
            storage.open_read(name) as source,
            pq.ParquetFile(
                source,
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                coerce_int96_timestamp_unit=int96_unit,
            ) as file,
        ):
            yield file
    except FileNotFoundError:
        raise NotFoundError(f"{where} does not exist: it was deleted while it was read") from None
    except (pa.ArrowException, OSError) as error:
        if "crypt" in str(error):
            raise InvalidArgumentError(
                f"{where} is encrypted: decrypt it with Spark, and pass a DataFrame or a copy"
            ) from error
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
