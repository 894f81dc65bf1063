"""Decode values of types without parts: numbers, texts, times, arrays of primitives.

Parts that have the same form in every value are decoded for all rows with vectorized operations.
Only non-ASCII texts and large numbers are decoded row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.types.arrow_types import WINDOW
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor, Rows, list_offsets
from statestore.interop.flink_savepoints.types.byte_slices import Places, piece_array
from statestore.interop.flink_savepoints.types.times import TIME_DECODERS
from statestore.interop.flink_savepoints.types.value_lengths import ELEMENT_WIDTHS
from statestore.keys.big_numbers import digits_of

__all__ = ["decode_scalar", "decode_sized", "decode_sorted_longs"]

_NUMBERS = {
    "Byte": ">i1", "Short": ">i2", "Integer": ">i4", "Long": ">i8", "Float": ">f4",
    "Double": ">f8", "Character": ">u2", "CountWindow": ">i8",
}  # fmt: skip
_ELEMENTS = {
    "short[]": ">i2", "int[]": ">i4", "long[]": ">i8", "float[]": ">f4", "double[]": ">f8",
    "char[]": ">u2",
}  # fmt: skip
_CONSTANTS = {1: 0, 2: 1, 3: 10}
_FIRST_LENGTH = 4
_MILLIS_PER_DAY = 86_400_000
_MOST_BIG_BYTES = 4 << 20  # ten million digits; converting them to text takes more than linear time


def decode_scalar(name: str, cursor: Cursor) -> pa.Array:
    """Return the column of a type's values at a cursor; raises the errors of ``decode_values``."""
    if name in _NUMBERS:
        return pa.array(cursor.numbers(_NUMBERS[name]))
    if name in TIME_DECODERS:
        return TIME_DECODERS[name](cursor)
    if name in ELEMENT_WIDTHS:
        return _decode_primitives(name, cursor)
    return _SCALARS[name](cursor)


def _decode_booleans(cursor: Cursor) -> pa.Array:
    return pa.array(cursor.flags())


def _decode_nothing(cursor: Cursor) -> pa.Array:
    """Skip the one byte of ``VoidSerializer``, ``VoidNamespaceSerializer`` or a global window."""
    cursor.take(1)
    return pa.nulls(len(cursor))


def decode_sorted_longs(cursor: Cursor) -> pa.Array:
    """Read ``SortedLongSerializer``: a number whose sign bit is flipped."""
    return pa.array(cursor.numbers(">i8") ^ np.int64(-(1 << 63)))


def _decode_window(cursor: Cursor) -> pa.Array:
    start, end = (pa.array(cursor.numbers(">i8")) for _ in range(2))
    return pa.StructArray.from_arrays([start, end], fields=list(WINDOW))


def _decode_strings(cursor: Cursor) -> pa.Array:
    """Read texts (``StringValue.readString``): their length + 1, then a varint per character."""
    lengths = cursor.varints() - 1
    nulls = lengths < 0
    lengths = np.maximum(lengths, 0)
    cursor.refuse(lengths > cursor.end - cursor.position, "a text exceeds its value")
    begins, ends = cursor.position, cursor.position + lengths
    pieces = piece_array(cursor.data(), begins, ends)
    texts = _to_text(pieces)
    # An ASCII character has one byte. So if the first ``length`` bytes are ASCII, they are the
    # text.
    plain = pc.string_is_ascii(texts).to_numpy(zero_copy_only=False)
    if not bool(plain.all()):
        texts, ends = _decode_other_texts(cursor, texts, plain, ends)
    cursor.position = ends
    if not bool(nulls.any()):
        return texts
    return pc.if_else(pa.array(~nulls), texts, pa.scalar(None, texts.type))


def _to_text(pieces: pa.Array) -> pa.Array:
    large = pa.types.is_large_binary(pieces.type)
    text_type = pa.large_string() if large else pa.string()
    return pa.Array.from_buffers(text_type, len(pieces), pieces.buffers(), offset=pieces.offset)


def _decode_other_texts(
    cursor: Cursor, texts: pa.Array, plain: Rows, ends: Places
) -> tuple[pa.Array, Places]:
    """Read the non-ASCII texts one by one; ``cursor`` is after their lengths."""
    other_texts: list[str] = []
    ends = ends.copy()
    for row in np.flatnonzero(~plain).tolist():
        reader = cursor.reader(row)
        other_texts.append(reader.characters(int(ends[row] - cursor.position[row])))
        ends[row] = cursor.position[row] + reader.position
    order = np.empty(len(plain), np.int64)
    count = int(plain.sum())
    order[plain] = np.arange(count)
    order[~plain] = np.arange(count, len(plain))
    all_texts = pa.concat_arrays(
        [texts.filter(pa.array(plain)), _build_texts(other_texts, texts.type)]
    )
    return all_texts.take(pa.array(order)), ends


def _build_texts(texts: list[str], text_type: pa.DataType) -> pa.Array:
    try:
        return pa.array(texts, text_type)
    except UnicodeEncodeError:
        raise UnsupportedTypeError(
            "a text has an unpaired surrogate, which a text column cannot store"
        ) from None


def decode_sized(cursor: Cursor) -> pa.Array:
    """Read bytes with a length prefix (``BytePrimitiveArraySerializer``)."""
    lengths = cursor.counts(1)
    begins = cursor.position
    cursor.position = begins + lengths
    return piece_array(cursor.data(), begins, cursor.position)


