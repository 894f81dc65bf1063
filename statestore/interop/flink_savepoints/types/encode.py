"""Encode columns as Flink's bytes: the exact inverse of ``decode`` in this package.

A column is encoded part by part: its fields are encoded as columns, and then concatenated row by
row. The encoded elements of lists are already adjacent, so that joining a list needs no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink_savepoints.metadata.java_binary import i32, string_value, utf
from statestore.interop.flink_savepoints.types.binary_rows import encode_rows
from statestore.interop.flink_savepoints.types.byte_cursor import Rows, scatter
from statestore.interop.flink_savepoints.types.families.scalar_times import TIME_ENCODERS
from statestore.interop.flink_savepoints.types.flink_types import (
    ArrayType,
    EitherType,
    EnumType,
    ExternalType,
    FlinkType,
    ListType,
    MapType,
    NullableType,
    PojoType,
    PresentType,
    PythonType,
    RawType,
    RowDataType,
    RowType,
    Scalar,
    TimerType,
    TtlAwareType,
    TtlType,
    TupleType,
)
from statestore.keys.big_numbers import integer_of

__all__ = ["encode_list", "encode_values"]

_BYTES = pa.large_binary()
_NUMBERS = {
    "Byte": ">i1", "Short": ">i2", "Integer": ">i4", "Long": ">i8", "Float": ">f4",
    "Double": ">f8", "Character": ">u2", "CountWindow": ">i8", "boolean[]": ">i1",
    "short[]": ">i2", "int[]": ">i4", "long[]": ">i8", "float[]": ">f4", "double[]": ">f8",
    "char[]": ">u2",
}  # fmt: skip
_PRIMITIVE_ARRAYS = ("byte[]", *(name for name in _NUMBERS if name.endswith("[]")))
_KIND_BITS = 2
_EMPTY_TYPES = ("Void", "Null", "VoidNamespace", "GlobalWindow", "SqlGlobalWindow")
_CONSTANTS = {0: 1, 1: 2, 10: 3}
_MOST_SCALE = (1 << 31) - 1
_NULL, _ITSELF, _SUBCLASS, _TAGGED = (pa.scalar(bytes([flag]), _BYTES) for flag in (1, 2, 4, 8))
_EMPTY = pa.scalar(b"", _BYTES)
_YES, _NO, _TWO = (pa.scalar(bytes([byte]), _BYTES) for byte in (1, 0, 2))


def encode_values(array: pa.Array, flink_type: FlinkType) -> pa.Array:
    """Return the bytes of each value of a column, as the type's serializer writes them.

    The column must have the type that the type's ``arrow_type`` returns.

    Raises:
        InvalidArgumentError: for a null that the type cannot represent.
        UnsupportedTypeError: for a type whose values are read as bytes only.
    """
    match flink_type:
        case Scalar(name):
            return _encode_scalar(array, name)
        case TupleType(_, fields):
            return _encode_fields(array, fields)
        case RowType(fields, has_kind):
            return _encode_row(array, fields, has_kind)
        case ListType(element, form):
            if form == "LinkedList":
                return _encode_linked_list(array, element)
            return _encode_counted(array, NullableType(element) if form == "Set" else element)
        case MapType(key, value, map_form):
            key_type = NullableType(key) if map_form == "NullAwareMap" else key
            return _encode_counted(array, TupleType("", (key_type, NullableType(value))))
        case ArrayType(_, element):
            return _encode_counted(array, PresentType(element))
        case PresentType(value):
            valid = _find_valid(array)
            return _join(_choose(valid, _YES, _NO), _encode_where(array, valid, value))
        case NullableType(value, padding):
            valid = _find_valid(array)
            null = pa.scalar(b"\1" + bytes(padding), _BYTES)
            return _join(_choose(valid, _NO, null), _encode_where(array, valid, value))
        case EitherType(left, right, either_form):
            return _encode_either(array, left, right, is_tagged=either_form == "TaggedUnion")
        case TtlType(value):
            return _encode_fields(array, (Scalar("Long"), value))
        case TtlAwareType(value) | ExternalType(_, value):
            return encode_values(array, value)
        case RawType():
            return _encode_sized(array)
        case PythonType(value, many):
            return _encode_python(array, value, many)
        case TimerType(key, namespace):
            return _encode_timer(array, key, namespace)
        case PojoType():
            return _encode_pojo(array, flink_type)
        case EnumType(_, constants):
            places = pc.index_in(array, pa.array(constants, pa.string()))
            return _encode_numbers(places, ">i4")
        case RowDataType(columns, _, is_key):
            rows = encode_rows(columns, array, are_keys=is_key)
            return _encode_sized(pa.array(rows, _BYTES))
        case _:
            raise UnsupportedTypeError(
                f"values of {flink_type.java_name} can only be written as bytes"
            )


def _encode_python(array: pa.Array, value: FlinkType, many: bool) -> pa.Array:
    if not many:
        return _encode_sized(encode_values(array, value))
    _refuse_nulls(array)
    return _encode_sized(_join_runs(encode_values(array.flatten(), value), _list_lengths(array)))


def encode_list(array: pa.Array, element: FlinkType) -> pa.Array:
    """Return the bytes of each list of a list state: its elements, separated by commas."""
    _refuse_nulls(array)
    elements = _join(encode_values(array.flatten(), element), pa.scalar(b",", _BYTES))
    return _join_runs(elements, _list_lengths(array), less=1)


def _find_valid(array: pa.Array) -> Rows:
    valid: Rows = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _refuse_nulls(array: pa.Array) -> None:
    if array.null_count:
        raise InvalidArgumentError("a value is null, which Flink's serializer cannot represent")


def _join(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Concatenate the bytes of each row."""
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, _EMPTY)


