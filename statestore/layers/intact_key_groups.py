"""Read the wanted key groups of a keyed state, as far as they are intact; open each file once.

Comparison and repair need some key groups of a file and not their neighbors. Only row groups with
rows of a wanted key group are read, in order; one batch is in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import DamagedFileError
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.parquet.file_checks import read_footer
from statestore.parquet.operator_elements import stored_schema
from statestore.parquet.reader import DataFile, open_data
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import rows_digest
from statestore.storage import Storage
from statestore.storage.base import report_os_errors

Rows = list[pa.RecordBatch]
Groups = Generator[tuple[int, pa.RecordBatch]]
"""Key groups with their rows, ascending. A large key group is yielded in several batches."""

# Arrow's errors for bytes that it cannot parse. An OSError with an errno is a disk error.
_DAMAGED = (DamagedFileError, pa.ArrowException, LookupError, OSError, ValueError)
_Errors = tuple[type[Exception], ...]


def group_digests(handle: KeyedStateHandle) -> Iterator[tuple[int, int, int]]:
    """Yield (key group, rows, digest) of the key groups of a file that have rows, in order."""
    if handle.index is None:
        yield handle.key_groups.first, handle.rows, handle.digest
        return
    for place, (group, rows) in enumerate(
        zip(handle.key_groups, handle.index.row_counts(), strict=True)
    ):
        if rows:
            yield group, rows, handle.index.digest_in(place, place + 1)


def stored_key_groups(storage: Storage, part: KeyedEntry, wanted: Container[int]) -> Groups:
    """Yield the rows of the wanted key groups in a part's files, ascending."""
    for handle in part.handles:
        if any(group in wanted for group, _, _ in group_digests(handle)):
            with open_data(storage, part.table.path, handle) as file:
                yield from _groups(file, part, handle, wanted, None)


def stored_undamaged_groups(storage: Storage, part: KeyedEntry, wanted: Container[int]) -> Groups:
    """Yield wanted key groups of files that may be damaged, as :func:`undamaged_groups` found them.

    Raises DamagedFileError after a key group that no longer matches its digest.
    """
    for handle in part.handles:
        digests = {group: own for group, *own in group_digests(handle) if group in wanted}
        if not digests:
            continue
        with _file(storage, part, handle) as file:
            batches = () if file is None else _groups(file, part, handle, wanted, _DAMAGED)
            for group, pieces in groupby(batches, key=itemgetter(0)):
                count, digest = 0, 0
                for _, batch in pieces:
                    yield group, batch
                    count += batch.num_rows
                    digest += rows_digest(batch)
                if [count, digest % 2**64] == digests[group]:
                    del digests[group]
        if digests:
            raise DamagedFileError(
                f"key group {min(digests)} of {part.state} in {storage.url} was readable a "
                "moment ago and no longer is; run salvage again"
            )


def undamaged_groups(
    storage: Storage, part: KeyedEntry, wanted: Container[int], unread: Container[str]
) -> frozenset[int]:
    """Return the wanted key groups that are intact, from files that may be damaged.

    A key group is skipped if one of its pages fails its checksum, or if its rows do not have the
    digest in the manifest.
    """
    intact: set[int] = set()
    for handle in part.handles:
        digests = {group: own for group, *own in group_digests(handle) if group in wanted}
        if not digests or part.table.name_of(handle) in unread:
            continue
        with _file(storage, part, handle) as file:
            batches = () if file is None else _groups(file, part, handle, wanted, _DAMAGED)
            for group, pieces in groupby(batches, key=itemgetter(0)):
                if [*rows_and_digest(batch for _, batch in pieces)] == digests[group]:
                    intact.add(group)
    return frozenset(intact)


def intact_elements(storage: Storage, entry: OperatorEntry) -> pa.Table | None:
    """Return the elements of an operator state whose file may be damaged; None unless all match.

    The table includes ``subtask`` and ``position``. Raises StorageError when the file could not be
    read.
    """
    schema = stored_schema(entry.state.schema)
    pieces: Rows = []
    for handle in entry.handles:
        with _file(storage, entry, handle) as file:
            if file is None:
                return None
            numbers = range(file.parquet.num_row_groups)
            batches_by_row_group = [
                _readable_batches(file, number, 0, schema, _DAMAGED) for number in numbers
            ]
            rows = [batch for batches in batches_by_row_group for _, batch in batches]
        if rows_and_digest(rows) != (handle.rows, handle.digest):
            return None
        pieces += rows
    return pa.Table.from_batches(pieces, schema)


