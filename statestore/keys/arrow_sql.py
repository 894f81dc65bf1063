"""The Murmur3 hash of ``BinaryRowData``, for Arrow columns, without building the rows.

The contract is Flink's ``BinaryRowData``. ``keys.sql`` computes the same for one row, and does
build the bytes. Murmur3 reads four bytes at a time, so only the 32-bit words of a row are needed:
the header, two words per column, then the variable part of every column in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.keys.arrow_java import decimals_of, fixed_width, int64s, second_and_nano
from statestore.keys.murmur3 import Hashes, absorb, finish
from statestore.keys.sql import SqlType, parse_sql_type
from statestore.keys.text_bytes import byte_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["sql_hashes"]

_U64s = npt.NDArray[np.uint64]
_I64s = npt.NDArray[np.int64]

_SIZES: Final = {"TINYINT": 1, "SMALLINT": 2, "INT": 4, "BIGINT": 8}
_NANOS_PER_MILLI: Final = 10**6
_LOW_BYTES: Final = np.array([(1 << 8 * size) - 1 for size in range(8)], np.uint64)
_SHIFT: Final = np.uint64(32)


class _Field(NamedTuple):
    """One column: its eight fixed bytes, and the words of its variable part."""

    slot: _U64s  # little-endian; without the offset
    behind: npt.NDArray[np.bool_] | None  # rows whose slot has an offset in its upper half
    sizes: _I64s | int  # bytes of the variable part, a multiple of 8
    words: Any  # (rows, k) words of a fixed variable part, or a _Bytes, or None


class _Bytes(NamedTuple):
    """The bytes of all rows, followed by eight zero bytes, and where each row's bytes begin."""

    content: npt.NDArray[np.uint8]
    starts: _I64s
    lengths: _I64s


def sql_hashes(columns: Sequence[pa.Array], names: Sequence[str]) -> Hashes:
    """Return ``BinaryRowData.hashCode()`` of every row of ``columns`` with these SQL types.

    NULL is an ordinary value. Raises InvalidArgumentError for a value that its type cannot hold.
    """
    rows, count = len(columns[0]), len(columns)
    fields = [
        _field(column, parse_sql_type(name)) for column, name in zip(columns, names, strict=True)
    ]
    h = np.full(rows, 42, np.uint32)
    header = _header(columns)
    for word in header:
        h = _absorb_long(h, word)
    offset: Any = np.uint64(8 * (len(header) + count))
    for field in fields:
        slot = field.slot
        if field.behind is not None:
            slot = slot | np.where(field.behind, offset << _SHIFT, np.uint64(0))
        h = _absorb_long(h, slot)
        offset = offset + np.asarray(field.sizes, np.uint64)
    for field in fields:
        h = _absorb_tail(h, field.words)
    return finish(h ^ offset.astype(np.uint32))


