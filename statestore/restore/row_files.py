"""The rows of a restore or of a query as files for any reader.

The rows of a restore become Parquet or JSON lines. The files are used outside of the store: they
have no handles, and only Parquet and JSON define their format. :func:`json_value` converts values
for which JSON has no type.

The rows of a query become CSV, JSON, Parquet or Arrow, in a file or a stream. They are written as
they arrive: a result of any size needs the memory of one batch.

The output, a folder or a file, appears when it is complete. A folder::

    DIR/.incomplete/<uid>/…         during the restore
    DIR/.incomplete/.statestore     the list of files to move: name, length and time

The files are durable before they are moved. A killed run leaves ``.incomplete``, and perhaps
folders that it had already moved. The next run deletes the files in that list. If the folder, or
``.incomplete``, contains any other file, the next run refuses it without deleting anything. So
files of others stay.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import InvalidArgumentError, StorageError
from statestore.format.digest import RowSet
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema
from statestore.parquet.writer import FileWriter, ParquetOptions
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import rows_digest
from statestore.rows.python_values import display_rows, display_values
from statestore.storage import LocalStorage
from statestore.storage.base import report_os_errors
from statestore.storage.local import sync_if_supported, sync_parents, sync_path, sync_paths
from statestore.storage.locks import close_folder, lock, open_folder

INCOMPLETE = ".incomplete"
_IS_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EISDIR)
_LIST, _LIST_BEGUN = ".statestore", ".statestore.new"

Files = dict[str, list[int]]  # by name relative to the folder: length, and time in nanoseconds


@contextmanager
def publish_folder(directory: Path) -> Iterator[Path]:
    """Yield a folder inside ``directory`` whose contents are moved up at the end of the block.

    While the folder exists, the contents of the directory are incomplete. After an error, nothing
    of the block is left. Leftovers of a killed run are deleted first (I10). Raises
    InvalidArgumentError if the directory contains other files, is written by another process, or is
    inside a store; and StorageError.
    """
    folder = directory / INCOMPLETE
    refuse_inside_store(LocalStorage(str(directory)), "what is exported")
    with report_os_errors("write", str(directory)), ExitStack() as held:
        _create_folder(directory)
        _lock(directory, held)
        _refuse_strangers(directory)
        _delete_listed(directory)
        folder.mkdir()
        try:
            _write_list(folder, {})
            yield folder
            _move_up(directory)
        except BaseException:
            with suppress(OSError):
                _delete_listed(directory)
            raise
        _delete_inside(folder)


def _create_folder(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InvalidArgumentError(
            f"{directory} is a file, or a path below a file; choose a new or an empty directory"
        ) from error


def _move_up(directory: Path) -> None:
    """Write the list of the files to move, then move them."""
    folder = directory / INCOMPLETE
    _write_list(
        folder, {path.relative_to(folder).as_posix(): _file_facts(path) for path in _files(folder)}
    )
    with sync_if_supported():  # after a power failure, files moved up must not lack their content
        sync_paths([*_paths_below(folder), folder])
        sync_parents(directory)
    for path in sorted(folder.iterdir()):
        if path.name in (_LIST, _LIST_BEGUN):
            continue
        try:
            path.rename(directory / path.name)
        except OSError as error:
            if error.errno not in _IS_TAKEN:
                raise
            raise StorageError(
                f"cannot write {directory / path.name}: another process created it during "
                "this export, and it was not changed; choose a new or an empty directory"
            ) from error
    with sync_if_supported():
        sync_path(directory)


def _refuse_strangers(directory: Path) -> None:
    """Refuse a directory that contains anything but leftovers of a killed run."""
    own = _read_list(directory / INCOMPLETE)
    if own is None:
        others: Iterable[Path] = sorted(directory.iterdir())
    else:
        folders = _folders(own)
        others = (
            path
            for path in _paths_below(directory)
            if (name := path.relative_to(directory)).parts[0] != INCOMPLETE
            and (
                name not in folders
                if _is_folder(path)
                else own.get(name.as_posix()) != _file_facts(path)
            )
        )
    stranger = next(iter(others), None)
    if stranger is not None:
        raise InvalidArgumentError(
            f"{directory} is not empty: it contains {stranger.relative_to(directory)}, which "
            "is not from an interrupted restore; choose a new or an empty directory"
        )


def _delete_listed(directory: Path) -> None:
    """Delete the files in the list of the run that wrote it, and the list last."""
    folder = directory / INCOMPLETE
    own = _read_list(folder)
    if own is None:
        return
    folders = _folders(own)
    for path in _paths_below(directory):
        name = path.relative_to(directory)
        if name.parts[0] == INCOMPLETE:
            continue
        if not _is_folder(path):
            if own.get(name.as_posix()) == _file_facts(path):
                path.unlink()
        elif name in folders:
            with suppress(OSError):  # another process has put something there
                path.rmdir()
    _delete_inside(folder)


def _delete_inside(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.name not in (_LIST, _LIST_BEGUN):
            shutil.rmtree(path) if _is_folder(path) else path.unlink()
    for name in (_LIST_BEGUN, _LIST):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _read_list(folder: Path) -> Files | None:
    """Return the list of files; None for a folder that no restore created."""
    try:
        noted: Any = json.loads((folder / _LIST).read_text())
    except FileNotFoundError:
        begun = folder.is_dir() and {path.name for path in folder.iterdir()} <= {_LIST_BEGUN}
        return {} if begun else None
    except ValueError:  # not a restore's file, or lost in a power failure
        return None
    return noted if isinstance(noted, dict) else None


def _write_list(folder: Path, files: Files) -> None:
    (folder / _LIST_BEGUN).write_text(json.dumps(files))
    (folder / _LIST_BEGUN).replace(folder / _LIST)


def _paths_below(directory: Path) -> list[Path]:
    """Return all paths below a directory, without following links; contents before folders.

    The order is the same on every file system.
    """
    walk = os.walk(directory)
    found = (Path(parent, name) for parent, *lists in walk for names in lists for name in names)
    return sorted(found, reverse=True)


def _files(folder: Path) -> Iterator[Path]:
    own = (_LIST, _LIST_BEGUN)
    return (path for path in _paths_below(folder) if path.is_file() and path.name not in own)


def _folders(files: Files) -> set[Path]:
    return {parent for name in files for parent in Path(name).parents}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _file_facts(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_size, status.st_mtime_ns]


def _lock(directory: Path, held: ExitStack) -> None:
    """Lock the directory against other runs; the system unlocks it when this process ends."""
    descriptor = open_folder(directory)
    held.callback(close_folder, directory, descriptor)
    try:
        lock(descriptor)
    except BlockingIOError:
        raise InvalidArgumentError(
            f"another process is writing to {directory}; choose another directory"
        ) from None


"""Called with the number of rows written so far, and the total."""

Contents = Mapping[tuple[str, str], RowSet]


def check_output_file(path: Path, *, replace: bool | bytes) -> None:
    """Check the place of a file before any work is done for its contents.

    Args:
        path: The file.
        replace: Whether the file may exist; if bytes, only if it begins with them.

    Raises:
        InvalidArgumentError: the place is inside a store or in no existing folder, or it is taken.
        StorageError: the existing file cannot be read.
    """
    refuse_inside_store(LocalStorage(str(path)), "the file")
    if not path.parent.is_dir():
        raise InvalidArgumentError(
            f"cannot write {path}: there is no folder {path.parent}; create it, or choose another"
        )
    if path.is_dir():
        raise InvalidArgumentError(f"cannot write {path}: it is a folder; add the name of a file")
    if path.exists() and not _may_replace(path, replace):
        raise InvalidArgumentError(f"{path} exists; remove it, or choose another name")


def _may_replace(path: Path, replace: bool | bytes) -> bool:
    """Return whether an existing file is one that a command writes again."""
    if isinstance(replace, bool):
        return replace
    try:
        with path.open("rb") as file:
            return file.read(len(replace)) == replace
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def output_file(path: Path, *, replace: bool | bytes) -> Iterator[IO[bytes]]:
    """Yield a file that gets its name when the block ends without an error; it is durable then.

    Args:
        path: The file.
        replace: As in :func:`check_output_file`.

    Yields:
        The open file, under another name.

    Raises:
        InvalidArgumentError: as :func:`check_output_file`.
        StorageError: the file cannot be written.
    """
    check_output_file(path, replace=replace)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with part.open("xb") as file:
            yield file
        with sync_if_supported():
            sync_path(part)
        part.replace(path)
        with sync_if_supported():
            sync_path(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


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


def _write_parquet_result(answer: pa.RecordBatchReader, file: IO[bytes]) -> int:
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
    "parquet": _write_parquet_result,
    "arrow": _write_arrow,
}
RESULT_FORMATS = tuple(_WRITERS)
