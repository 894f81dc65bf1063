"""Writes Parquet data files with exact counts, digests and checksums, and chooses their encodings.

Rows are flushed one row group at a time; the values for the file's handle are known at the end.

The encodings of a file's columns are chosen from its first rows. Parquet's default dictionary costs
time and bytes if nearly every value is distinct, as in keys. Such columns are written without a
dictionary: numbers and text as differences (Parquet format, "Delta Encoding"), which Spark, DuckDB,
Polars and Arrow can read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from statestore.errors import InvalidArgumentError, StorageError
from statestore.format.handles import Handle
from statestore.format.schema import Field
from statestore.parquet.file_checks import footer_of
from statestore.parquet.statistics import file_statistics
from statestore.rows.digests import rows_digest
from statestore.rows.key_group_runs import RUN_BYTES
from statestore.rows.sorting import MEMORY_BYTES
from statestore.storage import Storage
from statestore.storage.base import NewFile, report_os_errors, storage_error

_SAMPLE_ROWS, _ENOUGH_ROWS = 4096, 1024
_BUFFER_BYTES = 2**16


class Encodings:
    """The encodings for the files of one state.

    They are chosen again for the next file only if the sample was small.
    """

    def __init__(self) -> None:
        """Start without a choice."""
        self._chosen: dict[str, str] | None = None

    def choose(self, first: pa.Table) -> dict[str, str]:
        """Return :func:`encodings` for a file's first rows, or the earlier choice."""
        if self._chosen is not None:
            return self._chosen
        chosen = encodings(first)
        if first.num_rows >= _ENOUGH_ROWS:
            self._chosen = chosen
        return chosen


def encodings(first: pa.Table) -> dict[str, str]:
    """Return the encoding of each column that is better written without a dictionary.

    These are plain columns most of whose values differ in a sample of the rows. Sorted text is
    encoded as differences of neighbors, other text and bytes with separate lengths. Integers, dates
    and timestamps are encoded as differences, and floating-point numbers as plain values. Nested
    columns, decimals and booleans keep Arrow's default.
    """
    sample = first.slice(0, _SAMPLE_ROWS)
    # A column name with a dot would look like the path of a nested column.
    columns = zip(sample.column_names, sample.columns, strict=True)
    chosen = {name: _encoding(column) for name, column in columns if "." not in name}
    return {name: encoding for name, encoding in chosen.items() if encoding is not None}


def leaf_paths(schema: pa.Schema) -> list[str]:
    """Return the columns by their names in Parquet; nested ones have a path: ``a.list.element``."""
    return [path for field in schema for path in _paths(field)]


def _encoding(column: pa.ChunkedArray) -> str | None:
    data_type = column.type
    text = pa.types.is_string(data_type) or pa.types.is_binary(data_type)
    whole = (
        pa.types.is_signed_integer(data_type)
        or pa.types.is_timestamp(data_type)
        or pa.types.is_date32(data_type)
    )
    if not (text or whole or pa.types.is_floating(data_type)):
        return None
    if 2 * len(column.unique()) <= len(column):
        return None
    if text:
        return "DELTA_BYTE_ARRAY" if _is_ascending(column) else "DELTA_LENGTH_BYTE_ARRAY"
    return "DELTA_BINARY_PACKED" if whole else "PLAIN"


def _is_ascending(column: pa.ChunkedArray) -> bool:
    values = column.combine_chunks()
    ascending = pc.less_equal(values.slice(0, len(values) - 1), values.slice(1))
    return pc.all(ascending, skip_nulls=True, min_count=0).as_py() is True


def _paths(field: pa.Field) -> Iterator[str]:
    data_type = field.type
    if pa.types.is_struct(data_type):
        inner = [data_type.field(index) for index in range(data_type.num_fields)]
        yield from (f"{field.name}.{path}" for part in inner for path in _paths(part))
    elif pa.types.is_map(data_type):
        for part in (data_type.key_field, data_type.item_field):
            yield from (f"{field.name}.key_value.{path}" for path in _paths(part))
    elif pa.types.is_list(data_type):
        part = data_type.value_field.with_name("element")
        yield from (f"{field.name}.list.{path}" for path in _paths(part))
    else:
        yield field.name


class UncommittedFiles:
    """The names of files in a storage, in the order in which they were written.

    They are not committed yet, so they can be deleted after an error.
    """

    def __init__(self, storage: Storage, names: Iterable[str] = ()) -> None:
        """Start with some names, relative to the storage."""
        self.storage = storage
        self.names = list(names)

    def add(self, folder: str, handles: Iterable[Handle]) -> list[str]:
        """Add the files of some handles in ``folder``; return their names."""
        names = [f"{folder}/{handle.path}" for handle in handles]
        self.names += names
        return names

    def delete(self, reason: BaseException) -> None:
        """Delete all files; failures are noted on ``reason``, and left to ``gc``."""
        for name in self.names:
            try:
                self.storage.delete(name)
            except StorageError as error:
                reason.add_note(
                    "cannot delete an uncommitted file, which 'statestore gc' deletes later: "
                    f"{error}"
                )


