"""Convert rows of Flink SQL (``BinaryRowData``) to columns, and back.

A row begins with its length in four bytes, big-endian. The rest is little-endian: one byte for the
row kind, a null bit for each column, a word of eight bytes for each column, and variable-length
data. For text and bytes the word is an offset and a length. Up to seven bytes are stored inline:
the bytes, and a last byte that is 128 plus their number. Decimals of more than 18 digits, and
timestamps of more than three fractional digits, are stored in the variable-length part too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
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
    BYTES,
    Bytes,
    Cursor,
    Places,
    Rows,
    Spans,
    join_parts,
    list_offsets,
    piece_array,
    scatter,
)
from statestore.interop.flink.types.column_bytes import (
    EMPTY,
    find_valid,
    join_runs,
    list_lengths,
    matrix_bytes,
    refuse_nulls,
    refuse_repeated,
)
from statestore.keys.arrow import minimal_digits
from statestore.rows.digests import decimal_words

_HEADER_BITS = 8
_WORD = 8
_INLINE = 0x80
_MOST_INLINE = 7
COMPACT_DIGITS = 18
"""The highest precision of a decimal that Flink SQL stores as a number of eight bytes."""

_MILLIS_PER_DAY = 86_400_000
_MOST_SECONDS = (1 << 63) // 1000 - 1
_NUMBERS = {root.root: root.number for root in SQL_ROOTS.values() if root.number}
_TEXTS = ("CHAR", "VARCHAR")
_ARRAYS = ("BINARY", "VARBINARY")  # byte[] in Java, which compares arrays by identity
_BYTES = (*_TEXTS, *_ARRAYS)
_ROWS = ("ROW", "STRUCTURED_TYPE")
_NESTED = (*_ROWS, "ARRAY", "MAP", "MULTISET")


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
        return build_decimals(column, _to_native(words, "<i8"), nulls, within)
    digits = _slice_bytes(words, nulls, within, can_be_inline=False)
    return build_decimals(column, read_digits(digits), nulls, within)


def build_decimals(
    column: LogicalType, unscaled: npt.NDArray[Any], nulls: Rows, within: Cursor
) -> pa.Array:
    """Return decimals from whole numbers; DamagedFileError for one with too many digits.

    The numbers are 64-bit integers, or the result of :func:`read_digits`.
    """
    if unscaled.ndim == 1:
        unscaled = np.stack([unscaled, unscaled >> 63], axis=1).view(np.uint64)
    words = np.ascontiguousarray(np.where(nulls[:, np.newaxis], np.uint64(0), unscaled))
    # Arrow does not notice that the least number of 128 bits has too many digits.
    words[:, 0] |= words[:, 1] == np.uint64(1 << 63)
    validity = pa.array(~nulls).buffers()[1]
    decimals = pa.Array.from_buffers(sql_type(column), len(nulls), [validity, pa.py_buffer(words)])
    try:
        decimals.validate(full=True)
    except pa.ArrowInvalid as error:
        raise within.error(f"a decimal has too many digits ({error})", 0) from error
    return decimals


_DIGIT_BYTES = 16


def read_digits(digits: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the low and the high word of big-endian numbers of any length.

    A number of more than 128 bits becomes one with too many digits for every decimal.
    """
    spans = Spans.from_array(digits.cast(BYTES), "")
    lengths = spans.ends - spans.starts
    content = np.concatenate([spans.data, np.zeros(1, np.uint8)])
    is_negative = (lengths > 0) & (content[spans.starts] >= 0x80)
    sign = np.where(is_negative, 0xFF, 0).astype(np.uint8)[:, np.newaxis]
    place = np.arange(_DIGIT_BYTES)
    places = np.maximum(spans.ends[:, np.newaxis] - 1 - place, 0)
    little = np.where(place < lengths[:, np.newaxis], content[places], sign)
    words = np.ascontiguousarray(little).view("<u8")
    for row in np.flatnonzero(lengths > _DIGIT_BYTES).tolist():
        number = int.from_bytes(content[spans.starts[row] : spans.ends[row]], "big", signed=True)
        if not -(1 << 127) <= number < 1 << 127:
            words[row] = 1, 1 << 63
    return words


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


@dataclass(frozen=True, slots=True)
class _Slots:
    """The words of a column, and the longer data that follow the words of a row or array.

    ``tails`` are whole words of data for each value, which may be empty; None if no value has any.
    The offset of the data is still to be added to the words in ``is_pointer``.
    """

    words: npt.NDArray[np.uint64]
    tails: pa.Array | None = None
    is_pointer: Rows | None = None

    def placed(self, offsets: Places) -> npt.NDArray[np.uint64]:
        """Return the words of values whose data begin at some offsets within their row."""
        if self.is_pointer is None:
            return self.words
        shifted = offsets.astype(np.uint64) << np.uint64(32)
        return self.words | np.where(self.is_pointer, shifted, np.uint64(0))

    def tail_sizes(self) -> Places:
        """Return the number of bytes of each value's data."""
        if self.tails is None:
            return np.zeros(len(self.words), np.int64)
        sizes: Places = pc.binary_length(self.tails).to_numpy().astype(np.int64)
        return sizes


