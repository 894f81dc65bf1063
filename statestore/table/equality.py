"""When two rows are equal: one rule, wherever rows are compared, found, merged or sorted.

Null is equal to null, NaN to NaN, and 0.0 is not -0.0. A struct that is null is not one whose
fields are: Parquet, Arrow and Spark tell the two apart, and so does the digest. The entries of a
map have no order. A wider type is no difference, nor is a field that a struct has got since, as
long as it is null: rows of unlike columns are compared by the columns that both have, each as of
the type that holds the values of both.

Rows are compared by their hashes, which are those of the digest and follow the rule, or column by
column, as :func:`equal_rows` does with the columns that tell rows apart: no map is among them, and
a list stands as the bytes of :mod:`statestore.table.list_order`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.schema import Schema, common_columns
from statestore.table.digest import row_hashes
from statestore.table.list_order import as_bytes
from statestore.table.types import arrow_schema

__all__ = [
    "common_schema",
    "compared_columns",
    "equal_rows",
    "equal_values",
    "hashes_of",
    "leaf_columns",
    "same_rows",
]

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
