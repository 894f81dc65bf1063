"""Parquet data files, read: a row group at a time, each file checked against its handle.

Size and row count are always checked when a file is opened, so that a truncated or replaced file is
named instead of restored (I7), and the checksum of every page when it is read; on request also the
SHA-256 of the file's bytes, before the first row is handed over.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import (
    DamagedFileError,
    MissingFileError,
    StateStoreError,
    StorageError,
)
from statestore.model.manifest import Entry
from statestore.storage import Storage
from statestore.table.fetching import Handle, Source, check_length, source_of
from statestore.table.ranges import RangedFile

__all__ = [
    "DataFile",
    "check_size",
    "check_sizes",
    "open_data",
    "open_file",
    "read_batches",
    "row_groups_of",
]


_ASKED_AT_ONCE = 16


def check_size(storage: Storage, folder: str, handle: Handle) -> None:
    """Raise MissingFileError or DamagedFileError unless a file is as long as its handle says."""
    name = f"{folder}/{handle.path}"
    where = f"{storage.url}/{name}"
    with _naming(where):
        check_length(where, storage.size(name), handle)


def check_sizes(storage: Storage, entries: Iterable[Entry]) -> None:
    """Ask for the size of every file of some states, side by side (I5); errors as of
    :func:`check_size`.
    """
    files = [
        (part.table.path, handle)
        for entry in entries
        for part in entry.parts
        for handle in part.handles
    ]
    with ThreadPoolExecutor(max_workers=_ASKED_AT_ONCE) as pool:
        for _ in pool.map(lambda file: check_size(storage, *file), files):
            continue


@dataclass(frozen=True)
class DataFile:
    """An open data file: Arrow's view of it, and what that reads from."""

    parquet: pq.ParquetFile
    source: Source

    def batches(self, row_groups: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups, which are in ascending order; no batch spans two.

        On an object store those that come next are under way meanwhile.
        """
        numbers = [*row_groups]
        if isinstance(self.source, RangedFile):
            yield from self._ranged_batches(numbers, self.source)
            return
        for number in numbers:
            yield from self._batches_of(number)

    def row_group(self, number: int) -> pa.Table:
        """Return the rows of a row group."""
        if isinstance(self.source, RangedFile):
            span = _span(self.parquet.metadata.row_group(number))
            self.source.want([span])
            rows = self.parquet.read_row_group(number, use_threads=False)
            self.source.free(span.stop)
            return rows
        return self.parquet.read_row_group(number, use_threads=False)

    def _ranged_batches(self, numbers: list[int], source: RangedFile) -> Iterator[pa.RecordBatch]:
        # Of a whole file in memory no place is asked for: Arrow aborts the process over some
        # damaged footers when it is asked where a column lies, and not when it reads it.
        spans = [_span(self.parquet.metadata.row_group(number)) for number in numbers]
        source.want(spans)
        for number, span in zip(numbers, spans, strict=True):
            yield from self._batches_of(number)
            source.free(span.stop)

    def _batches_of(self, number: int) -> Iterator[pa.RecordBatch]:
        # One by one: a batch of two row groups would need both in memory, and be copied.
        batches: Iterator[pa.RecordBatch]
        batches = self.parquet.iter_batches(row_groups=[number], use_threads=False)
        return batches


@contextmanager
def open_data(
    storage: Storage,
    folder: str,
    handle: Handle,
    *,
    verify: bool = False,
    whole: bool = False,
    copy: bool = False,
    begun: RangedFile | None = None,
) -> Iterator[DataFile]:
    """Open a data file and check it against its handle: size and rows, with ``verify`` SHA-256 too.

    With a local cache its copy there is opened instead, if that still has the SHA-256; with
    ``copy`` one is made. ``whole`` says that all of the file will be read, ``begun`` is what was
    asked for before (``fetching.begin``). Raises MissingFileError or DamagedFileError, naming the
    file, also
    while it is being read.
    """
    name = f"{folder}/{handle.path}"
    where = f"{storage.url}/{name}"
    with (
        _naming(where),
        source_of(
            storage, name, handle, verify=verify, whole=whole, copy=copy, begun=begun
        ) as source,
        pq.ParquetFile(
            source, metadata=_metadata(source), page_checksum_verification=True
        ) as parquet,
    ):
        if parquet.metadata.num_rows != handle.rows:
            raise DamagedFileError(
                f"{where} has {parquet.metadata.num_rows} rows, the manifest says {handle.rows}"
            )
        yield DataFile(parquet, source)


@contextmanager
def open_file(
    storage: Storage, folder: str, handle: Handle, *, verify: bool = False
) -> Iterator[pq.ParquetFile]:
    """Open a data file as :func:`open_data` does, for whoever wants its metadata above all."""
    with open_data(storage, folder, handle, verify=verify) as file:
        yield file.parquet


def read_batches(
    storage: Storage,
    folder: str,
    handle: Handle,
    schema: pa.Schema,
    *,
    rows: range | None = None,
    verify: bool = False,
    begun: RangedFile | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in stored order as batches of ``schema``; at most a row group is held.

    ``rows`` is the part of the file that is wanted; only row groups that hold some of it are read.
    """
    wanted = range(handle.rows) if rows is None else rows
    whole = len(wanted) == handle.rows
    copy = 2 * len(wanted) >= handle.rows
    with open_data(
        storage, folder, handle, verify=verify, whole=whole, copy=copy, begun=begun
    ) as file:
        numbers, at = row_groups_of(file.parquet.metadata, wanted)
        stored = file.parquet.schema_arrow.equals(schema)
        for batch in file.batches(numbers):
            begin, end = max(wanted.start - at, 0), min(wanted.stop - at, batch.num_rows)
            at += batch.num_rows
            if begin < end:
                part = batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)
                yield part if stored else part.select(schema.names).cast(schema)


def row_groups_of(metadata: pq.FileMetaData, rows: range) -> tuple[range, int]:
    """Return which row groups hold any of these rows of a file, and the place of their first row.

    An empty range of rows has none.
    """
    ends = [*accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))]
    if not rows:
        return range(0), 0
    first, last = bisect_right(ends, rows.start), bisect_left(ends, rows.stop)
    return range(first, min(last + 1, len(ends))), ends[first - 1] if first else 0


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an error that names it."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(
            f"{where} is missing, and the manifest names it; restore an older checkpoint, or "
            "bring the file back from a copy"
        ) from error
    except StateStoreError:
        raise
    except (pa.ArrowException, LookupError, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno:  # not what the file holds: reading it failed
            raise StorageError(f"cannot read {where}: {error}") from error
        raise DamagedFileError(f"{where} cannot be read: {error}") from error


def _metadata(source: Source) -> pq.FileMetaData | None:
    """Return the footer that was read already; Arrow would read it, and much before it, again."""
    if not isinstance(source, RangedFile):
        return None
    return pq.read_metadata(pa.BufferReader(source.tail.data()))


def _span(row_group: pq.RowGroupMetaData) -> range:
    """Where a row group lies in its file: its columns are side by side."""
    columns = [row_group.column(index) for index in range(row_group.num_columns)]
    starts = [
        column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        for column in columns
    ]
    ends = zip(starts, columns, strict=True)
    return range(min(starts), max(start + column.total_compressed_size for start, column in ends))
