"""BigInteger and BigDecimal, which become text."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, i32
from statestore.interop.flink.metadata.snapshot_format import BASE, inner_class
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.byte_slices import BYTES, piece_array
from statestore.interop.flink.types.key_hash import plain_hash
from statestore.interop.flink.types.scalar_form import ScalarForm
from statestore.keys.big_numbers import digits_of, integer_of

_CONSTANTS = {1: 0, 2: 1, 3: 10}
_CODES = {number: code for code, number in _CONSTANTS.items()}
_FIRST_LENGTH = 4  # BigIntSerializer: 0 to 3 mean null, 0, 1 and 10; otherwise 4 + length
_MOST_SCALE = (1 << 31) - 1
_MOST_BIG_BYTES = 4 << 20  # ten million digits; converting them to text takes more than linear time


def _skip_big(reader: Reader) -> int:
    length = reader.i32()
    if length < 0:
        raise reader.error(f"the length {length} is negative", position=reader.position - 4)
    reader.take(max(length - _FIRST_LENGTH, 0))
    return length


def _skip_big_integer(reader: Reader) -> None:
    _skip_big(reader)


def _skip_big_decimal(reader: Reader) -> None:
    if _skip_big(reader):  # a null has no scale
        reader.take(4)


def _read_big_bytes(cursor: Cursor) -> list[int | None]:
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


def _read_big_integers(cursor: Cursor) -> pa.Array:
    numbers = _read_big_bytes(cursor)
    return pa.array(
        [None if number is None else digits_of(number) for number in numbers], pa.string()
    )


def _read_big_decimals(cursor: Cursor) -> pa.Array:
    """Read ``BigDecSerializer``: the unscaled digits as a whole number, then the scale."""
    digits = _read_big_bytes(cursor)
    present = np.array([digit is not None for digit in digits], np.bool_)
    selected = cursor.select(present)
    scales = iter(selected.numbers(">i4").tolist())
    cursor.move_rows(present, selected)
    texts = [None if digit is None else _decimal_text(digit, next(scales)) for digit in digits]
    return pa.array(texts, pa.string())


def _decimal_text(digits: int, scale: int) -> str:
    return str(Decimal(f"{digits_of(digits)}E{-scale}"))


def _write_big_integer(value: int | None) -> bytes:
    """Encode a number like ``BigIntSerializer``."""
    if value is None:
        return i32(0)
    if value in _CODES:
        return i32(_CODES[value])
    width = (value + (value < 0)).bit_length() // 8 + 1
    return i32(width + _FIRST_LENGTH) + value.to_bytes(width, "big", signed=True)


def _write_big_integers(array: pa.Array) -> pa.Array:
    numbers = (None if text is None else _parse_integer(text) for text in array.to_pylist())
    return pa.array([_write_big_integer(number) for number in numbers], BYTES)


def _parse_integer(text: str) -> int:
    try:
        return integer_of(text)
    except ValueError:
        raise InvalidArgumentError(f"{text[:40]!r} is not a BigInteger") from None


def _write_big_decimal(text: str | None) -> bytes:
    """Encode a number like ``BigDecSerializer``."""
    if text is None:
        return _write_big_integer(None)
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        sign, digits, exponent = 0, (), "n"
    if not isinstance(exponent, int) or not -_MOST_SCALE - 1 <= -exponent <= _MOST_SCALE:
        raise InvalidArgumentError(f"{text[:40]!r} is not a BigDecimal")
    number = integer_of("".join(map(str, digits)) or "0")
    return _write_big_integer(-number if sign else number) + i32(-exponent)


def _write_big_decimals(array: pa.Array) -> pa.Array:
    return pa.array([_write_big_decimal(text) for text in array.to_pylist()], BYTES)


BIG_NUMBERS = (
    ScalarForm(
        "BigInteger",
        inner_class(BASE, "BigIntSerializer"),
        pa.string(),
        _skip_big_integer,
        _read_big_integers,
        _write_big_integers,
        plain_hash("BigInteger"),
    ),
    ScalarForm(
        "BigDecimal",
        inner_class(BASE, "BigDecSerializer"),
        pa.string(),
        _skip_big_decimal,
        _read_big_decimals,
        _write_big_decimals,
        plain_hash("BigDecimal"),
    ),
)
