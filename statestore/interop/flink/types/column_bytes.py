"""Decode a column of values of one type from their bytes, and encode it: what several types share.

Parts that have the same form in every value are decoded for all rows with vectorized operations.
Only non-ASCII texts, large numbers and the lengths of lists are decoded row by row. The layout of
values follows Flink's serializers, which are named where their bytes are read.

Encoding is the exact inverse of decoding. A column is encoded part by part: its fields are encoded
as columns, and then concatenated row by row. The encoded elements of lists are already adjacent, so
that joining a list needs no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.interop.flink.types.base import Layout
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Places,
    Rows,
    Skip,
    Spans,
    join_parts,
    list_offsets,
    scatter,
)
from statestore.rows.equality import matching_positions
from statestore.rows.python_values import display_values, times_as_integers

_COMMA = 44


def decode_values(layout: Layout, spans: Spans) -> pa.Array:
    """Return the column of values that each fill their slice completely.

    Raises:
        UnsupportedTypeError: for a type without a column type, or a value that its column cannot
            hold.
        DamagedFileError: if bytes do not match the type, or are left over.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    values = layout.read(cursor)
    cursor.refuse(cursor.position != cursor.end, "unexpected bytes follow a value")
    return values


def decode_list(element: Layout, spans: Spans) -> pa.Array:
    """Return the lists of a list state, whose elements are separated by commas.

    ``ListDelimitedSerializer`` writes this format, so that RocksDB can append elements by merging.
    Raises the errors of :func:`decode_values`.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    width = element.fixed_width
    if width is None:
        starts, counts = split_elements(element, cursor)
    else:
        counts = (cursor.end - cursor.position + 1) // (width + 1)
        wrong = (counts * (width + 1) - 1 != cursor.end - cursor.position) & (
            cursor.end > cursor.position
        )
        cursor.refuse(wrong, "a list does not end with an element")
        starts = np.repeat(cursor.position, counts) + _index_within_row(counts) * (width + 1)
    commas = starts[_index_within_row(counts) > 0] - 1
    if bool((spans.data[commas] != _COMMA).any()):
        raise cursor.error("the elements of a list have no comma between them", 0)
    limits = np.repeat(cursor.end, counts)
    values = element.read(Cursor(spans, starts, limits))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def decode_map_values(value: Layout, spans: Spans) -> pa.Array:
    """Return the values of a map state's entries, each of which begins with a null flag.

    A null flag can be followed by the bytes that the value's serializer writes for a null
    (``HeapKeyValueStateIterator``). Raises the errors of :func:`decode_values`.
    """
    cursor = Cursor(spans, spans.starts, spans.ends)
    nulls = cursor.flags()
    values = read_non_null(nulls, value, 0, cursor)
    cursor.refuse((cursor.position != cursor.end) & ~nulls, "unexpected bytes follow a value")
    return values


def build_struct(
    columns: list[pa.Array], struct_type: pa.StructType, nulls: Rows | None = None
) -> pa.Array:
    """Return structs of the given fields; ``nulls`` are the rows without a value."""
    mask = None if nulls is None or not bool(nulls.any()) else pa.array(nulls)
    fields = [struct_type.field(index) for index in range(struct_type.num_fields)]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=mask)


def read_non_null(nulls: Rows, value: Layout, padding: int, cursor: Cursor) -> pa.Array:
    """Read the values of the rows that are not null; skip ``padding`` bytes in the others."""
    if not bool(nulls.any()):
        return value.read(cursor)
    if padding:
        empty = cursor.select(nulls)
        empty.take(padding)
        cursor.move_rows(nulls, empty)
    selected = cursor.select(~nulls)
    values = value.read(selected)
    cursor.move_rows(~nulls, selected)
    return scatter(values, ~nulls)


def read_lists(element: Layout, cursor: Cursor, counts: Places) -> pa.Array:
    """Read lists of consecutive elements, whose counts were already read."""
    elements, cursor.position = read_elements(element, cursor, counts)
    return pa.ListArray.from_arrays(list_offsets(counts), elements)


def read_elements(element: Layout, cursor: Cursor, counts: Places) -> tuple[pa.Array, Places]:
    """Read lists of consecutive elements; return the elements and the end of each list."""
    width = element.fixed_width
    if width is None:
        starts, ends = _scan_elements(element.skipper(), cursor, counts)
    else:
        ends = cursor.position + counts * width
        cursor.refuse(ends > cursor.end, "a list exceeds its value")
        starts = np.repeat(cursor.position, counts) + _index_within_row(counts) * width
    return element.read(Cursor(cursor.spans, starts, np.repeat(ends, counts))), ends


def _scan_elements(skip: Skip, cursor: Cursor, counts: Places) -> tuple[Places, Places]:
    """Return the position of each element, and the end of each row's last element."""
    starts: list[int] = []
    ends = cursor.position.copy()
    for row in np.flatnonzero(counts).tolist():
        reader, begin = cursor.reader(row), int(cursor.position[row])
        for _ in range(int(counts[row])):
            starts.append(begin + reader.position)
            skip(reader)
        ends[row] = begin + reader.position
    return np.array(starts, np.int64), ends


