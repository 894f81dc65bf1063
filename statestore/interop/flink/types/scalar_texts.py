"""Texts, bytes with a length prefix, and arrays of primitives and of texts.

Only non-ASCII texts are read and written one by one. An array is the number of its elements, then
the elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader, string_value
from statestore.interop.flink.metadata.snapshot_format import BASE, FLINK, TABLE, inner_class
from statestore.interop.flink.types.base import Layout
from statestore.interop.flink.types.byte_cursor import (
    BYTES,
    Cursor,
    Places,
    Rows,
    join_parts,
    piece_array,
    skip_sized,
)
from statestore.interop.flink.types.column_bytes import (
    write_sized,
)
from statestore.interop.flink.types.key_hash import plain_hash
from statestore.interop.flink.types.layouts import Counted, Leaf
from statestore.interop.flink.types.scalar_numbers import BOOLEAN, ScalarForm, number_layout


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