# A row group may end with a key group once it has this part of its maximum rows. Smaller row groups
# would enlarge the footer; larger ones would be read twice by subtasks that share one.
_GROUPS_PER_ROW_GROUP = 16


@dataclass(frozen=True)
class ParquetOptions:
    """Options for data files: maximum rows per row group, zstd level (1 fast, 22 small), and more.

    ``run_bytes`` to ``rekey_bytes`` limit the memory during writing; rows and digests do not depend
    on them.
    """

    row_group_rows: int = 65_536
    row_group_bytes: int = 32 * 1024 * 1024
    zstd_level: int = 1
    file_bytes: int = 128 * 2**20
    """After this many bytes a ranged file ends at the next key group."""
    run_bytes: int = RUN_BYTES
    """Key groups are sorted and digested about this many bytes at a time."""
    memory_bytes: int = MEMORY_BYTES
    """The memory in which a process or Spark task sorts the rows that it writes. Rows that do not
    fit are sorted in a temporary folder (``TMPDIR``). Row groups, of ``row_group_bytes``, are in
    memory in addition."""
    block_bytes: int = 8 * 2**20
    """About this many bytes of a stream, or of a large key group, are gathered at a time."""
    driver_bytes: int = 8 * 2**20
    """The driver writes changes in a DataFrame if no partition has more bytes. It also writes rows
    in Spark's cache up to this size if they go into few files: a task for each would cost more than
    its rows."""
    rekey_bytes: int = 128 * 2**20
    """Rows with another key or other key groups are sorted about this many bytes at a time."""
    list_bytes: int = 128 * 2**10
    """A longer list of a state's files is a document of its own. Later manifests name it again as
    long as the files stay the same."""

    @property
    def stream_bytes(self) -> int:
        """The bytes of a stream that is read into memory: a second, sorted copy is needed."""
        return self.memory_bytes // 2

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for a value that is out of bounds."""
        bounds = {"row_group_rows": 2**31 - 1, "row_group_bytes": 2**31 - 1, "zstd_level": 22}
        for name in [field.name for field in fields(self)]:
            value, most = getattr(self, name), bounds.get(name, 2**63 - 1)
            if type(value) is not int or not 1 <= value <= most:
                raise InvalidArgumentError(f"{name} must be in 1..{most}, not {value!r}")


class FileWriter:
    """One data file being written; :meth:`close` returns the values for its handle."""

    def __init__(
        self,
        storage: Storage,
        name: str,
        schema: pa.Schema,
        options: ParquetOptions,
        encodings: Encodings | None = None,
    ) -> None:
        """Create the file ``name`` of the store; StorageError when that fails.

        Files of one state, which have similar columns, share ``encodings``.
        """
        self.name = name
        self._encodings = encodings or Encodings()
        self._sink = _Sink(storage.open_write(name), f"{storage.url}/{name}")
        # Arrow writes each page header by itself, and a call of Python costs more than its bytes.
        self._stream = pa.BufferedOutputStream(pa.PythonFile(self._sink, "w"), _BUFFER_BYTES)
        self._options = options
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._row_groups = 0
        self._rows = 0
        self._digest = 0
        self._schema = schema
        self._opened: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []

    @property
    def written_bytes(self) -> int:
        """Bytes that have reached the file so far."""
        return int(self._stream.tell())

    @property
    def rows_before_group_end(self) -> int:
        """The rows that a row group still needs before it may end with a key group."""
        return max(self._least_rows - self._pending_rows, 0)

    @property
    def _least_rows(self) -> int:
        return max(self._options.row_group_rows // _GROUPS_PER_ROW_GROUP, 1)

    @property
    def room_bytes(self) -> int:
        """The bytes that fit in the open row group."""
        return self._options.row_group_bytes - self._pending_bytes

    def write(self, batch: pa.RecordBatch, digest: int | None = None) -> None:
        """Append rows; they are flushed a whole row group at a time.

        ``digest`` is the digest of the rows without the columns that the store adds; by default it
        is computed from all columns.
        """
        self._digest += rows_digest(batch) if digest is None else digest
        self._rows += batch.num_rows
        while batch.num_rows:
            room = self._options.row_group_rows - self._pending_rows
            part, size = self._rows_that_fit(batch.slice(0, room))
            self._pending.append(part)
            self._pending_rows += part.num_rows
            self._pending_bytes += size
            full = self._pending_rows >= self._options.row_group_rows
            if full or self._pending_bytes >= self._options.row_group_bytes:
                self._flush()
            batch = batch.slice(part.num_rows)

    def _rows_that_fit(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """Return the first rows that fill the row group, or all rows if they fit, and their size.

        The size is computed rarely, as it costs time for each column.
        """
        room, size = self.room_bytes, rows.nbytes
        if size <= room:
            return rows, size
        return first_of_size(rows, room, rows.num_rows * room // size)

    def end_group(self) -> None:
        """End a large enough row group at the end of a key group, where a reader may begin."""
        if self._pending_rows >= self._least_rows:
            self._flush()

    def close(self) -> dict[str, Any]:
        """Finish the file and return rows, size_bytes, row_groups, digest, sha256 and footer."""
        if self._pending or self._opened is None:
            self._flush()
        assert self._opened is not None
        self._stream.flush()
        self._sink.keep()
        self._opened.close()
        self._stream.flush()
        self._sink.finish()
        return {
            "rows": self._rows,
            "size_bytes": self._sink.size,
            "row_groups": self._row_groups,
            "digest": self._digest % 2**64,
            "sha256": self._sink.sha256.hexdigest(),
            "footer": footer_of(self._sink.kept),
        }

    def statistics(self, columns: tuple[Field, ...]) -> str:
        """Return :func:`statestore.parquet.statistics.file_statistics` of the closed file."""
        return file_statistics(self._footers[0], columns)

    def abandon(self) -> None:
        """Remove the file."""
        if self._opened is not None:
            # Otherwise Arrow's destructor would try to write a footer to a closed file.
            self._opened.is_open = False
        self._sink.abandon()

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, self._schema)
        if self._opened is None:
            self._opened = self._open(table)
        if table.num_rows:
            self._opened.write_table(table, row_group_size=table.num_rows)
            self._row_groups += 1
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _open(self, first: pa.Table) -> pq.ParquetWriter:
        """Return Arrow's writer; the file's first rows determine the encodings of its columns."""
        chosen = self._encodings.choose(first)
        return pq.ParquetWriter(
            self._stream,
            self._schema,
            compression="zstd",
            compression_level=self._options.zstd_level,
            use_dictionary=[path for path in leaf_paths(self._schema) if path not in chosen],
            column_encoding=chosen,
            write_page_checksum=True,
            metadata_collector=self._footers,
            # Spark, Delta and DuckDB read the logical types; Arrow's schema would be useless.
            store_schema=False,
        )


def first_of_size(rows: pa.RecordBatch, least_bytes: int, guess: int) -> tuple[pa.RecordBatch, int]:
    """Return the fewest first rows that have at least these bytes, and their size.

    The sizes of few numbers of rows are computed, first near a guess.
    """
    parts: dict[int, tuple[pa.RecordBatch, int]] = {}

    def is_enough(count: int) -> bool:
        part = rows.slice(0, count)
        parts[count] = part, part.nbytes
        return parts[count][1] >= least_bytes

    low, high, step = 0, rows.num_rows, 1
    count = min(max(guess, 1), high)
    while high - low > 1:
        if is_enough(count):
            high = count
        else:
            low = count
        near = high - step if high == count else low + step
        count = near if low < near < high else (low + high) // 2
        step *= 2
    if high not in parts:
        is_enough(high)
    return parts[high]


class _Sink:
    """A file that Arrow writes to; it counts and hashes the bytes."""

    def __init__(self, raw: NewFile, where: str) -> None:
        self._raw, self._where = raw, where
        self._abandoned = False
        self._keeps = False
        self.kept = b""
        self.size = 0
        self.sha256 = hashlib.sha256()

    def keep(self) -> None:
        """Also keep all later bytes in memory: the footer, which is written last."""
        self._keeps = True

    @property
    def closed(self) -> bool:
        return self._raw.closed and not self._abandoned

    def write(self, data: bytes) -> int:
        if self._abandoned:  # Arrow still tries to write a footer
            return len(data)
        try:  # Arrow writes several times for each column of a row group
            self._raw.write(data)
        except OSError as error:
            raise storage_error(error, "write", self._where) from error
        self.sha256.update(data)
        self.size += len(data)
        if self._keeps:
            self.kept += bytes(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self._abandoned and not self._raw.closed:
            with report_os_errors("write", self._where):
                self._raw.flush()

    def abandon(self) -> None:
        self._abandoned = True
        self._raw.abandon()

    def close(self) -> None:
        """Do nothing: Arrow also closes a file after a failed write, and one that is dropped."""

    def finish(self) -> None:
        """Give the complete file its name."""
        with report_os_errors("write", self._where):
            self._raw.close()
