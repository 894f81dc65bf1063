"""Defines when two rows are equal, and matches rows, for all code that compares or sorts rows.

Null equals null, NaN equals NaN, and 0.0 does not equal -0.0. A null struct differs from a struct
whose fields are null: Parquet, Arrow and Spark distinguish the two, and so does the digest. The
entries of a map have no order.

Values of different widths can be equal. A field that was added to a struct makes no difference as
long as it is null. Rows with different columns are compared by their common columns, each cast to
the type that can hold both values.

Rows are looked up and compared column by column. Floats are represented by their bits, lists and
maps by bytes. Code that matches rows calls :func:`matching_positions`. The hashes of the digest
follow the same rule.

A list column is encoded as bytes that compare and sort like the lists. The bytes are only used to
compare rows in memory, and are never stored. Lists are ordered element by element, and a list comes
before longer lists that begin with it. Null is the first element. A struct is ordered by its
fields, and a nested list like a list. Numbers have their numeric order, with ``-0.0`` right before
``0.0`` and NaN after all others. Text is in the order of its UTF-8 bytes. Unequal lists never have
the same bytes. Spark's order of arrays is the same, except that it treats the two zeros as equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.schema import Schema, common_columns, common_type
from statestore.rows.column_types import arrow_schema
from statestore.rows.digests import (
    Flags,
    Places,
    U64Array,
    decimal_words,
    double_bits,
    int64_values,
    row_hashes,
)

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


def common_schema(own: Schema, other: Schema) -> pa.Schema:
    """Return the columns and types for comparing rows of one schema with rows of another.

    Pass the result to :func:`hashes_of`.
    """
    return arrow_schema(common_columns(own, other))


def comparable_tables(
    a: tuple[pa.Table, Schema], b: tuple[pa.Table, Schema]
) -> tuple[pa.Table, pa.Table]:
    """Return two tables, each with its schema, reduced to their common columns and types.

    Each column is cast to the type that can hold the values of both. Without such a type, both
    sides keep their own.
    """
    (left, own), (right, other) = a, b
    columns, others = common_schema(own, other), common_schema(other, own)
    fields = [
        others.field(name) if common_type(own.type_of(name), other.type_of(name)) is None else field
        for name, field in zip(columns.names, columns, strict=True)
    ]
    # A cast to a wider type is lossless, except for dates beyond the range of timestamps.
    return tuple(
        rows.select(columns.names).cast(schema, safe=False)
        for rows, schema in ((left, columns), (right, pa.schema(fields)))
    )


def hashes_of(rows: pa.RecordBatch | pa.Table, columns: pa.Schema | None = None) -> U64Array:
    """Return a 64-bit hash for each row; equal rows have the same hash.

    With ``columns``, these columns and types are hashed; the rows may have narrower types.
    """
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    chosen = batches if columns is None else [batch.select(columns.names) for batch in batches]
    return np.concatenate(
        [np.zeros(0, np.uint64), *(row_hashes(chunk, columns) for chunk in chosen)]
    )


def equal_rows(a: pa.Table, b: pa.Table) -> Flags:
    """Return which rows equal the row at the same position of the other table.

    Values of different types are not equal, unless both are null.
    """
    same = np.ones(a.num_rows, np.bool_)
    for name in a.column_names:
        left, right = _one_chunk(a.column(name)), _one_chunk(b.column(name))
        if left.type != right.type:
            same &= np.asarray(pc.and_(left.is_null(), right.is_null()))
            continue
        for pair in zip(*(compared_columns([column]) for column in (left, right)), strict=True):
            same &= equal_values(*pair)
    return same


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def compared_columns(columns: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Yield the plain columns by which rows are compared and sorted, in order of priority.

    First come the leaves of all columns. Last comes, for each struct, whether it is null. This only
    matters if all else is equal: a null struct sorts before a struct whose fields are null.
    """
    pending = list(columns)
    for column in pending:
        for leaf in leaf_columns(column):
            yield as_bytes(leaf) if pa.types.is_nested(leaf.type) else leaf
    for column in pending:
        yield from _presence(column)


def leaf_columns(column: pa.Array) -> list[pa.Array]:
    """Return the leaf columns of a struct, with nested structs flattened and nulls propagated."""
    if pa.types.is_struct(column.type):
        return [leaf for child in column.flatten() for leaf in leaf_columns(child)]
    return [column]


def _presence(column: pa.Array) -> list[pa.Array]:
    if not pa.types.is_struct(column.type):
        return []
    nested = [flags for child in column.flatten() for flags in _presence(child)]
    return [column.is_valid().cast(pa.int8()), *nested]


