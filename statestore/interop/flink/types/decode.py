"""Decode a column of values of one type from their bytes.

Parts that have the same form in every value are decoded for all rows with vectorized operations.
Only non-ASCII texts, large numbers and the lengths of lists are decoded row by row. The layout of
values follows Flink's serializers, which are named where their bytes are read.

This module has the entry points, and the functions that several types share.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from statestore.interop.flink.types.base import Layout
from statestore.interop.flink.types.byte_cursor import Cursor, Rows, Skip, list_offsets, scatter
from statestore.interop.flink.types.byte_slices import Places, Spans

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
        starts, ends = scan_elements(element.skipper(), cursor, counts)
    else:
        ends = cursor.position + counts * width
        cursor.refuse(ends > cursor.end, "a list exceeds its value")
        starts = np.repeat(cursor.position, counts) + _index_within_row(counts) * width
    return element.read(Cursor(cursor.spans, starts, np.repeat(ends, counts))), ends


def scan_elements(skip: Skip, cursor: Cursor, counts: Places) -> tuple[Places, Places]:
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
