"""Keyed state by key group: those that are wanted, whole, and as far as they are intact."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Collection, Container, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import DamagedFileError
from statestore.files.digest import row_hashes
from statestore.files.elements import stored_schema
from statestore.files.fetch import read_footer
from statestore.files.merge import merged_rows
from statestore.files.reader import DataFile, open_data, placed, restored_schema
from statestore.files.types import arrow_schema
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.storage import Storage
from statestore.storage.base import named

__all__ = [
    "Parts",
    "Rows",
    "exact_groups",
    "group_digests",
    "group_parts",
    "group_rows",
    "intact_elements",
    "live_parts",
    "read_groups",
    "rows_and_digest",
]


# Keyed state out of files by key group: those that are wanted, whole, each file opened once.
#
# Whoever compares or repairs wants some key groups of a file and not their neighbours. Only row
# groups that hold rows of a wanted key group are read, front to back; one key group is in memory,
# and the batch at hand.


Rows = list[pa.RecordBatch]
Groups = Generator[tuple[int, Rows]]

# What Arrow raises for bytes that it cannot make sense of; an OSError with a number is the disk's.
_DAMAGED = (DamagedFileError, pa.ArrowException, LookupError, OSError, ValueError)
_Errors = tuple[type[Exception], ...]


def group_digests(handle: KeyedStateHandle) -> Iterator[tuple[int, int, int]]:
    """Yield (key group, rows, digest) of those key groups of a file that have rows, in order."""
    if handle.index is None:
        yield handle.key_groups.first, handle.rows, handle.digest
        return
    for place, (group, rows) in enumerate(
        zip(handle.key_groups, handle.index.row_counts(), strict=True)
    ):
        if rows:
            yield group, rows, handle.index.digest_in(place, place + 1)


def _stored(storage: Storage, part: KeyedEntry, wanted: Container[int]) -> Groups:
    """Yield what the files of a part have of the wanted key groups, ascending."""
    for handle in part.handles:
        if any(group in wanted for group, _, _ in group_digests(handle)):
            with open_data(storage, part.table.path, handle) as file:
                yield from _groups(file, part, handle, wanted, None)


def _intact(
    storage: Storage, part: KeyedEntry, wanted: Container[int], unread: Container[str]
) -> Groups:
    """Yield of files that may be damaged the wanted key groups whose rows are what was written.

    A key group is passed over when a page of it fails its checksum, or the rows have another digest
    than the manifest says.
    """
    for handle in part.handles:
        digests = {group: own for group, *own in group_digests(handle) if group in wanted}
        if not digests or part.table.name_of(handle) in unread:
            continue
        with _file(storage, part, handle) as file:
            if file is not None:
                for group, rows in _groups(file, part, handle, wanted, _DAMAGED):
                    if [*rows_and_digest(rows)] == digests[group]:
                        yield group, rows


def intact_elements(storage: Storage, entry: OperatorEntry) -> pa.Table | None:
    """Return the elements of an operator state whose file may be damaged, with ``subtask`` and
    ``position``, None unless all of them are what was written. Raises StorageError when it could
    not be read.
    """
    schema = stored_schema(entry.state.schema)
    pieces: Rows = []
    for handle in entry.handles:
        with _file(storage, entry, handle) as file:
            if file is None:
                return None
            numbers = range(file.parquet.num_row_groups)
            found = [_readable(file, number, 0, schema, _DAMAGED) for number in numbers]
            rows = [batch for batches in found for _, batch in batches]
        if rows_and_digest(rows) != (handle.rows, handle.digest):
            return None
        pieces += rows
    return pa.Table.from_batches(pieces, schema)


@contextmanager
def _file(storage: Storage, entry: Entry, handle: Handle) -> Iterator[DataFile | None]:
    """Open a file that may be damaged; None when it is missing, or nothing of it can be read.

    Arrow seeks and reads by itself: over some damaged footers, which have no checksum in manifests
    of older releases, it aborts the process when it is asked where a row group lies.
    """
    name = entry.table.name_of(handle)
    with named("read", f"{storage.url}/{name}"), ExitStack() as stack:
        try:
            opened = stack.enter_context(storage.open_read(name))
        except FileNotFoundError:
            yield None
            return
        yield _opened(opened, f"{storage.url}/{name}", handle)


def _opened(file: BinaryIO, where: str, handle: Handle) -> DataFile | None:
    """Return the file, if it is as long as it was, and its footer is that of the handle."""
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
    """Raise what the disk says, which is no damage; what Arrow says of the bytes is."""
    if isinstance(error, OSError) and error.errno:
        raise error


def rows_and_digest(batches: Rows) -> tuple[int, int]:
    """Return how many rows there are, and their digest."""
    digest = sum(int(row_hashes(batch).sum()) for batch in batches) % 2**64
    return sum(batch.num_rows for batch in batches), digest


@dataclass(frozen=True)
class _Places:
    """Where the rows of the key groups of a file lie: those of ``groups[i]`` end at ``ends[i]``."""

    groups: list[int]
    ends: list[int]

    @classmethod
    def of(cls, handle: KeyedStateHandle) -> _Places:
        found = [(group, rows) for group, rows, _ in group_digests(handle)]
        return cls([group for group, _ in found], [*accumulate(rows for _, rows in found)])

    def begin(self, place: int) -> int:
        return self.ends[place - 1] if place else 0

    def within(self, first_row: int, stop_row: int) -> range:
        """Return the places of the key groups that have rows there."""
        first = bisect_right(self.ends, first_row)
        last = bisect_right(self.ends, stop_row - 1)
        return range(first, min(last + 1, len(self.ends)))


def _groups(
    file: DataFile,
    entry: KeyedEntry,
    handle: KeyedStateHandle,
    wanted: Container[int],
    tolerated: _Errors | None,
) -> Iterator[tuple[int, Rows]]:
    """Yield the wanted key groups of an open file; with ``tolerated`` what raises is passed over.

    A key group of which a part was passed over is not yielded.
    """
    places = _Places.of(handle)
    pieces: Rows = []
    at, found = -1, 0  # the key group at hand, and how many of its rows there are
    for begin, batch in _batches(file, places, wanted, entry, tolerated):
        for place in places.within(begin, begin + batch.num_rows):
            if places.groups[place] not in wanted:
                continue
            if place != at:
                pieces, at, found = [], place, 0
            first = max(places.begin(place) - begin, 0)
            stop = min(places.ends[place] - begin, batch.num_rows)
            pieces.append(batch.slice(first, stop - first))
            found += stop - first
            if found == places.ends[place] - places.begin(place):
                yield places.groups[place], pieces
                pieces = []


def _batches(
    file: DataFile,
    places: _Places,
    wanted: Container[int],
    entry: KeyedEntry,
    tolerated: _Errors | None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of the row groups that hold wanted key groups, each batch with its place."""
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
        at = stop = 0
        for batch in file.batches(numbers, schema):
            if at == stop:
                number = next(left)
                at, stop = begins[number], begins[number + 1]
            yield at, batch
            at += batch.num_rows
        return
    for number in numbers:
        yield from _readable(file, number, begins[number], schema, tolerated)


