"""Restored rows into files that anything reads: Parquet, or JSON lines.

The files are for a reader outside the store: they have no handles, and their format is nobody's
contract but Parquet's and JSON's. What JSON has no type for is written as :func:`json_value` says.
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
from statestore.files.digest import rows_digest
from statestore.files.types import arrow_schema
from statestore.files.values import shown
from statestore.files.writer import FileWriter, ParquetOptions
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema
from statestore.storage import LocalStorage

__all__ = ["EXPORT_FORMATS", "ExportedFile", "elements_reader", "json_value", "write_rows"]

EXPORT_FORMATS = ("parquet", "jsonl")


@dataclass(frozen=True)
class ExportedFile:
    """What was written: ``digest`` is of the stored columns, ``key_group`` left out."""

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
    """Write rows as ``folder/part-0.<form>``, also when there are none; one row group is in memory.

    ``advance`` hears of every batch's number of rows. Raises what reading the rows raises, and
    StorageError when the file cannot be written.
    """
    path = folder / f"part-0.{form}"
    write = _write_parquet if form == "parquet" else _write_json_lines
    counted = _Counted(rows, advance)
    with _naming(path):
        folder.mkdir(parents=True, exist_ok=True)
    write(path, counted, rows.schema, options)
    return ExportedFile(counted.rows, path.stat().st_size, counted.digest)


def elements_reader(elements: Sequence[dict[str, Any]], schema: Schema) -> pa.RecordBatchReader:
    """Return elements of operator state as a stream of Arrow batches."""
    table = pa.Table.from_pylist(list(elements), arrow_schema(schema))
    return table.to_reader()


def json_value(value: Any) -> Any:
    """Return a column's value as JSON holds it, exactly.

    Decimals and times become strings (ISO 8601), bytes hex digits, a map a list of
    ``[key, value]``, and the floats that JSON lacks ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``.
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


class _Counted:
    """Batches on their way into a file, counted and digested."""

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
    path: Path, batches: _Counted, schema: pa.Schema, options: ParquetOptions
) -> None:
    writer = FileWriter(LocalStorage(str(path.parent)), path.name, schema, options)
    try:
        for batch in batches:
            with _naming(path):
                writer.write(batch)
        with _naming(path):
            writer.close()
    except BaseException:
        # Finished, if it can be: Arrow complains on stderr about a writer that it finds open.
        with suppress(StorageError, pa.ArrowException):
            writer.close()
        writer.abandon()
        raise


def _write_json_lines(
    path: Path, batches: _Counted, schema: pa.Schema, options: ParquetOptions
) -> None:
    with _naming(path):
        file = path.open("x", encoding="utf-8", newline="\n")
    with file:
        for batch in batches:
            lines = [json.dumps(json_value(row), ensure_ascii=False) + "\n" for row in shown(batch)]
            with _naming(path):
                file.writelines(lines)
        with _naming(path):
            file.flush()


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