def encode_rows(
    columns: tuple[LogicalType, ...], rows: pa.Array, *, are_keys: bool = False
) -> pa.Array:
    """Return the bytes of rows in the layout of ``BinaryRowWriter``, without their lengths.

    In keys, a null of a type that does not fit into a word reserves the bytes of a value.
    """
    refuse_nulls(rows)
    kinds, *fields = rows.flatten()
    refuse_nulls(kinds)
    head = np.zeros((len(rows), _header_width(len(columns))), np.uint8)
    head[:, 0] = kinds.to_numpy().astype(np.uint8)
    offsets = np.full(len(rows), head.shape[1] + _WORD * len(columns))
    words, tails = np.zeros((len(rows), len(columns)), "<u8"), list[pa.Array]()
    for index, (column, field) in enumerate(zip(columns, fields, strict=True)):
        bit = _HEADER_BITS + index
        head[:, bit // 8] |= _find_nulls(field).astype(np.uint8) << np.uint8(bit % 8)
        slots = _encode_column(column, field, are_keys=are_keys)
        words[:, index] = slots.placed(offsets)
        if slots.tails is not None:
            offsets += slots.tail_sizes()
            tails.append(slots.tails)
    fixed = matrix_bytes(np.concatenate([head, words.view(np.uint8)], axis=1))
    return join_parts(fixed, *tails) if tails else fixed


def encode_collections(column: LogicalType, values: pa.Array) -> pa.Array:
    """Return the bytes of arrays, maps or multisets that are not part of a row.

    None of them may be null.
    """
    return _encode_valid(column, values)


def _find_nulls(array: pa.Array) -> Rows:
    nulls: Rows = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _encode_column(column: LogicalType, field: pa.Array, *, are_keys: bool = False) -> _Slots:
    """Return the words of a column's values; a null is a word of zeros."""
    if column.root == "DECIMAL":
        digits = unscaled_words(column, field)
        if column.precision <= COMPACT_DIGITS:
            return _Slots(digits[:, 0])
        kept, lengths = minimal_digits(digits)
        return _encode_reserved(kept, lengths.astype(np.uint64), _find_nulls(field), are_keys)
    if column.root.startswith("TIMESTAMP") and column.precision > EXACT_IN_MILLIS:
        millis, nanos = split_timestamps(field)
        words = millis.astype("<i8").view(np.uint8).reshape(-1, _WORD)
        return _encode_reserved(words, nanos.astype(np.uint64), _find_nulls(field), are_keys)
    if column.root in _NESTED:
        valid = find_valid(field)
        return _encode_bytes(scatter(_encode_valid(column, field.filter(field.is_valid())), valid))
    if column.root in OUT_OF_LINE:
        return _encode_bytes(field.cast(BYTES))
    if column.root in _BYTES:
        return _encode_bytes(field.cast(BYTES), can_be_inline=True)
    return _Slots(_encode_numbers(column, field))


def _encode_numbers(column: LogicalType, field: pa.Array) -> npt.NDArray[np.uint64]:
    if pa.types.is_temporal(field.type):
        field = field.cast(pa.int64() if field.type.bit_width == _WORD * 8 else pa.int32())
    if pa.types.is_boolean(field.type):
        field = field.cast(pa.int8())
    dtype = np.dtype("i1" if column.root == "BOOLEAN" else _NUMBERS.get(column.root, "<i8"))
    numbers = field.fill_null(0).to_numpy(zero_copy_only=False).astype(dtype)
    words = np.zeros((len(field), _WORD), np.uint8)
    words[:, : dtype.itemsize] = numbers.view(np.uint8).reshape(-1, dtype.itemsize)
    return words.view("<u8").reshape(-1)


def _encode_reserved(
    data: npt.NDArray[np.uint8], lower: npt.NDArray[np.uint64], nulls: Rows, are_keys: bool
) -> _Slots:
    """Return values of a fixed size that follow the words; in keys nulls have the same size."""
    if not bool(nulls.any()):
        return _Slots(lower, matrix_bytes(data), ~nulls)
    zeros = np.zeros(1, np.uint8)
    tails = matrix_bytes(np.where(nulls[:, np.newaxis], zeros, data))
    words = np.where(nulls, np.uint64(0), lower)
    if are_keys:
        return _Slots(words, tails, np.ones(len(nulls), np.bool_))
    return _Slots(words, pc.if_else(pa.array(nulls), EMPTY, tails), ~nulls)


_PADDING = pa.array([bytes(count) for count in range(_WORD)], BYTES)
_LOW_BYTES = np.array([(1 << 8 * size) - 1 for size in range(_WORD)], np.uint64)


def _encode_bytes(values: pa.Array, *, can_be_inline: bool = False) -> _Slots:
    """Return bytes, each followed by zeros up to a whole word; short ones may be in their word."""
    nulls = _find_nulls(values)
    known = values.fill_null(EMPTY)
    spans = Spans.from_array(known, "")
    lengths = spans.ends - spans.starts
    inline = (lengths <= _MOST_INLINE) & can_be_inline & ~nulls
    words = np.where(nulls, 0, lengths).astype(np.uint64)
    if bool(inline.any()):
        content = np.concatenate([spans.data, np.zeros(_WORD, np.uint8)])
        every = np.ndarray((len(content) - _WORD + 1,), "<u8", content, strides=(1,))
        sizes = lengths[inline]
        tag = (sizes.astype(np.uint64) | np.uint64(_INLINE)) << np.uint64(56)
        words[inline] = every[spans.starts[inline]] & _LOW_BYTES[sizes] | tag
    is_pointer = ~(inline | nulls)
    if not bool(is_pointer.any()):
        return _Slots(words)
    padded = join_parts(known, _PADDING.take(pa.array(-lengths % _WORD)))
    if not bool(is_pointer.all()):
        padded = pc.if_else(pa.array(is_pointer), padded, EMPTY)
    return _Slots(words, padded, is_pointer)


def unscaled_words(column: LogicalType, field: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the low and the high word of each decimal's unscaled number; zeros for null."""
    exact = field.cast(pa.decimal128(38, column.scale))
    words = decimal_words(exact).reshape(-1, 2)
    return np.where(_find_nulls(field)[:, np.newaxis], np.uint64(0), words)


def split_timestamps(field: pa.Array) -> tuple[Places, Places]:
    """Return milliseconds since 1970, and nanoseconds of the millisecond; zeros for null."""
    if field.type == INSTANT:
        second, nano = (
            part.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            for part in field.flatten()
        )
        if bool((np.abs(second) > _MOST_SECONDS).any()):
            raise UnsupportedTypeError("a timestamp is outside of the range of Flink's timestamps")
        return second * 1000 + nano // 1_000_000, nano % 1_000_000
    micros = field.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return micros // 1000, micros % 1000 * 1000


def _encode_valid(column: LogicalType, values: pa.Array) -> pa.Array:
    """Return the bytes of rows, arrays or maps, none of which is null."""
    if column.root in _ROWS:
        return encode_rows(column.children, values)
    counts = list_lengths(values)
    if column.root == "ARRAY":
        return _encode_arrays(column.children[0], values.flatten(), counts)
    key, value = entry_types(column)
    first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
    keys, items = (side.slice(first, last - first) for side in (values.keys, values.items))
    if key.root not in _ARRAYS:
        refuse_repeated(values, keys, "a map has the key")
    key_bytes = _encode_arrays(key, keys, counts)
    sizes = pc.binary_length(key_bytes).to_numpy().astype("<u4")
    return join_parts(
        matrix_bytes(sizes.view(np.uint8).reshape(-1, 4)),
        key_bytes,
        _encode_arrays(value, items, counts),
    )


def _encode_arrays(element: LogicalType, values: pa.Array, counts: Places) -> pa.Array:
    """Return the bytes of arrays of ``counts`` elements in the layout of ``BinaryArrayWriter``."""
    width, edges = _element_width(element), np.concatenate([[0], np.cumsum(counts)])
    array = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(values)) - edges[array]
    bit_sizes = (counts + 31) // 32 * 4
    bit_edges = np.concatenate([[0], np.cumsum(bit_sizes)])
    nulls, bits = _find_nulls(values), np.zeros(int(bit_edges[-1]), np.uint8)
    places = bit_edges[array[nulls]] + number[nulls] // 8
    np.add.at(bits, places, np.uint8(1) << (number[nulls] % 8).astype(np.uint8))
    firsts = 4 + bit_sizes + counts * width
    padding = -firsts % _WORD
    slots = _encode_column(element, values)
    tail_edges = np.concatenate([[0], np.cumsum(slots.tail_sizes())])
    offsets = (firsts + padding - tail_edges[edges[:-1]])[array] + tail_edges[:-1]
    words = np.ascontiguousarray(slots.placed(offsets).astype("<u8")).view(np.uint8)
    parts = [
        matrix_bytes(counts.astype("<u4").view(np.uint8).reshape(-1, 4)),
        pa.Array.from_buffers(
            BYTES, len(counts), [None, pa.py_buffer(bit_edges), pa.py_buffer(bits)]
        ),
        join_runs(matrix_bytes(words.reshape(-1, _WORD)[:, :width]), counts),
        _PADDING.take(pa.array(padding)),
    ]
    return join_parts(*parts, *([] if slots.tails is None else [join_runs(slots.tails, counts)]))
