"""Keyed state by key group: the wanted key groups, as far as they are intact."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from statestore.errors import DamagedFileError
from statestore.format.handles import Handle, KeyedStateHandle
from statestore.format.manifest import Entry, KeyedEntry, OperatorEntry
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.layers.aligned_streams import align_streams, sorted_tables
from statestore.layers.merge import merged_batches
from statestore.parquet.file_checks import read_footer
from statestore.parquet.operator_elements import stored_schema
from statestore.parquet.reader import DataFile, add_key_group, open_data, restored_schema
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import rows_digest
from statestore.rows.key_group_runs import RUN_BYTES
from statestore.storage import Storage
from statestore.storage.base import report_os_errors

__all__ = [
    "Parts",
    "Rows",
    "aligned_groups",
    "exact_groups",
    "group_digests",
    "group_parts",
    "group_rows",
    "intact_elements",
    "intact_groups",
    "live_parts",
    "read_groups",
    "rows_and_digest",
]


# Keyed state from files by key group, each file opened once.
#
# Comparison and repair need some key groups of a file and not their neighbors. Only row groups with
# rows of a wanted key group are read, in order; one batch is in memory.


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


def _stored_groups(storage: Storage, part: KeyedEntry, wanted: Container[int]) -> Groups:
    """Yield the rows of the wanted key groups in a part's files, ascending."""
    for handle in part.handles:
        if any(group in wanted for group, _, _ in group_digests(handle)):
            with open_data(storage, part.table.path, handle) as file:
                yield from _groups(file, part, handle, wanted, None)


def _stored_intact_groups(storage: Storage, part: KeyedEntry, wanted: Container[int]) -> Groups:
    """Yield wanted key groups of files that may be damaged, as :func:`_intact_groups` found them.

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


def _intact_groups(
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
    """Yield the rows of row groups with wanted key groups, each batch with its position."""
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


# Keyed state by key group, including its changes: the digests of a group, and its rows.
#
# Without changes, the manifest has the digest of a key group. With changes, it has the digests of
# the group's parts. The same parts in the same order have the same rows. Different parts can only
# be compared after they are merged.


Parts = tuple[tuple[int, int], ...]
"""Rows and digest of a key group in the base, then in each layer that changes it, oldest first.