def _choose(rows: Rows, yes: pa.Scalar, no: pa.Scalar) -> pa.Array:
    return pc.if_else(pa.array(rows), yes, no)


def _encode_where(array: pa.Array, rows: Rows, flink_type: FlinkType) -> pa.Array:
    """Encode the values of the selected rows; the bytes of the others are empty."""
    selected = encode_values(array.filter(pa.array(rows)), flink_type)
    return scatter(selected, rows).fill_null(_EMPTY)


def _to_array(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix of bytes as an array."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(_BYTES, count, [None, pa.py_buffer(offsets), data])


def _encode_numbers(array: pa.Array, dtype: str) -> pa.Array:
    _refuse_nulls(array)
    values = array.to_numpy(zero_copy_only=False).astype(dtype)
    return _to_array(values.view(np.uint8).reshape(len(array), values.dtype.itemsize))


def _encode_scalar(array: pa.Array, name: str) -> pa.Array:
    if name in _PRIMITIVE_ARRAYS:
        return _encode_primitives(array, name)
    if name in _NUMBERS:
        return _encode_numbers(array, _NUMBERS[name])
    if name in TIME_ENCODERS:
        return _to_array(TIME_ENCODERS[name](array))
    if name in _EMPTY_TYPES:
        return _to_array(np.zeros((len(array), 1), np.uint8))
    return _SCALARS[name](array)


def _encode_sorted_longs(array: pa.Array) -> pa.Array:
    _refuse_nulls(array)
    return _encode_numbers(
        pa.array(array.to_numpy(zero_copy_only=False) ^ np.int64(-(1 << 63))), ">i8"
    )


def _encode_booleans(array: pa.Array) -> pa.Array:
    return _encode_numbers(array.cast(pa.int8()), ">i1")


def _encode_tuple0(array: pa.Array) -> pa.Array:
    return _to_array(np.full((len(array), 1), 42, np.uint8))


def _encode_windows(array: pa.Array) -> pa.Array:
    return _encode_fields(array, (Scalar("Long"), Scalar("Long")))


def _encode_strings(array: pa.Array) -> pa.Array:
    """Encode texts like ``StringValue.writeString``."""
    plain = pc.fill_null(pc.string_is_ascii(array), False).to_numpy(zero_copy_only=False)
    ascii_texts = array.filter(pa.array(plain)).cast(pa.large_string())
    heads = _encode_varints(pc.binary_length(ascii_texts).to_numpy(zero_copy_only=False) + 1)
    encoded_ascii = _join(heads, ascii_texts.cast(_BYTES))
    if bool(plain.all()):
        return encoded_ascii
    others = array.filter(pa.array(~plain)).to_pylist()
    encoded_others = pa.array([string_value(text) for text in others], _BYTES)
    order = np.empty(len(plain), np.int64)
    order[plain] = np.arange(len(encoded_ascii))
    order[~plain] = len(encoded_ascii) + np.arange(len(encoded_others))
    return pa.concat_arrays([encoded_ascii, encoded_others]).take(pa.array(order))


def _encode_varints(values: npt.NDArray[Any]) -> pa.Array:
    values = values.astype(np.int64)
    counts = 1 + (values[:, np.newaxis] >= 1 << 7 * np.arange(1, 5)).sum(axis=1)
    shifts = 7 * np.arange(5)
    digits = (values[:, np.newaxis] >> shifts & 0x7F).astype(np.uint8)
    places = np.arange(5)
    digits |= np.where(places < counts[:, np.newaxis] - 1, 0x80, 0).astype(np.uint8)
    data = digits[places < counts[:, np.newaxis]]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BYTES, len(values), buffers)


