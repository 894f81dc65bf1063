"""Reads Parquet data files and slices of keyed state, and checks each file against its handle.

Files are read one row group at a time. Size, footer and counts are always checked when a file is
opened. A truncated, damaged or replaced file is therefore reported instead of restored (I7). The
checksum of every page and the number of rows are checked while the file is read. On request the
SHA-256 of the file's bytes is checked before the first row is returned.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import StateStoreError
from statestore.format.handles import Handle, KeyedStateSlice
from statestore.format.manifest import KeyedEntry
from statestore.format.names import KEY_GROUP
from statestore.format.schema import Schema
from statestore.format.state import Layout
from statestore.parquet.file_checks import (
    check_columns,
    check_rows,
    name_file_in_errors,
    read_footer,
)
from statestore.parquet.file_sources import PrefetchQueue, RangedFile, Source, join_spans, source_of
from statestore.parquet.writer import leaf_paths
from statestore.rows.column_types import arrow_schema
from statestore.storage import Storage

BATCH_ROWS = 2**16
BATCH_BYTES = 16 * 2**20
"""The maximum rows and approximate bytes of a batch; a larger row is a batch of its own."""


@dataclass(frozen=True)
class DataFile:
    """An open data file: Arrow's reader, and the source that it reads from."""

    parquet: pq.ParquetFile
    source: Source
    where: str

    def batches(self, row_groups: Iterable[int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups, which are in ascending order; no batch spans two.

        Only the columns of ``schema`` are read. On an object store the next row groups are
        prefetched meanwhile. Raises DamagedFileError when a row group has other columns or another
        number of rows than the file's footer says.
        """
        numbers = [*row_groups]
        file_schema = self.parquet.schema_arrow
        check_columns(self.where, file_schema, schema)
        whole = file_schema.names == schema.names
        names = None if whole else schema.names
        if not isinstance(self.source, RangedFile):
            for number in numbers:
                yield from self._batches_of(number, names)
            return
        # A whole file in memory needs no column positions. Arrow may abort the process when it
        # locates a column by a damaged footer, but not when it reads the column.
        columns = (
            range(self.parquet.metadata.num_columns) if whole else _places(file_schema, schema)
        )
        metadata = self.parquet.metadata
        spans = [_spans(metadata.row_group(number), columns) for number in numbers]
        self.source.want(chain.from_iterable(spans))
        for number, own in zip(numbers, spans, strict=True):
            yield from self._batches_of(number, names)
            self.source.free(max((span.stop for span in own), default=0))

    def _batches_of(self, number: int, names: list[str] | None) -> Iterator[pa.RecordBatch]:
        # One by one: a batch across two row groups would need both in memory, and a copy.
        row_count = 0
        for batch in self.parquet.iter_batches(
            self._rows_at_once(number), row_groups=[number], columns=names, use_threads=False
        ):
            row_count += batch.num_rows
            # A path may match too much: the column "a.b", and "b" of the column "a".
            yield batch if names is None else batch.select(names)
        check_rows(self.where, row_count, self.parquet.metadata.row_group(number).num_rows)

    def _rows_at_once(self, number: int) -> int:
        """Return the number of rows in a batch of about ``BATCH_BYTES`` of a row group."""
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

    If a local cache has a copy with the right SHA-256, the copy is opened instead. With ``copy``
    one is made. ``whole`` means that all of the file will be read. ``begun`` is the file if it was
    already requested (:class:`statestore.parquet.file_sources.PrefetchQueue`). Raises
    MissingFileError or DamagedFileError with the file's name, also while it is being read.
    """
    name = f"{folder}/{handle.path}"
    where = f"{storage.url}/{name}"
    with (
        name_file_in_errors(where),
        source_of(
            storage, name, handle, verify=verify, whole=whole, copy=copy, begun=begun
        ) as source,
        pq.ParquetFile(
            source,
            metadata=read_footer(source, where, handle),
            # The next reads are known here, and prefetched. Arrow would prefetch in threads of its
            # own, and wait for them for ever if the program ends before they do.
            pre_buffer=False,
            page_checksum_verification=True,
        ) as parquet,
    ):
        yield DataFile(parquet, source, where)


RowGroups = Callable[[DataFile, Handle], Iterable[int]]
"""Selects the wanted row groups of a file."""


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

    ``rows`` is the wanted range of rows; only row groups that overlap it are read. ``row_groups``
    limits the row groups further, and only bytes that are read are fetched.
    """
    wanted = range(handle.rows) if rows is None else rows
    whole = len(wanted) == handle.rows and row_groups is None
    copy = 2 * len(wanted) >= handle.rows and row_groups is None
    with open_data(
        storage, folder, handle, verify=verify, whole=whole, copy=copy, begun=begun
    ) as file:
        numbers: Sequence[int]
        numbers, first_row = _row_groups_of(file.parquet.metadata, wanted)
        asked, gaps = len(wanted), dict[int, int]()
        if row_groups is not None:
            numbers = sorted({*numbers} & {*row_groups(file, handle)})
            first_row, asked, gaps = _unread_gaps(file.parquet.metadata, wanted, numbers)
        row_count = 0
        for batch in file.batches(numbers, schema):
            begin, end = (
                max(wanted.start - first_row, 0),
                min(wanted.stop - first_row, batch.num_rows),
            )
            first_row += batch.num_rows
            first_row = gaps.get(first_row, first_row)
            if begin < end:
                row_count += end - begin
                yield batch if end - begin == batch.num_rows else batch.slice(begin, end - begin)
        check_rows(file.where, row_count, asked, stated_by="the manifest")


def _unread_gaps(
    metadata: pq.FileMetaData, rows: range, numbers: Sequence[int]
) -> tuple[int, int, dict[int, int]]:
    """Return the first row of some row groups, how many of ``rows`` they have, and their gaps.

    A gap is a range of rows that is not read: it maps the end of a row group to the start of the
    next one that is read.
    """
    sizes = (metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    starts = [0, *accumulate(sizes)]
    held = (range(starts[number], starts[number + 1]) for number in numbers)
    asked = sum(len(range(max(a.start, rows.start), min(a.stop, rows.stop))) for a in held)
    gaps = {starts[number + 1]: starts[other] for number, other in pairwise(numbers)}
    return starts[numbers[0]] if numbers else 0, asked, gaps


def _row_groups_of(metadata: pq.FileMetaData, rows: range) -> tuple[range, int]:
    """Return the row groups that overlap a range of rows, and the position of their first row.

    For an empty range the result is empty.
    """
    ends = [*accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))]
    if not rows:
        return range(0), 0
    first, last = bisect_right(ends, rows.start), bisect_left(ends, rows.stop)
    return range(first, min(last + 1, len(ends))), ends[first - 1] if first else 0


def _places(file_schema: pa.Schema, wanted: pa.Schema) -> list[int]:
    """Return the positions, within a row group, of the leaf columns of the named columns."""
    ends = [*accumulate(len(leaf_paths(pa.schema([field]))) for field in file_schema)]
    numbers = sorted(file_schema.get_field_index(name) for name in wanted.names)
    return [
        leaf
        for number in numbers
        for leaf in range(ends[number - 1] if number else 0, ends[number])
    ]


def _spans(row_group: pq.RowGroupMetaData, places: Iterable[int]) -> list[range]:
    """Return the byte ranges of some leaves of a row group; adjacent ranges are joined."""
    spans = []
    for column in (row_group.column(place) for place in places):
        start = (
            column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        )
        spans.append(range(start, start + column.total_compressed_size))
    return join_spans(spans)


def restored_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a restored state: ``key_group``, then the stored columns."""
    return pa.schema([pa.field(KEY_GROUP, pa.int32()), *arrow_schema(schema)])


def read_slices(
    storage: Storage,
    entry: KeyedEntry,
    slices: Sequence[KeyedStateSlice],
    *,
    row_groups: RowGroups | None = None,
    verify: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the slices, in the order of ``slices``; each file is opened once (I8).

    With ``verify`` the SHA-256 of a file is checked before its first row is yielded.

    ``row_groups`` selects the row groups, and only the entry's columns are read. Raises
    MissingFileError or DamagedFileError with the names of file, state and operator.
    """
    stored, restored = arrow_schema(entry.state.schema), restored_schema(entry.state.schema)
    ranged = entry.state.layout is Layout.RANGED
    folder = entry.table.path
    read = partial(read_batches, storage, folder, row_groups=row_groups, verify=verify)
    files = [(part.handle, part.is_whole and row_groups is None) for part in slices]
    with PrefetchQueue(storage, folder, files, verify) as ahead:
        for part in slices:
            with _note_key_groups(entry, part):
                begun = ahead.next()
                if ranged:
                    yield from read(part.handle, restored, rows=_rows_of(part), begun=begun)
                    continue
                for batch in read(part.handle, stored, begun=begun):
                    yield add_key_group(batch, part.key_groups.first, restored)


@contextmanager
def _note_key_groups(entry: KeyedEntry, part: KeyedStateSlice) -> Iterator[None]:
    """Add a note to errors with the state and key groups that were being restored."""
    try:
        yield
    except StateStoreError as error:
        first, last = part.key_groups.first, part.key_groups.last
        groups = f"key group {first}" if first == last else f"key groups {first} to {last}"
        error.add_note(f"while restoring {entry.state}, {groups}")
        raise


def _rows_of(part: KeyedStateSlice) -> range | None:
    """Return a slice's range of rows in its file, None for all rows."""
    return None if part.is_whole else range(part.first_row, part.first_row + part.rows)


def add_key_group(batch: pa.RecordBatch, key_group: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of one key group with its number as first column; ``schema`` has it too."""
    groups = pa.array(np.full(batch.num_rows, key_group, np.int32))
    return pa.RecordBatch.from_arrays([groups, *batch.columns], schema=schema)