@contextmanager
def _file(storage: Storage, entry: Entry, handle: Handle) -> Iterator[DataFile | None]:
    """Open a file that may be damaged; None when it is missing or unreadable.

    Arrow seeks and reads by itself. Manifests of older releases have no checksum of the footer.
    Arrow may abort the process when it locates a row group by a damaged footer.
    """
    name = entry.table.name_of(handle)
    with report_os_errors("read", f"{storage.url}/{name}"), ExitStack() as stack:
        try:
            opened = stack.enter_context(storage.open_read(name))
        except FileNotFoundError:
            yield None
            return
        yield _open_intact(opened, f"{storage.url}/{name}", handle)


def _open_intact(file: BinaryIO, where: str, handle: Handle) -> DataFile | None:
    """Return the file if its length and its footer match the handle, or None."""
    try:
        if file.seek(0, 2) != handle.size_bytes:
            return None
        metadata = read_footer(file, where, handle)
        source = pa.PythonFile(file, mode="r")
        parquet = pq.ParquetFile(
            source, metadata=metadata, pre_buffer=False, page_checksum_verification=True
        )
    except _DAMAGED as error:
        _refuse_unread(error)
        return None
    return DataFile(parquet, source, where)


def _refuse_unread(error: Exception) -> None:
    """Raise a disk error again; Arrow's other errors mean that the bytes are damaged."""
    if isinstance(error, OSError) and error.errno:
        raise error


def rows_and_digest(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Return the number of rows, and their digest."""
    count, digest = 0, 0
    for batch in batches:
        count += batch.num_rows
        digest += rows_digest(batch)
    return count, digest % 2**64


@dataclass(frozen=True)
class _Places:
    """The positions of a file's key groups: the rows of ``groups[i]`` end at ``ends[i]``."""

    groups: list[int]
    ends: list[int]

    @classmethod
    def of(cls, handle: KeyedStateHandle) -> _Places:
        counts = [(group, rows) for group, rows, _ in group_digests(handle)]
        return cls([group for group, _ in counts], [*accumulate(rows for _, rows in counts)])

    def begin(self, place: int) -> int:
        return self.ends[place - 1] if place else 0

    def within(self, first_row: int, stop_row: int) -> range:
        """Return the places of the key groups with rows in a range of rows."""
        first = bisect_right(self.ends, first_row)
        last = bisect_right(self.ends, stop_row - 1)
        return range(first, min(last + 1, len(self.ends)))


def _groups(
    file: DataFile,
    entry: KeyedEntry,
    handle: KeyedStateHandle,
    wanted: Container[int],
    tolerated: _Errors | None,
) -> Groups:
    """Yield the wanted key groups of an open file; errors in ``tolerated`` are skipped.

    If an error was skipped, a key group may lack rows.
    """
    places = _Places.of(handle)
    for begin, batch in _batches(file, places, wanted, entry, tolerated):
        for place in places.within(begin, begin + batch.num_rows):
            if places.groups[place] in wanted:
                first = max(places.begin(place) - begin, 0)
                stop = min(places.ends[place] - begin, batch.num_rows)
                yield places.groups[place], batch.slice(first, stop - first)


def _batches(
    file: DataFile,
    places: _Places,
    wanted: Container[int],
    entry: KeyedEntry,
    tolerated: _Errors | None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches of the row groups that contain wanted key groups, with their first rows."""
    schema, metadata = arrow_schema(entry.state.schema), file.parquet.metadata
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    begins = [0, *accumulate(sizes)]
    numbers = [
        number
        for number, (begin, stop) in enumerate(pairwise(begins))
        if any(places.groups[place] in wanted for place in places.within(begin, stop))
    ]
    if tolerated is None:
        left = iter(numbers)
        first_row = stop = 0
        for batch in file.batches(numbers, schema):
            if first_row == stop:
                number = next(left)
                first_row, stop = begins[number], begins[number + 1]
            yield first_row, batch
            first_row += batch.num_rows
        return
    for number in numbers:
        yield from _readable_batches(file, number, begins[number], schema, tolerated)


def _readable_batches(
    file: DataFile, number: int, begin: int, schema: pa.Schema, tolerated: _Errors
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of a row group up to the first one that cannot be read."""
    batches = file.batches([number], schema)
    while True:
        try:
            batch = next(batches, None)
            if batch is None:
                return
        except tolerated as error:
            _refuse_unread(error)
            return
        yield begin, batch
        begin += batch.num_rows