def _encode_sized(array: pa.Array) -> pa.Array:
    """Encode bytes, or text in UTF-8, with a length prefix."""
    _refuse_nulls(array)
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    plain = array.cast(pa.large_string() if is_text else _BYTES)
    return _join(_encode_numbers(pc.binary_length(plain), ">i4"), plain.cast(_BYTES))


def _encode_big_integer(value: int | None) -> bytes:
    """Encode a number like ``BigIntSerializer``."""
    if value is None:
        return i32(0)
    if value in _CONSTANTS:
        return i32(_CONSTANTS[value])
    width = (value + (value < 0)).bit_length() // 8 + 1
    return i32(width + 4) + value.to_bytes(width, "big", signed=True)


def _encode_big_integers(array: pa.Array) -> pa.Array:
    numbers = (None if text is None else _parse_integer(text) for text in array.to_pylist())
    return pa.array([_encode_big_integer(number) for number in numbers], _BYTES)


def _parse_integer(text: str) -> int:
    try:
        return integer_of(text)
    except ValueError:
        raise InvalidArgumentError(f"{text[:40]!r} is not a BigInteger") from None


def _encode_big_decimal(text: str | None) -> bytes:
    """Encode a number like ``BigDecSerializer``."""
    if text is None:
        return _encode_big_integer(None)
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        sign, digits, exponent = 0, (), "n"
    if not isinstance(exponent, int) or not -_MOST_SCALE - 1 <= -exponent <= _MOST_SCALE:
        raise InvalidArgumentError(f"{text[:40]!r} is not a BigDecimal")
    number = integer_of("".join(map(str, digits)) or "0")
    return _encode_big_integer(-number if sign else number) + i32(-exponent)


def _encode_big_decimals(array: pa.Array) -> pa.Array:
    return pa.array([_encode_big_decimal(text) for text in array.to_pylist()], _BYTES)


def _encode_python_days(array: pa.Array) -> pa.Array:
    return _encode_numbers(array.cast(pa.int32()), ">i4")


def _encode_python_timestamps(array: pa.Array) -> pa.Array:
    return _encode_numbers(array.cast(pa.int64()), ">i8")


def _encode_text_arrays(array: pa.Array) -> pa.Array:
    return _encode_counted(array, Scalar("String"))


_SCALARS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "Boolean": _encode_booleans,
    "String": _encode_strings,
    "StringData": _encode_sized,
    "ByteArrayWrapper": _encode_sized,
    "SortedLong": _encode_sorted_longs,
    "PythonDate": _encode_python_days,
    "PythonTime": _encode_python_days,
    "PythonTimestamp": _encode_python_timestamps,
    "BigInteger": _encode_big_integers,
    "BigDecimal": _encode_big_decimals,
    "TimeWindow": _encode_windows,
    "SqlTimeWindow": _encode_windows,
    "Tuple0": _encode_tuple0,
    "String[]": _encode_text_arrays,
}


def _list_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    lengths: npt.NDArray[np.int64] = np.diff(offsets.astype(np.int64))
    return lengths


def _join_runs(elements: pa.Array, counts: npt.NDArray[np.int64], *, less: int = 0) -> pa.Array:
    """Join the bytes of adjacent elements; cut the last ``less`` bytes of each result."""
    _, offsets, data = elements.buffers()
    edges = np.frombuffer(offsets, np.int64, len(elements) + 1, 8 * elements.offset)
    upto = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    ends = edges[upto]
    if not less:
        buffers = [None, pa.py_buffer(np.ascontiguousarray(ends)), data]
        return pa.Array.from_buffers(_BYTES, len(counts), buffers)
    whole = np.empty(2 * len(counts) + 1, np.int64)
    whole[::2] = ends
    whole[1::2] = ends[1:] - np.where(counts > 0, less, 0)
    pieces = pa.Array.from_buffers(_BYTES, 2 * len(counts), [None, pa.py_buffer(whole), data])
    return pieces.take(pa.array(np.arange(0, 2 * len(counts), 2)))


def _encode_counted(array: pa.Array, element: FlinkType) -> pa.Array:
    """Encode lists and maps: the number of elements, then the elements."""
    _refuse_nulls(array)
    counts = _list_lengths(array)
    flat = array.flatten() if pa.types.is_list(array.type) else _map_entries(array)
    return _join(
        _encode_numbers(pa.array(counts), ">i4"), _join_runs(encode_values(flat, element), counts)
    )


def _encode_linked_list(array: pa.Array, element: FlinkType) -> pa.Array:
    """Encode lists like ``LinkedListSerializer``, with a null bit for each element."""
    _refuse_nulls(array)
    counts, flat = _list_lengths(array), array.flatten()
    valid = _find_valid(flat)
    masks, start = [], 0
    for count in counts.tolist():
        masks.append(i32(count) + np.packbits(~valid[start : start + count]).tobytes())
        start += count
    return _join(pa.array(masks, _BYTES), _join_runs(_encode_where(flat, valid, element), counts))


