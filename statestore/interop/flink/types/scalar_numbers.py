"""Types without parameters: numbers, characters, windows, and times of PyFlink's coders.

A BigInteger or BigDecimal becomes text. :class:`Scalar` finds a type by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import numpy as np
import pyarrow as pa

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, big_integer, i32
from statestore.interop.flink.metadata.logical_types import WINDOW
from statestore.interop.flink.metadata.snapshot_format import (
    BASE,
    DATAVIEW,
    FLINK,
    RUNTIME,
    inner_class,
)
from statestore.interop.flink.types.base import Layout
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Skip,
    make_fixed_skip,
    piece_array,
)
from statestore.interop.flink.types.column_bytes import (
    matrix_bytes,
    refuse_nulls,
    write_numbers,
)
from statestore.interop.flink.types.key_hash import KeyHash, plain_hash
from statestore.interop.flink.types.layouts import Leaf, Numbers, Struct
from statestore.keys.java import digits_of, integer_of


@dataclass(frozen=True, slots=True)
class ScalarForm:
    """A type without parameters: its short name, and the layout of its values.

    ``snapshot`` is the class of its serializer snapshot; it is None if no Java serializer has it.
    ``key_hash`` is None if keys of the type have a hash that a savepoint does not contain.
    ``single_key_hashes`` hashes keys that are a single value, if the column of ``key_hash`` cannot
    hold all of them. ``length`` is ``getLength`` of the serializer if it differs from the width.
    """

    name: str
    snapshot: str | None
    layout: Layout
    key_hash: KeyHash | None = None
    single_key_hashes: Callable[[pa.Array], list[int]] | None = None
    length: int | None = None


def number_layout(dtype: str, column_type: pa.DataType | None = None) -> Numbers:
    """Return the layout of numbers of a big-endian NumPy type.

    They are cast to ``column_type``, by default to the numbers of Arrow.
    """
    numbers = pa.from_numpy_dtype(np.dtype(dtype).newbyteorder("="))
    return Numbers(dtype, column_type or numbers, numbers)


def _read_booleans(cursor: Cursor) -> pa.Array:
    return pa.array(cursor.flags())


def _read_sorted_longs(cursor: Cursor) -> pa.Array:
    """Read ``SortedLongSerializer``: a number whose sign bit is flipped, so that bytes sort."""
    return pa.array(cursor.numbers(">i8") ^ np.int64(-(1 << 63)))


def _write_booleans(array: pa.Array) -> pa.Array:
    return write_numbers(array.cast(pa.int8()), ">i1")


def _write_sorted_longs(array: pa.Array) -> pa.Array:
    """Encode numbers like ``SortedLongSerializer``."""
    refuse_nulls(array)
    numbers = array.to_numpy(zero_copy_only=False) ^ np.int64(-(1 << 63))
    return write_numbers(pa.array(numbers), ">i8")


def _define_number(
    name: str, serializer: str, layout: Layout, key_hash: KeyHash | None = None
) -> ScalarForm:
    return ScalarForm(name, inner_class(BASE, serializer), layout, key_hash or plain_hash(name))


_CODE_UNIT = KeyHash("Character", lambda column: column.cast(pa.int32()))
BOOLEAN = Leaf(pa.bool_(), 1, _read_booleans, _write_booleans)
NUMBERS = (
    _define_number("Boolean", "BooleanSerializer", BOOLEAN),
    _define_number("Byte", "ByteSerializer", number_layout(">i1")),
    _define_number("Short", "ShortSerializer", number_layout(">i2")),
    _define_number("Integer", "IntSerializer", number_layout(">i4")),
    _define_number("Long", "LongSerializer", number_layout(">i8")),
    _define_number("Float", "FloatSerializer", number_layout(">f4")),
    _define_number("Double", "DoubleSerializer", number_layout(">f8")),
    _define_number("Character", "CharSerializer", number_layout(">u2"), _CODE_UNIT),
    ScalarForm(
        "SortedLong",
        inner_class(f"{FLINK}table.runtime.operators.sink.", "SortedLongSerializer"),
        Leaf(pa.int64(), 8, _read_sorted_longs, _write_sorted_longs),
    ),
)


_WINDOWS = f"{FLINK}streaming.api.windowing.windows."
_SQL_WINDOWS = f"{FLINK}table.runtime.operators.window."


def _read_nothing(cursor: Cursor) -> pa.Array:
    """Skip the one byte of ``VoidSerializer``, ``VoidNamespaceSerializer`` or a global window."""
    cursor.take(1)
    return pa.nulls(len(cursor))


def _nothing(byte: int, extent: int | Skip = 1) -> Leaf:
    """Return the layout of values without columns, each of which is this byte."""
    return Leaf(
        pa.null(),
        extent,
        _read_nothing,
        lambda array: matrix_bytes(np.full((len(array), 1), byte, np.uint8)),
    )


_VOID, _WINDOW = _nothing(0), Struct(tuple(WINDOW.names), (number_layout(">i8"),) * 2)
_GLOBAL_WINDOW = "GlobalWindow$Serializer$GlobalWindowSerializerSnapshot"
_TIME_WINDOW = "TimeWindow$Serializer$TimeWindowSerializerSnapshot"

WINDOWS = (
    ScalarForm("Void", inner_class(BASE, "VoidSerializer"), _VOID),
    ScalarForm("Null", inner_class(DATAVIEW, "NullSerializer"), _VOID),
    ScalarForm(
        "VoidNamespace",
        inner_class(f"{FLINK}runtime.state.", "VoidNamespaceSerializer"),
        _VOID,
        length=0,  # but it writes one byte
    ),
    ScalarForm("GlobalWindow", f"{_WINDOWS}{_GLOBAL_WINDOW}", _VOID),
    ScalarForm("SqlGlobalWindow", f"{_SQL_WINDOWS}{_GLOBAL_WINDOW}", _VOID),
    ScalarForm("Tuple0", f"{RUNTIME}Tuple0SerializerSnapshot", _nothing(42, make_fixed_skip(1))),
    ScalarForm("TimeWindow", f"{_WINDOWS}{_TIME_WINDOW}", _WINDOW),
    ScalarForm("SqlTimeWindow", f"{_SQL_WINDOWS}{_TIME_WINDOW}", _WINDOW),
    ScalarForm(
        "CountWindow",
        f"{_SQL_WINDOWS}CountWindow$Serializer$CountWindowSerializerSnapshot",
        number_layout(">i8"),
    ),
)


_MILLIS_PER_DAY = 86_400_000
_TIME_OF_DAY = number_layout(">i4", pa.time32("ms"))


def _read_times(cursor: Cursor) -> pa.Array:
    """Read ``TimeCoderImpl`` of PyFlink: milliseconds of the day."""
    millis = cursor.numbers(">i4")
    cursor.refuse(
        (millis < 0) | (millis >= _MILLIS_PER_DAY), "a day does not have this millisecond"
    )
    return pa.array(millis, pa.int32()).cast(_TIME_OF_DAY.arrow)


PYTHON_SCALARS = (
    ScalarForm("PythonDate", None, number_layout(">i4", pa.date32())),
    ScalarForm("PythonTime", None, Leaf(_TIME_OF_DAY.arrow, 4, _read_times, _TIME_OF_DAY.write)),
    ScalarForm("PythonTimestamp", None, number_layout(">i8", pa.timestamp("ms"))),
)
"""Dates and times of PyFlink's coders: days and milliseconds, without a time zone."""


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
    digits = big_integer(value)
    return i32(len(digits) + _FIRST_LENGTH) + digits


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
    _define_number(
        "BigInteger",
        "BigIntSerializer",
        Leaf(pa.string(), _skip_big_integer, _read_big_integers, _write_big_integers),
    ),
    _define_number(
        "BigDecimal",
        "BigDecSerializer",
        Leaf(pa.string(), _skip_big_decimal, _read_big_decimals, _write_big_decimals),
    ),
)