def _index_within_row(counts: Places) -> Places:
    """Return the index of each element within its row."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def split_elements(element: Layout, cursor: Cursor, between: int = 1) -> tuple[Places, Places]:
    """Return the position of each element, and the number of elements per row.

    Two elements are separated by ``between`` bytes.
    """
    skip = element.skipper()
    starts: list[int] = []
    counts = np.zeros(len(cursor), np.int64)
    for row in range(len(cursor)):
        reader, begin, before = cursor.reader(row), int(cursor.position[row]), len(starts)
        while reader.remaining:
            starts.append(begin + reader.position)
            skip(reader)
            if reader.remaining and between:
                reader.take(between)
                if not reader.remaining:
                    raise reader.error("a list ends with a comma")
        counts[row] = len(starts) - before
    return np.array(starts, np.int64), counts


EMPTY = pa.scalar(b"", BYTES)
"""No bytes, such as for a null field that has a null bit."""


def encode_list(array: pa.Array, element: Layout) -> pa.Array:
    """Return the bytes of each list of a list state: its elements, separated by commas."""
    refuse_nulls(array)
    elements = join_parts(element.write(array.flatten()), pa.scalar(b",", BYTES))
    return join_runs(elements, list_lengths(array), less=1)


def find_valid(array: pa.Array) -> Rows:
    """Return the mask of the rows that are not null."""
    valid: Rows = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def refuse_nulls(array: pa.Array) -> None:
    """Raise InvalidArgumentError if a column has a null that its type cannot represent."""
    if array.null_count:
        raise InvalidArgumentError("a value is null, which Flink's serializer cannot represent")


def refuse_outside(numbers: npt.NDArray[Any], least: int, most: int, what: str) -> None:
    """Raise InvalidArgumentError for a number that Flink could not read back; ``what`` names it."""
    outside = (numbers < least) | (numbers > most)
    if bool(outside.any()):
        raise InvalidArgumentError(
            f"{what} is {numbers[outside][0]}, but Flink permits {least} to {most}"
        )


def refuse_repeated(containers: pa.Array, values: pa.Array, what: str) -> None:
    """Raise InvalidArgumentError for a map or set in which a value occurs twice.

    Java compares values as the store does: NaN equals NaN, and 0.0 does not equal -0.0.

    Args:
        containers: maps or sets, none of which is null.
        values: the keys or elements of all of them, in order.
        what: how a message names them, such as ``a map has the key``.
    """
    counts = list_lengths(containers)
    if (counts < 2).all():
        return
    owners = np.repeat(np.arange(len(containers)), counts)
    # Times of Flink can be beyond those of a stored column.
    comparable = values.cast(times_as_integers(values.type))
    rows = pa.table([owners, comparable], ["owner", "value"])
    places, first_places = matching_positions(rows, rows)
    for place in np.flatnonzero(first_places != places)[:1].tolist():
        (value,) = display_values(values.slice(place, 1))
        (whole,) = display_values(containers.slice(int(owners[place]), 1))
        raise InvalidArgumentError(
            f"{what} {value!r:.80} twice, and Flink would keep only one of both: give it once in "
            f"{whole!r:.200}"
        )


def choose_bytes(rows: Rows, yes: bytes, no: bytes) -> pa.Array:
    """Return the bytes ``yes`` for the selected rows, and ``no`` for the others."""
    return pc.if_else(pa.array(rows), pa.scalar(yes, BYTES), pa.scalar(no, BYTES))


def write_where(array: pa.Array, rows: Rows, layout: Layout) -> pa.Array:
    """Encode the values of the selected rows; the bytes of the others are empty."""
    selected = layout.write(array.filter(pa.array(rows)))
    return scatter(selected, rows).fill_null(EMPTY)


def matrix_bytes(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix of bytes as an array."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(BYTES, count, [None, pa.py_buffer(offsets), data])


def write_numbers(array: pa.Array, dtype: str) -> pa.Array:
    """Encode numbers as a big-endian NumPy type."""
    refuse_nulls(array)
    values = array.to_numpy(zero_copy_only=False).astype(dtype)
    return matrix_bytes(values.view(np.uint8).reshape(len(array), values.dtype.itemsize))


def write_sized(array: pa.Array) -> pa.Array:
    """Encode bytes, or text in UTF-8, with a length prefix."""
    refuse_nulls(array)
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    plain = array.cast(pa.large_string() if is_text else BYTES)
    return join_parts(write_numbers(pc.binary_length(plain), ">i4"), plain.cast(BYTES))


def write_fields(array: pa.Array, layouts: Sequence[Layout]) -> pa.Array:
    """Encode structs as the bytes of their fields; none of the structs may be null."""
    refuse_nulls(array)
    columns = zip(array.flatten(), layouts, strict=True)
    parts = [layout.write(column) for column, layout in columns]
    return join_parts(*parts) if parts else pa.array([b""] * len(array), BYTES)


def flatten_entries(array: pa.Array) -> pa.Array:
    """Return the keys and values of maps as structs."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    sides = [side.slice(first, last - first) for side in (array.keys, array.items)]
    return pa.StructArray.from_arrays(sides, ["f0", "f1"])


def list_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return the number of elements of each list or map."""
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    lengths: npt.NDArray[np.int64] = np.diff(offsets.astype(np.int64))
    return lengths


def join_runs(elements: pa.Array, counts: npt.NDArray[np.int64], *, less: int = 0) -> pa.Array:
    """Join the bytes of adjacent elements; cut the last ``less`` bytes of each result."""
    _, offsets, data = elements.buffers()
    edges = np.frombuffer(offsets, np.int64, len(elements) + 1, 8 * elements.offset)
    upto = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    ends = edges[upto]
    if not less:
        buffers = [None, pa.py_buffer(np.ascontiguousarray(ends)), data]
        return pa.Array.from_buffers(BYTES, len(counts), buffers)
    whole = np.empty(2 * len(counts) + 1, np.int64)
    whole[::2] = ends
    whole[1::2] = ends[1:] - np.where(counts > 0, less, 0)
    pieces = pa.Array.from_buffers(BYTES, 2 * len(counts), [None, pa.py_buffer(whole), data])
    return pieces.take(pa.array(np.arange(0, 2 * len(counts), 2)))
