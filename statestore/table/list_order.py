"""The order of lists: a column of lists as bytes, which compare and sort as the lists do.

Lists are ordered element by element, and one that is the beginning of another comes before it. Of
elements null comes first; a struct is ordered by its fields, a list within a list as a list is.
Numbers are in the order of numbers, with ``-0.0`` right before ``0.0`` and NaN behind all others;
text is in the order of its UTF-8 bytes. So no two unlike lists have the same bytes, and Spark's
order of arrays is the same, but that it takes the two zeros for one.

The bytes are made to compare rows that are at hand, and are never stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.table.digest import decimal_words, double_bits, int64_values

__all__ = ["as_bytes"]

_BYTES = pa.large_binary()  # some 2 GB of lists may be more as bytes


def _scalar(value: bytes | None) -> pa.Scalar:
    return pa.scalar(value, _BYTES)


_NULL, _THERE, _END = b"\1", b"\2", b"\0"
"""Before each element and field stands whether it is there; a list ends with what is less."""
_TEXT_END, _ZERO_IN_TEXT = b"\0\1", b"\0\xff"
"""Where a text ends, none of its bytes may stand: its own zeros are told from the end's."""
_SIGN = np.uint64(1 << 63)


def as_bytes(column: pa.Array) -> pa.Array:
    """Return the values of a column of a stored type, without maps, as bytes in their order; null
    where they are null.
    """
    kind, types = column.type, pa.types
    if types.is_list(kind):
        return _of_lists(column)
    if types.is_struct(kind):
        return _where_valid(column, _joined([_marked(field) for field in column.flatten()]))
    if types.is_string(kind) or types.is_binary(kind):
        texts = pc.replace_substring(column.cast(_BYTES), _END, _ZERO_IN_TEXT)
        return _joined([texts, _scalar(_TEXT_END)])
    return _where_valid(column, _of_words(_words(column)))


def _of_lists(column: pa.Array) -> pa.Array:
    elements = _marked(column.flatten())
    ends = np.cumsum(np.asarray(pc.fill_null(pc.list_value_length(column), 0)), dtype=np.int32)
    offsets = pa.array(np.concatenate((np.zeros(1, np.int32), ends)))
    lists = pa.ListArray.from_arrays(offsets, elements, mask=column.is_null())
    return _joined([pc.binary_join(lists, _scalar(b"")), _scalar(_END)])


def _marked(column: pa.Array) -> pa.Array:
    """Return values as bytes of which none is the beginning of another, nulls among them."""
    return pc.fill_null(_joined([_scalar(_THERE), as_bytes(column)]), _scalar(_NULL))


def _joined(parts: list[Any]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _scalar(b""))


def _where_valid(column: pa.Array, found: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), found, _scalar(None)) if column.null_count else found


def _of_words(words: npt.NDArray[np.uint64]) -> pa.Array:
    """Return each row of words, the first one first, as bytes in the order of the numbers."""
    data = pa.py_buffer(words.astype(">u8").tobytes())
    kind = pa.binary(words.itemsize * words.shape[1])
    return pa.Array.from_buffers(kind, len(words), [None, data]).cast(_BYTES)


def _words(column: pa.Array) -> npt.NDArray[np.uint64]:
    """Return unsigned numbers that stand to each other as the values do; of null any."""
    if pa.types.is_floating(column.type):
        bits = double_bits(column)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN).reshape(-1, 1)
    if pa.types.is_decimal(column.type):
        halves = decimal_words(column).reshape(-1, 2)
        return np.column_stack((halves[:, 1] ^ _SIGN, halves[:, 0]))
    return (int64_values(column).view(np.uint64) ^ _SIGN).reshape(-1, 1)
