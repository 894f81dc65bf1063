"""Write a savepoint: first streams of keyed state in canonical format, then ``_metadata``.

Entries and key groups are built from columns of keys and values (``FullSnapshotAsyncWriter``). A
key group is written in chunks, so that it does not need to fit in memory.

``_metadata`` is written last and atomically. Without it, Flink does not accept a folder as a
savepoint. All paths are relative, so that the folder can be moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.catalog.catalog import refuse_inside_store
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState, StateKind
from statestore.interop.flink.metadata.handles import (
    InlineHandle,
    KeyGroupsHandle,
    OperatorHandle,
    RelativeHandle,
    SavepointMetadata,
)
from statestore.interop.flink.metadata.java_binary import i16
from statestore.interop.flink.metadata.metadata_file import metadata_v3
from statestore.interop.flink.read.canonical import KeyedHeader, header_bytes, prefix_bytes
from statestore.interop.flink.read.savepoint_files import METADATA, SavepointFiles, open_source
from statestore.interop.flink.read.snappy import frame_pieces
from statestore.interop.flink.types.byte_cursor import BYTES, join_parts
from statestore.interop.flink.types.java_types import Scalar
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.key_group_runs import sort_groups
from statestore.rows.sorting import ExternalSort, slices_of
from statestore.storage import Storage

PIECE_BYTES = 8 * 2**20
"""The approximate size of the rows that are converted to entries at a time."""

_END_OF_STATE = 0x80
_END_OF_GROUP = b"\xff\xff"
_LENGTH = 4

Groups = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class EntryRun:
    """Entries of one state in one key group; the next run can have more of the same.

    ``state`` is the state's index in the header. The last entry begins at ``last`` in ``data``.
    """

    key_group: int
    state: int
    data: memoryview
    last: int


def join_entries(keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return entries: i32 and key, i32 and value; each key begins with its key group."""
    return join_parts(_encode_sizes(keys), keys, _encode_sizes(values), values)


def split_runs(
    entries: pa.Array, groups: Groups, states: npt.NDArray[np.int64]
) -> Iterator[EntryRun]:
    """Split entries into runs of the same key group and state.

    Args:
        entries: the entries, ordered by key group and state.
        groups: the key group of each entry.
        states: the index of each entry's state in the header.

    Yields:
        The runs.
    """
    _, offsets, content = entries.buffers()
    upto = np.frombuffer(offsets, np.int64, len(entries) + 1, 8 * entries.offset)
    data = memoryview(content) if content else memoryview(b"")
    begins = (np.diff(groups, prepend=-1) != 0) | (np.diff(states, prepend=-1) != 0)
    for first, stop in pairwise([*np.flatnonzero(begins).tolist(), len(entries)]):
        begin, last, end = upto[[first, stop - 1, stop]].tolist()
        yield EntryRun(int(groups[first]), int(states[first]), data[begin:end], last - begin)


def key_group_bytes(
    runs: Iterator[EntryRun], max_parallelism: int, *, is_compressed: bool = False
) -> Iterator[Iterator[bytes]]:
    """Yield the bytes of each key group, in chunks; a key group without entries has no chunks.

    The caller must consume the chunks of a key group before it asks for the next key group. The
    ``runs`` must be ordered by key group and state.
    """
    grouped_runs = groupby(runs, attrgetter("key_group"))
    upcoming = next(grouped_runs, None)
    for number in range(max_parallelism):
        if upcoming is None or upcoming[0] != number:
            yield iter(())
            continue
        pieces = _group_pieces(upcoming[1])
        yield frame_pieces(pieces) if is_compressed else pieces
        upcoming = next(grouped_runs, None)


def _group_pieces(runs: Iterator[EntryRun]) -> Iterator[bytes]:
    for state, state_runs in groupby(runs, attrgetter("state")):
        yield from _state_pieces(i16(state), state_runs)
    yield _END_OF_GROUP


def _state_pieces(head: bytes, runs: Iterator[EntryRun]) -> Iterator[bytes]:
    run = next(runs)
    for following in runs:
        yield head + run.data
        head, run = b"", following
    marked = run.last + _LENGTH
    mark = bytes([run.data[marked] | _END_OF_STATE])
    yield b"".join((head, run.data[:marked], mark, run.data[marked + 1 :]))


def prefixes(groups: Groups, max_parallelism: int) -> pa.Array:
    """Return the key-group prefixes of keys."""
    is_short = prefix_bytes(max_parallelism) == 1
    number_type, name = (np.int8, "Byte") if is_short else (np.int16, "Short")
    return Scalar(name).write(pa.array(groups.astype(number_type)))


def _encode_sizes(array: pa.Array) -> pa.Array:
    return Scalar("Integer").write(pc.binary_length(array).cast(pa.int32()))


