"""Convert rows of Flink SQL (``BinaryRowData``) to columns, and back.

A row begins with its length in four bytes, big-endian. The rest is little-endian: one byte for the
row kind, a null bit for each column, a word of eight bytes for each column, and variable-length
data. For text and bytes the word is an offset and a length. Up to seven bytes are stored inline:
the bytes, and a last byte that is 128 plus their number. Decimals of more than 18 digits, and
timestamps of more than three fractional digits, are stored in the variable-length part too.
"""

from __future__ import annotations

from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import UnsupportedTypeError
from statestore.interop.flink_savepoints.types.arrow_types import (
    EXACT_IN_MILLIS,
    INSTANT,
    pair_of,
    row_fields,
    sql_type,
)
from statestore.interop.flink_savepoints.types.byte_cursor import (
    Cursor,
    Rows,
    list_offsets,
    scattered,
)
from statestore.interop.flink_savepoints.types.byte_slices import Bytes, Places, Spans, piece_array
from statestore.interop.flink_savepoints.types.flink_types import LogicalType

__all__ = ["decoded_rows", "written_rows"]

_HEADER_BITS = 8
_WORD = 8
_INLINE = 0x80
_MOST_INLINE = 7
_COMPACT_DIGITS = 18
_MILLIS_PER_DAY = 86_400_000
_NUMBERS = {
    "TINYINT": "<i1", "SMALLINT": "<i2", "INTEGER": "<i4", "BIGINT": "<i8", "FLOAT": "<f4",
    "DOUBLE": "<f8", "DATE": "<i4", "TIME_WITHOUT_TIME_ZONE": "<i4", "INTERVAL_YEAR_MONTH": "<i4",
    "INTERVAL_DAY_TIME": "<i8",
}  # fmt: skip
_TEXTS = ("CHAR", "VARCHAR")
_BYTES = (*_TEXTS, "BINARY", "VARBINARY")
_EXACT = Context(prec=80)


class _Within(Cursor):
    """Rows, or elements of arrays, and the bytes of each row or array that are not used yet.

    Flink never shares bytes between values. If sharing were accepted, a few bytes could expand to
    any number of values.
    """

    __slots__ = ("_array", "_left")

    def __init__(
        self,
        spans: Spans,
        at: Places,
        end: Places,
        *,
        arrays: Cursor | None = None,
        array: Any = None,
    ) -> None:
        """Create it for rows, or for elements, where ``array`` is the index into ``arrays``."""
        super().__init__(spans, at, end)
        self._array = array
        self._left = end - at if arrays is None else arrays.end - arrays.position

    def take(self, lengths: Places) -> None:
        """Claim the bytes of one value per row; DamagedFileError if there are not enough left."""
        if self._array is None:
            self._left = self._left - lengths
            wrong = self._left < 0
        else:
            used = np.bincount(self._array, lengths, minlength=len(self._left))
            self._left = self._left - used.astype(np.int64)
            wrong = (self._left < 0)[self._array]
        self.refuse(wrong, "two values of a row or array overlap")


def decoded_rows(columns: tuple[LogicalType, ...], cursor: Cursor) -> pa.Array:
    """Return rows as structs of ``row_kind``, ``f0``, ``f1``, …; raises errors of ``decoded``."""
    lengths = cursor.counts(1)
    begins = cursor.position
    cursor.position = begins + lengths
    return _rows(columns, Cursor(cursor.spans, begins, cursor.position))


def _rows(columns: tuple[LogicalType, ...], within: Cursor) -> pa.Array:
    """Return the rows in the given slices; ``within`` does not advance."""
    within.refuse_cells(len(columns))
    own = _Within(within.spans, within.position, within.end)
    fixed = Cursor(within.spans, within.position, within.end)
    head = fixed.fixed(_header_width(len(columns)))
    words = fixed.fixed(_WORD * len(columns)).reshape(len(within), len(columns), _WORD)
    bits = np.unpackbits(head, axis=1, bitorder="little").astype(np.bool_)
    kinds = np.ascontiguousarray(head[:, 0]).view(np.int8)
    fixed.refuse((kinds < 0) | (kinds > 3), "the row kind is unknown in Flink")
    found = [pa.array(kinds)]
    for number, column in enumerate(columns):
        word = np.ascontiguousarray(words[:, number])
        found.append(_column(column, word, bits[:, _HEADER_BITS + number], own))
    return pa.StructArray.from_arrays(found, fields=row_fields(columns))


def _header_width(columns: int) -> int:
    """Return the size of the header: a byte and a bit per column, rounded up to whole words."""
    return (columns + 63 + _HEADER_BITS) // 64 * _WORD


