"""Decode the entries of many RocksDB blocks in parallel, as columns.

An entry (``BlockBuilder``) begins with three numbers: how many bytes its key shares with the
previous key, how many more bytes the key has, and the length of the value. Then come the other
bytes of the key, and the value. At restart points, every 16 entries by default, a key shares
nothing. The block ends with the positions of its restart points. So the entries after all restart
points are decoded in parallel: the first entry of each, then the second, and so on.

A key ends with eight bytes for the kind of the entry and its sequence number.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Places,
    Spans,
    join_parts,
    piece_array,
)

DELETE, VALUE, MERGE, SINGLE_DELETE, RANGE_DELETE = 0, 1, 2, 7, 15
_KINDS = np.array([DELETE, VALUE, MERGE, SINGLE_DELETE, RANGE_DELETE], np.uint64)
_PACKED = 8
_STEPS = 64  # four times the default number of entries between two restart points

ENTRY_BYTES = 256
"""The size that is counted for an entry, in addition to its key, when entries are read singly."""

_U32 = np.dtype("<u4")

BLOCK_BYTES: Final = 1 << 30
"""The largest block that is decompressed: larger than the largest row of a store."""

_FREE_BYTES: Final = 256 << 20
_MAX_RATIO: Final = 256


class Expansion:
    """The number of bytes to which one pass over a file may still expand.

    Compression and shared key prefixes let a small file expand to any number of bytes. RocksDB
    files with real state expand to less than a hundred times their length.
    """

    __slots__ = ("_limit", "_name", "_remaining")

    def __init__(self, name: str, stored: int) -> None:
        """Set the limit for a file of ``stored`` bytes; ``name`` is its name in messages."""
        self._name = name
        self._limit = self._remaining = _FREE_BYTES + _MAX_RATIO * stored

    def spend(self, count: int, position: int) -> None:
        """Use up ``count`` bytes, to which the data at byte ``position`` of the file expands.

        Raises:
            DamagedFileError: if the file expands to more than its limit.
        """
        self._remaining -= count
        if self._remaining < 0:
            raise DamagedFileError(
                f"{self._name} is damaged at byte {position}: the data up to there expands to more "
                f"than {self._limit} bytes, which is impossible for state of this length"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Versions:
    """Keys, each with the operation that was applied to it and the operation's value.

    ``packed`` has the sequence number in its upper 56 bits and the kind in its lower 8 bits. So the
    newest version of a key has the largest number.
    """

    keys: pa.Array
    packed: npt.NDArray[np.uint64]
    values: pa.Array

    def __len__(self) -> int:
        """Return the number of versions."""
        return len(self.packed)

    @property
    def kinds(self) -> npt.NDArray[np.uint64]:
        """The kinds of the operations, such as put, delete or merge."""
        return self.packed & np.uint64(0xFF)

    @property
    def sequences(self) -> npt.NDArray[np.int64]:
        """The sequence numbers of the operations."""
        return (self.packed >> np.uint64(8)).astype(np.int64)

    def slice(self, start: int, stop: int) -> Versions:
        """Return the versions from ``start`` to ``stop``."""
        count = stop - start
        return Versions(
            self.keys.slice(start, count), self.packed[start:stop], self.values.slice(start, count)
        )

    def take(self, rows: npt.NDArray[np.int64]) -> Versions:
        """Return the versions with these indexes, in this order."""
        places = pa.array(rows)
        return Versions(self.keys.take(places), self.packed[rows], self.values.take(places))

    @staticmethod
    def concat(parts: Sequence[Versions]) -> Versions:
        """Return the versions of all parts."""
        if len(parts) == 1:
            return parts[0]
        return Versions(
            pa.concat_arrays([part.keys for part in parts]),
            np.concatenate([part.packed for part in parts]),
            pa.concat_arrays([part.values for part in parts]),
        )


def decode_versions(blocks: Spans, expansion: Expansion) -> Versions:
    """Return the entries of decompressed blocks of one file, in their order.

    Raises:
        DamagedFileError: if the blocks do not follow RocksDB's format.
        UnsupportedTypeError: for an unsupported kind of entry.
    """
    keys, values = decode_pairs(blocks, expansion)
    spans = Spans.from_array(keys, blocks.name)
    cut = spans.ends - _PACKED
    if bool((cut < spans.starts).any()):
        raise Cursor(blocks, blocks.starts, blocks.ends).error(
            "a RocksDB key is shorter than its sequence number", 0
        )
    packed = Cursor(spans, cut, spans.ends).numbers("<u8")
    kinds = packed & np.uint64(0xFF)
    wrong = ~np.isin(kinds, _KINDS)
    if bool(wrong.any()):
        raise UnsupportedTypeError(
            f"{blocks.name} has an entry of the unsupported kind {kinds[np.argmax(wrong)]} "
            "(17 is a value in a separate file); take a canonical savepoint"
        )
    return Versions(piece_array(spans.data, spans.starts, cut).cast(BYTES), packed, values)


def decode_pairs(blocks: Spans, expansion: Expansion) -> tuple[pa.Array, pa.Array]:
    """Return the complete keys and the values of decompressed blocks of one file.

    ``expansion`` limits the bytes that are copied from shared prefixes. Raises DamagedFileError if
    the blocks do not follow RocksDB's format.
    """
    lanes = _make_lanes(blocks)
    data = lanes.data()
    lane, keys = (
        np.arange(len(lanes)),
        piece_array(data, lanes.position, lanes.position).cast(BYTES),
    )
    parts = [_DecodedEntries(lane[:0], keys[:0], lane[:0], lane[:0])]
    for _ in range(_STEPS):
        if not len(lanes):
            break
        parts.append(_decode_step(lanes, lane, keys, expansion))
        keys = parts[-1].keys
        is_unfinished = lanes.position < lanes.end
        if not bool(is_unfinished.all()):
            lane, keys, lanes = (
                lane[is_unfinished],
                keys.filter(pa.array(is_unfinished)),
                lanes.select(is_unfinished),
            )
    parts += [
        _decode_rest(lanes.reader(row), number, key, int(lanes.position[row]), expansion)
        for row, (number, key) in enumerate(zip(lane.tolist(), keys.to_pylist(), strict=True))
    ]
    order = np.argsort(np.concatenate([part.lanes for part in parts]), kind="stable")
    whole = pa.concat_arrays([part.keys for part in parts]).take(pa.array(order))
    starts = np.concatenate([part.starts for part in parts])[order]
    values = piece_array(data, starts, np.concatenate([part.ends for part in parts])[order])
    return whole, values.cast(BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class _DecodedEntries:
    """Entries with their lane, key and value position; the entries of one lane are in order."""

    lanes: Places
    keys: pa.Array
    starts: Places
    ends: Places


def _decode_step(
    lanes: Cursor, lane: Places, previous: pa.Array, expansion: Expansion
) -> _DecodedEntries:
    """Decode the next entry of every lane and advance; ``previous`` are the previous keys."""
    data = lanes.data()
    shared, more, length = lanes.varints(), lanes.varints(), lanes.varints()
    known = Spans.from_array(previous, lanes.spans.name)
    lanes.refuse(
        shared > known.ends - known.starts, "a key shares more bytes than the previous key has"
    )
    lanes.refuse(more + length > lanes.end - lanes.position, "an entry exceeds its block")
    middle = lanes.position + more
    keys = piece_array(data, lanes.position, middle).cast(BYTES)
    if bool(shared.any()):
        expansion.spend(int(shared.sum()), lanes.spans.base + int(lanes.position[0]))
        first = piece_array(known.data, known.starts, known.starts + shared)
        keys = join_parts(first.cast(BYTES), keys)
    lanes.position = middle + length
    return _DecodedEntries(lane, keys, middle, lanes.position)


def _decode_rest(
    reader: Reader, lane: int, key: bytes, begin: int, expansion: Expansion
) -> _DecodedEntries:
    """Return the remaining entries of a lane, whose bytes begin at ``begin`` of the blocks.

    For a lane with very many entries, vectorized steps over a single lane would be too slow.
    """
    keys, starts, ends = list[bytes](), array("q"), array("q")
    while reader.remaining:
        start, shared, more, length = (
            reader.position,
            reader.varint(),
            reader.varint(),
            reader.varint(),
        )
        expansion.spend(shared + ENTRY_BYTES, reader.base + start)
        if shared > len(key):
            raise reader.error("a key shares more bytes than the previous key has", position=start)
        key = key[:shared] + reader.bytes(more)
        keys.append(key)
        starts.append(begin + reader.position)
        reader.take(length)
        ends.append(begin + reader.position)
    lanes = np.full(len(keys), lane, np.int64)
    return _DecodedEntries(lanes, pa.array(keys, BYTES), np.array(starts), np.array(ends))


def _make_lanes(blocks: Spans) -> Cursor:
    """Return a cursor with one lane per restart point, which ends at the next restart point."""
    data = blocks.data
    starts, ends = [blocks.starts[:0]], [blocks.starts[:0]]
    for number, (start, stop) in enumerate(
        zip(blocks.starts.tolist(), blocks.ends.tolist(), strict=True)
    ):
        end = entries_end(blocks, number)
        begins = start + data[end : stop - 4].view(_U32).astype(np.int64)
        if end == start:
            continue
        edges = np.append(begins, end)
        if edges[0] != start or bool((edges[1:] <= edges[:-1]).any()):
            raise _damaged(blocks, number, "the restart points of a block are wrong")
        starts.append(begins)
        ends.append(edges[1:])
    return Cursor(blocks, np.concatenate(starts), np.concatenate(ends))


def entries_end(blocks: Spans, number: int) -> int:
    """Return the end of a block's entries; DamagedFileError if the block's trailer is invalid."""
    start, stop = int(blocks.starts[number]), int(blocks.ends[number])
    if stop - start < 4:
        raise _damaged(blocks, number, "a block is truncated")
    count = int(blocks.data[stop - 4 : stop].view(_U32)[0])
    end = stop - 4 - 4 * count
    if count >> 31 or end < start:
        raise _damaged(blocks, number, "a block has a hash index or is truncated")
    return end


def _damaged(blocks: Spans, number: int, problem: str) -> DamagedFileError:
    return Cursor(blocks, blocks.starts, blocks.ends).error(problem, number)
