"""Write rows of Flink SQL value by value, to compare them with the rows that are written together.

This follows ``BinaryRowWriter`` and ``BinaryArrayWriter`` of Flink.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Context
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import big_integer
from statestore.interop.flink.metadata.logical_types import (
    INSTANT,
    OUT_OF_LINE,
    SQL_ROOTS,
    LogicalType,
    entry_types,
)

WORD, INLINE, MOST_INLINE, HEADER_BITS, COMPACT_DIGITS = 8, 0x80, 7, 8, 18
NUMBERS = {root.root: root.number for root in SQL_ROOTS.values() if root.number}
BYTES = ("CHAR", "VARCHAR", "BINARY", "VARBINARY")
ROWS = ("ROW", "STRUCTURED_TYPE")
NESTED = (*ROWS, "ARRAY", "MAP", "MULTISET")
EXACT = Context(prec=80)


class OutOfLine(bytes):
    """A value that is never stored inline, even if it is short: a row, array, map or raw value."""


def encode_rows(
    columns: tuple[LogicalType, ...], rows: pa.Array, *, are_keys: bool = False
) -> list[bytes]:
    """Return the bytes of rows in the layout of ``BinaryRowWriter``, without their lengths.

    In keys, a null of a type that does not fit into a word reserves the bytes of a value.
    """
    kinds, *fields = rows.flatten()
    values = [to_plain_values(column, field) for column, field in zip(columns, fields, strict=True)]
    row_values = zip(*values, strict=True) if values else ((),) * len(rows)
    reserved = [reserved_bytes(column) if are_keys else 0 for column in columns]
    return [
        encode_row(columns, reserved, row_kind, row)
        for row_kind, row in zip(kinds.to_pylist(), row_values, strict=True)
    ]


def reserved_bytes(column: LogicalType) -> int:
    """Return how many bytes of variable-length data a null reserves."""
    if column.root == "DECIMAL":
        return 2 * WORD if column.precision > COMPACT_DIGITS else 0
    is_long = column.root.startswith("TIMESTAMP") and column.precision > 3
    return WORD if is_long else 0


def to_plain_values(column: LogicalType, field: pa.Array) -> list[Any]:
    """Return values as the numbers or bytes that a row contains.

    A decimal is its unscaled number. A timestamp of more than three fractional digits is a pair:
    milliseconds since 1970, and nanoseconds of the millisecond.
    """
    if column.root == "DECIMAL":
        scaled = (
            None if value is None else value.scaleb(column.scale, EXACT)
            for value in field.to_pylist()
        )
        return [None if value is None else int(value) for value in scaled]
    if column.root in NESTED:
        return to_plain_nested(column, field)
    if column.root in OUT_OF_LINE:
        return [None if value is None else OutOfLine(value) for value in field.to_pylist()]
    if column.root in BYTES:
        return list(field.cast(pa.binary()).to_pylist())
    if column.root.startswith("TIMESTAMP") and column.precision > 3:
        if field.type == INSTANT:
            pairs = (
                (value["second"], value["nano"]) if value else None for value in field.to_pylist()
            )
        else:
            micros = field.cast(pa.int64()).to_pylist()
            pairs = (
                None if micro is None else (micro // 1_000_000, micro % 1_000_000 * 1000)
                for micro in micros
            )
        return [
            None if pair is None else (pair[0] * 1000 + pair[1] // 1_000_000, pair[1] % 1_000_000)
            for pair in pairs
        ]
    if pa.types.is_temporal(field.type):
        width = pa.int64() if field.type.bit_width == WORD * 8 else pa.int32()
        field = field.cast(width)
    return list(field.to_pylist())


def to_plain_nested(column: LogicalType, field: pa.Array) -> list[Any]:
    validity = field.is_valid().to_pylist()
    encoded = encode_valid(column, field.filter(field.is_valid()))
    return [OutOfLine(next(encoded)) if is_valid else None for is_valid in validity]


def encode_valid(column: LogicalType, values: pa.Array) -> Iterator[bytes]:
    """Return the bytes of rows, arrays or maps, none of which is null."""
    if column.root in ROWS:
        return iter(encode_rows(column.children, values))
    if column.root == "ARRAY":
        return iter(encode_arrays(column.children[0], values.flatten(), values.offsets))
    key, value = entry_types(column)
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    keys, items = (side.slice(first, last - first) for side in (values.keys, values.items))
    pairs = zip(
        encode_arrays(key, keys, values.offsets),
        encode_arrays(value, items, values.offsets),
        strict=True,
    )
    return (
        len(key_bytes).to_bytes(4, "little") + key_bytes + value_bytes
        for key_bytes, value_bytes in pairs
    )


def encode_arrays(element: LogicalType, values: pa.Array, offsets: pa.Array) -> list[bytes]:
    """Return the bytes of arrays in the layout of ``BinaryArrayWriter``."""
    plain, edges = to_plain_values(element, values), offsets.to_pylist()
    first = edges[0]
    return [
        encode_array(element, plain[start - first : stop - first])
        for start, stop in pairwise(edges)
    ]


def encode_array(element: LogicalType, values: list[Any]) -> bytes:
    count, width = len(values), element_width(element)
    nulls = sum(1 << index for index, value in enumerate(values) if value is None)
    head = count.to_bytes(4, "little") + nulls.to_bytes((count + 31) // 32 * 4, "little")
    tail = bytearray()
    first = len(head) + count * width
    first += -first % WORD
    words = b"".join(encode_word(element, value, tail, first)[:width] for value in values)
    return (head + words).ljust(first, b"\0") + bytes(tail)


def encode_row(
    columns: tuple[LogicalType, ...], reserved: list[int], row_kind: int, row: tuple[Any, ...]
) -> bytes:
    nulls = sum(1 << HEADER_BITS + index for index, value in enumerate(row) if value is None)
    header = (nulls | row_kind).to_bytes(header_width(len(columns)), "little")
    words, tail = bytearray(), bytearray()
    first = len(header) + WORD * len(columns)
    for column, value, size in zip(columns, row, reserved, strict=True):
        if value is None and size:
            words += int(first + len(tail) << 32).to_bytes(WORD, "little")
            tail += bytes(size)
        else:
            words += encode_word(column, value, tail, first)
    return header + bytes(words) + bytes(tail)


def encode_word(column: LogicalType, value: Any, tail: bytearray, first: int) -> bytes:
    """Return the eight bytes of a column, and append longer data to ``tail``."""
    if value is None:
        return bytes(WORD)
    offset = first + len(tail) << 32
    if column.root in NUMBERS:
        word: bytes = np.array([value], NUMBERS[column.root]).tobytes().ljust(WORD, b"\0")
        return word
    if column.root == "DECIMAL":
        if column.precision <= COMPACT_DIGITS:
            return int(value).to_bytes(WORD, "little", signed=True)
        digits = big_integer(int(value))
        tail += digits.ljust(2 * WORD, b"\0")
        return int(offset | len(digits)).to_bytes(WORD, "little")
    if isinstance(value, tuple):
        tail += int(value[0]).to_bytes(WORD, "little", signed=True)
        return int(offset | value[1]).to_bytes(WORD, "little")
    if isinstance(value, bytes):
        if len(value) <= MOST_INLINE and not isinstance(value, OutOfLine):
            inline: bytes = value.ljust(MOST_INLINE, b"\0")
            return inline + bytes([INLINE | len(value)])
        tail += value + bytes(-len(value) % WORD)
        return int(offset | len(value)).to_bytes(WORD, "little")
    return int(value).to_bytes(WORD, "little", signed=True)


def header_width(columns: int) -> int:
    return (columns + 63 + HEADER_BITS) // 64 * WORD


def element_width(element: LogicalType) -> int:
    if element.root == "BOOLEAN":
        return 1
    return np.dtype(NUMBERS.get(element.root, "<i8")).itemsize
