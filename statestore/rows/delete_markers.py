"""The mark of a change: an upsert, or a delete with its width. Only this module interprets marks.

On disk a mark is 0 for an upsert, and for a delete the number of identity columns that it names
(:data:`~statestore.format.layers.MARK`). Before it is stored, a delete may be *cleared*: the same
checkpoint may have upserts of rows that it names. Its mark is then negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.names import MARK
from statestore.format.state import KeyedState
from statestore.rows.digests import Flags

T = TypeVar("T", pa.RecordBatch, pa.Table)


@dataclass(frozen=True)
class Deletion:
    """A delete of all rows that have the same first ``width`` identity columns.

    If it is ``cleared``, the same checkpoint may upsert such rows.
    """

    width: int
    cleared: bool = False


def mark_of(deletion: Deletion | None) -> int:
    """Return the mark of rows with this deletion; None stands for upserts."""
    if deletion is None:
        return 0
    return -deletion.width if deletion.cleared else deletion.width


def named_columns(deletion: Deletion | None, state: KeyedState) -> Sequence[str]:
    """Return the columns that a deletion names; None stands for upserts, which name all."""
    return state.schema.names if deletion is None else state.identity[: deletion.width]


def are_upserts(changes: pa.RecordBatch | pa.Table) -> Flags:
    """Return which changes are upserts."""
    come: Flags = np.asarray(changes.column(MARK)) == 0  # a null is NaN here
    return come


def upserts_of(changes: T) -> T:
    """Return the upserts of some changes."""
    return changes.filter(pa.array(are_upserts(changes)))


def deletes_of(changes: pa.Table, *, cleared: bool = True) -> pa.Table:
    """Return the deletes of some changes, optionally without cleared ones."""
    test = pc.not_equal if cleared else pc.greater
    return changes.filter(test(changes.column(MARK), 0))


def widths_of(changes: pa.Table, state: KeyedState) -> npt.NDArray[np.int64]:
    """Return the number of identity columns that each change names; an upsert names all."""
    widths = np.abs(np.asarray(changes.column(MARK)).astype(np.int64))
    return np.where(widths == 0, len(state.identity), widths)


def count_invalid_marks(changes: pa.RecordBatch, state: KeyedState) -> int:
    """Return the number of stored changes with an invalid mark.

    ``state`` is the state of the changes, whose identity includes the mark.
    """
    marks = np.asarray(pc.fill_null(changes.column(MARK), -1))
    return int(((marks < 0) | (marks >= len(state.identity))).sum())


def store_cleared(changes: pa.Table) -> pa.Table:
    """Return changes in their stored form, in which cleared deletes are ordinary deletes."""
    return _with_marks(changes, pc.abs(changes.column(MARK)))


def clear_deletes(changes: pa.Table) -> pa.Table:
    """Return changes whose deletes are all cleared."""
    return _with_marks(changes, pc.negate(pc.abs(changes.column(MARK))))


def replace_upserts(changes: pa.Table, gone: Flags, state: KeyedState) -> pa.Table:
    """Return changes in which the ``gone`` upserts become cleared deletes of their identity."""
    places = pa.array(np.arange(changes.num_rows), mask=gone)
    for name in state.values:
        index = changes.column_names.index(name)
        kept = changes.column(name).take(places)  # null for the new deletes
        changes = changes.set_column(index, changes.field(name), kept)
    mark = mark_of(Deletion(len(state.identity), cleared=True))
    return _with_marks(changes, pc.if_else(pa.array(gone), mark, changes.column(MARK)))


def _with_marks(changes: pa.Table, marks: Any) -> pa.Table:
    return changes.set_column(changes.column_names.index(MARK), MARK, marks)
