"""Walks over several sorted streams of rows, in bounded memory, and checks of their order.

All data files of a state are sorted by key group and identity. Files can therefore be merged a
piece at a time: a piece has the rows of every stream up to a common bound, and no identity is in
two pieces. The size of a piece does not depend on the size of a key group.

Float columns need special treatment. The file format leaves the position of NaN, and the order of
``-0.0`` and ``0.0``, to the writer of a file. :func:`sorted_tables` gives all streams the same
order: ``-0.0`` before ``0.0``, and NaN after all numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DamagedFileError
from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.parquet.reader import restored_schema
from statestore.rows.column_types import arrow_schema
from statestore.rows.equality import leaf_columns
from statestore.rows.key_group_runs import (
    Bound,
    first_descent,
    order_of,
    sort_leaves,
    take_rows,
)
from statestore.rows.sorting import gather_batches


@dataclass(frozen=True)
class AlignedPiece:
    """The next rows of several streams.

    Attributes:
        rows: for each stream its rows, or None if it has none in this piece.
        following: the sort key of the first row after this piece; None after the last piece.
    """

    rows: list[pa.Table | None]
    following: Bound | None


def align_streams(
    streams: Iterable[Iterator[pa.Table]], identity: Sequence[str]
) -> Iterator[AlignedPiece]:
    """Yield the rows of sorted streams in aligned pieces.

    All rows with the same key group and identity are in one piece, whichever stream they come from.
    At most two tables of each stream are held, plus the rows of one identity.

    Args:
        streams: each yields tables that are sorted by ``key_group`` and the identity columns, as
            :func:`sorted_tables` returns them. The size of these tables is the size of the pieces.
        identity: the names of the identity columns.

    Yields:
        Pieces with at least one row, in ascending order.
    """
    heads = [_Head(stream, identity) for stream in streams]
    while True:
        for head in heads:
            head.fill()
        following = _least([head.last for head in heads if head.last is not None], identity)
        piece = AlignedPiece([head.take(following) for head in heads], following)
        if any(rows is not None for rows in piece.rows):
            yield piece
        if following is None:
            return


def paired_tables(
    a: tuple[KeyedState, Iterator[pa.Table]], b: tuple[KeyedState, Iterator[pa.Table]]
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield the rows of two sorted states with the same key groups, in pairs of aligned tables.

    Rows of the same identity are in the same pair. If the types of an identity column sort
    differently, rows are aligned by the columns before it. A table may have no rows. Memory and
    order are as in :func:`align_streams`.
    """
    states = [state for state, _ in (a, b)]
    empty = [restored_schema(state.schema).empty_table() for state in states]
    for piece in align_streams([tables for _, tables in (a, b)], _common_identity(*states)):
        old, new = (
            none if rows is None else rows for none, rows in zip(empty, piece.rows, strict=True)
        )
        yield old, new


def _common_identity(a: KeyedState, b: KeyedState) -> list[str]:
    """Return the first identity columns whose values both states sort in the same way."""
    names = []
    for name in a.identity:
        types = [arrow_schema(state.schema).field(name).type for state in (a, b)]
        if types[0] != types[1] and not all(map(pa.types.is_integer, types)):
            break
        names.append(name)
    return names


def _least(rows: Sequence[pa.Table], names: Sequence[str]) -> Bound | None:
    """Return the smallest of several sort keys, each a table of one row."""
    if not rows:
        return None
    groups = [row.column(KEY_GROUP)[0].as_py() for row in rows]
    first, *others = (row for row, group in zip(rows, groups, strict=True) if group == min(groups))
    least = Bound.of(first, names)
    for row in others:
        if least.rows_before(row):
            least = Bound.of(row, names)
    return least


class _Head:
    """The rows of a stream that were read and not taken yet.

    One table is read ahead. The end of a stream is therefore known, and its rest becomes one piece.
    """

    def __init__(self, stream: Iterator[pa.Table], names: Sequence[str]) -> None:
        self._stream, self._names = (table for table in stream if table.num_rows), names
        self._rows: pa.Table | None = None
        self._groups = np.zeros(0, np.int32)
        self._next = next(self._stream, None)

    @property
    def last(self) -> pa.Table | None:
        """The last row that was read, as a table of one row; None if the stream has no more rows.

        Rows before it can be taken. The row itself cannot: the next rows may have its identity.
        """
        if self._next is None or self._rows is None:
            return None
        return self._rows.slice(len(self._rows) - 1)

    def fill(self) -> None:
        """Read until two identities are buffered, or the stream ends."""
        while self._next is not None and self._is_one_identity():
            self._rows = (
                self._next if self._rows is None else pa.concat_tables([self._rows, self._next])
            )
            self._groups = np.asarray(self._rows.column(KEY_GROUP))
            self._next = next(self._stream, None)

    def _is_one_identity(self) -> bool:
        if self._rows is None or self._rows.num_rows == 1:
            return True
        if self._groups[0] != self._groups[-1]:
            return False
        last = Bound.of(self._rows.slice(len(self._rows) - 1), self._names)
        return last.rows_before(self._rows.slice(0, 1)) == 0

    def take(self, following: Bound | None) -> pa.Table | None:
        """Return the rows before a bound, or all rows without a bound; None for no rows."""
        if self._rows is None:
            return None
        rows, groups = self._rows, self._groups
        count = len(groups) if following is None else following.rows_before(rows, groups)
        if count == len(groups):
            self._rows = None
            return rows
        self._rows, self._groups = rows.slice(count), groups[count:]
        return rows.slice(0, count) if count else None


