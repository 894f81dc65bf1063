"""Parquet data files, read: a row group at a time, each file checked against its handle.

Size, footer and counts are always checked when a file is opened, so that a truncated, damaged or
replaced file is named instead of restored (I7), and the checksum of every page and the number of
rows when it is read; on request also the SHA-256 of the file's bytes, before the first row is
handed over.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import DamagedFileError, MissingFileError, StateStoreError, StorageError
from statestore.files.fetch import (
    Begun,
    RangedFile,
    Source,
    check_columns,
    check_length,
    check_rows,
    joined,
    read_footer,
    source_of,
)
from statestore.files.types import arrow_schema
from statestore.files.writer import leaf_paths
from statestore.format.handles import Handle, KeyedStateSlice
from statestore.format.listed import FileList, ListedFiles
from statestore.format.manifest import Entry, KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema
from statestore.format.state import Layout
from statestore.storage import Storage

__all__ = [
    "DataFile",
    "RowGroups",
    "check_size",
    "check_sizes",
    "open_data",
    "placed",
    "read_batches",
    "read_slices",
    "restored_schema",
    "row_groups_of",
]

BATCH_ROWS = 2**16
BATCH_BYTES = 16 * 2**20
"""The most rows and about the most bytes of a batch; a larger row is a batch of its own."""

_ASKED_AT_ONCE = 16


def check_size(storage: Storage, name: str, handle: Handle | FileList) -> None:
    """Raise MissingFileError or DamagedFileError unless a file is as long as its handle says."""
    where = f"{storage.url}/{name}"
    with _naming(where):
        check_length(where, storage.size(name), handle)


def check_sizes(
    storage: Storage, entries: Iterable[Entry], but: Collection[str] = frozenset()
) -> None:
    """Check the size of every file of some states, except the files in ``but``, which are known to
    be there (I5); errors as of :func:`check_size`. A list of files that is known is not read.

    The storage is asked for several files at once, unless they are few and the storage is local:
    then a thread takes longer than its answer.
    """
    files: list[tuple[str, Handle | FileList]] = []
    for part in (part for entry in entries for part in entry.parts):
        if isinstance(part.handles, ListedFiles):
            if part.handles.file_list.path in but:
                continue
            files.append((part.handles.file_list.path, part.handles.file_list))
        named = ((part.table.name_of(handle), handle) for handle in part.handles)
        files += [(name, handle) for name, handle in named if name not in but]
    if storage.streams == 1 and len(files) <= _ASKED_AT_ONCE:
        for name, handle in files:
            check_size(storage, name, handle)
        return
    with ThreadPoolExecutor(max_workers=_ASKED_AT_ONCE) as pool:
        for _ in pool.map(lambda file: check_size(storage, *file), files):
            continue


@dataclass(frozen=True)
class DataFile:
    """An open data file: Arrow's view of it, and what that reads from."""

    parquet: pq.ParquetFile
    source: Source
    where: str

    def batches(self, row_groups: Iterable[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups, which are in ascending order; no batch spans two.

        Only the columns of ``schema`` are read. On an object store those that come next are under
        way meanwhile. Raises DamagedFileError when a row group has other columns or other numbers
        of rows than the file says.
        """
        numbers = [*row_groups]
        found = self.parquet.schema_arrow
        check_columns(self.where, found, schema)
        whole = found.names == schema.names
        names = None if whole else schema.names
        if not isinstance(self.source, RangedFile):
            for number in numbers:
                yield from self._batches_of(number, names)
            return
        # Of a whole file in memory no place is asked for: Arrow aborts the process over some
        # damaged footers when it is asked where a column lies, and not when it reads it.
        columns = range(self.parquet.metadata.num_columns) if whole else _places(found, schema)
        metadata = self.parquet.metadata
        spans = [_spans(metadata.row_group(number), columns) for number in numbers]
        self.source.want(chain.from_iterable(spans))
        for number, own in zip(numbers, spans, strict=True):
            yield from self._batches_of(number, names)
            self.source.free(max((span.stop for span in own), default=0))

    def _batches_of(self, number: int, names: list[str] | None) -> Iterator[pa.RecordBatch]:
        # One by one: a batch of two row groups would need both in memory, and be copied.
        found = 0
        for batch in self.parquet.iter_batches(
            self._rows_at_once(number), row_groups=[number], columns=names, use_threads=False
        ):
            found += batch.num_rows
            # A path may name more than is meant: the column "a.b", and "b" of the column "a".
            yield batch if names is None else batch.select(names)
        check_rows(self.where, found, self.parquet.metadata.row_group(number).num_rows)

    def _rows_at_once(self, number: int) -> int:
        """Return how many rows of a row group a batch of about ``BATCH_BYTES`` has."""
        row_group = self.parquet.metadata.row_group(number)
        fitting: int = BATCH_BYTES * row_group.num_rows // max(row_group.total_byte_size, 1)
        return max(min(fitting, BATCH_ROWS), 1)


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
    asked for before (:class:`statestore.files.fetch.Begun`). Raises MissingFileError or
    DamagedFileError, naming the file, also while it is being read.
    """
    name = f"{folder}/{handle.path}"
    where = f"{storage.url}/{name}"
    with (
        _naming(where),
        source_of(
            storage, name, handle, verify=verify, whole=whole, copy=copy, begun=begun
        ) as source,
        pq.ParquetFile(
            source,
            metadata=read_footer(source, where, handle),
            # What comes next is known here, and asked for. Arrow would do so in threads of its own,
            # and wait for them for ever when the program ends before they do.
            pre_buffer=False,
            page_checksum_verification=True,
        ) as parquet,
    ):
        yield DataFile(parquet, source, where)


RowGroups = Callable[[DataFile, Handle], Iterable[int]]
"""Says which row groups of a file are wanted."""


def read_batches(
    storage: Storage,
    folder: str,
    handle: Handle,
    schema: pa.Schema,
    *,
    rows: range | None = None,
    row_groups: RowGroups | None = None,
    verify: bool = False,
    begun: RangedFile | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows in stored order as batches of ``schema``; at most a row group is held.

    ``rows`` is the part of the file that is wanted; only row groups that hold some of it are read.
    With ``row_groups`` only those of them, and nothing is fetched that is not read.
    """
    wanted = range(handle.rows) if rows is None else rows
    whole = len(wanted) == handle.rows and row_groups is None
    copy = 2 * len(wanted) >= handle.rows and row_groups is None
    with open_data(
        storage, folder, handle, verify=verify, whole=whole, copy=copy, begun=begun
    ) as file:
        numbers: Sequence[int]
        numbers, at = row_groups_of(file.parquet.metadata, wanted)
        asked, gaps = len(wanted), dict[int, int]()
        if row_groups is not None:
            numbers = sorted({*numbers} & {*row_groups(file, handle)})
            at, asked, gaps = _left_out(file.parquet.metadata, wanted, numbers)
        found = 0
        for batch in file.batches(numbers, schema):
            begin, end = max(wanted.start - at, 0), min(wanted.stop - at, batch.num_rows)
            at += batch.num_rows
            at = gaps.get(at, at)
            if begin < end:
                found += end - begin
                yield batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)
        check_rows(file.where, found, asked, stated_by="the manifest")


def _left_out(
    metadata: pq.FileMetaData, rows: range, numbers: Sequence[int]
) -> tuple[int, int, dict[int, int]]:
    """Return, of some row groups, the place of their first row, how many of the rows they hold, and
    behind which place the next of theirs is another one.
    """
    sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    starts = [0, *accumulate(sizes)]
    held = (range(starts[number], starts[number + 1]) for number in numbers)
    asked = sum(len(range(max(a.start, rows.start), min(a.stop, rows.stop))) for a in held)
    gaps = {starts[one + 1]: starts[other] for one, other in pairwise(numbers)}
    return starts[numbers[0]] if numbers else 0, asked, gaps


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
        raise DamagedFileError(
            f"{where} cannot be read: {error}; restore an older checkpoint, or bring the file back "
            "from a copy"
        ) from error


def _places(found: pa.Schema, wanted: pa.Schema) -> list[int]:
    """Return where in a row group the leaves of some columns of a file stand."""
    ends = [*accumulate(len(leaf_paths(pa.schema([field]))) for field in found)]
    numbers = sorted(found.get_field_index(name) for name in wanted.names)
    return [leaf for at in numbers for leaf in range(ends[at - 1] if at else 0, ends[at])]


def _spans(row_group: pq.RowGroupMetaData, places: Iterable[int]) -> list[range]:
    """Return where some leaves of a row group lie in its file; those side by side are one span."""
    spans = []
    for column in (row_group.column(place) for place in places):
        start = (
            column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        )
        spans.append(range(start, start + column.total_compressed_size))
    return joined(spans)


# Keyed state out of files: the rows of some slices, file by file, each opened once (I8).


def restored_schema(schema: Schema) -> pa.Schema:
    """Return what a restored state looks like in Arrow: ``key_group``, then the stored columns."""
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *arrow_schema(schema)])


def read_slices(
    storage: Storage,
    entry: KeyedEntry,
    slices: Sequence[KeyedStateSlice],
    *,
    row_groups: RowGroups | None = None,
    verify: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices, in the given order; with ``verify`` SHA-256 is checked first.

    With ``row_groups`` those of some row groups, and of no other column than those of the entry.
    Raises MissingFileError or DamagedFileError, naming file, state and operator.
    """
    stored, restored = arrow_schema(entry.state.schema), restored_schema(entry.state.schema)
    ranged = entry.state.layout is Layout.RANGED
    folder = entry.table.path
    read = partial(read_batches, storage, folder, row_groups=row_groups, verify=verify)
    files = [(part.handle, part.is_whole and row_groups is None) for part in slices]
    with Begun(storage, folder, files, verify) as ahead:
        for part in slices:
            with _noting(entry, part):
                begun = ahead.next()
                if ranged:
                    yield from read(part.handle, restored, rows=_rows_of(part), begun=begun)
                    continue
                for batch in read(part.handle, stored, begun=begun):
                    yield placed(batch, part.key_groups.first, restored)


@contextmanager
def _noting(entry: KeyedEntry, part: KeyedStateSlice) -> Iterator[None]:
    """Note on an error which state and key groups were being restored."""
    try:
        yield
    except StateStoreError as error:
        first, last = part.key_groups.first, part.key_groups.last
        groups = f"key group {first}" if first == last else f"key groups {first} to {last}"
        error.add_note(f"while restoring {entry.state}, {groups}")
        raise


def _rows_of(part: KeyedStateSlice) -> range | None:
    """The place of its rows in a file of several key groups, None for all of them."""
    return None if part.is_whole else range(part.first_row, part.first_row + part.rows)


def placed(batch: pa.RecordBatch, key_group: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of one key group with its number as first column; ``schema`` has it too."""
    groups = pa.array(np.full(batch.num_rows, key_group, np.int32))
    return pa.RecordBatch.from_arrays([groups, *batch.columns], schema=schema)