With one item, the group has no changes: the item has the group's rows and digest.
"""


def live_parts(entry: KeyedEntry) -> Iterator[tuple[KeyedEntry, Collection[int]]]:
    """Yield the base and each layer of a state, with the key groups that are live in it."""
    base, *_ = entry.parts
    yield base, range(entry.state.max_parallelism)
    for layer in entry.layers:
        yield layer.entry, frozenset(group for span in layer.live for group in span)


def group_parts(entry: KeyedEntry) -> dict[int, Parts]:
    """Return the parts of each key group that has rows or changes, without reading files."""
    parts_by_group: dict[int, Parts] = {}
    for number, (part, live) in enumerate(live_parts(entry)):
        none = ((0, 0),) if number else ()
        for handle in part.handles:
            for group, rows, digest in group_digests(handle):
                if group in live:
                    parts_by_group[group] = (*parts_by_group.get(group, none), (rows, digest))
    return parts_by_group


def group_rows(entry: KeyedEntry) -> dict[int, int]:
    """Return the number of live stored rows per key group, in the base and all changes.

    The state may have fewer rows.
    """
    return {group: sum(rows for rows, _ in parts) for group, parts in group_parts(entry).items()}


def read_groups(
    storage: Storage,
    entry: KeyedEntry,
    wanted: Container[int],
    *,
    damaged: Literal["raise", "skip"] = "raise",
    unread: Container[str] = (),
) -> Groups:
    """Yield the rows of each wanted key group that has rows or changes, in ascending order.

    The rows are stored columns with the changes applied. If no rows are left, a batch without rows
    is yielded. A batch has rows of one key group; a large key group is yielded in several batches.
    Base and layer files without a wanted key group are not opened. Raises MissingFileError or
    DamagedFileError.

    With ``skip``, wanted key groups are read twice. First all digests are checked, and a key group
    is skipped if its base or a layer is damaged: without a layer it would be an older state than
    declared. Files named in ``unread`` count as damaged. StorageError is raised for a file that
    could not be read.
    """
    read = _stored_groups
    if damaged == "skip":
        read, wanted = _stored_intact_groups, intact_groups(storage, entry, wanted, unread)
    if not entry.layers:
        yield from read(storage, entry, wanted)
        return
    yield from _merged_groups(storage, entry, wanted, read)


def intact_groups(
    storage: Storage, entry: KeyedEntry, wanted: Container[int], unread: Container[str] = ()
) -> frozenset[int]:
    """Return the wanted key groups with rows or changes whose base and layers are all intact."""
    intact = {group for group in group_parts(entry) if group in wanted}
    for part, live in live_parts(entry):
        own = frozenset(
            group
            for handle in part.handles
            for group, _, _ in group_digests(handle)
            if group in live and group in intact
        )
        intact -= own - _intact_groups(storage, part, own, unread)
    return frozenset(intact)


def _merged_groups(
    storage: Storage,
    entry: KeyedEntry,
    wanted: Container[int],
    read: Callable[[Storage, KeyedEntry, Container[int]], Groups],
) -> Groups:
    names = entry.state.schema.names
    waiting = deque(group for group in sorted(group_parts(entry)) if group in wanted)
    nothing = pa.RecordBatch.from_pylist([], arrow_schema(entry.state.schema))
    with ExitStack() as stack:
        streams = []
        for part, live in live_parts(entry):
            groups = read(storage, part, frozenset(group for group in live if group in wanted))
            streams.append(_with_groups(part.state, stack.enter_context(closing(groups))))
        base, *layers = streams
        for rows in merged_batches(base, layers, entry):
            group_column = np.asarray(rows.column(KEY_GROUP))
            begins = np.flatnonzero(np.diff(group_column, prepend=-1))
            for begin, end in pairwise([*begins.tolist(), len(group_column)]):
                group = int(group_column[begin])
                while waiting and waiting[0] < group:
                    yield waiting.popleft(), nothing
                if waiting and waiting[0] == group:
                    waiting.popleft()
                yield group, rows.slice(begin, end - begin).select(names)
    for group in waiting:
        yield group, nothing


def _with_groups(
    state: KeyedState, groups: Iterable[tuple[int, pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of key groups with their key group as the first column."""
    schema = restored_schema(state.schema)
    for group, rows in groups:
        yield add_key_group(rows, group, schema)


def exact_groups(storage: Storage, entry: KeyedEntry, wanted: Collection[int]) -> Groups:
    """Yield the wanted key groups as :func:`read_groups` does, skipping damaged ones.

    Raises DamagedFileError after all intact key groups if one is damaged, or StorageError.
    """
    left = group_parts(entry).keys() & set(wanted)
    for group, rows in read_groups(storage, entry, wanted, damaged="skip"):
        left.discard(group)
        yield group, rows
    if left:
        raise DamagedFileError(
            f"key group {min(left)} of {entry.state} in {storage.url} was readable a moment "
            "ago and no longer is; run salvage again"
        )


def aligned_groups(
    a: tuple[KeyedState, Groups], b: tuple[KeyedState, Groups]
) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """Yield the rows of each key group in two states with the same key groups.

    A large key group is yielded in several pieces; rows of one identity are in one piece.
    ``key_group`` is the first column of the tables.
    """
    states = [state for state, _ in (a, b)]
    streams = [
        sorted_tables(_with_groups(state, groups), state, RUN_BYTES) for state, groups in (a, b)
    ]
    empty = [restored_schema(state.schema).empty_table() for state in states]
    for piece in align_streams(streams, _common_identity(*states)):
        old, new = (
            none if rows is None else rows for none, rows in zip(empty, piece.rows, strict=True)
        )
        groups_a, groups_b = (np.asarray(rows.column(KEY_GROUP)) for rows in (old, new))
        for group in np.union1d(groups_a, groups_b).tolist():
            yield group, _rows_of_group(old, groups_a, group), _rows_of_group(new, groups_b, group)


def _rows_of_group(rows: pa.Table, groups: npt.NDArray[np.int32], group: int) -> pa.Table:
    begin, end = np.searchsorted(groups, (group, group + 1)).tolist()
    return rows.slice(begin, end - begin)


def _common_identity(a: KeyedState, b: KeyedState) -> list[str]:
    """Return the first identity columns whose values both states sort in the same way."""
    names = []
    for name in a.identity:
        types = [arrow_schema(state.schema).field(name).type for state in (a, b)]
        if types[0] != types[1] and not all(map(pa.types.is_integer, types)):
            break
        names.append(name)
    return names
