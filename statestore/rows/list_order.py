"""The order of lists: a list column is encoded as bytes that compare and sort like the lists.

Lists are ordered element by element, and a list comes before longer lists that begin with it.
Null is the first element. A struct is ordered by its fields, and a nested list like a list.
Numbers have their numeric order, with ``-0.0`` right before ``0.0`` and NaN after all others.
Text is in the order of its UTF-8 bytes. Unequal lists never have the same bytes. Spark's order of
arrays is the same, except that it treats the two zeros as equal.

The bytes are only used to compare rows in memory, and are never stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.rows.digests import decimal_words, double_bits, int64_values

_BYTES = pa.large_binary()  # 2 GB of lists may need more as bytes


def _scalar(value: bytes | None) -> pa.Scalar:
    return pa.scalar(value, _BYTES)


_NULL, _THERE, _END = b"\1", b"\2", b"\0"
"""A marker before each element and field tells if it is null; a smaller marker ends a list."""
_TEXT_END, _ZERO_IN_TEXT = b"\0\1", b"\0\xff"
"""The end of a text must not occur inside a text, so zero bytes inside are escaped."""
_SIGN = np.uint64(1 << 63)


def as_bytes(column: pa.Array) -> pa.Array:
    """Encode the values of a stored type as bytes that sort in the same order; null stays null.

    Maps have no order, but equal maps have the same bytes.
    """
    data_type, types = column.type, pa.types
    if types.is_list(data_type):
        return _list_bytes(column, _prefix_free(column.flatten()))
    if types.is_map(data_type):  # its entries have no order, so they are sorted by their bytes
        lists = column.cast(pa.list_(pa.struct([data_type.key_field, data_type.item_field])))
        entries = _prefix_free(lists.flatten())
        sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))
        sort_columns = pa.table(
            [np.repeat(np.arange(len(lists)), sizes), entries], names=["map", "entry"]
        )
        order = pc.sort_indices(
            sort_columns, sort_keys=[("map", "ascending"), ("entry", "ascending")]
        )
        return _list_bytes(lists, entries.take(order))
    if types.is_struct(data_type):
        return _where_valid(
            column, _join_bytes([_prefix_free(field) for field in column.flatten()])
        )
    if types.is_string(data_type) or types.is_binary(data_type):
        texts = pc.replace_substring(column.cast(_BYTES), _END, _ZERO_IN_TEXT)
        return _join_bytes([texts, _scalar(_TEXT_END)])
    return _where_valid(column, _bytes_of_words(_words(column)))


def _list_bytes(column: pa.Array, elements: pa.Array) -> pa.Array:
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(column), 0)), dtype=np.int32)
    offsets = pa.array(np.concatenate((np.zeros(1, np.int32), ends)))
    lists = pa.ListArray.from_arrays(offsets, elements, mask=column.is_null())
    return _join_bytes([pc.binary_join(lists, _scalar(b"")), _scalar(_END)])


def _prefix_free(column: pa.Array) -> pa.Array:
    """Encode values, including nulls, as bytes none of which is a prefix of another."""
    return pc.fill_null(_join_bytes([_scalar(_THERE), as_bytes(column)]), _scalar(_NULL))


def _join_bytes(parts: list[Any]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(b""))


def _where_valid(column: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), values, _scalar(None)) if column.null_count else values


def _bytes_of_words(words: npt.NDArray[np.uint64]) -> pa.Array:
    """Return each row of words, the most significant first, as bytes in numeric order."""
    data = pa.py_buffer(words.astype(">u8").tobytes())
    binary_type = pa.binary(words.itemsize * words.shape[1])
    return pa.Array.from_buffers(binary_type, len(words), [None, data]).cast(_BYTES)


def _words(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Return unsigned numbers in the same order as the values; undefined for null."""
    if pa.types.is_floating(column.type):
        bits = double_bits(column)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN).reshape(-1, 1)
    if pa.types.is_decimal(column.type):
        halves = decimal_words(column).reshape(-1, 2)
        return np.column_stack((halves[:, 1] ^ _SIGN, halves[:, 0]))
    if pa.types.is_time(column.type):  # keys of Flink's maps can have times, which are never stored
        column = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return (int64_values(column).view(np.uint64) ^ _SIGN).reshape(-1, 1)