def _header(columns: Sequence[pa.Array]) -> list[_U64s]:
    """Return the null bits in words of 64: bit i + 8 for column i, after the row kind 0."""
    rows, count = len(columns[0]), len(columns)
    words = [np.zeros(rows, np.uint64) for _ in range((count + 71) // 64)]
    for index, column in enumerate(columns):
        if column.null_count:
            bit = index + 8
            nulls = _nulls(column).astype(np.uint64)
            words[bit // 64] |= nulls << np.uint64(bit % 64)
    return words


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _field(array: pa.Array, sql_type: SqlType) -> _Field:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    name = sql_type.name
    if name in ("STRING", "CHAR", "VARCHAR", "BYTES", "BINARY", "VARBINARY"):
        _refuse_longer(array, sql_type)
        return _text(array)
    if name == "DECIMAL":
        if pa.types.is_integer(array.type):
            array = array.cast(pa.decimal128(19, 0))
        exact = decimals_of(array, sql_type, sql_type.precision, sql_type.scale)
        return _decimal(exact, sql_type)
    if name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return _timestamp(array, sql_type)
    slot = _simple_slot(array, sql_type)
    if array.null_count:
        slot = np.where(_nulls(array), np.uint64(0), slot)
    return _Field(slot, None, 0, None)


def _simple_slot(array: pa.Array, sql_type: SqlType) -> _U64s:
    name = sql_type.name
    if name in _SIZES:
        return _integer(array, name)
    if name == "BOOLEAN":
        flags: _U64s = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
        return flags
    if name == "DATE" and pa.types.is_integer(array.type):
        days = int64s(array)
        _refuse_inexact(
            array, (days != days.astype(np.int32)).astype(np.int64), "days must fit 32 bits"
        )
        return days.astype(np.uint32).astype(np.uint64)
    if name == "TIME":
        seconds, nanos = second_and_nano(array)
        unit = 10 ** (9 - min(sql_type.precision, 3))
        _refuse_inexact(array, nanos % unit, f"{sql_type} supports milliseconds at most")
        outside = (seconds < 0) | (seconds >= 86_400)
        _refuse_inexact(array, outside.astype(np.int64), "a TIME must be within one day")
        return (seconds * 1000 + nanos // _NANOS_PER_MILLI).astype(np.uint64)
    # DATE, FLOAT and DOUBLE: the bits unchanged.
    bits: _U64s = fixed_width(array, np.uint64 if name == "DOUBLE" else np.uint32).astype(np.uint64)
    return bits


def _integer(array: pa.Array, name: str) -> _U64s:
    """Return two's complement in the bytes of the type, the other bytes zero."""
    values = fixed_width(array, np.dtype(f"i{array.type.bit_width // 8}")).astype(np.int64)
    bits: _U64s = values.view(np.uint64)
    size = _SIZES[name]
    if size < 8:
        limit = 1 << 8 * size - 1
        outside = ((values < -limit) | (values >= limit)).astype(np.int64)
        _refuse_inexact(array, outside, f"{name} holds {-limit}..{limit - 1}")
        bits = bits & _LOW_BYTES[size]
    return bits


def _refuse_inexact(array: pa.Array, lost: _I64s, reason: str) -> None:
    if array.null_count:
        lost = np.where(_nulls(array), 0, lost)
    if lost.any():
        value = array[int(np.flatnonzero(lost)[0])]
        raise InvalidArgumentError(f"{value} does not fit the key's type: {reason}")


def _refuse_longer(array: pa.Array, sql_type: SqlType) -> None:
    if sql_type.name in ("STRING", "BYTES"):
        return
    text = sql_type.name in ("CHAR", "VARCHAR")
    lengths = pc.utf8_length(array) if text else pc.binary_length(array)
    longer = pc.fill_null(pc.greater(lengths, sql_type.precision), False)
    _refuse_inexact(array, np.asarray(longer).astype(np.int64), f"it is longer than {sql_type}")


def _decimal(array: pa.Array, sql_type: SqlType) -> _Field:
    nulls = _nulls(array)
    unscaled = np.where(nulls[:, None], np.uint64(0), fixed_width(array, np.dtype(("<u8", 2))))
    if not sql_type.reserved:
        return _Field(unscaled[:, 0], None, 0, None)
    big_endian = np.ascontiguousarray(unscaled).view(np.uint8).reshape(-1, 16)[:, ::-1]
    sign = big_endian[:, :1] >> 7
    # Drop leading bytes that only repeat the sign, but keep the last byte.
    repeats = (big_endian[:, :15] == sign * 255) & (big_endian[:, 1:] >> 7 == sign)
    left_out = np.minimum.accumulate(repeats, axis=1).sum(axis=1)
    positions = np.arange(16) + left_out[:, None]
    kept = np.take_along_axis(big_endian, np.minimum(positions, 15), axis=1) * (positions < 16)
    words = np.ascontiguousarray(kept.astype(np.uint8)).view("<u4")
    size = np.where(nulls, 0, 16 - left_out).astype(np.uint64)
    return _Field(size, np.ones(len(array), np.bool_), 16, words)


def _timestamp(array: pa.Array, sql_type: SqlType) -> _Field:
    seconds, nanos = second_and_nano(array)
    unit = 10 ** (9 - sql_type.precision)
    _refuse_inexact(
        array, nanos % unit, f"it has more fractional digits than precision {sql_type.precision}"
    )
    nulls = _nulls(array)
    millis = np.where(nulls, 0, seconds * 1000 + nanos // _NANOS_PER_MILLI)
    if not sql_type.reserved:
        return _Field(millis.view(np.uint64), None, 0, None)
    below = np.where(nulls, 0, nanos % _NANOS_PER_MILLI).astype(np.uint64)
    words = np.ascontiguousarray(millis).view("<u4").reshape(-1, 2)
    return _Field(below, np.ones(len(array), np.bool_), 8, words)


def _text(array: pa.Array) -> _Field:
    content, ends = byte_spans(array)
    content = np.concatenate([content, np.zeros(8, np.uint8)])
    starts, lengths = ends[:-1], np.diff(ends)
    nulls = _nulls(array) if array.null_count else None
    if nulls is not None:
        lengths = np.where(nulls, 0, lengths)
    # Read any eight bytes as one number. The eight zeros at the end keep the last read in bounds.
    longs = np.ndarray(len(content) - 7, "<u8", content, strides=(1,))
    behind = lengths >= 8
    short = np.minimum(lengths, 7)
    tag = (short.astype(np.uint64) | np.uint64(0x80)) << np.uint64(56)
    in_place = longs[starts] & _LOW_BYTES[short] | tag
    slot = np.where(behind, lengths.astype(np.uint64), in_place)
    if nulls is not None:
        slot = np.where(nulls, np.uint64(0), slot)
    sizes = np.where(behind, (lengths + 7) // 8 * 8, 0)
    return _Field(slot, behind, sizes, _Bytes(content, starts, np.where(behind, lengths, 0)))


def _absorb_long(h: Hashes, value: _U64s) -> Hashes:
    return absorb(absorb(h, value.astype(np.uint32)), (value >> _SHIFT).astype(np.uint32))


def _absorb_tail(h: Hashes, words: Any) -> Hashes:
    if words is None:
        return h
    if not isinstance(words, _Bytes):
        for index in range(words.shape[1]):
            h = absorb(h, words[:, index])
        return h
    content, starts, lengths = words
    longs = np.ndarray(len(content) - 7, "<u8", content, strides=(1,))
    offset = 0
    rows = np.flatnonzero(lengths)
    while len(rows):  # once per eight bytes of the longest key, for the rows that are long enough
        rest = np.minimum(lengths[rows] - offset, 8)
        value = longs[starts[rows] + offset]
        value = np.where(rest < 8, value & _LOW_BYTES[rest & 7], value)
        h[rows] = _absorb_long(h[rows], value)
        offset += 8
        rows = rows[lengths[rows] > offset]
    return h
