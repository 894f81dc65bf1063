"""What a row of changes says: that it comes, or which rows go. Here alone is its mark read.

On disk a mark is 0 for a row that comes, else how many columns of the identity a delete names
(:data:`~statestore.format.layers.MARK`). Until it is stored a delete may be *cleared*: rows that it
names may come in the same checkpoint. Its mark is below zero then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.layers import MARK
from statestore.format.state import KeyedState

__all__ = [
    "Deletion",
    "are_changes",
    "as_cleared",
    "as_stored",
    "cleared_where",
    "comes",
    "coming",
    "deletes",
    "mark_of",
    "named_columns",
    "unknown",
    "widths_of",
]

Flags = npt.NDArray[np.bool_]
T = TypeVar("T", pa.RecordBatch, pa.Table)


@dataclass(frozen=True)
class Deletion:
    """Rows that go: those that have the first ``width`` columns of the identity in common with what
    is deleted. If they are ``cleared``, the same checkpoint may bring rows of them.
    """

    width: int
    cleared: bool = False


def mark_of(deletion: Deletion | None) -> int:
    """Return the mark of rows that go so, None for rows that come."""
    if deletion is None:
        return 0
    return -deletion.width if deletion.cleared else deletion.width


def named_columns(deletion: Deletion | None, state: KeyedState) -> Sequence[str]:
    """Return the columns that rows have that go so, None for rows that come: these have all."""
    return state.schema.names if deletion is None else state.identity[: deletion.width]


def are_changes(state: KeyedState) -> bool:
    """Return whether the rows of a state are changes, with a mark."""
    return MARK in state.entry


def comes(changes: pa.RecordBatch | pa.Table) -> Flags:
    """Return which of some changes come."""
    come: Flags = np.asarray(changes.column(MARK)) == 0  # a null is NaN here
    return come


def coming(changes: T) -> T:
    """Return those of some changes that come."""
    return changes.filter(pa.array(comes(changes)))


def deletes(changes: pa.Table, *, cleared: bool = True) -> pa.Table:
    """Return those of some changes that are deletes, on request without the cleared ones."""
    test = pc.not_equal if cleared else pc.greater
    return changes.filter(test(changes.column(MARK), 0))


def widths_of(changes: pa.Table, state: KeyedState) -> npt.NDArray[np.int64]:
    """Return of how many columns of the identity each change speaks: one that comes of all."""
    widths = np.abs(np.asarray(changes.column(MARK)).astype(np.int64))
    return np.where(widths == 0, len(state.identity), widths)


def unknown(changes: pa.RecordBatch, state: KeyedState) -> int:
    """Return how many stored changes neither come nor name what they delete; ``state`` is that of
    changes, whose identity has the mark too.
    """
    marks = np.asarray(pc.fill_null(changes.column(MARK), -1))
    return int(((marks < 0) | (marks >= len(state.identity))).sum())


def as_stored(changes: pa.Table) -> pa.Table:
    """Return changes as they are stored, which says no more whether a delete was cleared."""
    return _with_marks(changes, pc.abs(changes.column(MARK)))


def as_cleared(changes: pa.Table) -> pa.Table:
    """Return changes whose deletes are all cleared."""
    return _with_marks(changes, pc.negate(pc.abs(changes.column(MARK))))


def cleared_where(changes: pa.Table, gone: Flags, state: KeyedState) -> pa.Table:
    """Return changes of which some that come are deletes of their identity now, cleared."""
    places = pa.array(np.arange(changes.num_rows), mask=gone)
    for name in state.values:
        at = changes.column_names.index(name)
        kept = changes.column(name).take(places)  # a null for those that go
        changes = changes.set_column(at, changes.field(name), kept)
    mark = mark_of(Deletion(len(state.identity), cleared=True))
    return _with_marks(changes, pc.if_else(pa.array(gone), mark, changes.column(MARK)))


def _with_marks(changes: pa.Table, marks: Any) -> pa.Table:
    return changes.set_column(changes.column_names.index(MARK), MARK, marks)