def _column(column: LogicalType, words: Bytes, nulls: Rows, within: _Within) -> pa.Array:
    """Return a column from its words, one for each slice of ``within``."""
    kind = sql_type(column)
    if column.root == "BOOLEAN":
        return pa.array(words[:, 0] == 1, kind, mask=nulls)
    if column.root in _NUMBERS:
        found = _native(words, _NUMBERS[column.root])
        if pa.types.is_time(kind):
            wrong = (found < 0) | (found >= _MILLIS_PER_DAY)
            within.refuse(wrong & ~nulls, "a day does not have this millisecond")
        if pa.types.is_temporal(kind):
            return pa.array(found, pa.int32(), mask=nulls).cast(kind)
        return pa.array(found, kind, mask=nulls)
    if column.root == "DECIMAL":
        return _decimals(column, words, nulls, within)
    if column.root.startswith("TIMESTAMP"):
        return _timestamps(column, _native(words, "<i8"), nulls, within)
    if column.children:
        return _nested(column, words, nulls, within)
    pieces = _pieces(words, nulls, within, can_be_inline=column.root != "RAW")
    pieces = pc.if_else(pa.array(~nulls), pieces, pa.scalar(None, pieces.type))
    try:
        return pieces.cast(kind)
    except pa.ArrowInvalid as error:
        raise within.damaged(f"a text is not UTF-8 ({error})", 0) from error


def _nested(column: LogicalType, words: Bytes, nulls: Rows, within: _Within) -> pa.Array:
    within.refuse_cells(_leaves(column))
    starts, sizes = _places(words, nulls, within)
    some = Cursor(within.spans, starts[~nulls], (starts + sizes)[~nulls])
    if column.root == "ROW":
        found = _rows(column.children, some)
    elif column.root == "ARRAY":
        found = _array(column.children[0], some)
    else:
        found = _map(*pair_of(column), some)
    return scattered(found, ~nulls)


def _leaves(column: LogicalType) -> int:
    return sum(map(_leaves, column.children)) or 1


def _width(element: LogicalType) -> int:
    """Return the size of an array element in bytes."""
    if element.root == "BOOLEAN":
        return 1
    return np.dtype(_NUMBERS.get(element.root, "<i8")).itemsize


