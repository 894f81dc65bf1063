"""Open a Parquet file or folder, a Delta table, a CSV file, or the result of a query of DuckDB.

CSV (RFC 4180) is read as a stream of columns of text, without changing a value. Arrow's reader
changes a quoted CRLF between two of its blocks, and accepts a quote that is never closed. Python's
``csv`` cannot distinguish null from an empty text, and is several times slower. DuckDB and Polars
are optional. So numpy finds the quotes, commas and line ends of a block here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, NotFoundError, StorageError
from statestore.interop.tables.delta_tables import open_delta, open_parquet
from statestore.interop.tables.source_table import QUERY_HINT, SourceTable, convert_text
from statestore.restore.duck import (
    duckdb,
    error_text,
    is_select,
    run_interruptibly,
    with_arrow_types,
)
from statestore.sources.table_files import TableFiles, find_table

_BLOCK_BYTES = 2**20
_MOST_ROW_BYTES = 2**29
_BOM = "\ufeff".encode()
_QUOTE, _COMMA, _LF, _CR = b'",\n\r'

Array = np.ndarray[Any, Any]


def read_csv(file: IO[bytes], place: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a CSV file as columns of text; an empty field without quotes is null.

    An empty line is a null if the header has one column, and is skipped otherwise. The memory is
    proportional to a block of 1 MiB, or to the longest row.

    Args:
        file: the bytes in UTF-8; a byte order mark is ignored.
        place: the name of the file in messages.

    Yields:
        Batches with the columns of the header. The first one may be empty.

    Raises:
        InvalidArgumentError: the file is not CSV. The message has the line and the column.
    """
    names: list[str] = []
    for rows in _whole_rows(file, place):
        texts, ends = rows.fields()
        widths = np.diff(ends, prepend=-1)
        header = 0
        if not names:
            header = int(widths[0])
            names = [text or "" for text in texts.slice(0, header).to_pylist()]
            _check_header(names, place)
        is_blank = (widths == 1) & np.asarray(texts.is_null())[ends] & (len(names) > 1)
        wrong = np.flatnonzero((widths != len(names)) & ~is_blank)
        if len(wrong):
            rows.refuse_width(int(wrong[0]), int(widths[wrong[0]]), len(names))
        fields = np.delete(np.arange(len(texts)), ends[is_blank])[header:]
        columns = [texts.take(pa.array(fields[at :: len(names)])) for at in range(len(names))]
        yield pa.RecordBatch.from_arrays(columns, names=names)
    if not names:
        raise InvalidArgumentError(f"{place} is empty: a CSV file begins with the column names")


def _check_header(names: list[str], place: str) -> None:
    if names == [""]:
        raise InvalidArgumentError(
            f"line 1 of {place} is empty: a CSV file begins with the column names"
        )
    repeated = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if repeated is not None:
        raise InvalidArgumentError(
            f"line 1 of {place} has the column {repeated!r:.100} twice: rename one of the two"
        )


