"""Convert rows of Flink SQL (``BinaryRowData``) to columns, and back.

A row begins with its length in four bytes, big-endian. The rest is little-endian: one byte for the
row kind, a null bit for each column, a word of eight bytes for each column, and variable-length
data. For text and bytes the word is an offset and a length. Up to seven bytes are stored inline:
the bytes, and a last byte that is 128 plus their number. Decimals of more than 18 digits, and
timestamps of more than three fractional digits, are stored in the variable-length part too.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import big_integer
from statestore.interop.flink.metadata.logical_types import (
    EXACT_IN_MILLIS,
    INSTANT,
    OUT_OF_LINE,
    SQL_ROOTS,
    LogicalType,
    entry_types,
    row_fields,
    sql_type,
)
from statestore.interop.flink.types.byte_cursor import (
    Bytes,
    Cursor,
    Places,
    Rows,
    Spans,
    list_offsets,
    piece_array,
    scatter,
)
from statestore.interop.flink.types.column_bytes import refuse_repeated

_HEADER_BITS = 8
_WORD = 8
_INLINE = 0x80
_MOST_INLINE = 7
COMPACT_DIGITS = 18
"""The highest precision of a decimal that Flink SQL stores as a number of eight bytes."""

_MILLIS_PER_DAY = 86_400_000
_NUMBERS = {root.root: root.number for root in SQL_ROOTS.values() if root.number}
_TEXTS = ("CHAR", "VARCHAR")
_ARRAYS = ("BINARY", "VARBINARY")  # byte[] in Java, which compares arrays by identity
_BYTES = (*_TEXTS, *_ARRAYS)
_ROWS = ("ROW", "STRUCTURED_TYPE")
_NESTED = (*_ROWS, "ARRAY", "MAP", "MULTISET")
_EXACT = Context(prec=80)


class _RowCursor(Cursor):
    """Rows, or elements of arrays, and the bytes of each row or array that are not used yet.

    Flink never shares bytes between values. If sharing were accepted, a few bytes could expand to
    any number of values.
    """

    __slots__ = ("_array", "_unused")

    def __init__(
        self,
        spans: Spans,
        position: Places,
        end: Places,
        *,
        arrays: Cursor | None = None,
        array: Any = None,
    ) -> None:
        """Create it for rows, or for elements, where ``array`` is the index into ``arrays``."""
        super().__init__(spans, position, end)
        self._array = array
        self._unused = end - position if arrays is None else arrays.end - arrays.position

    def claim(self, lengths: Places) -> None:
        """Claim the bytes of one value per row; DamagedFileError if there are not enough left."""
        if self._array is None:
            self._unused = self._unused - lengths
            wrong = self._unused < 0
        else:
            used = np.bincount(self._array, lengths, minlength=len(self._unused))
            self._unused = self._unused - used.astype(np.int64)
            wrong = (self._unused < 0)[self._array]
        self.refuse(wrong, "two values of a row or array overlap")


def decode_rows(columns: tuple[LogicalType, ...], cursor: Cursor) -> pa.Array:
    """Return rows as structs of ``row_kind``, ``f0``, ``f1``, …; raises like ``decode_values``."""
    return _decode_slices(columns, row_fields(columns), _take_sized(cursor))


def decode_collections(column: LogicalType, cursor: Cursor) -> pa.Array:
    """Return arrays, maps or multisets that are not part of a row, each after its length.

    Raises the errors of ``decode_values``.
    """
    cursor.refuse_cells(_count_leaves(column))
    return _decode_slice_values(column, _take_sized(cursor))


def _take_sized(cursor: Cursor) -> Cursor:
    """Return the slices of bytes that follow their lengths, and advance past them."""
    lengths = cursor.counts(1)
    begins = cursor.position
    cursor.position = begins + lengths
    return Cursor(cursor.spans, begins, cursor.position)


def _decode_slices(
    columns: tuple[LogicalType, ...], fields: list[pa.Field], within: Cursor
) -> pa.Array:
    """Return the rows in the given slices as structs; ``within`` does not advance."""
    within.refuse_cells(len(columns))
    row_cursor = _RowCursor(within.spans, within.position, within.end)
    fixed = Cursor(within.spans, within.position, within.end)
    head = fixed.take(_header_width(len(columns)))
    words = fixed.take(_WORD * len(columns)).reshape(len(within), len(columns), _WORD)
    bits = np.unpackbits(head, axis=1, bitorder="little").astype(np.bool_)
    kinds = np.ascontiguousarray(head[:, 0]).view(np.int8)
    fixed.refuse((kinds < 0) | (kinds > 3), "the row kind is unknown in Flink")
    arrays = [pa.array(kinds)]
    for number, column in enumerate(columns):
        word = np.ascontiguousarray(words[:, number])
        arrays.append(_decode_column(column, word, bits[:, _HEADER_BITS + number], row_cursor))
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _header_width(columns: int) -> int:
    """Return the size of the header: a byte and a bit per column, rounded up to whole words."""
    return (columns + 63 + _HEADER_BITS) // 64 * _WORD


def _decode_column(column: LogicalType, words: Bytes, nulls: Rows, within: _RowCursor) -> pa.Array:
    """Return a column from its words, one for each slice of ``within``."""
    data_type = sql_type(column)
    if column.root == "BOOLEAN":
        return pa.array(words[:, 0] == 1, data_type, mask=nulls)
    if column.root in _NUMBERS:
        numbers = _to_native(words, _NUMBERS[column.root])
        if pa.types.is_time(data_type):
            wrong = (numbers < 0) | (numbers >= _MILLIS_PER_DAY)
            within.refuse(wrong & ~nulls, "a day does not have this millisecond")
        if pa.types.is_temporal(data_type):
            return pa.array(numbers, pa.int32(), mask=nulls).cast(data_type)
        return pa.array(numbers, data_type, mask=nulls)
    if column.root == "DECIMAL":
        return _decode_decimals(column, words, nulls, within)
    if column.root.startswith("TIMESTAMP"):
        return _decode_timestamps(column, _to_native(words, "<i8"), nulls, within)
    if column.root in _NESTED:
        return _decode_nested(column, words, nulls, within)
    can_be_inline = column.root not in OUT_OF_LINE
    pieces = _slice_bytes(words, nulls, within, can_be_inline=can_be_inline)
    pieces = pc.if_else(pa.array(~nulls), pieces, pa.scalar(None, pieces.type))
    try:
        return pieces.cast(data_type)
    except pa.ArrowInvalid as error:
        raise within.error(f"a text is not UTF-8 ({error})", 0) from error


def _decode_nested(column: LogicalType, words: Bytes, nulls: Rows, within: _RowCursor) -> pa.Array:
    within.refuse_cells(_count_leaves(column))
    starts, sizes = _locate(words, nulls, within)
    slices = Cursor(within.spans, starts[~nulls], (starts + sizes)[~nulls])
    return scatter(_decode_slice_values(column, slices), ~nulls)


def _decode_slice_values(column: LogicalType, slices: Cursor) -> pa.Array:
    """Return the rows, arrays or maps in the given slices, which do not advance."""
    if column.root in _ROWS:
        return _decode_slices(column.children, list(sql_type(column)), slices)
    if column.root == "ARRAY":
        return _decode_array(column.children[0], slices)
    return _decode_map(*entry_types(column), slices)


def _count_leaves(column: LogicalType) -> int:
    return sum(map(_count_leaves, column.children)) or 1


def _element_width(element: LogicalType) -> int:
    """Return the size of an array element in bytes."""
    if element.root == "BOOLEAN":
        return 1
    return np.dtype(_NUMBERS.get(element.root, "<i8")).itemsize


def _decode_array(element: LogicalType, within: Cursor) -> pa.Array:
    """Read ``BinaryArrayData``: i32 n, null bits, n elements, then variable-length data."""
    fixed = Cursor(within.spans, within.position, within.end)
    counts = _to_native(fixed.take(4), "<i4").astype(np.int64)
    width = _element_width(element)
    heads = 4 + (counts + 31) // 32 * 4
    wrong = (counts < 0) | (heads + counts * width > within.end - within.position)
    within.refuse(wrong, "an array does not fit its column")
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    elements = _RowCursor(
        within.spans,
        np.repeat(within.position, counts),
        np.repeat(within.end, counts),
        arrays=within,
        array=np.repeat(np.arange(len(within)), counts),
    )
    bits = within.data()[elements.position + 4 + number // 8] >> (number % 8).astype(np.uint8)
    starts = elements.position + np.repeat(heads, counts) + number * width
    words = np.zeros((len(number), _WORD), np.uint8)
    words[:, :width] = Cursor(within.spans, starts, elements.end).take(width)
    values = _decode_column(element, words, bits & 1 != 0, elements)
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def _decode_map(key: LogicalType, value: LogicalType, within: Cursor) -> pa.Array:
    """Read ``BinaryMapData``: the size of the key array, the key array, and the value array."""
    fixed = Cursor(within.spans, within.position, within.end)
    sizes = _to_native(fixed.take(4), "<i4").astype(np.int64)
    within.refuse((sizes < 0) | (fixed.position + sizes > within.end), "the keys exceed their map")
    keys = _decode_array(key, Cursor(within.spans, fixed.position, fixed.position + sizes))
    values = _decode_array(value, Cursor(within.spans, fixed.position + sizes, within.end))
    if not keys.offsets.equals(values.offsets):
        raise within.error("a map has different numbers of keys and values", 0)
    if keys.values.null_count:
        raise UnsupportedTypeError("a map has a null key, which a map column cannot store")
    return pa.MapArray.from_arrays(keys.offsets, keys.values, values.values)


def _to_native(words: Bytes, dtype: str) -> npt.NDArray[Any]:
    numpy_type = np.dtype(dtype)
    raw = np.ascontiguousarray(words[:, : numpy_type.itemsize]).view(numpy_type).reshape(-1)
    return raw.astype(numpy_type.newbyteorder("="))


def _decode_decimals(
    column: LogicalType, words: Bytes, nulls: Rows, within: _RowCursor
) -> pa.Array:
    if column.precision <= COMPACT_DIGITS:
        values = _to_native(words, "<i8").tolist()
    else:
        raw = _slice_bytes(words, nulls, within, can_be_inline=False).to_pylist()
        values = [int.from_bytes(data, "big", signed=True) for data in raw]
    unscaled = [None if null else value for value, null in zip(values, nulls, strict=True)]
    return build_decimals(column, unscaled, within)


def build_decimals(column: LogicalType, unscaled: list[int | None], within: Cursor) -> pa.Array:
    """Return decimals from whole numbers; DamagedFileError for one with too many digits."""
    decimals = [
        None if value is None else Decimal(value).scaleb(-column.scale, _EXACT)
        for value in unscaled
    ]
    try:
        return pa.array(decimals, sql_type(column))
    except pa.ArrowInvalid as error:
        raise within.error(f"a decimal has too many digits ({error})", 0) from error


def _locate(words: Bytes, nulls: Rows, within: _RowCursor) -> tuple[Places, Places]:
    """Return the start and the length of the data that words point to."""
    pointers = _to_native(words, "<i8")
    offset, length = np.where(nulls, 0, pointers >> 32), np.where(nulls, 0, pointers & 0xFFFFFFFF)
    wrong = (offset < 0) | (offset + length > within.end - within.position)
    within.refuse(wrong, "a column of a row is outside the row")
    within.claim(length)
    return within.position + offset, length


def _slice_bytes(words: Bytes, nulls: Rows, within: _RowCursor, *, can_be_inline: bool) -> pa.Array:
    inline = (words[:, 7] & _INLINE != 0) & ~nulls & can_be_inline
    starts, sizes = _locate(words, nulls | inline, within)
    if not bool(inline.any()):
        return piece_array(within.data(), starts, starts + sizes)
    # One buffer holds both forms: the inline words are appended to the rows' own bytes.
    base = len(within.data())
    buffer = np.concatenate([within.data(), words.reshape(-1)])
    starts = np.where(inline, base + np.arange(len(words)) * _WORD, starts)
    sizes = np.where(inline, words[:, 7] & (_INLINE - 1), sizes)
    within.refuse(inline & (sizes > _MOST_INLINE), "a short text is longer than its word")
    return piece_array(buffer, starts, starts + sizes)


def _decode_timestamps(column: LogicalType, whole: Places, nulls: Rows, within: Cursor) -> pa.Array:
    if column.precision <= EXACT_IN_MILLIS:
        return build_timestamps(column, whole, np.zeros(len(whole), np.int64), nulls)
    offset, nano = np.where(nulls, 0, whole >> 32), np.where(nulls, 0, whole & 0xFFFFFFFF)
    wrong = (offset < 0) | (offset + _WORD > within.end - within.position) | (nano > 999_999)
    within.refuse(wrong & ~nulls, "a timestamp of a row is outside the row")
    cursor = Cursor(within.spans, (within.position + offset)[~nulls], within.end[~nulls])
    millis = np.zeros(len(whole), np.int64)
    millis[~nulls] = _to_native(cursor.take(_WORD), "<i8")
    return build_timestamps(column, millis, nano, nulls)


def build_timestamps(column: LogicalType, millis: Places, nano: Places, nulls: Rows) -> pa.Array:
    """Return timestamps from milliseconds since 1970, and nanoseconds of the millisecond.

    Raises UnsupportedTypeError for a value that is out of the range of the column's type.
    """
    data_type = sql_type(column)
    if column.precision <= EXACT_IN_MILLIS:
        return pa.array(millis, pa.int64(), mask=nulls).cast(data_type)
    if data_type == INSTANT:
        parts = [millis // 1000, millis % 1000 * 1_000_000 + nano]
        arrays = [pa.array(parts[0]), pa.array(parts[1].astype(np.int32))]
        fields = [INSTANT.field(0), INSTANT.field(1)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(nulls))
    if bool((np.abs(millis) > (1 << 63) // 1001).any()):
        raise UnsupportedTypeError(f"a {column.text} is too far from 1970 for an Arrow timestamp")
    return pa.array(millis * 1000 + nano // 1000, pa.int64(), mask=nulls).cast(data_type)


class _OutOfLine(bytes):
    """A value that is never stored inline, even if it is short: a row, array, map or raw value."""


def encode_rows(
    columns: tuple[LogicalType, ...], rows: pa.Array, *, are_keys: bool = False
) -> list[bytes]:
    """Return the bytes of rows in the layout of ``BinaryRowWriter``, without their lengths.

    In keys, a null of a type that does not fit into a word reserves the bytes of a value.
    """
    kinds, *fields = rows.flatten()
    values = [to_plain_values(column, field) for column, field in zip(columns, fields, strict=True)]
    row_values = zip(*values, strict=True) if values else ((),) * len(rows)
    reserved = [_reserved_bytes(column) if are_keys else 0 for column in columns]
    return [
        _encode_row(columns, reserved, row_kind, row)
        for row_kind, row in zip(kinds.to_pylist(), row_values, strict=True)
    ]


def encode_collections(column: LogicalType, values: pa.Array) -> list[bytes]:
    """Return the bytes of arrays, maps or multisets that are not part of a row.

    None of them may be null.
    """
    return list(_encode_valid(column, values))


def _reserved_bytes(column: LogicalType) -> int:
    """Return how many bytes of variable-length data a null reserves."""
    if column.root == "DECIMAL":
        return 2 * _WORD if column.precision > COMPACT_DIGITS else 0
    is_long = column.root.startswith("TIMESTAMP") and column.precision > EXACT_IN_MILLIS
    return _WORD if is_long else 0


def to_plain_values(column: LogicalType, field: pa.Array) -> list[Any]:
    """Return values as the numbers or bytes that a row contains.

    A decimal is its unscaled number. A timestamp of more than three fractional digits is a pair:
    milliseconds since 1970, and nanoseconds of the millisecond.
    """
    if column.root == "DECIMAL":
        scaled = (
            None if value is None else value.scaleb(column.scale, _EXACT)
            for value in field.to_pylist()
        )
        return [None if value is None else int(value) for value in scaled]
    if column.root in _NESTED:
        return _to_plain_nested(column, field)
    if column.root in OUT_OF_LINE:
        return [None if value is None else _OutOfLine(value) for value in field.to_pylist()]
    if column.root in _BYTES:
        return list(field.cast(pa.binary()).to_pylist())
    if column.root.startswith("TIMESTAMP") and column.precision > EXACT_IN_MILLIS:
        if field.type == INSTANT:
            pairs = (
                (value["second"], value["nano"]) if value else None for value in field.to_pylist()
            )
        else:
            micros = field.cast(pa.int64()).to_pylist()
            pairs = (
                None if micro is None else (micro // 1_000_000, micro % 1_000_000 * 1000)
                for micro in micros
            )
        return [
            None if pair is None else (pair[0] * 1000 + pair[1] // 1_000_000, pair[1] % 1_000_000)
            for pair in pairs
        ]
    if pa.types.is_temporal(field.type):
        width = pa.int64() if field.type.bit_width == _WORD * 8 else pa.int32()
        field = field.cast(width)
    return list(field.to_pylist())


def _to_plain_nested(column: LogicalType, field: pa.Array) -> list[Any]:
    validity = field.is_valid().to_pylist()
    encoded = _encode_valid(column, field.filter(field.is_valid()))
    return [_OutOfLine(next(encoded)) if is_valid else None for is_valid in validity]


def _encode_valid(column: LogicalType, values: pa.Array) -> Iterator[bytes]:
    """Return the bytes of rows, arrays or maps, none of which is null."""
    if column.root in _ROWS:
        return iter(encode_rows(column.children, values))
    if column.root == "ARRAY":
        return iter(_encode_arrays(column.children[0], values.flatten(), values.offsets))
    key, value = entry_types(column)
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    keys, items = (side.slice(first, last - first) for side in (values.keys, values.items))
    if key.root not in _ARRAYS:
        refuse_repeated(values, keys, "a map has the key")
    pairs = zip(
        _encode_arrays(key, keys, values.offsets),
        _encode_arrays(value, items, values.offsets),
        strict=True,
    )
    return (
        len(key_bytes).to_bytes(4, "little") + key_bytes + value_bytes
        for key_bytes, value_bytes in pairs
    )


def _encode_arrays(element: LogicalType, values: pa.Array, offsets: pa.Array) -> list[bytes]:
    """Return the bytes of arrays in the layout of ``BinaryArrayWriter``."""
    plain, edges = to_plain_values(element, values), offsets.to_pylist()
    first = edges[0]
    return [
        _encode_array(element, plain[start - first : stop - first])
        for start, stop in pairwise(edges)
    ]


def _encode_array(element: LogicalType, values: list[Any]) -> bytes:
    count, width = len(values), _element_width(element)
    nulls = sum(1 << index for index, value in enumerate(values) if value is None)
    head = count.to_bytes(4, "little") + nulls.to_bytes((count + 31) // 32 * 4, "little")
    tail = bytearray()
    first = len(head) + count * width
    first += -first % _WORD
    words = b"".join(_encode_word(element, value, tail, first)[:width] for value in values)
    return (head + words).ljust(first, b"\0") + bytes(tail)


def _encode_row(
    columns: tuple[LogicalType, ...], reserved: list[int], row_kind: int, row: tuple[Any, ...]
) -> bytes:
    nulls = sum(1 << _HEADER_BITS + index for index, value in enumerate(row) if value is None)
    header = (nulls | row_kind).to_bytes(_header_width(len(columns)), "little")
    words, tail = bytearray(), bytearray()
    first = len(header) + _WORD * len(columns)
    for column, value, size in zip(columns, row, reserved, strict=True):
        if value is None and size:
            words += int(first + len(tail) << 32).to_bytes(_WORD, "little")
            tail += bytes(size)
        else:
            words += _encode_word(column, value, tail, first)
    return header + bytes(words) + bytes(tail)


def _encode_word(column: LogicalType, value: Any, tail: bytearray, first: int) -> bytes:
    """Return the eight bytes of a column, and append longer data to ``tail``."""
    if value is None:
        return bytes(_WORD)
    offset = first + len(tail) << 32
    if column.root in _NUMBERS:
        word: bytes = np.array([value], _NUMBERS[column.root]).tobytes().ljust(_WORD, b"\0")
        return word
    if column.root == "DECIMAL":
        if column.precision <= COMPACT_DIGITS:
            return int(value).to_bytes(_WORD, "little", signed=True)
        digits = big_integer(int(value))
        tail += digits.ljust(2 * _WORD, b"\0")
        return int(offset | len(digits)).to_bytes(_WORD, "little")
    if isinstance(value, tuple):
        tail += int(value[0]).to_bytes(_WORD, "little", signed=True)
        return int(offset | value[1]).to_bytes(_WORD, "little")
    if isinstance(value, bytes):
        if len(value) <= _MOST_INLINE and not isinstance(value, _OutOfLine):
            inline: bytes = value.ljust(_MOST_INLINE, b"\0")
            return inline + bytes([_INLINE | len(value)])
        tail += value + bytes(-len(value) % _WORD)
        return int(offset | len(value)).to_bytes(_WORD, "little")
    return int(value).to_bytes(_WORD, "little", signed=True)
