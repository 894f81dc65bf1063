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
from statestore.interop.flink_savepoints.types.binary_rows import written_rows
from statestore.interop.flink_savepoints.types.byte_cursor import Rows, scattered
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
    name_of,
)
from statestore.interop.flink_savepoints.types.times import WRITTEN_TIMES
from statestore.interop.flink_savepoints.types.value_lengths import ELEMENT_WIDTHS, KIND_BITS
from statestore.keys.big_numbers import integer_of

__all__ = ["encoded", "encoded_list"]

_BYTES = pa.large_binary()
_NUMBERS = {
    "Byte": ">i1", "Short": ">i2", "Integer": ">i4", "Long": ">i8", "Float": ">f4",
    "Double": ">f8", "Character": ">u2", "CountWindow": ">i8", "boolean[]": ">i1",
    "short[]": ">i2", "int[]": ">i4", "long[]": ">i8", "float[]": ">f4", "double[]": ">f8",
    "char[]": ">u2",
}  # fmt: skip
_NOTHING = ("Void", "Null", "VoidNamespace", "GlobalWindow", "SqlGlobalWindow")
_CONSTANTS = {0: 1, 1: 2, 10: 3}
_MOST_SCALE = (1 << 31) - 1
_NULL, _ITSELF, _SUBCLASS, _TAGGED = (pa.scalar(bytes([one]), _BYTES) for one in (1, 2, 4, 8))
_EMPTY = pa.scalar(b"", _BYTES)
_YES, _NO, _TWO = (pa.scalar(bytes([one]), _BYTES) for one in (1, 0, 2))


def encoded(array: pa.Array, kind: FlinkType) -> pa.Array:
    """Return the bytes of each value of a column, as the type's serializer writes them.

    The column must have the type that ``arrow_type`` returns.

    Raises:
        InvalidArgumentError: for a null that the type cannot represent.
        UnsupportedTypeError: for a type whose values are read as bytes only.
    """
    match kind:
        case Scalar(name):
            return _scalar(array, name)
        case TupleType(_, fields):
            return _fields(array, fields)
        case RowType(fields, has_kind):
            return _row(array, fields, has_kind)
        case ListType(element, form):
            if form == "LinkedList":
                return _linked_list(array, element)
            return _counted(array, NullableType(element) if form == "Set" else element)
        case MapType(key, value, map_form):
            own = NullableType(key) if map_form == "NullAwareMap" else key
            return _counted(array, TupleType("", (own, NullableType(value))))
        case ArrayType(_, element):
            return _counted(array, PresentType(element))
        case PresentType(value):
            there = _valid(array)
            return _joined(_chosen(there, _YES, _NO), _where(array, there, value))
        case NullableType(value, padding):
            there = _valid(array)
            null = pa.scalar(b"\1" + bytes(padding), _BYTES)
            return _joined(_chosen(there, _NO, null), _where(array, there, value))
        case EitherType(left, right, either_form):
            return _either(array, left, right, is_tagged=either_form == "TaggedUnion")
        case TtlType(value):
            return _fields(array, (Scalar("Long"), value))
        case TtlAwareType(value) | ExternalType(_, value):
            return encoded(array, value)
        case RawType():
            return _sized(array)
        case PythonType(value, many):
            if not many:
                return _sized(encoded(array, value))
            _no_nulls(array)
            return _sized(_runs(encoded(array.flatten(), value), _lengths(array)))
        case TimerType(key, namespace):
            return _timer(array, key, namespace)
        case PojoType():
            return _pojo(array, kind)
        case EnumType(_, constants):
            places = pc.index_in(array, pa.array(constants, pa.string()))
            return _numbers(places, ">i4")
        case RowDataType(columns, _, is_key):
            rows = written_rows(columns, array, are_keys=is_key)
            return _sized(pa.array(rows, _BYTES))
        case _:
            raise UnsupportedTypeError(f"values of {name_of(kind)} can only be written as bytes")


