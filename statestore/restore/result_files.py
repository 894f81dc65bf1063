"""Write the rows of a query as CSV, JSON, Parquet or Arrow, to a file or a stream.

Rows are written as they arrive: a result of any size needs the memory of one batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from statestore.errors import InvalidArgumentError
from statestore.restore.output_file import output_file
from statestore.restore.row_files import json_value
from statestore.rows.python_values import display_values

__all__ = ["RESULT_FORMATS", "write_result"]

_QUOTED = frozenset('",\r\n\ufeff')
"""A value with one of them is quoted. At the start of a file, U+FEFF is a byte order mark."""


def write_result(answer: pa.RecordBatchReader, form: str, to: Path | IO[bytes], limit: int) -> int:
    """Write the rows of an answer to a new file, or to a stream; return their number.

    ``limit`` is the maximum number of rows; 0 for all. Raises InvalidArgumentError if the place of
    the file is invalid, or for a result that the format cannot have; StorageError if the file
    cannot be written.
    """
    _refuse_equal_names(answer.schema.names, form)
    rows = pa.RecordBatchReader.from_batches(answer.schema, _limited(answer, limit))
    if not isinstance(to, Path):
        return _WRITERS[form](rows, to)
    with output_file(to, replace=False) as file:
        return _WRITERS[form](rows, file)


def _refuse_equal_names(names: list[str], form: str) -> None:
    """Refuse equal names of columns, except for CSV: readers find columns by their names."""
    repeated = next((name for index, name in enumerate(names) if name in names[:index]), None)
    if form != "csv" and repeated is not None:
        raise InvalidArgumentError(
            f"two columns of the result have the name {repeated!r}, and readers of {form} need "
            "different names: rename one with AS"
        )


def _limited(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        yield batch.slice(0, left) if limit else batch
        left -= batch.num_rows
        if limit and left <= 0:
            return


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        columns = [display_values(column, of_duckdb=True) for column in batch.columns]
        yield from zip(*columns, strict=True)


def _write_csv(answer: pa.RecordBatchReader, file: IO[bytes]) -> int:
    """Write CSV with a header (RFC 4180); null is an empty field, and an empty text is ``""``."""
    file.write(_csv_line(answer.schema.names))
    count = 0
    for row in _rows(answer):
        file.write(_csv_line(map(_text, row)))
        count += 1
    return count


def _csv_line(values: Iterable[str | None]) -> bytes:
    return f"{','.join(map(_csv_field, values))}\n".encode()


def _text(value: Any) -> str | None:
    plain = json_value(value)
    if plain is None or isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)


def _csv_field(value: str | None) -> str:
    if value is None:
        return ""
    if value and not _QUOTED.intersection(value):
        return value
    doubled = value.replace('"', '""')
    return f'"{doubled}"'


def _write_json(answer: pa.RecordBatchReader, file: IO[bytes]) -> int:
    """Write a list with an object for each row."""
    names = answer.schema.names
    count = 0
    file.write(b"[")
    for row in _rows(answer):
        document = {name: json_value(value) for name, value in zip(names, row, strict=True)}
        separator = b",\n " if count else b""
        file.write(separator + json.dumps(document, ensure_ascii=False).encode())
        count += 1
    file.write(b"]\n")
    return count


def _write_parquet(answer: pa.RecordBatchReader, file: IO[bytes]) -> int:
    try:
        with pq.ParquetWriter(file, answer.schema, compression="zstd") as writer:
            return _write_batches(answer, writer.write_batch)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InvalidArgumentError(
            f"Parquet cannot hold the result: {error}; choose another format, or cast the columns"
        ) from error


def _write_arrow(answer: pa.RecordBatchReader, file: IO[bytes]) -> int:
    with pa.ipc.new_stream(file, answer.schema) as writer:
        return _write_batches(answer, writer.write_batch)


def _write_batches(answer: pa.RecordBatchReader, write: Callable[[pa.RecordBatch], object]) -> int:
    count = 0
    for batch in answer:
        write(batch)
        count += batch.num_rows
    return count


_WRITERS: dict[str, Callable[[pa.RecordBatchReader, IO[bytes]], int]] = {
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
}
RESULT_FORMATS = tuple(_WRITERS)
