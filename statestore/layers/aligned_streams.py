"""Aligned pieces of several sorted streams, for merges in bounded memory.

All data files of a state are sorted by key group and identity. Files can therefore be merged a
piece at a time: a piece has the rows of every stream up to a common bound, and no identity is in
two pieces. The size of a piece does not depend on the size of a key group.

Float columns need special treatment. The file format leaves the position of NaN, and the order of
``-0.0`` and ``0.0``, to the writer of a file. :func:`sorted_tables` gives all streams the same
order: ``-0.0`` before ``0.0``, and NaN after all numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.names import KEY_GROUP
from statestore.rows.key_group_runs import sort_leaves

__all__ = ["AlignedPiece", "Bound", "align_streams"]

Flags = npt.NDArray[np.bool_]
Groups = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Bound:
    """The sort key of a row: its key group, and the plain values of its identity columns.

    It may have only the first identity columns. It is then the sort key of the first row with these
    values.
    """

    key_group: int
    values: tuple[pa.Scalar, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, row: pa.Table, names: Sequence[str]) -> Bound:
        """Return the sort key of a table's only row."""
        [batch] = row.select([KEY_GROUP, *names]).combine_chunks().to_batches()
        values = [leaf[0] for name in names for leaf in sort_leaves(batch.column(name))]
        return cls(batch.column(KEY_GROUP)[0].as_py(), tuple(values), tuple(names))

    def rows_before(self, rows: pa.Table, groups: Groups | None = None) -> int:
        """Return the number of sorted rows that come before the bound.

        ``groups`` are the key groups of the rows, if they were already extracted.
        """
        key_groups = np.asarray(rows.column(KEY_GROUP)) if groups is None else groups
        # A key of another integer type would make NumPy convert the whole array.
        key_group = key_groups.dtype.type(self.key_group)
        begin = int(np.searchsorted(key_groups, key_group, "left"))
        end = int(np.searchsorted(key_groups, key_group, "right"))
        if begin == end:
            return begin
        for batch in rows.slice(begin, end - begin).select(self.names).to_batches():
            before = self._rows_before(batch)
            begin += before
            if before < batch.num_rows:
                break
        return begin

    def _rows_before(self, batch: pa.RecordBatch) -> int:
        values = iter(self.values)
        begin, end = 0, batch.num_rows  # these rows equal the bound in all earlier columns
        for column in batch.columns:
            offset = begin
            for leaf in sort_leaves(column.slice(begin, end - begin)):
                value = next(values, None)
                if value is None:
                    return begin
                less, equal = _counts(leaf.slice(begin - offset, end - begin), value)
                begin += less
                end = begin + equal
                if begin == end:
                    return begin
        return begin

    def has_prefix(self, rows: pa.Table, width: int) -> Flags:
        """Return which rows have the bound's key group and its first ``width`` identity columns.

        Structs are compared by their fields: a null struct equals a struct whose fields are null.
        """
        same: Flags = np.asarray(rows.column(KEY_GROUP)) == self.key_group
        index = 0
        for name in self.names[:width]:
            chunks = [sort_leaves(chunk) for chunk in rows.column(name).chunks]
            for pieces in zip(*chunks, strict=True):
                same &= np.concatenate([_equal(leaf, self.values[index]) for leaf in pieces])
                index += 1
        return same


def _counts(leaf: pa.Array, value: pa.Scalar) -> tuple[int, int]:
    """Return the numbers of values in a sorted array that are less than, and equal to, a value."""
    if not value.is_valid:
        return 0, leaf.null_count
    return leaf.null_count + pc.less(leaf, value).true_count, pc.equal(leaf, value).true_count


def _equal(leaf: pa.Array, value: pa.Scalar) -> Flags:
    if not value.is_valid:
        return np.asarray(leaf.is_null())
    return np.asarray(pc.fill_null(pc.equal(leaf, value), False))


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


def gather_batches(batches: Iterable[pa.RecordBatch], table_bytes: int) -> Iterator[pa.Table]:
    """Gather batches into tables of about ``table_bytes``, or of one row; rows are not copied."""
    pieces: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for part in _slice_batch(batch, table_bytes):
            if pieces and size + part.nbytes > table_bytes:
                yield pa.Table.from_batches(pieces)
                pieces, size = [], 0
            pieces.append(part)
            size += part.nbytes
    if pieces:
        yield pa.Table.from_batches(pieces)


def _slice_batch(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in slices of at most ``most_bytes``, or of one row."""
    if batch.num_rows == 0:
        return
    if batch.num_rows == 1 or batch.nbytes <= most_bytes:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from _slice_batch(part, most_bytes)
