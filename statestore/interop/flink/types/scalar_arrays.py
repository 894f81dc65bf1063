"""Arrays of primitives and of strings: the number of elements, then the elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.metadata.snapshot_format import BASE, inner_class
from statestore.interop.flink.types.byte_cursor import (
    Cursor,
    Skip,
    list_offsets,
    make_counted_skip,
    skip_sized,
)
from statestore.interop.flink.types.byte_slices import Bytes, Places, piece_array
from statestore.interop.flink.types.decode import scan_elements
from statestore.interop.flink.types.encode import (
    refuse_nulls,
    write_counted,
    write_numbers,
    write_sized,
)
from statestore.interop.flink.types.scalar_form import ScalarForm
from statestore.interop.flink.types.scalar_texts import (
    read_sized,
    read_strings,
    skip_string,
    write_strings,
)

_ARRAYS = f"{BASE}array."
_NO_BYTES = np.empty(0, np.uint8)


def _make_array_skip(width: int) -> Skip:
    def skip(reader: Reader) -> None:
        reader.take(reader.i32() * width)

    return skip


def _take_elements(cursor: Cursor, width: int) -> tuple[Places, Bytes]:
    """Return the number of elements of every row, and the bytes of all elements."""
    counts = cursor.counts(width)
    begins = cursor.position
    cursor.position = begins + counts * width
    pieces = piece_array(cursor.data(), begins, cursor.position)
    _, _, content = pieces.buffers()
    if not content:
        return counts, _NO_BYTES
    return counts, np.frombuffer(content, np.uint8, int((counts * width).sum()))


def _read_boolean_arrays(cursor: Cursor) -> pa.Array:
    counts, raw = _take_elements(cursor, 1)
    cursor.refuse(np.array([bool((raw > 1).any())]), "a boolean is neither 0 nor 1")
    return pa.ListArray.from_arrays(list_offsets(counts), pa.array(raw == 1))


def _make_array_reader(dtype: np.dtype[np.generic]) -> Callable[[Cursor], pa.Array]:
    def read(cursor: Cursor) -> pa.Array:
        counts, raw = _take_elements(cursor, dtype.itemsize)
        values = pa.array(raw.view(dtype).astype(dtype.newbyteorder("=")))
        return pa.ListArray.from_arrays(list_offsets(counts), values)

    return read


def _read_string_arrays(cursor: Cursor) -> pa.Array:
    counts = cursor.counts(1)
    starts, ends = scan_elements(skip_string, cursor, counts)
    texts = read_strings(Cursor(cursor.spans, starts, np.repeat(ends, counts)))
    cursor.position = ends
    return pa.ListArray.from_arrays(list_offsets(counts), texts)


def _make_array_writer(dtype: str) -> Callable[[pa.Array], pa.Array]:
    def write(array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return write_counted(array, write_numbers(array.flatten(), dtype))

    return write


def _write_boolean_arrays(array: pa.Array) -> pa.Array:
    refuse_nulls(array)
    return write_counted(array, write_numbers(array.flatten().cast(pa.int8()), ">i1"))


def _write_string_arrays(array: pa.Array) -> pa.Array:
    refuse_nulls(array)
    return write_counted(array, write_strings(array.flatten()))


def _define_array(name: str, serializer: str, dtype_name: str, element: pa.DataType) -> ScalarForm:
    dtype: np.dtype[np.generic] = np.dtype(dtype_name)
    skip = _make_array_skip(dtype.itemsize)
    read, write = _make_array_reader(dtype), _make_array_writer(dtype_name)
    snapshot = inner_class(_ARRAYS, serializer)
    return ScalarForm(name, snapshot, pa.list_(element), skip, read, write)


ARRAYS = (
    ScalarForm(
        "boolean[]",
        inner_class(_ARRAYS, "BooleanPrimitiveArraySerializer"),
        pa.list_(pa.bool_()),
        _make_array_skip(1),
        _read_boolean_arrays,
        _write_boolean_arrays,
    ),
    ScalarForm(
        "byte[]",
        inner_class(_ARRAYS, "BytePrimitiveArraySerializer"),
        pa.binary(),
        skip_sized,
        read_sized,
        write_sized,
    ),
    _define_array("short[]", "ShortPrimitiveArraySerializer", ">i2", pa.int16()),
    _define_array("int[]", "IntPrimitiveArraySerializer", ">i4", pa.int32()),
    _define_array("long[]", "LongPrimitiveArraySerializer", ">i8", pa.int64()),
    _define_array("float[]", "FloatPrimitiveArraySerializer", ">f4", pa.float32()),
    _define_array("double[]", "DoublePrimitiveArraySerializer", ">f8", pa.float64()),
    _define_array("char[]", "CharPrimitiveArraySerializer", ">u2", pa.uint16()),
    ScalarForm(
        "String[]",
        inner_class(_ARRAYS, "StringArraySerializer"),
        pa.list_(pa.string()),
        make_counted_skip(skip_string),
        _read_string_arrays,
        _write_string_arrays,
    ),
)