def encoded_list(array: pa.Array, element: FlinkType) -> pa.Array:
    """Return the bytes of each list of a list state: its elements, separated by commas."""
    _no_nulls(array)
    each = _joined(encoded(array.flatten(), element), pa.scalar(b",", _BYTES))
    return _runs(each, _lengths(array), less=1)


def _valid(array: pa.Array) -> Rows:
    found: Rows = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _no_nulls(array: pa.Array) -> None:
    if array.null_count:
        raise InvalidArgumentError("a value is null, which Flink's serializer cannot represent")


def _joined(*parts: pa.Array | pa.Scalar) -> pa.Array:
    """Concatenate the bytes of each row."""
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, _EMPTY)


def _chosen(rows: Rows, yes: pa.Scalar, no: pa.Scalar) -> pa.Array:
    return pc.if_else(pa.array(rows), yes, no)


def _where(array: pa.Array, rows: Rows, kind: FlinkType) -> pa.Array:
    """Encode the values of the selected rows; the bytes of the others are empty."""
    some = encoded(array.filter(pa.array(rows)), kind)
    return scattered(some, rows).fill_null(_EMPTY)


def _fixed(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix of bytes as an array."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int64) * width
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(_BYTES, count, [None, pa.py_buffer(offsets), data])


def _numbers(array: pa.Array, dtype: str) -> pa.Array:
    _no_nulls(array)
    values = array.to_numpy(zero_copy_only=False).astype(dtype)
    return _fixed(values.view(np.uint8).reshape(len(array), values.dtype.itemsize))


def _scalar(array: pa.Array, name: str) -> pa.Array:
    if name in ELEMENT_WIDTHS:
        return _primitives(array, name)
    if name in _NUMBERS:
        return _numbers(array, _NUMBERS[name])
    if name in WRITTEN_TIMES:
        return _fixed(WRITTEN_TIMES[name](array))
    if name in _NOTHING:
        return _fixed(np.zeros((len(array), 1), np.uint8))
    return _SCALARS[name](array)


def _sorted_longs(array: pa.Array) -> pa.Array:
    _no_nulls(array)
    return _numbers(pa.array(array.to_numpy(zero_copy_only=False) ^ np.int64(-(1 << 63))), ">i8")


def _booleans(array: pa.Array) -> pa.Array:
    return _numbers(array.cast(pa.int8()), ">i1")


def _tuple0(array: pa.Array) -> pa.Array:
    return _fixed(np.full((len(array), 1), 42, np.uint8))


def _windows(array: pa.Array) -> pa.Array:
    return _fields(array, (Scalar("Long"), Scalar("Long")))


def _strings(array: pa.Array) -> pa.Array:
    """Encode texts like ``StringValue.writeString``."""
    plain = pc.fill_null(pc.string_is_ascii(array), False).to_numpy(zero_copy_only=False)
    some = array.filter(pa.array(plain)).cast(pa.large_string())
    heads = _varints(pc.binary_length(some).to_numpy(zero_copy_only=False) + 1)
    found = _joined(heads, some.cast(_BYTES))
    if bool(plain.all()):
        return found
    others = array.filter(pa.array(~plain)).to_pylist()
    each = pa.array([string_value(text) for text in others], _BYTES)
    order = np.empty(len(plain), np.int64)
    order[plain] = np.arange(len(found))
    order[~plain] = len(found) + np.arange(len(each))
    return pa.concat_arrays([found, each]).take(pa.array(order))


def _varints(values: npt.NDArray[Any]) -> pa.Array:
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


def _sized(array: pa.Array) -> pa.Array:
    """Encode bytes, or text in UTF-8, with a length prefix."""
    _no_nulls(array)
    is_text = pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
    plain = array.cast(pa.large_string() if is_text else _BYTES)
    return _joined(_numbers(pc.binary_length(plain), ">i4"), plain.cast(_BYTES))


def _big(value: int | None) -> bytes:
    """Encode a number like ``BigIntSerializer``."""
    if value is None:
        return i32(0)
    if value in _CONSTANTS:
        return i32(_CONSTANTS[value])
    width = (value + (value < 0)).bit_length() // 8 + 1
    return i32(width + 4) + value.to_bytes(width, "big", signed=True)


def _big_integers(array: pa.Array) -> pa.Array:
    numbers = (None if text is None else _whole(text) for text in array.to_pylist())
    return pa.array([_big(number) for number in numbers], _BYTES)


def _whole(text: str) -> int:
    try:
        return integer_of(text)
    except ValueError:
        raise InvalidArgumentError(f"{text[:40]!r} is not a BigInteger") from None


def _big_decimal(text: str | None) -> bytes:
    """Encode a number like ``BigDecSerializer``."""
    if text is None:
        return _big(None)
    try:
        sign, digits, exponent = Decimal(text).as_tuple()
    except InvalidOperation:
        sign, digits, exponent = 0, (), "n"
    if not isinstance(exponent, int) or not -_MOST_SCALE - 1 <= -exponent <= _MOST_SCALE:
        raise InvalidArgumentError(f"{text[:40]!r} is not a BigDecimal")
    number = integer_of("".join(map(str, digits)) or "0")
    return _big(-number if sign else number) + i32(-exponent)


def _big_decimals(array: pa.Array) -> pa.Array:
    return pa.array([_big_decimal(text) for text in array.to_pylist()], _BYTES)


def _python_days(array: pa.Array) -> pa.Array:
    return _numbers(array.cast(pa.int32()), ">i4")


def _python_timestamps(array: pa.Array) -> pa.Array:
    return _numbers(array.cast(pa.int64()), ">i8")


def _text_arrays(array: pa.Array) -> pa.Array:
    return _counted(array, Scalar("String"))


_SCALARS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "Boolean": _booleans,
    "String": _strings,
    "StringData": _sized,
    "ByteArrayWrapper": _sized,
    "SortedLong": _sorted_longs,
    "PythonDate": _python_days,
    "PythonTime": _python_days,
    "PythonTimestamp": _python_timestamps,
    "BigInteger": _big_integers,
    "BigDecimal": _big_decimals,
    "TimeWindow": _windows,
    "SqlTimeWindow": _windows,
    "Tuple0": _tuple0,
    "String[]": _text_arrays,
}


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    offsets = array.offsets.to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int64] = np.diff(offsets.astype(np.int64))
    return found