def _array(element: LogicalType, within: Cursor) -> pa.Array:
    """Read ``BinaryArrayData``: i32 n, null bits, n elements, then variable-length data."""
    fixed = Cursor(within.spans, within.position, within.end)
    counts = _native(fixed.fixed(4), "<i4").astype(np.int64)
    width = _width(element)
    heads = 4 + (counts + 31) // 32 * 4
    wrong = (counts < 0) | (heads + counts * width > within.end - within.position)
    within.refuse(wrong, "an array does not fit its column")
    number = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    each = _Within(
        within.spans,
        np.repeat(within.position, counts),
        np.repeat(within.end, counts),
        arrays=within,
        array=np.repeat(np.arange(len(within)), counts),
    )
    bits = within.data()[each.position + 4 + number // 8] >> (number % 8).astype(np.uint8)
    starts = each.position + np.repeat(heads, counts) + number * width
    words = np.zeros((len(number), _WORD), np.uint8)
    words[:, :width] = Cursor(within.spans, starts, each.end).fixed(width)
    values = _column(element, words, bits & 1 != 0, each)
    return pa.ListArray.from_arrays(list_offsets(counts), values)


def _map(key: LogicalType, value: LogicalType, within: Cursor) -> pa.Array:
    """Read ``BinaryMapData``: the size of the key array, the key array, and the value array."""
    fixed = Cursor(within.spans, within.position, within.end)
    sizes = _native(fixed.fixed(4), "<i4").astype(np.int64)
    within.refuse((sizes < 0) | (fixed.position + sizes > within.end), "the keys exceed their map")
    keys = _array(key, Cursor(within.spans, fixed.position, fixed.position + sizes))
    values = _array(value, Cursor(within.spans, fixed.position + sizes, within.end))
    if not keys.offsets.equals(values.offsets):
        raise within.damaged("a map has different numbers of keys and values", 0)
    if keys.values.null_count:
        raise UnsupportedTypeError("a map has a null key, which a map column cannot store")
    return pa.MapArray.from_arrays(keys.offsets, keys.values, values.values)


def _native(words: Bytes, dtype: str) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    raw = np.ascontiguousarray(words[:, : kind.itemsize]).view(kind).reshape(-1)
    return raw.astype(kind.newbyteorder("="))


def _decimals(column: LogicalType, words: Bytes, nulls: Rows, within: _Within) -> pa.Array:
    if column.precision <= _COMPACT_DIGITS:
        values = _native(words, "<i8").tolist()
    else:
        raw = _pieces(words, nulls, within, can_be_inline=False).to_pylist()
        values = [int.from_bytes(one, "big", signed=True) for one in raw]
    found = [
        None if null else Decimal(one).scaleb(-column.scale, _EXACT)
        for one, null in zip(values, nulls, strict=True)
    ]
    try:
        return pa.array(found, sql_type(column))
    except pa.ArrowInvalid as error:
        raise within.damaged(f"a decimal has too many digits ({error})", 0) from error


def _places(words: Bytes, nulls: Rows, within: _Within) -> tuple[Places, Places]:
    """Return the start and the length of the data that words point to."""
    both = _native(words, "<i8")
    offset, length = np.where(nulls, 0, both >> 32), np.where(nulls, 0, both & 0xFFFFFFFF)
    wrong = (offset < 0) | (offset + length > within.end - within.position)
    within.refuse(wrong, "a column of a row is outside the row")
    within.take(length)
    return within.position + offset, length


def _pieces(words: Bytes, nulls: Rows, within: _Within, *, can_be_inline: bool) -> pa.Array:
    inline = (words[:, 7] & _INLINE != 0) & ~nulls & can_be_inline
    starts, sizes = _places(words, nulls | inline, within)
    if not bool(inline.any()):
        return piece_array(within.data(), starts, starts + sizes)
    # One buffer holds both forms: the inline words are appended to the rows' own bytes.
    base = len(within.data())
    buffer = np.concatenate([within.data(), words.reshape(-1)])
    starts = np.where(inline, base + np.arange(len(words)) * _WORD, starts)
    sizes = np.where(inline, words[:, 7] & (_INLINE - 1), sizes)
    within.refuse(inline & (sizes > _MOST_INLINE), "a short text is longer than its word")
    return piece_array(buffer, starts, starts + sizes)


def _timestamps(column: LogicalType, whole: Places, nulls: Rows, within: Cursor) -> pa.Array:
    kind = sql_type(column)
    if column.precision <= EXACT_IN_MILLIS:
        return pa.array(whole, pa.int64(), mask=nulls).cast(kind)
    offset, nano = np.where(nulls, 0, whole >> 32), np.where(nulls, 0, whole & 0xFFFFFFFF)
    wrong = (offset < 0) | (offset + _WORD > within.end - within.position) | (nano > 999_999)
    within.refuse(wrong & ~nulls, "a timestamp of a row is outside the row")
    at = Cursor(within.spans, (within.position + offset)[~nulls], within.end[~nulls])
    millis = np.zeros(len(whole), np.int64)
    millis[~nulls] = _native(at.fixed(_WORD), "<i8")
    if kind == INSTANT:
        parts = [millis // 1000, millis % 1000 * 1_000_000 + nano]
        arrays = [pa.array(parts[0]), pa.array(parts[1].astype(np.int32))]
        fields = [INSTANT.field(0), INSTANT.field(1)]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(nulls))
    if bool((np.abs(millis) > (1 << 63) // 1001).any()):
        raise UnsupportedTypeError(f"a {column.text} is too far from 1970 for an Arrow timestamp")
    return pa.array(millis * 1000 + nano // 1000, pa.int64(), mask=nulls).cast(kind)


class _Behind(bytes):
    """A value that is never stored inline, even if it is short: a row, array, map or raw value."""


def written_rows(
    columns: tuple[LogicalType, ...], rows: pa.Array, *, are_keys: bool = False
) -> list[bytes]:
    """Return the bytes of rows in the layout of ``BinaryRowWriter``, without their lengths.

    In keys, a null of a type that does not fit into a word reserves the bytes of a value.
    """
    kinds, *fields = rows.flatten()
    values = [_plain(column, field) for column, field in zip(columns, fields, strict=True)]
    each = zip(*values, strict=True) if values else ((),) * len(rows)
    kept = [_reserved(column) if are_keys else 0 for column in columns]
    return [
        _written_row(columns, kept, kind, row)
        for kind, row in zip(kinds.to_pylist(), each, strict=True)
    ]


def _reserved(column: LogicalType) -> int:
    """Return how many bytes of variable-length data a null reserves."""
    if column.root == "DECIMAL":
        return 2 * _WORD if column.precision > _COMPACT_DIGITS else 0
    is_long = column.root.startswith("TIMESTAMP") and column.precision > EXACT_IN_MILLIS
    return _WORD if is_long else 0


def _plain(column: LogicalType, field: pa.Array) -> list[Any]:
    """Return values as the numbers or bytes that a row contains."""
    if column.root == "DECIMAL":
        found = (None if one is None else one.scaleb(column.scale) for one in field.to_pylist())
        return [None if one is None else int(one) for one in found]
    if column.children:
        return _plain_nested(column, field)
    if column.root == "RAW":
        return [None if one is None else _Behind(one) for one in field.to_pylist()]
    if column.root in _BYTES:
        return list(field.cast(pa.binary()).to_pylist())
    if column.root.startswith("TIMESTAMP") and column.precision > EXACT_IN_MILLIS:
        if field.type == INSTANT:
            pairs = ((one["second"], one["nano"]) if one else None for one in field.to_pylist())
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


def _plain_nested(column: LogicalType, field: pa.Array) -> list[Any]:
    there = field.is_valid().to_pylist()
    some = field.filter(field.is_valid())
    if column.root == "ROW":
        found = iter(written_rows(column.children, some))
    elif column.root == "ARRAY":
        found = iter(_written_arrays(column.children[0], some.flatten(), some.offsets))
    else:
        key, value = pair_of(column)
        first, last = some.offsets[0].as_py(), some.offsets[-1].as_py()
        sides = [one.slice(first, last - first) for one in (some.keys, some.items)]
        keys = _written_arrays(key, sides[0], some.offsets)
        values = _written_arrays(value, sides[1], some.offsets)
        pairs = zip(keys, values, strict=True)
        found = (len(one).to_bytes(4, "little") + one + other for one, other in pairs)
    return [_Behind(next(found)) if one else None for one in there]


def _written_arrays(element: LogicalType, values: pa.Array, offsets: pa.Array) -> list[bytes]:
    """Return the bytes of arrays in the layout of ``BinaryArrayWriter``."""
    plain, edges = _plain(element, values), offsets.to_pylist()
    first = edges[0]
    return [
        _written_array(element, plain[start - first : stop - first])
        for start, stop in pairwise(edges)
    ]


def _written_array(element: LogicalType, values: list[Any]) -> bytes:
    count, width = len(values), _width(element)
    nulls = sum(1 << at for at, one in enumerate(values) if one is None)
    head = count.to_bytes(4, "little") + nulls.to_bytes((count + 31) // 32 * 4, "little")
    behind = bytearray()
    first = len(head) + count * width
    first += -first % _WORD
    words = b"".join(_word(element, value, behind, first)[:width] for value in values)
    return (head + words).ljust(first, b"\0") + bytes(behind)


def _written_row(
    columns: tuple[LogicalType, ...], kept: list[int], kind: int, row: tuple[Any, ...]
) -> bytes:
    nulls = sum(1 << _HEADER_BITS + at for at, one in enumerate(row) if one is None)
    header = (nulls | kind).to_bytes(_header_width(len(columns)), "little")
    words, behind = bytearray(), bytearray()
    first = len(header) + _WORD * len(columns)
    for column, value, size in zip(columns, row, kept, strict=True):
        if value is None and size:
            words += int(first + len(behind) << 32).to_bytes(_WORD, "little")
            behind += bytes(size)
        else:
            words += _word(column, value, behind, first)
    return header + bytes(words) + bytes(behind)


def _word(column: LogicalType, value: Any, behind: bytearray, first: int) -> bytes:
    """Return the eight bytes of a column, and append longer data to ``behind``."""
    if value is None:
        return bytes(_WORD)
    offset = first + len(behind) << 32
    if column.root in _NUMBERS:
        word: bytes = np.array([value], _NUMBERS[column.root]).tobytes().ljust(_WORD, b"\0")
        return word
    if column.root == "DECIMAL":
        if column.precision <= _COMPACT_DIGITS:
            return int(value).to_bytes(_WORD, "little", signed=True)
        width = (value + (value < 0)).bit_length() // 8 + 1
        behind += int(value).to_bytes(width, "big", signed=True).ljust(2 * _WORD, b"\0")
        return int(offset | width).to_bytes(_WORD, "little")
    if isinstance(value, tuple):
        behind += int(value[0]).to_bytes(_WORD, "little", signed=True)
        return int(offset | value[1]).to_bytes(_WORD, "little")
    if isinstance(value, bytes):
        if len(value) <= _MOST_INLINE and not isinstance(value, _Behind):
            inline: bytes = value.ljust(_MOST_INLINE, b"\0")
            return inline + bytes([_INLINE | len(value)])
        behind += value + bytes(-len(value) % _WORD)
        return int(offset | len(value)).to_bytes(_WORD, "little")
    return int(value).to_bytes(_WORD, "little", signed=True)
