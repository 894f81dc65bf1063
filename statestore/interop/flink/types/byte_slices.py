"""Byte slices of a shared buffer, which hold the keys or values of many rows without copies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BYTES = pa.large_binary()

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]
_LARGEST = (1 << 31) - 1
_EMPTY = pa.scalar(b"", BYTES)
_BLOCK = 1 << 20
"""How many bytes of unordered slices are copied at a time: each takes 24 bytes meanwhile."""


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The slices of ``data`` from ``starts`` to ``ends``, one for each row.

    ``name`` is the file that the bytes belong to. ``base`` is the position of ``data`` in that
    file, or in the file's decompressed content.
    """

    data: Bytes
    starts: Places
    ends: Places
    name: str
    base: int = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.starts)

    def arrow(self) -> pa.Array:
        """Return the slices as an Arrow array of bytes."""
        return piece_array(self.data, self.starts, self.ends)

    def take(self, rows: npt.NDArray[np.intp] | npt.NDArray[np.bool_] | slice) -> Spans:
        """Return a selection of the rows."""
        return Spans(self.data, self.starts[rows], self.ends[rows], self.name, self.base)

    def part(self, first: int, stop: int) -> Spans:
        """Return the rows from ``first`` to ``stop`` (exclusive), with only the data they need."""
        starts, ends = self.starts[first:stop], self.ends[first:stop]
        begin, end = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        data = self.data[begin:end]
        return Spans(data, starts - begin, ends - begin, self.name, self.base + begin)

    @staticmethod
    def from_values(values: list[bytes], name: str) -> Spans:
        """Copy a list of bytes into one buffer and return its slices."""
        ends = np.cumsum([len(value) for value in values], dtype=np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])[: len(values)]
        return Spans(np.frombuffer(b"".join(values), np.uint8), starts, ends, name)

    @staticmethod
    def from_array(values: pa.Array, name: str) -> Spans:
        """Return slices of the buffer of an Arrow array of type ``BYTES``, without a copy."""
        _, offsets, content = values.buffers()
        edges = np.frombuffer(offsets, np.int64, len(values) + 1, 8 * values.offset)
        data = np.frombuffer(content, np.uint8) if content else np.empty(0, np.uint8)
        return Spans(data, edges[:-1], edges[1:], name)


def join_parts(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Concatenate arrays of type ``BYTES`` row by row."""
    return pc.binary_join_element_wise(*parts, _EMPTY)


def piece_array(data: Bytes, starts: Places, ends: Places) -> pa.Array:
    """Return slices of a buffer as an Arrow array of bytes (large binary only if necessary).

    If the slices are in order and do not overlap, Arrow cuts them out of the buffer directly.
    """
    count = len(starts)
    if count and bool((starts[1:] >= ends[:-1]).all()):
        edges = np.empty(2 * count, np.int64)
        edges[::2], edges[1::2] = starts, ends
        small = len(data) <= _LARGEST
        data_type = pa.binary() if small else pa.large_binary()
        offsets = edges.astype(np.int32) if small else edges
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        whole = pa.Array.from_buffers(data_type, 2 * count - 1, buffers)
        return whole.take(pa.array(np.arange(0, 2 * count - 1, 2)))
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
    content = np.empty(int(edges[-1]), np.uint8)
    first = 0
    while first < count:
        stop = int(np.searchsorted(edges, edges[first] + _BLOCK, side="right")) - 1
        if stop <= first + 1:  # a long slice is copied alone, without the positions of its bytes
            stop = first + 1
            content[edges[first] : edges[stop]] = data[starts[first] : ends[first]]
        else:
            block = edges[first:stop]
            positions = np.arange(int(block[0]), int(edges[stop]))
            positions += np.repeat(starts[first:stop] - block, np.diff(edges[first : stop + 1]))
            content[block[0] : edges[stop]] = data[positions]
        first = stop
    small = len(content) <= _LARGEST
    data_type = pa.binary() if small else pa.large_binary()
    offsets = edges.astype(np.int32) if small else edges
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(data_type, count, buffers)
