"""Key hashes and key groups of Arrow columns, whole columns at a time.

Every value gets the same hash as in :mod:`statestore.keys.hashing` (invariant I1): the same
schemes, and the same 32-bit hashes as Flink 2.3. :mod:`statestore.keys.arrow_types` lists the key
type that each Arrow type is hashed as.

In the java scheme, one key column is the bare key, and several columns are a TupleN in the given
order. In the pyflink scheme, the key is the only field of a Row. Several columns are the Java Tuple
that ``key_type=Types.TUPLE([...])`` makes, as that field. In the flink-sql scheme, the key columns
are one row. If a job's key is an Integer where the column is an int64 (or a TIMESTAMP(3) where the
column has precision 6), ``key_types`` names the job's types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError, NullKeyError
from statestore.keys.arrow_java import (
    Hashes,
    absorb,
    byte_spans,
    decimals_of,
    deep_hashes,
    finish,
    fixed_width,
    int64s,
    java_hashes,
    message_value,
    second_and_nano,
    tuple_hashes,
)
from statestore.keys.arrow_types import check_key_type, check_tuple
from statestore.keys.groups import key_group_of_hash
from statestore.keys.key_types import DEFAULT_HASH_SCHEME, check_hash_scheme, java_type
from statestore.keys.sql import SqlType, parse_sql_type

if TYPE_CHECKING:
    from collections.abc import Sequence

_U64s = npt.NDArray[np.uint64]
_I64s = npt.NDArray[np.int64]

_SIZES: Final = {"TINYINT": 1, "SMALLINT": 2, "INT": 4, "BIGINT": 8}
_NANOS_PER_MILLI: Final = 10**6
_LOW_BYTES: Final = np.array([(1 << 8 * size) - 1 for size in range(8)], np.uint64)
_SHIFT: Final = np.uint64(32)


class _Field(NamedTuple):
    """One column: its eight fixed bytes, and the words of its variable part."""

    slot: _U64s  # little-endian; without the offset
    behind: npt.NDArray[np.bool_] | None  # rows whose slot has an offset in its upper half
    sizes: _I64s | int  # bytes of the variable part, a multiple of 8
    words: Any  # (rows, k) words of a fixed variable part, or a _Bytes, or None


class _Bytes(NamedTuple):
    """The bytes of all rows, followed by eight zero bytes, and where each row's bytes begin."""

    content: npt.NDArray[np.uint8]
    starts: _I64s
    lengths: _I64s


def sql_hashes(columns: Sequence[pa.Array], names: Sequence[str]) -> Hashes:
    """Return ``BinaryRowData.hashCode()`` of every row of ``columns`` with these SQL types.

    The contract is Flink's ``BinaryRowData``. ``keys.sql`` computes the same for one row, from the
    row's bytes. This function does not build the bytes. Murmur3 reads four bytes at a time, so only
    the 32-bit words of a row are needed: the header, two words per column, then the variable part
    of every column in order.

    NULL is an ordinary value. Raises InvalidArgumentError for a value that its type cannot hold.
    """
    rows, count = len(columns[0]), len(columns)
    fields = [
        _field(column, parse_sql_type(name)) for column, name in zip(columns, names, strict=True)
    ]
    h = np.full(rows, 42, np.uint32)
    header = _header(columns)
    for word in header:
        h = _absorb_long(h, word)
    offset: Any = np.uint64(8 * (len(header) + count))
    for field in fields:
        slot = field.slot
        if field.behind is not None:
            slot = slot | np.where(field.behind, offset << _SHIFT, np.uint64(0))
        h = _absorb_long(h, slot)
        offset = offset + np.asarray(field.sizes, np.uint64)
    for field in fields:
        h = _absorb_tail(h, field.words)
    return finish(h ^ offset.astype(np.uint32))


def words_hashes(
    content: npt.NDArray[np.uint8], starts: _I64s, lengths: _I64s
) -> npt.NDArray[np.int32]:
    """Return ``BinaryRowData.hashCode()`` of rows of whole words, given where their bytes are."""
    if len(content) < 8:  # all rows are empty
        content = np.zeros(8, np.uint8)
    hashes = np.empty(len(starts), np.int32)
    for first in range(0, len(starts), _ROWS_AT_A_TIME):
        some = slice(first, first + _ROWS_AT_A_TIME)
        h = np.full(len(starts[some]), 42, np.uint32)
        h = _absorb_bytes(h, content, starts[some], lengths[some])
        hashes[some] = finish(h ^ lengths[some].astype(np.uint32)).view(np.int32)
    return hashes