def _runs(each: pa.Array, counts: npt.NDArray[np.int64], *, less: int = 0) -> pa.Array:
    """Join the bytes of adjacent elements; cut the last ``less`` bytes of each result."""
    _, offsets, data = each.buffers()
    edges = np.frombuffer(offsets, np.int64, len(each) + 1, 8 * each.offset)
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


def _counted(array: pa.Array, element: FlinkType) -> pa.Array:
    """Encode lists and maps: the number of elements, then the elements."""
    _no_nulls(array)
    counts = _lengths(array)
    flat = array.flatten() if pa.types.is_list(array.type) else _entries(array)
    return _joined(_numbers(pa.array(counts), ">i4"), _runs(encoded(flat, element), counts))


def _linked_list(array: pa.Array, element: FlinkType) -> pa.Array:
    """Encode lists like ``LinkedListSerializer``, with a null bit for each element."""
    _no_nulls(array)
    counts, flat = _lengths(array), array.flatten()
    there = _valid(flat)
    masks, at = [], 0
    for count in counts.tolist():
        masks.append(i32(count) + np.packbits(~there[at : at + count]).tobytes())
        at += count
    return _joined(pa.array(masks, _BYTES), _runs(_where(flat, there, element), counts))


def _entries(array: pa.Array) -> pa.Array:
    """Return the keys and values of maps as structs."""
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    sides = [one.slice(first, last - first) for one in (array.keys, array.items)]
    return pa.StructArray.from_arrays(sides, ["f0", "f1"])


