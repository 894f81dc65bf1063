"""Types without parameters: numbers, characters, windows, texts, bytes, and arrays of these.

A BigInteger or BigDecimal becomes text. Only non-ASCII texts are read and written one by one. An
array is the number of its elements, then the elements. :class:`Scalar` finds a type by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, big_integer, i32, string_value
from statestore.interop.flink.metadata.logical_types import WINDOW
from statestore.interop.flink.metadata.snapshot_format import (
    BASE,
    DATAVIEW,
    FLINK,
    RUNTIME,
    TABLE,
    inner_class,
)
from statestore.interop.flink.types.base import Layout
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Places,
    Rows,
    Skip,
    join_parts,
    make_fixed_skip,
    piece_array,
    skip_sized,
)
from statestore.interop.flink.types.column_bytes import (
    matrix_bytes,
    refuse_nulls,
    write_numbers,
    write_sized,
)
from statestore.interop.flink.types.key_hash import KeyHash, plain_hash
from statestore.interop.flink.types.layouts import Counted, Leaf, Numbers, Struct
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


def skip_string(reader: Reader) -> None:
    """Skip a text of ``StringSerializer``."""
    length = reader.varint() - 1
    if length <= 0:
        return
    if (
        length <= reader.remaining
        and bytes(reader.data[reader.position : reader.position + length]).isascii()
    ):
        reader.position += length
        return
    for _ in range(length):
        reader.varint()


def read_strings(cursor: Cursor) -> pa.Array:
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
        texts, ends = _read_other_texts(cursor, texts, plain, ends)
    cursor.position = ends
    if not bool(nulls.any()):
        return texts
    return pc.if_else(pa.array(~nulls), texts, pa.scalar(None, texts.type))


def _to_text(pieces: pa.Array) -> pa.Array:
    large = pa.types.is_large_binary(pieces.type)
    text_type = pa.large_string() if large else pa.string()
    return pa.Array.from_buffers(text_type, len(pieces), pieces.buffers(), offset=pieces.offset)


def _read_other_texts(
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


def read_sized(cursor: Cursor) -> pa.Array:
    """Read bytes with a length prefix (``BytePrimitiveArraySerializer``)."""
    lengths = cursor.counts(1)
    begins = cursor.position
    cursor.position = begins + lengths
    return piece_array(cursor.data(), begins, cursor.position)


def _read_string_data(cursor: Cursor) -> pa.Array:
    """Read ``StringDataSerializer``: a length, then UTF-8."""
    begin = cursor.position
    try:
        return read_sized(cursor).cast(pa.string())
    except pa.ArrowInvalid as error:
        cursor.position = begin
        raise cursor.error(f"a text is not UTF-8 ({error})", 0) from error


def write_strings(array: pa.Array) -> pa.Array:
    """Encode texts like ``StringValue.writeString``."""
    plain = pc.fill_null(pc.string_is_ascii(array), False).to_numpy(zero_copy_only=False)
    ascii_texts = array.filter(pa.array(plain)).cast(pa.large_string())
    heads = _write_varints(pc.binary_length(ascii_texts).to_numpy(zero_copy_only=False) + 1)
    encoded_ascii = join_parts(heads, ascii_texts.cast(BYTES))
    if bool(plain.all()):
        return encoded_ascii
    others = array.filter(pa.array(~plain)).to_pylist()
    encoded_others = pa.array([string_value(text) for text in others], BYTES)
    order = np.empty(len(plain), np.int64)
    order[plain] = np.arange(len(encoded_ascii))
    order[~plain] = len(encoded_ascii) + np.arange(len(encoded_others))
    return pa.concat_arrays([encoded_ascii, encoded_others]).take(pa.array(order))


def _write_varints(values: npt.NDArray[Any]) -> pa.Array:
    values = values.astype(np.int64)
    counts = 1 + (values[:, np.newaxis] >= 1 << 7 * np.arange(1, 5)).sum(axis=1)
    shifts = 7 * np.arange(5)
    digits = (values[:, np.newaxis] >> shifts & 0x7F).astype(np.uint8)
    places = np.arange(5)
    digits |= np.where(places < counts[:, np.newaxis] - 1, 0x80, 0).astype(np.uint8)
    data = digits[places < counts[:, np.newaxis]]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(BYTES, len(values), buffers)


_TEXT = Leaf(pa.string(), skip_string, read_strings, write_strings)
_SIZED = Leaf(pa.binary(), skip_sized, read_sized, write_sized)
TEXTS = (
    ScalarForm("String", inner_class(BASE, "StringSerializer"), _TEXT, plain_hash("String")),
    ScalarForm(
        "StringData",
        inner_class(TABLE, "StringDataSerializer"),
        Leaf(pa.string(), skip_sized, _read_string_data, write_sized),
    ),
    ScalarForm(
        "ByteArrayWrapper",
        inner_class(f"{FLINK}streaming.api.utils.", "ByteArrayWrapperSerializer"),
        _SIZED,
    ),
)


def _define_array(name: str, element: str, layout: Layout) -> ScalarForm:
    return ScalarForm(name, inner_class(f"{BASE}array.", f"{element}ArraySerializer"), layout)


ARRAYS = (
    _define_array("boolean[]", "BooleanPrimitive", Counted(BOOLEAN)),
    _define_array("byte[]", "BytePrimitive", _SIZED),
    _define_array("short[]", "ShortPrimitive", Counted(number_layout(">i2"))),
    _define_array("int[]", "IntPrimitive", Counted(number_layout(">i4"))),
    _define_array("long[]", "LongPrimitive", Counted(number_layout(">i8"))),
    _define_array("float[]", "FloatPrimitive", Counted(number_layout(">f4"))),
    _define_array("double[]", "DoublePrimitive", Counted(number_layout(">f8"))),
    _define_array("char[]", "CharPrimitive", Counted(number_layout(">u2"))),
    _define_array("String[]", "String", Counted(_TEXT)),
)
