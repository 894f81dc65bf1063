"""Build the entries and key groups of a canonical savepoint from columns of keys and values
(``FullSnapshotAsyncWriter``).

A key group is written in chunks, so that it does not need to fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from types import TracebackType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState, StateKind
from statestore.interop.flink.metadata.java_binary import i16
from statestore.interop.flink.read.canonical import prefix_bytes
from statestore.interop.flink.read.snappy import frame_pieces
from statestore.interop.flink.types.byte_slices import BYTES, join_parts
from statestore.interop.flink.types.scalars import Scalar
from statestore.rows.column_types import schema_of_arrow
from statestore.rows.key_group_runs import sort_groups
from statestore.rows.sorting import ExternalSort, slices_of

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
        self._sort.add(pa.Table.from_arrays(columns, schema=self._SCHEMA))

    def runs(self) -> Iterator[EntryRun]:
        """Yield all entries that were added, sorted."""
        is_sorted = self._sort.spilled
        for rows in self._sort.finish():
            piece = rows if is_sorted else sort_groups(rows, self._order)
            for part in slices_of(piece, PIECE_BYTES):
                groups, places, entries = (column.combine_chunks() for column in part.columns)
                states = places.to_numpy() >> self._COUNT_BITS
                yield from split_runs(entries, groups.to_numpy(), states)