class EntrySort:
    """Sorts entries by key group and state; use it in a ``with`` block.

    Entries that do not fit in memory are spilled to a temporary folder.
    """

    # The sort key "place" has the state's index in the upper bits and a running number below.
    _COUNT_BITS = 47
    _SCHEMA = pa.schema({KEY_GROUP: pa.int32(), "place": pa.int64(), "entry": BYTES})

    def __init__(self, max_parallelism: int, memory_bytes: int) -> None:
        """Sort entries of ``max_parallelism`` key groups in about ``memory_bytes`` of memory."""
        self._order = KeyedState(
            uid="savepoint",
            name="entries",
            kind=StateKind.VALUE,
            schema=schema_of_arrow(self._SCHEMA.remove(0)),
            key=("place",),
            key_types=("Long",),
            max_parallelism=max_parallelism,
            hash_scheme="java",
        )
        self._sort = ExternalSort(self._order, memory_bytes)
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> EntrySort:
        """Return the sort itself."""
        self._stack.enter_context(self._sort)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Delete the spilled files."""
        self._stack.close()

    def add(self, entries: pa.Array, groups: Groups, state: int) -> None:
        """Add entries of a state, in any order of their key groups."""
        places = np.arange(self._count, self._count + len(entries)) + (state << self._COUNT_BITS)
        self._count += len(entries)
        columns = [pa.array(groups, pa.int32()), pa.array(places, pa.int64()), entries]
        rows = pa.Table.from_arrays(columns, schema=self._SCHEMA)
        self._sort.add(rows, rows.nbytes)

    def runs(self) -> Iterator[EntryRun]:
        """Yield all entries that were added, sorted."""
        is_sorted = self._sort.spilled
        for rows in self._sort.finish():
            piece = rows if is_sorted else sort_groups(rows, self._order)
            for part in slices_of(piece, PIECE_BYTES):
                groups, places, entries = (column.combine_chunks() for column in part.columns)
                states = places.to_numpy() >> self._COUNT_BITS
                yield from split_runs(entries, groups.to_numpy(), states)


class SavepointWriter:
    """A savepoint that is being written to an empty folder."""

    def __init__(self, target: Storage) -> None:
        """Open a folder; InvalidArgumentError if it is not empty, or is inside of a store."""
        refuse_inside_store(target, "a savepoint")
        if not target.is_empty():
            raise InvalidArgumentError(
                f"{target.url} is not empty; choose a new folder for the savepoint"
            )
        self._target = target
        self._files: list[str] = []

    def write_file(self, data: Iterable[bytes]) -> RelativeHandle:
        """Write the pieces to a new file, and return its handle."""
        name = f"state-{len(self._files)}"
        size = 0
        self._files.append(name)
        with self._target.open_write(name) as file:
            for piece in data:
                size += file.write(piece)
        return RelativeHandle(name, size)

    def write_keyed(
        self, header: KeyedHeader, first: int, groups: Iterable[Iterable[bytes]]
    ) -> KeyGroupsHandle:
        """Write a stream of keyed state, and return its handle for a subtask.

        Args:
            header: the header of the stream.
            first: the first key group.
            groups: the bytes of each key group from ``first`` on, in chunks. A key group without
                entries has no chunks.

        Returns:
            The handle.
        """
        head = header_bytes(header)
        offsets: list[int] = []

        def pieces() -> Iterable[bytes]:
            position = len(head)
            yield head
            for group in groups:
                begin = position
                for piece in group:
                    position += len(piece)
                    yield piece
                offsets.append(begin if position > begin else 0)

        stream = self.write_file(pieces())
        return KeyGroupsHandle(first, tuple(offsets), stream)

    def copy_operator_state(
        self, handle: OperatorHandle | None, places: SavepointFiles, title: str
    ) -> OperatorHandle | None:
        """Copy the operator state of a subtask without changes, and return its new handle.

        Args:
            handle: the handle in the source savepoint, or None.
            places: the locations of the source savepoint's files.
            title: the operator's name in messages.

        Returns:
            The handle; small state stays in ``_metadata``.
        """
        if handle is None or isinstance(handle.stream, InlineHandle):
            return handle
        source = open_source(handle.stream, places, f"operator state of {title}")
        return OperatorHandle(handle.parts, self.write_file([source.read(0, source.size)]))

    def discard(self) -> None:
        """Delete all files that were written, so that the folder is empty again."""
        for name in self._files:
            self._target.delete(name)

    def finish(self, metadata: SavepointMetadata) -> None:
        """Write ``_metadata``, which completes the savepoint; CommitConflictError if it exists."""
        self._target.sync(self._files)
        if not self._target.put_if_absent(METADATA, metadata_v3(metadata)):
            raise CommitConflictError(
                f"{self._target.url} was empty, but another process has written a savepoint "
                "there since; choose another folder"
            )
