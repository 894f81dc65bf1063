"""Rows of Flink SQL (``BinaryRowData``) as columns, and back.

A row is a length in four bytes, big-endian, and then, little-endian: a byte for the row's kind, a
bit for each column that is null, eight bytes for each column, and what does not fit there. Of text
and bytes these eight are an offset and a length, or, up to seven bytes, the bytes and in the last
byte 128 and their number; so are decimals of more than 18 digits and timestamps of more than three.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.columns import EXACT_IN_MILLIS, INSTANT, sql_type
from statestore.interop.flink.cursor import Cursor, Rows
from statestore.interop.flink.spans import Places, piece_array
from statestore.interop.flink.types import LogicalType

__all__ = ["decoded_rows", "written_rows"]

_HEADER_BITS = 8
_WORD = 8
_INLINE = 0x80
_MOST_INLINE = 7
_COMPACT_DIGITS = 18
_NUMBERS = {
    "TINYINT": "<i1", "SMALLINT": "<i2", "INTEGER": "<i4", "BIGINT": "<i8", "FLOAT": "<f4",
    "DOUBLE": "<f8", "DATE": "<i4", "TIME_WITHOUT_TIME_ZONE": "<i4", "INTERVAL_YEAR_MONTH": "<i4",
    "INTERVAL_DAY_TIME": "<i8",
}  # fmt: skip
_TEXTS = ("CHAR", "VARCHAR")
_BYTES = (*_TEXTS, "BINARY", "VARBINARY")
_EXACT = Context(prec=80)


def decoded_rows(columns: tuple[LogicalType, ...], cursor: Cursor) -> pa.Array:
    """Return rows as structs of ``row_kind`` and ``f0``, ``f1``, …; errors as ``decoded``."""
    lengths = cursor.counts(1)
    begins = cursor.at
    cursor.at = begins + lengths
    header = _header_width(len(columns))
    fixed = Cursor(cursor.spans, begins, cursor.at)
    head = fixed.fixed(header)
    words = fixed.fixed(_WORD * len(columns)).reshape(len(begins), len(columns), _WORD)
    bits = np.unpackbits(head, axis=1, bitorder="little").astype(np.bool_)
    kinds = head[:, 0].view(np.int8) if len(head) else np.empty(0, np.int8)
    fixed.refuse((kinds < 0) | (kinds > 3), "a row is of no kind that Flink knows")
    found = [pa.array(kinds)]
    for number, column in enumerate(columns):
        nulls = bits[:, _HEADER_BITS + number]
        found.append(_column(column, words[:, number], nulls, begins, lengths, cursor))
    named = [pa.field(f"f{at}", sql_type(one)) for at, one in enumerate(columns)]
    return pa.StructArray.from_arrays(found, fields=[pa.field("row_kind", pa.int8()), *named])


def _header_width(columns: int) -> int:
    """Return the bytes before the columns: whole words, of a byte and a bit for each column."""
    return (columns + 63 + _HEADER_BITS) // 64 * _WORD


def _column(
    column: LogicalType,
    words: npt.NDArray[np.uint8],
    nulls: Rows,
    begins: Places,
    lengths: Places,
    cursor: Cursor,
) -> pa.Array:
    kind = sql_type(column)
    words = np.ascontiguousarray(words)
    mask = nulls
    if column.root == "BOOLEAN":
        return pa.array(words[:, 0] == 1, kind, mask=mask)
    if column.root in _NUMBERS:
        found = _native(words, _NUMBERS[column.root])
        if pa.types.is_temporal(kind):
            return pa.array(found, pa.int32(), mask=mask).cast(kind)
        return pa.array(found, kind, mask=mask)
    whole = _native(words, "<i8")
    if column.root == "DECIMAL":
        if column.precision <= _COMPACT_DIGITS:
            values = [
                None if null else one for one, null in zip(whole.tolist(), nulls, strict=True)
            ]
        else:
            raw = _pieces(words, nulls, begins, lengths, cursor, can_be_inline=False).to_pylist()
            values = [
                None if null else int.from_bytes(one, "big", signed=True)
                for one, null in zip(raw, nulls, strict=True)
            ]
        return _decimals(values, column.scale, kind, cursor)
    if column.root.startswith("TIMESTAMP"):
        return _timestamps(column, whole, nulls, begins, lengths, cursor)
    pieces = _pieces(words, nulls, begins, lengths, cursor, can_be_inline=True)
    pieces = pa.compute.if_else(pa.array(~nulls), pieces, pa.scalar(None, pieces.type))
    try:
        return pieces.cast(kind)
    except pa.ArrowInvalid as error:
        raise cursor.damaged(f"a text is not UTF-8 ({error})", 0) from error


def _native(words: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    raw = np.ascontiguousarray(words[:, : kind.itemsize]).view(kind).reshape(-1)
    return raw.astype(kind.newbyteorder("="))


def _decimals(values: list[int | None], scale: int, kind: Any, cursor: Cursor) -> pa.Array:
    try:
        return pa.array(
            [None if one is None else Decimal(one).scaleb(-scale, _EXACT) for one in values], kind
        )
    except pa.ArrowInvalid as error:
        raise cursor.damaged(f"a decimal has too many digits ({error})", 0) from error


def _places(
    words: npt.NDArray[np.uint8], nulls: Rows, begins: Places, lengths: Places, cursor: Cursor
) -> tuple[Places, Places]:
    """Return offset and length of what lies behind the words, from where the row begins."""
    both = _native(words, "<i8")
    offset, length = np.where(nulls, 0, both >> 32), np.where(nulls, 0, both & 0xFFFFFFFF)
    wrong = (offset < 0) | (offset + length > lengths)
    cursor.refuse(wrong, "a column of a row lies outside of it")
    return begins + offset, length


def _pieces(
    words: npt.NDArray[np.uint8],
    nulls: Rows,
    begins: Places,
    lengths: Places,
    cursor: Cursor,
    *,
    can_be_inline: bool,
) -> pa.Array:
    inline = (words[:, 7] & _INLINE != 0) & ~nulls & can_be_inline
    starts, sizes = _places(words, nulls | inline, begins, lengths, cursor)
    if not bool(inline.any()):
        return piece_array(cursor.data(), starts, starts + sizes)
    # Both kinds out of one buffer: the words follow the rows' own bytes.
    base = len(cursor.data())
    buffer = np.concatenate([cursor.data(), words.reshape(-1)])
    starts = np.where(inline, base + np.arange(len(words)) * _WORD, starts)
    sizes = np.where(inline, words[:, 7] & (_INLINE - 1), sizes)
    cursor.refuse(inline & (sizes > _MOST_INLINE), "a text in a word is longer than the word")
    return piece_array(buffer, starts, starts + sizes)


def _timestamps(
    column: LogicalType,
    whole: Places,
    nulls: Rows,
    begins: Places,
    lengths: Places,
    cursor: Cursor,
) -> pa.Array:
    kind = sql_type(column)
    if column.precision <= EXACT_IN_MILLIS:
        return pa.array(whole, pa.int64(), mask=nulls).cast(kind)
    offset, nano = np.where(nulls, 0, whole >> 32), np.where(nulls, 0, whole & 0xFFFFFFFF)
    wrong = ~nulls & ((offset < 0) | (offset + _WORD > lengths) | (nano > 999_999))
    cursor.refuse(wrong, "a timestamp of a row lies outside of it")
    at = Cursor(cursor.spans, (begins + offset)[~nulls], (begins + lengths)[~nulls])
    millis = np.zeros(len(whole), np.int64)
    millis[~nulls] = _native(at.fixed(_WORD), "<i8")
    if kind == INSTANT:
        parts = [millis // 1000, millis % 1000 * 1_000_000 + nano]
        arrays = [pa.array(parts[0]), pa.array(parts[1].astype(np.int32))]
        fields = [INSTANT.field(0), INSTANT.field(1)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(nulls))
    if bool((np.abs(millis) > (1 << 63) // 1001).any()):
        raise UnsupportedTypeError(f"a {column.text} is too far from 1970 for a timestamp of Arrow")
    return pa.array(millis * 1000 + nano // 1000, pa.int64(), mask=nulls).cast(kind)


def written_rows(columns: tuple[LogicalType, ...], rows: pa.Array) -> list[bytes]:
    """Return the bytes of rows as ``BinaryRowWriter`` lays them, without their lengths."""
    kinds, *fields = rows.flatten()
    values = [_plain(column, field) for column, field in zip(columns, fields, strict=True)]
    return [
        _written_row(columns, kind, row)
        for kind, row in zip(kinds.to_pylist(), zip(*values, strict=True), strict=True)
    ]


def _plain(column: LogicalType, field: pa.Array) -> list[Any]:
    """Return values as the numbers, or bytes, that a row has of them."""
    if column.root == "DECIMAL":
        found = (None if one is None else one.scaleb(column.scale) for one in field.to_pylist())
        return [None if one is None else int(one) for one in found]
    if column.root in _BYTES:
        return list(field.cast(pa.binary()).to_pylist())
    if column.root.startswith("TIMESTAMP") and column.precision > EXACT_IN_MILLIS:
        if field.type == INSTANT:
            pairs = ((one["second"], one["nano"]) if one else None for one in field.to_pylist())
        else:
            micros = field.cast(pa.int64()).to_pylist()
            pairs = (
                None if one is None else (one // 1_000_000, one % 1_000_000 * 1000)
                for one in micros
            )
        return [
            None if one is None else (one[0] * 1000 + one[1] // 1_000_000, one[1] % 1_000_000)
            for one in pairs
        ]
    if pa.types.is_temporal(field.type):
        width = pa.int64() if field.type.bit_width == _WORD * 8 else pa.int32()
        field = field.cast(width)
    return list(field.to_pylist())


def _written_row(columns: tuple[LogicalType, ...], kind: int, row: tuple[Any, ...]) -> bytes:
    nulls = sum(1 << _HEADER_BITS + at for at, one in enumerate(row) if one is None)
    header = (nulls | kind).to_bytes(_header_width(len(columns)), "little")
    words, behind = bytearray(), bytearray()
    first = len(header) + _WORD * len(columns)
    for column, value in zip(columns, row, strict=True):
        words += _word(column, value, behind, first)
    return header + bytes(words) + bytes(behind)


def _word(column: LogicalType, value: Any, behind: bytearray, first: int) -> bytes:
    """Return the eight bytes of a column, and put what does not fit there ``behind`` them."""
    if value is None:
        return bytes(_WORD)
    offset = first + len(behind) << 32
    if column.root in _NUMBERS:
        word: bytes = np.array([value], _NUMBERS[column.root]).tobytes().ljust(_WORD, b"\0")
        return word
    if column.root == "DECIMAL":
        if column.precision <= _COMPACT_DIGITS:
            return int(value).to_bytes(_WORD, "little", signed=True)
        width = (value + (value < 0)).bit_length() // 8 + 1
        behind += int(value).to_bytes(width, "big", signed=True).ljust(2 * _WORD, b"\0")
        return int(offset | width).to_bytes(_WORD, "little")
    if isinstance(value, tuple):
        behind += int(value[0]).to_bytes(_WORD, "little", signed=True)
        return int(offset | value[1]).to_bytes(_WORD, "little")
    if isinstance(value, bytes):
        if len(value) <= _MOST_INLINE:
            inline: bytes = value.ljust(_MOST_INLINE, b"\0")
            return inline + bytes([_INLINE | len(value)])
        behind += value + bytes(-len(value) % _WORD)
        return int(offset | len(value)).to_bytes(_WORD, "little")
    return int(value).to_bytes(_WORD, "little", signed=True)
