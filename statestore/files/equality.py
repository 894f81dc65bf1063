"""When two rows are equal: one rule, wherever rows are compared, found, merged or sorted.

Null is equal to null, NaN to NaN, and 0.0 is not -0.0. A struct that is null is not one whose
fields are: Parquet, Arrow and Spark tell the two apart, and so does the digest. The entries of a
map have no order. A wider type is no difference, nor is a field that a struct has got since, as
long as it is null: rows of unlike columns are compared by the columns that both have, each as of
the type that holds the values of both.

Rows are compared by their hashes, which are those of the digest and follow the rule, or column by
column, as :func:`equal_rows` does with the columns that tell rows apart: no map is among them, and
a list stands as the bytes of :mod:`statestore.files.equality`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.files.digest import decimal_words, double_bits, int64_values, row_hashes
from statestore.files.types import arrow_schema
from statestore.files.values import shown
from statestore.format.schema import Schema, common_columns

__all__ = [
    "as_bytes",
    "common_schema",
    "compared_columns",
    "equal_rows",
    "equal_values",
    "found",
    "hashes_of",
    "leaf_columns",
    "same_rows",
]


# The order of lists: a column of lists as bytes, which compare and sort as the lists do.
#
# Lists are ordered element by element, and one that is the beginning of another comes before it. Of
# elements null comes first; a struct is ordered by its fields, a list within a list as a list is.
# Numbers are in the order of numbers, with ``-0.0`` right before ``0.0`` and NaN behind all others;
# text is in the order of its UTF-8 bytes. So no two unlike lists have the same bytes, and Spark's
# order of arrays is the same, but that it takes the two zeros for one.
#
# The bytes are made to compare rows that are at hand, and are never stored.


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


Flags = npt.NDArray[np.bool_]
U64Array = npt.NDArray[np.uint64]


def common_schema(own: Schema, other: Schema) -> pa.Schema:
    """Return the columns, and as of which types, by which rows of one schema are compared with
    those of another, for :func:`hashes_of`.
    """
    return arrow_schema(common_columns(own, other))


def hashes_of(rows: pa.RecordBatch | pa.Table, columns: pa.Schema) -> U64Array:
    """Return a 64-bit number for each row: equal rows have the same, of whatever narrower types
    their columns are.
    """
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    hashes = [row_hashes(batch.select(columns.names), columns) for batch in batches]
    return np.concatenate([np.zeros(0, np.uint64), *hashes])


def same_rows(a: tuple[pa.Table, Schema], b: tuple[pa.Table, Schema]) -> bool:
    """Return whether two tables, each of a schema, have equal rows, as often, in any order."""
    (left, own), (right, other) = a, b
    one = np.sort(hashes_of(left, common_schema(own, other)))
    return bool(np.array_equal(one, np.sort(hashes_of(right, common_schema(other, own)))))


def equal_rows(a: pa.Table, b: pa.Table) -> Flags:
    """Return which rows are equal to those at the same place of the other table."""
    same = np.ones(a.num_rows, np.bool_)
    pairs = (map(_whole, rows.columns) for rows in (a, b.select(a.column_names)))
    for left, right in zip(*map(compared_columns, pairs), strict=True):
        same &= equal_values(left, right)
    return same


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def compared_columns(columns: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Yield the plain columns by which rows are compared and sorted, the first one first.

    First come the leaves of all columns. Last, and so only where nothing else tells two rows apart,
    whether each struct is there: a null one comes before one whose fields are null.
    """
    given = list(columns)
    for column in given:
        for leaf in leaf_columns(column):
            yield as_bytes(leaf) if pa.types.is_list(leaf.type) else leaf
    for column in given:
        yield from _presence(column)


def leaf_columns(column: pa.Array) -> list[pa.Array]:
    """Return the columns that a struct consists of, nested ones opened, nulls passed down."""
    if pa.types.is_struct(column.type):
        return [leaf for child in column.flatten() for leaf in leaf_columns(child)]
    return [column]


def _presence(column: pa.Array) -> list[pa.Array]:
    if not pa.types.is_struct(column.type):
        return []
    nested = [one for child in column.flatten() for one in _presence(child)]
    return [column.is_valid().cast(pa.int8()), *nested]


def equal_values(left: pa.Array, right: pa.Array) -> Flags:
    """Return where two leaves hold the same: null equals null, NaN equals NaN, 0.0 is not -0.0."""
    equal = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        same_sign = pc.equal(pc.divide(1.0, left), pc.divide(1.0, right))
        both_nan = pc.and_(pc.is_nan(left), pc.is_nan(right))
        equal = pc.or_(pc.and_(equal, same_sign), both_nan)
    both_null = pc.and_(left.is_null(), right.is_null())
    return np.asarray(pc.or_(pc.fill_null(equal, False), both_null))


# Equal rows of two tables: found by 64-bit hashes, and what was found is compared.
#
# What is equal says :mod:`statestore.files.equality`.


Places = npt.NDArray[np.intp]


def found(old: pa.Table, new: pa.Table) -> tuple[Places, Places]:
    """Return the places of old rows that new rows are equal to, and of these."""
    if not old.num_rows or not new.num_rows:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    new_hashes = _hashes(new)
    order = np.argsort(new_hashes, kind="stable")
    ordered, hashes = new_hashes[order], _hashes(old)
    at = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    rows = np.flatnonzero(ordered[at] == hashes)
    places = order[at[rows]]
    same = equal_rows(old.take(pa.array(rows)), new.take(pa.array(places)))
    if same.all():
        return rows, places
    return _one_by_one(old, new)


def _one_by_one(old: pa.Table, new: pa.Table) -> tuple[Places, Places]:
    """Return what :func:`found` does where two values share a hash: as good as never."""
    known = {repr(row): place for place, row in enumerate(shown(new))}
    pairs = [
        (place, known[text]) for place, text in enumerate(map(repr, shown(old))) if text in known
    ]
    return np.array([a for a, _ in pairs], np.intp), np.array([b for _, b in pairs], np.intp)


def _hashes(rows: pa.Table) -> npt.NDArray[np.uint64]:
    return np.concatenate([row_hashes(batch) for batch in rows.to_batches()])
