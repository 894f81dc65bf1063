"""Read many values in parallel: one read position per row, advanced together with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import DamagedFileError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.types.byte_slices import Bytes, Places, Spans

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


def make_counted_skip(element: Skip) -> Skip:
    """Return a function for a number of elements, and the elements."""

    def skip(reader: Reader) -> None:
        for _ in range(reader.count(1, "elements")):
            element(reader)

    return skip
