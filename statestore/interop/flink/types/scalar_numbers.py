"""Booleans, numbers, characters, windows, and the dates and times of PyFlink's coders.

A BigInteger or BigDecimal becomes text.
"""

from __future__ import annotations

from collections.abc import Callable
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
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    join_parts,
    make_fixed_skip,
    piece_array,
)
from statestore.interop.flink.types.column_bytes import (
    make_number_writer,
    matrix_bytes,
    refuse_nulls,
    write_numbers,
)
from statestore.interop.flink.types.key_hash import KeyHash, plain_hash
from statestore.interop.flink.types.scalar_form import ScalarForm, Width
from statestore.keys.java import digits_of, integer_of


def make_number_reader(dtype: str) -> Callable[[Cursor], pa.Array]:
    """Return a function that reads numbers of a big-endian NumPy type."""

    def read(cursor: Cursor) -> pa.Array:
        return pa.array(cursor.numbers(dtype))

    return read


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
    name: str, serializer: str, dtype: str, arrow: pa.DataType, key_hash: KeyHash | None = None
) -> ScalarForm:
    snapshot, width = inner_class(BASE, serializer), Width(np.dtype(dtype).itemsize)
    read, write = make_number_reader(dtype), make_number_writer(dtype)
    return ScalarForm(name, snapshot, arrow, width, read, write, key_hash or plain_hash(name))


_CODE_UNIT = KeyHash("Character", lambda column: column.cast(pa.int32()))

NUMBERS = (
    ScalarForm(
        "Boolean",
        inner_class(BASE, "BooleanSerializer"),
        pa.bool_(),
        Width(1),
        _read_booleans,
        _write_booleans,
        plain_hash("Boolean"),
    ),
    _define_number("Byte", "ByteSerializer", ">i1", pa.int8()),
    _define_number("Short", "ShortSerializer", ">i2", pa.int16()),
    _define_number("Integer", "IntSerializer", ">i4", pa.int32()),
    _define_number("Long", "LongSerializer", ">i8", pa.int64()),
    _define_number("Float", "FloatSerializer", ">f4", pa.float32()),
    _define_number("Double", "DoubleSerializer", ">f8", pa.float64()),
    _define_number("Character", "CharSerializer", ">u2", pa.uint16(), _CODE_UNIT),
    ScalarForm(
        "SortedLong",
        inner_class(f"{FLINK}table.runtime.operators.sink.", "SortedLongSerializer"),
        pa.int64(),
        Width(8),
        _read_sorted_longs,
        _write_sorted_longs,
    ),
)


_WINDOWS = f"{FLINK}streaming.api.windowing.windows."
_SQL_WINDOWS = f"{FLINK}table.runtime.operators.window."


def _read_nothing(cursor: Cursor) -> pa.Array:
    """Skip the one byte of ``VoidSerializer``, ``VoidNamespaceSerializer`` or a global window."""
    cursor.take(1)
    return pa.nulls(len(cursor))


def _read_windows(cursor: Cursor) -> pa.Array:
    start, end = (pa.array(cursor.numbers(">i8")) for _ in range(2))
    return pa.StructArray.from_arrays([start, end], fields=list(WINDOW))


def _write_nothing(array: pa.Array) -> pa.Array:
    return matrix_bytes(np.zeros((len(array), 1), np.uint8))


def _write_tuple0(array: pa.Array) -> pa.Array:
    return matrix_bytes(np.full((len(array), 1), 42, np.uint8))


def _write_windows(array: pa.Array) -> pa.Array:
    refuse_nulls(array)
    return join_parts(*(write_numbers(column, ">i8") for column in array.flatten()))


def _define_nothing(name: str, snapshot: str, length: int | None = None) -> ScalarForm:
    return ScalarForm(name, snapshot, pa.null(), Width(1, length), _read_nothing, _write_nothing)


def _define_window(name: str, package: str) -> ScalarForm:
    snapshot = f"{package}TimeWindow$Serializer$TimeWindowSerializerSnapshot"
    return ScalarForm(name, snapshot, WINDOW, Width(16), _read_windows, _write_windows)


_GLOBAL_WINDOW = "GlobalWindow$Serializer$GlobalWindowSerializerSnapshot"

WINDOWS = (
    _define_nothing("Void", inner_class(BASE, "VoidSerializer")),
    _define_nothing("Null", inner_class(DATAVIEW, "NullSerializer")),
    # Its getLength is 0, but it writes one byte.
    _define_nothing(
        "VoidNamespace",
        inner_class(f"{FLINK}runtime.state.", "VoidNamespaceSerializer"),
        length=0,
    ),
    _define_nothing("GlobalWindow", f"{_WINDOWS}{_GLOBAL_WINDOW}"),
    _define_nothing("SqlGlobalWindow", f"{_SQL_WINDOWS}{_GLOBAL_WINDOW}"),
    ScalarForm(
        "Tuple0",
        f"{RUNTIME}Tuple0SerializerSnapshot",
        pa.null(),
        make_fixed_skip(1),
        _read_nothing,
        _write_tuple0,
    ),
    _define_window("TimeWindow", _WINDOWS),
    _define_window("SqlTimeWindow", _SQL_WINDOWS),
    ScalarForm(
        "CountWindow",
        f"{_SQL_WINDOWS}CountWindow$Serializer$CountWindowSerializerSnapshot",
        pa.int64(),
        Width(8),
        make_number_reader(">i8"),
        make_number_writer(">i8"),
    ),
)


_MILLIS_PER_DAY = 86_400_000


def _read_dates(cursor: Cursor) -> pa.Array:
    """Read ``DateCoderImpl`` of PyFlink: days since 1970."""
    return pa.array(cursor.numbers(">i4"), pa.int32()).cast(pa.date32())


def _read_times(cursor: Cursor) -> pa.Array:
    """Read ``TimeCoderImpl`` of PyFlink: milliseconds of the day."""
    millis = cursor.numbers(">i4")
    cursor.refuse(
        (millis < 0) | (millis >= _MILLIS_PER_DAY), "a day does not have this millisecond"
    )
    return pa.array(millis, pa.int32()).cast(pa.time32("ms"))


def _read_timestamps(cursor: Cursor) -> pa.Array:
    """Read ``TimestampCoderImpl`` of PyFlink: milliseconds since 1970, without a time zone."""
    return pa.array(cursor.numbers(">i8"), pa.int64()).cast(pa.timestamp("ms"))


def _write_days_or_millis(array: pa.Array) -> pa.Array:
    return write_numbers(array.cast(pa.int32()), ">i4")


def _write_timestamps(array: pa.Array) -> pa.Array:
    return write_numbers(array.cast(pa.int64()), ">i8")


PYTHON_SCALARS = (
    ScalarForm("PythonDate", None, pa.date32(), Width(4), _read_dates, _write_days_or_millis),
    ScalarForm("PythonTime", None, pa.time32("ms"), Width(4), _read_times, _write_days_or_millis),
    ScalarForm(
        "PythonTimestamp", None, pa.timestamp("ms"), Width(8), _read_timestamps, _write_timestamps
    ),
)


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
