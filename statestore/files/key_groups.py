"""Keyed state by key group: those that are wanted, whole, and as far as they are intact."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Container, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import BinaryIO

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
from statestore.keys.groups import KeyGroupRange
from statestore.storage import Storage
from statestore.storage.base import named

__all__ = [
    "Parts",
    "Rows",
    "exact_groups",
    "group_digests",
    "group_parts",
    "group_rows",
    "live_parts",
    "read_groups",
    "read_merged_groups",
    "rows_and_digest",
    "sound_elements",
    "sound_groups",
    "whole_in_all",
]


# Keyed state out of files by key group: those that are wanted, whole, each file opened once.
#
# Whoever compares or repairs wants some key groups of a file and not their neighbours. Only row
# groups that hold rows of a wanted key group are read, front to back; one key group is in memory,
# and the batch at hand.


Rows = list[pa.RecordBatch]

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


def read_groups(
    storage: Storage, entry: KeyedEntry, wanted: Container[int]
) -> Generator[tuple[int, Rows]]:
    """Yield the rows of each wanted key group that has some, in ascending order, as stored columns.

    Files without a wanted key group are not opened. Raises MissingFileError or DamagedFileError.
    """
    for handle in entry.handles:
        if any(group in wanted for group, _, _ in group_digests(handle)):
            with open_data(storage, entry.table.path, handle) as file:
                yield from _groups(file, entry, handle, wanted, None)


def sound_groups(
    storage: Storage, entry: KeyedEntry, handle: KeyedStateHandle, wanted: Container[int]
) -> Generator[tuple[int, Rows]]:
    """Yield of a file that may be damaged the wanted key groups whose rows are what was written.

    A key group is passed over when a page of it fails its checksum, or the rows have another digest
    than the manifest says. Raises StorageError when the file could not be read, which says nothing
    about what it holds.
    """
    digests = {group: (rows, digest) for group, rows, digest in group_digests(handle)}
    with _file(storage, entry, handle) as file:
        if file is not None:
            for group, rows in _groups(file, entry, handle, wanted, _DAMAGED):
                if rows_and_digest(rows) == digests[group]:
                    yield group, rows


def sound_elements(storage: Storage, entry: OperatorEntry) -> pa.Table | None:
    """Return the elements of an operator state whose file may be damaged, with ``subtask`` and
    ``position``, None unless all of them are what was written. Raises as :func:`sound_groups`.
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
    name = f"{entry.table.path}/{handle.path}"
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
Reader = Callable[[Storage, KeyedEntry, Container[int]], Generator[tuple[int, Rows]]]


def group_parts(entry: KeyedEntry) -> dict[int, Parts]:
    """Return the parts of each key group that has rows or changes; nothing is read."""
    found: dict[int, Parts] = {
        group: ((rows, digest),)
        for handle in entry.handles
        for group, rows, digest in group_digests(handle)
    }
    for layer in entry.layers:
        live = _Live(layer.live)
        for handle in layer.entry.handles:
            for group, rows, digest in group_digests(handle):
                if group in live:
                    found[group] = (*found.get(group, ((0, 0),)), (rows, digest))
    return found


def read_merged_groups(
    storage: Storage, entry: KeyedEntry, wanted: Container[int], read: Reader = read_groups
) -> Generator[tuple[int, Rows]]:
    """Yield the rows of each wanted key group that has some, in ascending order, as stored columns.

    Of base and layers files without a wanted key group are not opened, and one key group of each is
    in memory. ``read`` reads those of one part. Raises MissingFileError or DamagedFileError.
    """
    if not entry.layers:
        yield from read(storage, entry, wanted)
        return
    schema = restored_schema(entry.state.schema)
    names = entry.state.schema.names
    with ExitStack() as stack:
        base = _Groups(stack, read(storage, entry, wanted), entry)
        layers = [
            _Groups(
                stack, read(storage, layer.entry, _Both(wanted, _Live(layer.live))), layer.entry
            )
            for layer in entry.layers
        ]
        while heads := [one.head for one in (base, *layers) if one.head is not None]:
            group = min(heads)
            rows = base.take(group)
            parts = [part for part in (layer.take(group) for layer in layers) if part is not None]
            merged = merged_rows(schema.empty_table() if rows is None else rows, parts, entry.state)
            if merged.num_rows:
                yield group, merged.select(names).to_batches()


