"""Booleans, numbers of a fixed width, and characters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.snapshot_format import BASE, FLINK, inner_class
from statestore.interop.flink.types.byte_cursor import Cursor
from statestore.interop.flink.types.encode import make_number_writer, refuse_nulls, write_numbers
from statestore.interop.flink.types.key_hash import KeyHash, plain_hash
from statestore.interop.flink.types.scalar_form import ScalarForm, Width


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