def _header(columns: Sequence[pa.Array]) -> list[_U64s]:
    """Return the null bits in words of 64: bit i + 8 for column i, after the row kind 0."""
    rows, count = len(columns[0]), len(columns)
    words = [np.zeros(rows, np.uint64) for _ in range((count + 71) // 64)]
    for index, column in enumerate(columns):
        if column.null_count:
            bit = index + 8
            nulls = _nulls(column).astype(np.uint64)
            words[bit // 64] |= nulls << np.uint64(bit % 64)
    return words


def _nulls(array: pa.Array) -> npt.NDArray[np.bool_]:
    nulls: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _field(array: pa.Array, sql_type: SqlType) -> _Field:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    name = sql_type.name
    if name in ("STRING", "CHAR", "VARCHAR", "BYTES", "BINARY", "VARBINARY"):
        _refuse_longer(array, sql_type)
        return _text(array)
    if name == "DECIMAL":
        if pa.types.is_integer(array.type):
            array = array.cast(pa.decimal128(19, 0))
        exact = decimals_of(array, sql_type, sql_type.precision, sql_type.scale)
        return _decimal(exact, sql_type)
    if name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return _timestamp(array, sql_type)
    slot = _simple_slot(array, sql_type)
    if array.null_count:
        slot = np.where(_nulls(array), np.uint64(0), slot)
    return _Field(slot, None, 0, None)


def _simple_slot(array: pa.Array, sql_type: SqlType) -> _U64s:
    name = sql_type.name
    if name in _SIZES:
        return _integer(array, name)
    if name == "BOOLEAN":
        flags: _U64s = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint64)
        return flags
    if name == "DATE" and pa.types.is_integer(array.type):
        days = int64s(array)
        _refuse_inexact(
            array, (days != days.astype(np.int32)).astype(np.int64), "days must fit 32 bits"
        )
        return days.astype(np.uint32).astype(np.uint64)
    if name == "TIME":
        seconds, nanos = second_and_nano(array)
        unit = 10 ** (9 - min(sql_type.precision, 3))
        _refuse_inexact(array, nanos % unit, f"{sql_type} supports milliseconds at most")
        outside = (seconds < 0) | (seconds >= 86_400)
        _refuse_inexact(array, outside.astype(np.int64), "a TIME must be within one day")
        return (seconds * 1000 + nanos // _NANOS_PER_MILLI).astype(np.uint64)
    # DATE, FLOAT and DOUBLE: the bits unchanged.
    bits: _U64s = fixed_width(array, np.uint64 if name == "DOUBLE" else np.uint32).astype(np.uint64)
    return bits


def _integer(array: pa.Array, name: str) -> _U64s:
    """Return two's complement in the bytes of the type, the other bytes zero."""
    values = fixed_width(array, np.dtype(f"i{array.type.bit_width // 8}")).astype(np.int64)
    bits: _U64s = values.view(np.uint64)
    size = _SIZES[name]
    if size < 8:
        limit = 1 << 8 * size - 1
        outside = ((values < -limit) | (values >= limit)).astype(np.int64)
        _refuse_inexact(array, outside, f"{name} holds {-limit}..{limit - 1}")
        bits = bits & _LOW_BYTES[size]
    return bits


def _refuse_inexact(array: pa.Array, lost: _I64s, reason: str) -> None:
    if array.null_count:
        lost = np.where(_nulls(array), 0, lost)
    if lost.any():
        value = message_value(array[int(np.flatnonzero(lost)[0])])
        raise InvalidArgumentError(f"{value} does not fit the key's type: {reason}")


def _refuse_longer(array: pa.Array, sql_type: SqlType) -> None:
    if sql_type.name in ("STRING", "BYTES"):
        return
    text = sql_type.name in ("CHAR", "VARCHAR")
    lengths = pc.utf8_length(array) if text else pc.binary_length(array)
    longer = pc.fill_null(pc.greater(lengths, sql_type.precision), False)
    _refuse_inexact(array, np.asarray(longer).astype(np.int64), f"it is longer than {sql_type}")


def _decimal(array: pa.Array, sql_type: SqlType) -> _Field:
    nulls = _nulls(array)
    unscaled = np.where(nulls[:, None], np.uint64(0), fixed_width(array, np.dtype(("<u8", 2))))
    if not sql_type.reserved:
        return _Field(unscaled[:, 0], None, 0, None)
    digits, lengths = minimal_digits(unscaled)
    size = np.where(nulls, 0, lengths).astype(np.uint64)
    return _Field(size, np.ones(len(array), np.bool_), 16, digits.view("<u4"))


def minimal_digits(unscaled: _U64s) -> tuple[npt.NDArray[np.uint8], _I64s]:
    """Return ``BigInteger.toByteArray`` of numbers, followed by zeros, and their lengths.

    ``unscaled`` has the low and the high word of each number.
    """
    big_endian = np.ascontiguousarray(unscaled).view(np.uint8).reshape(-1, 16)[:, ::-1]
    sign = big_endian[:, :1] >> 7
    # Drop leading bytes that only repeat the sign, but keep the last byte.
    repeats = (big_endian[:, :15] == sign * 255) & (big_endian[:, 1:] >> 7 == sign)
    left_out = np.minimum.accumulate(repeats, axis=1).sum(axis=1)
    positions = np.arange(16) + left_out[:, None]
    kept = np.take_along_axis(big_endian, np.minimum(positions, 15), axis=1) * (positions < 16)
    return np.ascontiguousarray(kept.astype(np.uint8)), 16 - left_out


def _timestamp(array: pa.Array, sql_type: SqlType) -> _Field:
    seconds, nanos = second_and_nano(array)
    unit = 10 ** (9 - sql_type.precision)
    _refuse_inexact(
        array, nanos % unit, f"it has more fractional digits than precision {sql_type.precision}"
    )
    nulls = _nulls(array)
    millis = np.where(nulls, 0, seconds * 1000 + nanos // _NANOS_PER_MILLI)
    if not sql_type.reserved:
        return _Field(millis.view(np.uint64), None, 0, None)
    below = np.where(nulls, 0, nanos % _NANOS_PER_MILLI).astype(np.uint64)
    words = np.ascontiguousarray(millis).view("<u4").reshape(-1, 2)
    return _Field(below, np.ones(len(array), np.bool_), 8, words)


def _text(array: pa.Array) -> _Field:
    content, ends = byte_spans(array)
    content = np.concatenate([content, np.zeros(8, np.uint8)])
    starts, lengths = ends[:-1], np.diff(ends)
    nulls = _nulls(array) if array.null_count else None
    if nulls is not None:
        lengths = np.where(nulls, 0, lengths)
    # Read any eight bytes as one number. The eight zeros at the end keep the last read in bounds.
    longs = np.ndarray(len(content) - 7, "<u8", content, strides=(1,))
    behind = lengths >= 8
    short = np.minimum(lengths, 7)
    tag = (short.astype(np.uint64) | np.uint64(0x80)) << np.uint64(56)
    in_place = longs[starts] & _LOW_BYTES[short] | tag
    slot = np.where(behind, lengths.astype(np.uint64), in_place)
    if nulls is not None:
        slot = np.where(nulls, np.uint64(0), slot)
    sizes = np.where(behind, (lengths + 7) // 8 * 8, 0)
    return _Field(slot, behind, sizes, _Bytes(content, starts, np.where(behind, lengths, 0)))


def _absorb_long(h: Hashes, value: _U64s) -> Hashes:
    return absorb(absorb(h, value.astype(np.uint32)), (value >> _SHIFT).astype(np.uint32))


def _absorb_tail(h: Hashes, words: Any) -> Hashes:
    if words is None:
        return h
    if not isinstance(words, _Bytes):
        for index in range(words.shape[1]):
            h = absorb(h, words[:, index])
        return h
    return _absorb_bytes(h, *words)


def _absorb_bytes(
    h: Hashes, content: npt.NDArray[np.uint8], starts: _I64s, lengths: _I64s
) -> Hashes:
    """Absorb bytes of each row; ``content`` has eight bytes from the start of each word."""
    longs = np.ndarray(len(content) - 7, "<u8", content, strides=(1,))
    offset = 0
    rows = np.flatnonzero(lengths)
    while len(rows):  # once per eight bytes of the longest key, for the rows that are long enough
        rest = np.minimum(lengths[rows] - offset, 8)
        value = longs[starts[rows] + offset]
        value = np.where(rest < 8, value & _LOW_BYTES[rest & 7], value)
        h[rows] = _absorb_long(h[rows], value)
        offset += 8
        rows = rows[lengths[rows] > offset]
    return h


Int32s: TypeAlias = npt.NDArray[np.int32]

_ROWS_AT_A_TIME: Final = 1 << 14
"""The number of rows hashed per step, small enough for the step's arrays to fit the CPU cache."""


def key_groups(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    *,
    max_parallelism: int,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> Int32s:
    """Return the key group, 0 .. ``max_parallelism`` - 1, of every row (invariant I1).

    Raises the errors of :func:`key_hashes`, and ParallelismError when ``max_parallelism`` is not in
    1..32768.
    """
    key_group_of_hash(0, max_parallelism)  # refuses it before all rows are hashed
    hashes = key_hashes(columns, hash_scheme=hash_scheme, key_types=key_types)
    return key_groups_of_hashes(hashes, max_parallelism)


def key_groups_of_hashes(hashes: Int32s, max_parallelism: int) -> Int32s:
    """Return the key group of every key hash, as :func:`key_hashes` returns them.

    Raises ParallelismError when ``max_parallelism`` is not in 1..32768.
    """
    key_group_of_hash(0, max_parallelism)  # checks the bounds
    groups = np.empty(len(hashes), np.int32)
    for start in range(0, len(hashes), _ROWS_AT_A_TIME):
        part = slice(start, start + _ROWS_AT_A_TIME)
        groups[part] = _mix(hashes[part].view(np.uint32)) % np.uint32(max_parallelism)
    return groups


def key_hashes(
    columns: Sequence[pa.Array | pa.ChunkedArray],
    *,
    hash_scheme: str = DEFAULT_HASH_SCHEME,
    key_types: Sequence[str | None] | None = None,
) -> Int32s:
    """Return the signed 32-bit key hash of every row, before it is mixed into a key group.

    ``columns`` are the key columns in the order of the key. ``key_types`` names the hashed type of
    each column, as :func:`check_key_type` returns it. None stands for the column's own type.

    Raises NullKeyError with the number of rows (java, pyflink), UnsupportedTypeError for a column
    type that cannot be a key, InvalidArgumentError for a value that the named type cannot hold.
    """
    check_hash_scheme(hash_scheme)
    table = _table(columns)
    names = _names(table.schema.types, hash_scheme, key_types)
    if hash_scheme != "flink-sql":
        _refuse_nulls(table)
    # A dictionary is hashed once per chunk. If the chunk were cut, each piece would hash it again.
    whole = any(pa.types.is_dictionary(data_type) for data_type in table.schema.types)
    hashes = np.empty(table.num_rows, np.uint32)
    start = 0
    for batch in table.to_batches(max_chunksize=None if whole else _ROWS_AT_A_TIME):
        hashes[start : start + batch.num_rows] = _batch_hashes(batch.columns, names, hash_scheme)
        start += batch.num_rows
    return hashes.view(np.int32)


def _batch_hashes(columns: Sequence[pa.Array], names: Sequence[str], hash_scheme: str) -> Hashes:
    if hash_scheme == "flink-sql":
        return sql_hashes(columns, names)
    kinds = [java_type(name) for name in names]
    if hash_scheme == "pyflink" and len(kinds) == 1:
        return deep_hashes(columns[0], kinds[0]) + np.uint32(31)
    parts = [
        java_hashes(column, java_type) for column, java_type in zip(columns, kinds, strict=True)
    ]
    hashes = parts[0] if len(parts) == 1 else tuple_hashes(parts)
    # Row.of(key), as PyFlink wraps a key: 31 for the row and 31 for the field.
    return hashes + np.uint32(62) if hash_scheme == "pyflink" else hashes


def _table(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.Table:
    if not columns:
        raise InvalidArgumentError("a key needs at least one column")
    arrays = [_without_null_entries(column) for column in columns]
    try:
        return pa.Table.from_arrays(arrays, [str(index) for index in range(len(arrays))])
    except pa.ArrowInvalid as error:
        raise InvalidArgumentError(f"the key columns cannot be combined: {error}") from error


def _without_null_entries(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Decode a dictionary that contains null: Arrow does not count its rows as null."""
    if not pa.types.is_dictionary(column.type):
        return column
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    if any(chunk.dictionary.null_count for chunk in chunks):
        return column.cast(column.type.value_type)
    return column


def _names(
    types: Sequence[pa.DataType], hash_scheme: str, key_types: Sequence[str | None] | None
) -> list[str]:
    wanted = [None] * len(types) if key_types is None else list(key_types)
    if len(wanted) != len(types):
        raise InvalidArgumentError(f"{len(types)} key columns but {len(wanted)} key types")
    names = [check_key_type(t, hash_scheme, name) for t, name in zip(types, wanted, strict=True)]
    if hash_scheme != "flink-sql":
        check_tuple(names)
    return names


def _refuse_nulls(table: pa.Table) -> None:
    nulls = np.zeros(table.num_rows, bool)
    for column in table.columns:
        if column.null_count:
            nulls |= column.is_null().to_numpy()
    if count := int(nulls.sum()):
        raise NullKeyError(f"{count} of {table.num_rows} rows have a null key: remove or fill them")


def _mix(hashes: Hashes) -> Hashes:
    """Return ``mix_hash`` of every element: Murmur3 of one word with seed 0, without the sign."""
    h = finish(absorb(np.zeros(1, np.uint32), hashes) ^ np.uint32(4))
    # abs() leaves -2^31 unchanged, and the mask turns it into 0.
    return np.abs(h.view(np.int32)).view(np.uint32) & np.uint32(0x7FFFFFFF)
