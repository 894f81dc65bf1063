"""Match equal rows of two tables, for all code that does so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.schema import Schema
from statestore.rows.digests import double_bits
from statestore.rows.equality import comparable_tables, compared_columns, equal_rows
from statestore.rows.list_order import Flags, Places

__all__ = ["first_of_equals", "matching_positions", "matching_rows", "same_rows"]


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
        rows, new_positions = rows[np.asarray(new_positions.is_valid())], new_positions.drop_null()
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