class _Groups:
    """The key groups of a part, one at hand."""

    def __init__(
        self, stack: ExitStack, groups: Generator[tuple[int, Rows]], entry: KeyedEntry
    ) -> None:
        self._groups: Iterator[tuple[int, Rows]] = stack.enter_context(closing(groups))
        self._schema = restored_schema(entry.state.schema)
        self.head: int | None = None
        self._rows: Rows = []
        self._advance()

    def _advance(self) -> None:
        self.head, self._rows = next(self._groups, (None, []))

    def take(self, group: int) -> pa.Table | None:
        """Return the rows of a key group, ``key_group`` first, None unless it comes next."""
        if self.head != group:
            return None
        rows = [placed(batch, group, self._schema) for batch in self._rows]
        self._advance()
        return pa.Table.from_batches(rows, self._schema)


class _Live:
    """Key groups in some ranges."""

    def __init__(self, ranges: tuple[KeyGroupRange, ...]) -> None:
        self._ranges = ranges

    def __contains__(self, group: object) -> bool:
        return any(group in one for one in self._ranges)


class _Both:
    """What is in both of two."""

    def __init__(self, one: Container[int], other: Container[int]) -> None:
        self._one, self._other = one, other

    def __contains__(self, group: object) -> bool:
        return group in self._one and group in self._other


# Key groups of a state, with its changes, as far as they are what was written.
#
# A key group of a state with layers of changes lies in several files. Only when all of them have
# what was written is the key group whole: without a layer it would be an older state than it says,
# and nobody would notice.


def live_parts(entry: KeyedEntry) -> Iterator[tuple[KeyedEntry, Container[int]]]:
    """Yield the base and each layer of a state, with those key groups whose rows in it count."""
    base, *_ = entry.parts
    yield base, range(entry.state.max_parallelism)
    for layer in entry.layers:
        yield layer.entry, frozenset(group for one in layer.live for group in one)


def group_rows(entry: KeyedEntry) -> dict[int, int]:
    """Return how many rows that count the files of a state have per key group, base and changes
    together; those of the state may be less.
    """
    return {group: sum(rows for rows, _ in found) for group, found in group_parts(entry).items()}


def whole_in_all(
    storage: Storage, entry: KeyedEntry, wanted: Collection[int], unread: Collection[str]
) -> frozenset[int]:
    """Return those of the wanted key groups of which base and changes are what was written.

    Files named in ``unread`` are taken for damaged. Raises StorageError when one could not be read.
    """
    left = set(wanted)
    for part, live in live_parts(entry):
        for handle in part.handles:
            held = {group for group, _, _ in group_digests(handle) if group in live} & left
            if held and f"{part.table.path}/{handle.path}" not in unread:
                held -= {group for group, _ in sound_groups(storage, part, handle, held)}
            left -= held
    return frozenset(left)


def exact_groups(
    storage: Storage, entry: KeyedEntry, wanted: Container[int]
) -> Generator[tuple[int, Rows]]:
    """Yield the rows of each wanted key group that has some, in ascending order, as stored columns,
    with the changes put over them; every page and digest is checked.

    Raises DamagedFileError for rows that are not what was written, or StorageError.
    """
    yield from read_merged_groups(storage, entry, wanted, _part_groups)


def _part_groups(
    storage: Storage, part: KeyedEntry, wanted: Container[int]
) -> Generator[tuple[int, Rows]]:
    for handle in part.handles:
        held = {group for group, _, _ in group_digests(handle) if group in wanted}
        if not held:
            continue
        for group, rows in sound_groups(storage, part, handle, held.copy()):
            held.remove(group)
            yield group, rows
        if held:
            raise DamagedFileError(
                f"key group {min(held)} of {part.state} in {storage.url}/{part.table.path}/"
                f"{handle.path} can be read no more as it could a moment ago; salvage the "
                "checkpoint again"
            )