def _decode_string_data(cursor: Cursor) -> pa.Array:
    """Read ``StringDataSerializer``: a length, then UTF-8."""
    begin = cursor.position
    try:
        return decode_sized(cursor).cast(pa.string())
    except pa.ArrowInvalid as error:
        cursor.position = begin
        raise cursor.error(f"a text is not UTF-8 ({error})", 0) from error


def _decode_big_bytes(cursor: Cursor) -> list[int | None]:
    """Read ``BigIntSerializer``: 0 is null, 1 to 3 are 0, 1 and 10, others are length + 4."""
    numbers = cursor.numbers(">i4").astype(np.int64)
    lengths = np.maximum(numbers - _FIRST_LENGTH, 0)
    wrong = (numbers < 0) | (lengths > cursor.end - cursor.position)
    cursor.refuse(wrong, "a number exceeds its value")
    if bool((lengths > _MOST_BIG_BYTES).any()):
        raise UnsupportedTypeError(
            f"{cursor.spans.name} has a number of {lengths.max()} bytes; at most "
            f"{_MOST_BIG_BYTES} bytes are supported"
        )
    cursor.position = cursor.position + lengths
    raw = piece_array(cursor.data(), cursor.position - lengths, cursor.position).to_pylist()
    return [
        int.from_bytes(data, "big", signed=True) if length > 3 else _CONSTANTS.get(length)
        for data, length in zip(raw, numbers.tolist(), strict=True)
    ]


def _decode_big_integers(cursor: Cursor) -> pa.Array:
    numbers = _decode_big_bytes(cursor)
    return pa.array(
        [None if number is None else digits_of(number) for number in numbers], pa.string()
    )


def _decode_big_decimals(cursor: Cursor) -> pa.Array:
    """Read ``BigDecSerializer``: the unscaled digits as a whole number, then the scale."""
    digits = _decode_big_bytes(cursor)
    present = np.array([digit is not None for digit in digits], np.bool_)
    selected = cursor.select(present)
    scales = iter(selected.numbers(">i4").tolist())
    cursor.move_rows(present, selected)
    texts = [None if digit is None else _decimal_text(digit, next(scales)) for digit in digits]
    return pa.array(texts, pa.string())


def _decimal_text(digits: int, scale: int) -> str:
    return str(Decimal(f"{digits_of(digits)}E{-scale}"))


def _decode_primitives(name: str, cursor: Cursor) -> pa.Array:
    """Read an array of primitives: its length, then its elements."""
    if name == "byte[]":
        return decode_sized(cursor)
    width = ELEMENT_WIDTHS[name]
    counts = cursor.counts(width)
    begins = cursor.position
    cursor.position = begins + counts * width
    pieces = piece_array(cursor.data(), begins, cursor.position)
    _, _, content = pieces.buffers()
    raw = np.frombuffer(content, np.uint8, int((counts * width).sum())) if content else _EMPTY
    if name == "boolean[]":
        cursor.refuse(np.array([bool((raw > 1).any())]), "a boolean is neither 0 nor 1")
        values = pa.array(raw == 1)
    else:
        dtype = np.dtype(_ELEMENTS[name])
        values = pa.array(raw.view(dtype).astype(dtype.newbyteorder("=")))
    return pa.ListArray.from_arrays(list_offsets(counts), values)


_EMPTY = np.empty(0, np.uint8)


def _decode_python_dates(cursor: Cursor) -> pa.Array:
    """Read ``DateCoderImpl`` of PyFlink: days since 1970."""
    return pa.array(cursor.numbers(">i4"), pa.int32()).cast(pa.date32())


def _decode_python_times(cursor: Cursor) -> pa.Array:
    """Read ``TimeCoderImpl`` of PyFlink: milliseconds of the day."""
    millis = cursor.numbers(">i4")
    cursor.refuse(
        (millis < 0) | (millis >= _MILLIS_PER_DAY), "a day does not have this millisecond"
    )
    return pa.array(millis, pa.int32()).cast(pa.time32("ms"))


def _decode_python_timestamps(cursor: Cursor) -> pa.Array:
    """Read ``TimestampCoderImpl`` of PyFlink: milliseconds since 1970, without a time zone."""
    return pa.array(cursor.numbers(">i8"), pa.int64()).cast(pa.timestamp("ms"))


_SCALARS: dict[str, Callable[[Cursor], pa.Array]] = {
    "Boolean": _decode_booleans,
    "String": _decode_strings,
    "StringData": _decode_string_data,
    "ByteArrayWrapper": decode_sized,
    "SortedLong": decode_sorted_longs,
    "PythonDate": _decode_python_dates,
    "PythonTime": _decode_python_times,
    "PythonTimestamp": _decode_python_timestamps,
    "BigInteger": _decode_big_integers,
    "BigDecimal": _decode_big_decimals,
    "Void": _decode_nothing,
    "Null": _decode_nothing,
    "VoidNamespace": _decode_nothing,
    "GlobalWindow": _decode_nothing,
    "SqlGlobalWindow": _decode_nothing,
    "Tuple0": _decode_nothing,
    "TimeWindow": _decode_window,
    "SqlTimeWindow": _decode_window,
}
