"""Texts, bytes with a length prefix, and arrays of primitives and of texts.

Only non-ASCII texts are read and written one by one. An array is the number of its elements, then
the elements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, string_value
from statestore.interop.flink.metadata.snapshot_format import BASE, FLINK, TABLE, inner_class
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Bytes,
    Cursor,
    Places,
    Rows,
    Skip,
    join_parts,
    list_offsets,
    piece_array,
    skip_sized,
)
from statestore.interop.flink.types.column_bytes import (
    refuse_nulls,
    write_counted,
    write_numbers,
    write_sized,
)
from statestore.interop.flink.types.key_hash import plain_hash
from statestore.interop.flink.types.layouts import Counted, Leaf
from statestore.interop.flink.types.scalar_form import ScalarForm


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


TEXTS = (
    ScalarForm(
        "String",
        inner_class(BASE, "StringSerializer"),
        pa.string(),
        skip_string,
        read_strings,
        write_strings,
        plain_hash("String"),
    ),
    ScalarForm(
        "StringData",
        inner_class(TABLE, "StringDataSerializer"),
        pa.string(),
        skip_sized,
        _read_string_data,
        write_sized,
    ),
    ScalarForm(
        "ByteArrayWrapper",
        inner_class(f"{FLINK}streaming.api.utils.", "ByteArrayWrapperSerializer"),
        pa.binary(),
        skip_sized,
        read_sized,
        write_sized,
    ),
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


def _make_array_writer(dtype: str) -> Callable[[pa.Array], pa.Array]:
    def write(array: pa.Array) -> pa.Array:
        refuse_nulls(array)
        return write_counted(array, write_numbers(array.flatten(), dtype))

    return write


def _write_boolean_arrays(array: pa.Array) -> pa.Array:
    refuse_nulls(array)
    return write_counted(array, write_numbers(array.flatten().cast(pa.int8()), ">i1"))


def _define_array(name: str, serializer: str, dtype_name: str, element: pa.DataType) -> ScalarForm:
    dtype: np.dtype[np.generic] = np.dtype(dtype_name)
    skip = _make_array_skip(dtype.itemsize)
    read, write = _make_array_reader(dtype), _make_array_writer(dtype_name)
    snapshot = inner_class(_ARRAYS, serializer)
    return ScalarForm(name, snapshot, pa.list_(element), skip, read, write)


_STRINGS = Counted(Leaf(pa.string(), skip_string, read_strings, write_strings))
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
        _STRINGS.arrow_type(),
        _STRINGS.skipper(),
        _STRINGS.read,
        _STRINGS.write,
    ),
)