def _primitives(array: pa.Array, name: str) -> pa.Array:
    if name == "byte[]":
        return _sized(array)
    _no_nulls(array)
    counts = _lengths(array)
    flat = array.flatten()
    flat = flat.cast(pa.int8()) if pa.types.is_boolean(flat.type) else flat
    each = _runs(_numbers(flat, _NUMBERS[name]), counts)
    return _joined(_numbers(pa.array(counts), ">i4"), each)


def _fields(array: pa.Array, kinds: Sequence[FlinkType]) -> pa.Array:
    _no_nulls(array)
    parts = [encoded(one, kind) for one, kind in zip(array.flatten(), kinds, strict=True)]
    return _joined(*parts) if parts else pa.array([b""] * len(array), _BYTES)


def _row(array: pa.Array, kinds: tuple[FlinkType, ...], has_kind: bool) -> pa.Array:
    _no_nulls(array)
    columns = array.flatten()
    first = KIND_BITS if has_kind else 0
    bits = np.zeros((len(array), first + len(kinds)), np.bool_)
    if has_kind:
        row_kind = columns.pop(0).to_numpy(zero_copy_only=False)
        bits[:, 0], bits[:, 1] = row_kind & 1 != 0, row_kind & 2 != 0
    parts = []
    for number, (column, kind) in enumerate(zip(columns, kinds, strict=True), first):
        there = _valid(column)
        bits[:, number] = ~there
        parts.append(_where(column, there, kind))
    return _joined(_fixed(np.packbits(bits, axis=1)), *parts)


def _either(array: pa.Array, left: FlinkType, right: FlinkType, *, is_tagged: bool) -> pa.Array:
    is_left, *sides = array.flatten()
    rows = is_left.to_numpy(zero_copy_only=False)
    parts = _where(sides[0], rows, left), _where(sides[1], ~rows, right)
    return _joined(_chosen(rows, _YES, _TWO if is_tagged else _NO), *parts)


def _timer(array: pa.Array, key: FlinkType, namespace: FlinkType) -> pa.Array:
    time, keys, namespaces = array.flatten()
    return _joined(_sorted_longs(time), encoded(keys, key), encoded(namespaces, namespace))


def _pojo(array: pa.Array, kind: PojoType) -> pa.Array:
    """Encode POJOs like ``PojoSerializer``: flags, the subclass if needed, nullable fields."""
    there = _valid(array)
    names = [array.type.field(at).name for at in range(array.type.num_fields)]
    columns = dict(zip(names, array.flatten(), strict=True))
    found = _chosen(there, _EMPTY, _NULL)
    subclasses = (*kind.registered, *kind.others)
    if not subclasses:
        return _joined(found, _pojo_rows(columns, there, kind, pa.array([b"\2"], _BYTES)[0]))
    for number, one in enumerate(((None, kind), *((one, one.value) for one in subclasses))):
        subclass, inner = one
        if not isinstance(inner, PojoType):
            raise UnsupportedTypeError(f"a subclass of {kind.class_name} is not a POJO")
        rows = pc.equal(columns["class"], inner.class_name).fill_null(False)
        if subclass is None:
            head = b"\2"
        elif number <= len(kind.registered):
            head = bytes([8, number - 1, 2])
        else:
            head = b"\4" + utf(subclass.class_name) + b"\2"
        part = rows.to_numpy(zero_copy_only=False) & there
        found = _joined(found, _pojo_rows(columns, part, inner, pa.scalar(head, _BYTES)))
    return found


def _pojo_rows(
    columns: dict[str, pa.Array], rows: Rows, kind: PojoType, head: pa.Scalar
) -> pa.Array:
    parts: list[pa.Array] = []
    for field in kind.fields:
        some = columns[field.name].filter(pa.array(rows))
        parts.append(encoded(some, NullableType(field.value)))
    count = int(rows.sum())
    heads = pa.array([head.as_py()] * count, _BYTES)
    return scattered(_joined(heads, *parts), rows).fill_null(_EMPTY)