def _map_entries(array: pa.Array) -> pa.Array:
    """Return the keys and values of maps as structs."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    sides = [side.slice(first, last - first) for side in (array.keys, array.items)]
    return pa.StructArray.from_arrays(sides, ["f0", "f1"])


def _encode_primitives(array: pa.Array, name: str) -> pa.Array:
    if name == "byte[]":
        return _encode_sized(array)
    _refuse_nulls(array)
    counts = _list_lengths(array)
    flat = array.flatten()
    flat = flat.cast(pa.int8()) if pa.types.is_boolean(flat.type) else flat
    elements = _join_runs(_encode_numbers(flat, _NUMBERS[name]), counts)
    return _join(_encode_numbers(pa.array(counts), ">i4"), elements)


def _encode_fields(array: pa.Array, flink_types: Sequence[FlinkType]) -> pa.Array:
    _refuse_nulls(array)
    parts = [
        encode_values(column, flink_type)
        for column, flink_type in zip(array.flatten(), flink_types, strict=True)
    ]
    return _join(*parts) if parts else pa.array([b""] * len(array), _BYTES)


def _encode_row(array: pa.Array, flink_types: tuple[FlinkType, ...], has_kind: bool) -> pa.Array:
    _refuse_nulls(array)
    columns = array.flatten()
    first = _KIND_BITS if has_kind else 0
    bits = np.zeros((len(array), first + len(flink_types)), np.bool_)
    if has_kind:
        row_kind = columns.pop(0).to_numpy(zero_copy_only=False)
        bits[:, 0], bits[:, 1] = row_kind & 1 != 0, row_kind & 2 != 0
    parts = []
    for number, (column, flink_type) in enumerate(zip(columns, flink_types, strict=True), first):
        valid = _find_valid(column)
        bits[:, number] = ~valid
        parts.append(_encode_where(column, valid, flink_type))
    return _join(_to_array(np.packbits(bits, axis=1)), *parts)


def _encode_either(
    array: pa.Array, left: FlinkType, right: FlinkType, *, is_tagged: bool
) -> pa.Array:
    is_left, *sides = array.flatten()
    rows = is_left.to_numpy(zero_copy_only=False)
    parts = _encode_where(sides[0], rows, left), _encode_where(sides[1], ~rows, right)
    return _join(_choose(rows, _YES, _TWO if is_tagged else _NO), *parts)


def _encode_timer(array: pa.Array, key: FlinkType, namespace: FlinkType) -> pa.Array:
    time, keys, namespaces = array.flatten()
    return _join(
        _encode_sorted_longs(time), encode_values(keys, key), encode_values(namespaces, namespace)
    )


def _encode_pojo(array: pa.Array, pojo: PojoType) -> pa.Array:
    """Encode POJOs like ``PojoSerializer``: flags, the subclass if needed, nullable fields."""
    valid = _find_valid(array)
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    columns = dict(zip(names, array.flatten(), strict=True))
    result = _choose(valid, _EMPTY, _NULL)
    subclasses = (*pojo.registered, *pojo.others)
    if not subclasses:
        return _join(result, _encode_pojo_rows(columns, valid, pojo, pa.array([b"\2"], _BYTES)[0]))
    for number, pair in enumerate(
        ((None, pojo), *((subclass, subclass.value) for subclass in subclasses))
    ):
        subclass, inner = pair
        if not isinstance(inner, PojoType):
            raise UnsupportedTypeError(f"a subclass of {pojo.class_name} is not a POJO")
        rows = pc.equal(columns["class"], inner.class_name).fill_null(False)
        if subclass is None:
            head = b"\2"
        elif number <= len(pojo.registered):
            head = bytes([8, number - 1, 2])
        else:
            head = b"\4" + utf(subclass.class_name) + b"\2"
        part = rows.to_numpy(zero_copy_only=False) & valid
        result = _join(result, _encode_pojo_rows(columns, part, inner, pa.scalar(head, _BYTES)))
    return result


def _encode_pojo_rows(
    columns: dict[str, pa.Array], rows: Rows, pojo: PojoType, head: pa.Scalar
) -> pa.Array:
    parts: list[pa.Array] = []
    for field in pojo.fields:
        selected = columns[field.name].filter(pa.array(rows))
        parts.append(encode_values(selected, NullableType(field.value)))
    count = int(rows.sum())
    heads = pa.array([head.as_py()] * count, _BYTES)
    return scatter(_join(heads, *parts), rows).fill_null(_EMPTY)