def equal_values(left: pa.Array, right: pa.Array) -> Flags:
    """Return where two leaves are equal: null equals null, NaN equals NaN, 0.0 is not -0.0."""
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same_sign = pc.equal(pc.divide(1.0, left), pc.divide(1.0, right))
        both_nan = pc.and_(pc.is_nan(left), pc.is_nan(right))
        equal = pc.or_(pc.and_(equal, same_sign), both_nan)
    both_null = pc.and_(left.is_null(), right.is_null())
    return np.asarray(pc.or_(pc.fill_null(equal, False), both_null))


def matching_positions(old: pa.Table, new: pa.Table) -> tuple[Places, Places]:
    """Return the positions of old rows that equal new rows, ascending, and the first equal new row.

    Arrow looks the old values up in the new rows' values, one column at a time. Each column
    eliminates old rows without an equal new row, so later columns are looked up for few rows.
    """
    rows = np.arange(old.num_rows if new.num_rows else 0)
    new_positions, numbers = pa.array(rows), None
    for name in old.column_names:
        if not len(rows):
            break
        for left, right in _plain(_column_at(old, name, rows), new.column(name)):
            matches = pc.index_in(left, value_set=right)
            if numbers is None:
                new_positions, numbers = matches, right
                continue
            # A row's number identifies its values so far: it is the first equal row's position.
            before, own = (pc.index_in(each, value_set=each) for each in (numbers, right))
            numbers = _pairs(before, own, new.num_rows)
            new_positions = pc.index_in(
                _pairs(new_positions, matches, new.num_rows), value_set=numbers
            )
        found = np.asarray(pc.fill_null(new_positions, -1))
        is_found = found >= 0
        rows, new_positions = rows[is_found], pa.array(found[is_found])
    return rows, np.asarray(new_positions).astype(np.intp)


def _pairs(first: Any, second: Any, count: int) -> Any:
    """Combine two numbers less than ``count`` into one; null if either is null."""
    return pc.add(pc.multiply(first.cast(pa.int64()), count), second)


def _column_at(rows: pa.Table, name: str, places: Places) -> pa.ChunkedArray:
    column = rows.column(name)
    return column if len(places) == rows.num_rows else column.take(pa.array(places))


def _plain(
    left: pa.ChunkedArray, right: pa.ChunkedArray
) -> Iterator[tuple[pa.ChunkedArray, pa.ChunkedArray]]:
    """Yield a column of each table as plain columns that Arrow compares by this module's rule."""
    if left.type != right.type:  # for different types, only null equals null
        yield pc.if_else(left.is_null(), 0, 1), pc.if_else(right.is_null(), 0, 2)
        return
    yield from zip(_by_bits(left), _by_bits(right), strict=True)


def _by_bits(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    chunks = (compared_columns([chunk]) for chunk in column.chunks if len(chunk))
    for pieces in zip(*chunks, strict=True):
        if pa.types.is_floating(pieces[0].type):
            pieces = tuple(
                pa.array(double_bits(piece), mask=np.asarray(piece.is_null())) for piece in pieces
            )
        yield pa.chunked_array(pieces)


def matching_rows(
    old: pa.Table, new: pa.Table, identity: Sequence[str]
) -> tuple[Places, Places, Flags]:
    """Return the positions of rows with the same identity in both tables, in the old rows' order.

    Also return which of these pairs have equal values.
    """
    positions, new_positions = matching_positions(old.select(identity), new.select(identity))
    rest = [name for name in old.column_names if name not in identity]
    if not rest:
        return positions, new_positions, np.ones(len(positions), np.bool_)
    return (
        positions,
        new_positions,
        equal_rows(
            _take_rows(old.select(rest), positions), _take_rows(new.select(rest), new_positions)
        ),
    )


def _take_rows(rows: pa.Table, places: Places) -> pa.Table:
    """Return the rows at the positions, without a copy if the positions are all rows in order."""
    if len(places) == rows.num_rows and (places == np.arange(rows.num_rows)).all():
        return rows
    return rows.take(pa.array(places))


def first_of_equals(rows: pa.Table) -> Flags:
    """Return which rows differ from the previous row."""
    last = max(rows.num_rows - 1, 0)
    same = equal_rows(rows.slice(0, last), rows.slice(1))
    return np.concatenate((np.ones(min(rows.num_rows, 1), np.bool_), ~same))


def same_rows(a: tuple[pa.Table, Schema], b: tuple[pa.Table, Schema]) -> bool:
    """Return whether two tables, each with its schema, have equal rows, in any order.

    Neither table may have two equal rows.
    """
    left, right = comparable_tables(a, b)
    return bool(left.num_rows == right.num_rows == len(matching_positions(left, right)[0]))