def _readable(
    file: DataFile, number: int, begin: int, schema: pa.Schema, tolerated: _Errors
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of a row group up to the first that cannot be read."""
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


# Keyed state by key group, with its changes: what is known of a group, and its rows.
#
# Without changes the manifest has the digest of a key group. With them it has those of the parts
# that the group consists of: the same parts in the same order are the same rows, and other parts
# say nothing before they are merged.


Parts = tuple[tuple[int, int], ...]
"""Rows and digest of a key group in the base, then in each layer that changes it, oldest first.

One item: the group has no changes, and these are its rows and its digest.
"""


def live_parts(entry: KeyedEntry) -> Iterator[tuple[KeyedEntry, Collection[int]]]:
    """Yield the base and each layer of a state, with those key groups whose rows in it count."""
    base, *_ = entry.parts
    yield base, range(entry.state.max_parallelism)
    for layer in entry.layers:
        yield layer.entry, frozenset(group for one in layer.live for group in one)


def group_parts(entry: KeyedEntry) -> dict[int, Parts]:
    """Return the parts of each key group that has rows or changes; nothing is read."""
    found: dict[int, Parts] = {}
    for number, (part, live) in enumerate(live_parts(entry)):
        none = ((0, 0),) if number else ()
        for handle in part.handles:
            for group, rows, digest in group_digests(handle):
                if group in live:
                    found[group] = (*found.get(group, none), (rows, digest))
    return found


def group_rows(entry: KeyedEntry) -> dict[int, int]:
    """Return how many rows that count the files of a state have per key group, base and changes
    together; those of the state may be less.
    """
    return {group: sum(rows for rows, _ in found) for group, found in group_parts(entry).items()}


def read_groups(
    storage: Storage,
    entry: KeyedEntry,
    wanted: Container[int],
    *,
    damaged: Literal["raise", "skip"] = "raise",
    unread: Container[str] = (),
) -> Groups:
    """Yield the rows of each wanted key group that has rows or changes, in ascending order, as
    stored columns, with the changes put over them: no rows where these left none.

    Of base and layers files without a wanted key group are not opened, and one key group of each is
    in memory. Raises MissingFileError or DamagedFileError. With ``skip`` every digest is looked at,
    and a key group of which base or a layer is not what was written is passed over: without a layer
    it would be an older state than it says. Files named in ``unread`` are then taken for damaged,
    and what is raised is StorageError for a file that could not be read.
    """
    read = _stored if damaged == "raise" else partial(_intact, unread=unread)
    if not entry.layers:
        yield from read(storage, entry, wanted)
        return
    known, names = group_parts(entry), entry.state.schema.names
    with ExitStack() as stack:
        streams = []
        for number, (part, live) in enumerate(live_parts(entry)):
            groups = read(storage, part, frozenset(group for group in live if group in wanted))
            streams.append(_tables(number, part, stack.enter_context(closing(groups))))
        for group, parts in groupby(heapq.merge(*streams, key=itemgetter(0)), key=itemgetter(0)):
            tables = {number: rows for _, number, rows in parts}
            if len(tables) == sum(rows > 0 for rows, _ in known[group]):
                empty = restored_schema(entry.state.schema).empty_table()
                base = tables.pop(0, empty)
                merged = merged_rows(base, [*tables.values()], entry.state)
                yield group, merged.select(names).to_batches()


def _tables(number: int, part: KeyedEntry, groups: Groups) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield the key groups of a part with its number, their rows as a table with ``key_group``."""
    schema = restored_schema(part.state.schema)
    for group, rows in groups:
        yield group, number, pa.Table.from_batches([placed(one, group, schema) for one in rows])


def exact_groups(storage: Storage, entry: KeyedEntry, wanted: Collection[int]) -> Groups:
    """Yield the wanted key groups as :func:`read_groups` does that skips what is damaged.

    Raises DamagedFileError after them when one is not what was written, or StorageError.
    """
    left = group_parts(entry).keys() & set(wanted)
    for group, rows in read_groups(storage, entry, wanted, damaged="skip"):
        left.remove(group)
        yield group, rows
    if left:
        raise DamagedFileError(
            f"key group {min(left)} of {entry.state} in {storage.url} can be read no more as it "
            "could a moment ago; salvage the checkpoint again"
        )
