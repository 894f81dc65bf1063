"""Texts, and bytes with a length prefix.

Only non-ASCII texts are read and written one by one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.metadata.java_binary import Reader
from statestore.interop.flink_savepoints.types.byte_cursor import Cursor, Rows
from statestore.interop.flink_savepoints.types.byte_slices import Places, piece_array
from statestore.interop.flink_savepoints.types.families.scalar_form import ScalarForm
from statestore.interop.flink_savepoints.types.value_lengths import skip_sized

__all__ = ["TEXTS", "read_sized", "read_strings", "skip_string"]


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


TEXTS = (
    ScalarForm("String", pa.string(), skip_string, read_strings),
    ScalarForm("StringData", pa.string(), skip_sized, _read_string_data),
    ScalarForm("ByteArrayWrapper", pa.binary(), skip_sized, read_sized),
)
