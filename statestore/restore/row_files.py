"""Restored rows as files for any reader: Parquet or JSON lines.

The files are used outside of the store: they have no handles, and only Parquet and JSON define
their format. :func:`json_value` converts values for which JSON has no type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore.errors import StorageError
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema
from statestore.parquet.writer import FileWriter, ParquetOptions
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import rows_digest
from statestore.rows.python_values import display_rows
from statestore.storage import LocalStorage

__all__ = [
    "EXPORT_FORMATS",
    "ExportedFile",
    "Progress",
    "elements_reader",
    "json_value",
    "write_rows",
]


EXPORT_FORMATS = ("parquet", "jsonl")


@dataclass(frozen=True)
class ExportedFile:
    """A written file; ``digest`` covers the stored columns, without ``key_group``."""

    rows: int
    size_bytes: int
    digest: int


def write_rows(
    folder: Path,
    rows: pa.RecordBatchReader,
    *,
    form: str,
    options: ParquetOptions,
    advance: Callable[[int], None],
) -> ExportedFile:
    """Write rows as ``folder/part-0.<form>``, even for no rows at all; one row group is in memory.

    ``advance`` is called with the number of rows of every batch. Raises the errors of reading the
    rows, and StorageError if the file cannot be written.
    """
    path = folder / f"part-0.{form}"
    write = _write_parquet if form == "parquet" else _write_json_lines
    counted = _CountingIterator(rows, advance)
    with _name_file_in_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    write(path, counted, rows.schema, options)
    return ExportedFile(counted.rows, path.stat().st_size, counted.digest)


def elements_reader(elements: Sequence[dict[str, Any]], schema: Schema) -> pa.RecordBatchReader:
    """Return elements of operator state as a stream of Arrow batches."""
    table = pa.Table.from_pylist(list(elements), arrow_schema(schema))
    return table.to_reader()


def json_value(value: Any) -> Any:
    """Return a column's value as JSON represents it, without loss.

    Decimals and times become strings (ISO 8601), bytes become hex digits, a map becomes a list of
    ``[key, value]``. The floats that JSON lacks become ``"NaN"``, ``"Infinity"`` and
    ``"-Infinity"``.
    """
    match value:
        case float() if not isfinite(value):
            return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case bytes():
            return value.hex()
        case dict():
            return {name: json_value(item) for name, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
    return value


class _CountingIterator:
    """Iterates over batches that are written to a file, counting and digesting them."""

    def __init__(self, rows: pa.RecordBatchReader, advance: Callable[[int], None]) -> None:
        self._source, self._advance = rows, advance
        self.rows = self.digest = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._source:
            stored = [name for name in batch.schema.names if name != KEY_GROUP]
            self.digest = (self.digest + rows_digest(batch.select(stored))) % 2**64
            self.rows += batch.num_rows
            yield batch
            self._advance(batch.num_rows)


def _write_parquet(
    path: Path, batches: _CountingIterator, schema: pa.Schema, options: ParquetOptions
) -> None:
    writer = FileWriter(LocalStorage(str(path.parent)), path.name, schema, options)
    try:
        for batch in batches:
            with _name_file_in_errors(path):
                writer.write(batch)
        with _name_file_in_errors(path):
            writer.close()
    except BaseException:
        # Close the writer if possible: Arrow prints a warning on stderr about an open writer.
        with suppress(StorageError, pa.ArrowException):
            writer.close()
        writer.abandon()
        raise


def _write_json_lines(
    path: Path, batches: _CountingIterator, schema: pa.Schema, options: ParquetOptions
) -> None:
    with _name_file_in_errors(path):
        file = path.open("x", encoding="utf-8", newline="\n")
    with file:
        for batch in batches:
            lines = [
                json.dumps(json_value(row), ensure_ascii=False) + "\n"
                for row in display_rows(batch)
            ]
            with _name_file_in_errors(path):
                file.writelines(lines)
        with _name_file_in_errors(path):
            file.flush()


@contextmanager
def _name_file_in_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


Progress = Callable[[int, int], None]
