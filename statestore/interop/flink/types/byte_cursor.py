"""Byte slices of a shared buffer, and cursors that read all slices in parallel.

The slices hold the keys or values of many rows without copies. A cursor has one read position per
row, and all positions are advanced together with NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader

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


_FREE_CELLS = 1 << 24
_CELLS_OF_BYTE = 64
_MOST_ELEMENTS = (1 << 31) - 1

Rows = npt.NDArray[np.bool_]


class Cursor:
    """The current position and the end of each row's value.

    A read past the end of a value raises a DamagedFileError with the file and the byte.
    """

    __slots__ = ("end", "position", "spans")

    def __init__(self, spans: Spans, position: Places, end: Places) -> None:
        self.spans = spans
        self.position = position
        self.end = end

    def __len__(self) -> int:
        return len(self.position)

    def error(self, problem: str, row: int) -> DamagedFileError:
        """Return an error with the problem, the file and the byte of a row."""
        where = self.spans.base + int(self.position[row])
        return DamagedFileError(f"{self.spans.name} is damaged at byte {where}: {problem}")

    def refuse(self, wrong: Rows, problem: str) -> None:
        """Raise an error for the first row where ``wrong`` is true, if there is one."""
        if bool(wrong.any()):
            raise self.error(problem, int(np.argmax(wrong)))

    def refuse_cells(self, columns: int) -> None:
        """Refuse values that would expand to far more cells than their bytes justify.

        A null of a type with many fields takes a single byte, but produces a null in each of
        ``columns`` columns. Raises DamagedFileError.
        """
        cells = len(self) * columns
        if cells > _FREE_CELLS + _CELLS_OF_BYTE * len(self.spans.data):
            problem = (
                f"{len(self)} values of {columns} columns each do not fit in the available bytes"
            )
            raise self.error(problem, 0)

    def take(self, width: int) -> npt.NDArray[np.uint8]:
        """Return the next ``width`` bytes of every row."""
        self.refuse(self.position + width > self.end, f"a value ends before its next {width} bytes")
        if not len(self.position) or not width:
            return np.empty((len(self.position), width), np.uint8)
        if width == 1:
            matrix = self.spans.data[self.position][:, np.newaxis]
        else:
            windows = np.lib.stride_tricks.sliding_window_view(self.spans.data, width)
            matrix = windows[self.position]
        self.position = self.position + width
        return matrix

    def numbers(self, dtype: str) -> npt.NDArray[Any]:
        """Return the next number of every row; ``dtype`` is big-endian, the result is native."""
        number_type = np.dtype(dtype)
        raw = self.take(number_type.itemsize)
        return raw.view(number_type).reshape(-1).astype(number_type.newbyteorder("="))

    def flags(self) -> Rows:
        """Return the next byte of every row as a boolean; it must be 0 or 1."""
        raw = self.take(1)[:, 0]
        wrong = raw > 1
        if bool(wrong.any()):
            self.position = self.position - 1
            self.refuse(wrong, "a boolean is neither 0 nor 1")
        values: Rows = raw == 1
        return values

    def counts(self, least: int) -> Places:
        """Return the next item count of every row; each item has at least ``least`` bytes."""
        numbers = self.numbers(">i4").astype(np.int64)
        wrong = (numbers < 0) | (numbers * least > self.end - self.position)
        self.refuse(wrong, "a count is too large for its value")
        return numbers

    def select(self, rows: Rows) -> Cursor:
        """Return a cursor over some of the rows."""
        return Cursor(self.spans, self.position[rows], self.end[rows])

    def move_rows(self, rows: Rows, other: Cursor) -> None:
        """Move the given rows to the positions of ``other``, a cursor over these rows."""
        self.position = self.position.copy()
        self.position[rows] = other.position

    def reader(self, row: int) -> Reader:
        """Return a reader for the unread bytes of a row."""
        view = self.spans.data[int(self.position[row]) : int(self.end[row])].data
        return Reader(view, self.spans.name, base=self.spans.base + int(self.position[row]))

    def varints(self) -> Places:
        """Return the next varint of every row: 7 bits per byte, lowest bits first."""
        first = self.take(1)[:, 0]
        values = (first & 0x7F).astype(np.int64)
        unfinished = first >= 0x80
        shift = 7
        while bool(unfinished.any()):
            self.refuse(unfinished & np.bool_(shift > 28), "a variable-length number does not end")
            selected = self.select(unfinished)
            byte = selected.take(1)[:, 0]
            values[unfinished] |= (byte & 0x7F).astype(np.int64) << shift
            self.move_rows(unfinished, selected)
            still_unfinished = np.zeros(len(unfinished), np.bool_)
            still_unfinished[unfinished] = byte >= 0x80
            unfinished, shift = still_unfinished, shift + 7
        return values

    def data(self) -> Bytes:
        """Return the buffer that contains all rows."""
        return self.spans.data


def list_offsets(counts: Places) -> pa.Array:
    """Return the offsets of lists with these element counts, including the final end.

    Raises UnsupportedTypeError if the lists have more elements than an Arrow list column can hold.
    """
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    if edges[-1] > _MOST_ELEMENTS:
        raise UnsupportedTypeError(
            f"one key group has {edges[-1]} list elements, but a column can have at most "
            f"{_MOST_ELEMENTS}"
        )
    return pa.array(edges.astype(np.int32))


def scatter(array: pa.Array, rows: Rows) -> pa.Array:
    """Return a full-length array: ``array`` in the rows where ``rows`` is true, null elsewhere."""
    if bool(rows.all()):
        return array
    places = np.cumsum(rows) - 1
    return array.take(pa.array(places, pa.int64(), mask=~rows))


Skip = Callable[[Reader], None]
"""A function that advances a reader past one value."""


def make_fixed_skip(width: int) -> Skip:
    """Return a function for values of ``width`` bytes."""

    def skip(reader: Reader) -> None:
        reader.take(width)

    return skip


def skip_sized(reader: Reader) -> None:
    """Skip bytes with a length prefix."""
    reader.take(reader.i32())


def make_sequence_skip(*skips: Skip) -> Skip:
    """Return a function for parts that follow one another."""

    def skip(reader: Reader) -> None:
        for skip_part in skips:
            skip_part(reader)

    return skip