def _whole_rows(file: IO[bytes], place: str) -> Iterator[_Rows]:
    """Yield the rows of a file in parts of about one block."""
    pending: list[bytes] = []
    size, least, line = 0, 0, 1
    for block in _blocks(file):
        pending.append(block)
        size += len(block)
        if block and size < least:
            continue
        data = b"".join(pending)
        rows = _Rows(data, line, place)
        if rows.stop:
            yield rows
        is_too_long = not rows.stop and size > _MOST_ROW_BYTES
        if is_too_long or (not block and rows.stop < size):
            rows.refuse_rest()
        line += rows.lines
        pending = [data[rows.stop :]]
        size = len(pending[0])
        # A row that is longer than a block is searched again when twice as much is read.
        least = 0 if rows.stop else min(2 * size, _MOST_ROW_BYTES + 1)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file without its byte order mark, but with a last line end; then no bytes."""
    last, start = b"\n", file.read(len(_BOM))
    block = file.read(_BLOCK_BYTES) if start == _BOM else start
    while block:
        yield block
        last, block = block, file.read(_BLOCK_BYTES)
    if not last.endswith(b"\n"):
        yield b"\n"
    yield b""


class _Rows:
    """Whole rows at the beginning of some bytes, which end at ``stop``."""

    def __init__(self, data: bytes, line: int, place: str) -> None:
        """Find the rows; ``line`` is the number of the first line."""
        self._data, self._line, self._place = data, line, place
        self._octets = octets = np.frombuffer(data, np.uint8)
        self._marks = np.flatnonzero(
            (octets == _QUOTE) | (octets == _COMMA) | (octets == _LF) | (octets == _CR)
        )
        self._kinds = octets[self._marks]
        self._is_quote = self._kinds == _QUOTE
        self._is_outside = np.cumsum(self._is_quote) % 2 == 0  # after the mark
        self._is_end = self._is_outside & ~self._is_quote
        follows = np.diff(self._marks, prepend=-1) == 1
        follows_closing = _shift(self._is_outside & self._is_quote)
        is_opening = self._is_quote & ~self._is_outside
        self._is_doubled = is_opening & follows & follows_closing
        self._is_misplaced = (
            (is_opening & ~self._is_doubled & ~(follows & _shift(self._is_end, first=True)))
            | (follows_closing & ~follows)
            | (_shift(self._is_end & (self._kinds == _CR)) & ~(follows & (self._kinds == _LF)))
        )
        row_ends = np.flatnonzero(self._is_end & (self._kinds == _LF))
        self._count = int(row_ends[-1]) + 1 if len(row_ends) else 0
        self.stop = int(self._marks[self._count - 1]) + 1 if self._count else 0
        self.lines = int(np.count_nonzero(self._kinds[: self._count] == _LF))

    def fields(self) -> tuple[pa.Array, Array]:
        """Return the values of all rows, and the position of each row's last value."""
        whole = slice(self._count)
        self._refuse_misplaced(whole)
        marks, kinds, is_end = self._marks[whole], self._kinds[whole], self._is_end[whole]
        is_dropped = (is_end | self._is_quote[whole]) & ~self._is_doubled[whole]
        is_kept = np.ones(self.stop, np.bool_)
        is_kept[marks[is_dropped]] = False
        ends = np.flatnonzero(is_end & (kinds != _CR))
        stops = marks[ends] - np.cumsum(is_dropped)[ends] + 1  # without the dropped bytes
        offsets = np.concatenate(([0], stops)).astype(np.int32)
        has_quotes = self._is_quote[np.concatenate(([0], ends[:-1] + 1))]
        is_valid = (np.diff(offsets) > 0) | has_quotes
        buffers = (
            np.packbits(is_valid, bitorder="little"),
            offsets,
            self._octets[: self.stop][is_kept],
        )
        texts = pa.Array.from_buffers(pa.string(), len(ends), [*map(pa.py_buffer, buffers)])
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            self._refuse_encoding()
        return texts, np.flatnonzero(kinds[ends] == _LF)

    def refuse_width(self, row: int, width: int, expected: int) -> NoReturn:
        """Refuse a row with another number of values than the header."""
        row_ends = np.flatnonzero(self._is_end & (self._kinds == _LF))
        start = int(self._marks[row_ends[row - 1]]) + 1 if row else 0
        self._refuse(start, f"begins a row of {width} instead of {expected} values: quote commas")

    def refuse_rest(self) -> NoReturn:
        """Refuse the bytes, in which no row ends."""
        self._refuse_misplaced(slice(None))
        if np.count_nonzero(self._is_quote) % 2:
            start = int(self._marks[self._is_quote & ~self._is_doubled][-1])
            self._refuse(start, "opens a quote that is never closed: complete the file")
        self._refuse(0, f"has more than {_MOST_ROW_BYTES >> 20} MiB: read another format")

    def _refuse_misplaced(self, part: slice) -> None:
        places = np.flatnonzero(self._is_misplaced[part])
        if not len(places):
            return
        place = int(places[0])
        before = self._kinds[place - 1] if place and self._is_outside[place - 1] else None
        if before == _CR:
            place -= 1
            problem = "has a CR without LF: quote values with CR, or convert the line ends"
        elif before == _QUOTE:
            place -= 1
            problem = "has text after a closing quote: double each quote in a value"
        else:
            problem = "has a quote in a value without quotes: quote the value and double the quote"
        self._refuse(int(self._marks[place]), problem)

    def _refuse_encoding(self) -> NoReturn:
        try:
            self._data[: self.stop].decode()
        except UnicodeDecodeError as error:
            byte = self._data[error.start]
            self._refuse(error.start, f"is not UTF-8 (byte 0x{byte:02x}): convert the file")
        raise AssertionError("Arrow and Python agree on UTF-8")

    def _refuse(self, position: int, problem: str) -> NoReturn:
        """Raise an error with the line and the column of a byte."""
        before = slice(int(np.searchsorted(self._marks, position)))
        ends = self._kinds[before][self._is_end[before]]
        column = len(ends) - int(np.max(np.flatnonzero(ends == _LF), initial=-1))
        line = self._line + self._data.count(b"\n", 0, position)
        raise InvalidArgumentError(f"line {line}, column {column} of {self._place} {problem}")


def _shift(flags: Array, *, first: bool = False) -> Array:
    """Return for each mark the flag of the mark before it."""
    return np.concatenate(([first], flags[:-1])) if len(flags) else flags


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