def sorted_tables(
    batches: Iterable[pa.RecordBatch], state: KeyedState, table_bytes: int
) -> Iterator[pa.Table]:
    """Gather the rows of sorted files into tables of about ``table_bytes``, in one total order.

    The order does not depend on where a writer placed NaN and zeros. A row larger than
    ``table_bytes`` is a table of its own. Rows are moved only near NaN and zeros in float columns
    of the identity. The rows of one NaN key are held in memory.

    Raises:
        DamagedFileError: if rows are not sorted by key group and identity: merging them would
            lose or duplicate rows.
    """
    names = [KEY_GROUP, *state.identity]
    last: pa.RecordBatch | None = None
    for table in gather_batches(_sort_floats(batches, state), table_bytes):
        # Compare once per table: each comparison has a fixed cost, and batches may be small.
        for rows in table.select(names).combine_chunks().to_batches():
            if last is not None and last.column(0)[0].as_py() >= rows.column(0)[0].as_py():
                _refuse_descent(pa.concat_batches([last, rows.slice(0, 1)]), state)
            _refuse_descent(rows, state)
            last = rows.slice(rows.num_rows - 1)
        yield table


def _refuse_descent(rows: pa.RecordBatch, state: KeyedState) -> None:
    descends = first_descent(rows)
    if descends is None:
        return
    group = rows.column(KEY_GROUP)[descends + 1]
    raise DamagedFileError(
        f"rows of key group {group} of {state} are not sorted by "
        f"({', '.join(state.identity)}), so they cannot be merged. Run 'statestore verify' to "
        "find the file, and restore an older checkpoint"
    )


def _sort_floats(batches: Iterable[pa.RecordBatch], state: KeyedState) -> Iterator[pa.RecordBatch]:
    held: pa.Table | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if held is None and not _is_ambiguous(batch, state.identity):
            yield batch
            continue
        batch_rows = pa.Table.from_batches([batch])
        rows = batch_rows if held is None else pa.concat_tables([held, batch_rows])
        order = order_of(rows, state)
        rows = take_rows(rows, order)
        least = _least_after(batch_rows.slice(batch_rows.num_rows - 1), state.identity)
        if least is None:  # all later rows come after the batch's last row
            count = int(np.flatnonzero(order == len(order) - 1)[0]) + 1
        else:
            count = least.rows_before(rows)
        yield from rows.slice(0, count).to_batches()
        held = rows.slice(count) if count < rows.num_rows else None
    if held is not None:
        yield from held.to_batches()


def _is_ambiguous(rows: pa.RecordBatch, names: Sequence[str]) -> bool:
    """Return whether a float column has NaN or a zero, whose order each writer chooses."""
    leaves = (leaf for name in names for leaf in leaf_columns(rows.column(name)))
    floats = (leaf for leaf in leaves if pa.types.is_floating(leaf.type))
    return any(
        pc.any(pc.equal(leaf, 0.0)).as_py() or pc.any(pc.is_nan(leaf)).as_py() for leaf in floats
    )


def _least_after(row: pa.Table, names: Sequence[str]) -> Bound | None:
    """Return the least sort key that rows after a file's row can have.

    The order of NaN and zeros depends on the writer. None if all later rows sort after the row.
    """
    bound = Bound.of(row, names)
    [batch] = row.to_batches()
    leaves = (leaf for name in names for leaf in leaf_columns(batch.column(name)))
    for place, leaf in enumerate(leaves):
        value = leaf[0].as_py() if pa.types.is_floating(leaf.type) else None
        if value is None or not (value == 0.0 or isnan(value)):
            continue
        minus_zero = sort_leaves(pa.array([-0.0], leaf.type))[0][0]
        values = bound.values[:place] if isnan(value) else (*bound.values[:place], minus_zero)
        return replace(bound, values=values)
    return None
