"""Check whether rows are sorted as docs/FORMAT.md says, batch after batch, with one in memory.

Sorted means: by some total order of distinct values, nulls first, column after column. For floats
the format leaves two choices to the writer: whether ``-0.0`` is before or after ``0.0``, and
whether NaN is before or after all numbers. Each file must keep to one choice. In any such order
equal rows are adjacent, so comparing neighbors finds all duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.rows.digests import Flags
from statestore.rows.equality import compared_columns

_ANY = (False, False)
_LARGEST, _SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


class RowOrder:
    """Checks the rows of one file in turn; see ``is_sorted`` and ``duplicates``."""

    def __init__(self, columns: Sequence[str]) -> None:
        """Compare rows by these columns, in this order."""
        self._columns = tuple(columns)
        self._last: pa.RecordBatch | None = None
        # The choices that fit all rows so far: (is -0.0 after 0.0?, is NaN first?).
        self._choices = {*product((False, True), (False, True))}
        self.duplicates = 0

    @property
    def is_sorted(self) -> bool:
        """Whether all rows so far are sorted."""
        return bool(self._choices)

    def check_batch(self, batch: pa.RecordBatch) -> None:
        """Compare each row with the previous one, also across batches."""
        if batch.num_rows == 0:
            return
        rows = batch.select(self._columns)
        seam = rows if self._last is None else pa.concat_batches([self._last, rows])
        self._last = rows.slice(rows.num_rows - 1)
        leaves = list(compared_columns(seam.columns))
        if not any(pa.types.is_floating(leaf.type) for leaf in leaves):
            self._choices &= {_ANY}
        fitting = set()
        for choice in self._choices or {_ANY}:
            descends, same = _compare_rows(leaves, choice)
            if not descends:
                fitting.add(choice)
        self._choices &= fitting
        self.duplicates += int(same.sum())


def _compare_rows(leaves: list[pa.Array], choice: tuple[bool, bool]) -> tuple[bool, Flags]:
    """Return whether any row is greater than its successor, and which rows equal theirs."""
    undecided = np.ones(len(leaves[0]) - 1, np.bool_)
    descends = False
    for leaf in leaves:
        greater, equal = compare_leaves(leaf, choice)
        descends = descends or bool((undecided & greater).any())
        undecided &= equal
    return descends, undecided


def compare_leaves(leaf: pa.Array, choice: tuple[bool, bool]) -> tuple[Flags, Flags]:
    """Return where a value is greater than its successor, and where both are equal.

    Nulls are less than all other values.
    """
    if pa.types.is_floating(leaf.type):
        leaf = rank_values(leaf, choice)
    left, right = leaf.slice(0, len(leaf) - 1), leaf.slice(1)
    if leaf.null_count == 0:
        return np.asarray(pc.greater(left, right)), np.asarray(pc.equal(left, right))
    left_null, right_null = np.asarray(left.is_null()), np.asarray(right.is_null())
    greater = np.asarray(pc.fill_null(pc.greater(left, right), False))
    equal = np.asarray(pc.fill_null(pc.equal(left, right), False))
    return greater | (right_null & ~left_null), equal | (left_null & right_null)


def rank_values(leaf: pa.Array, choice: tuple[bool, bool]) -> pa.Array:
    """Return numbers in the same order as the floats; 0.0 and -0.0 differ, NaN is one value."""
    minus_zero_after, nan_first = choice
    values = np.array(pc.fill_null(leaf.cast(pa.float64()), 0.0))
    bits = values.view(np.int64)
    ranks = np.where(bits < 0, bits ^ _LARGEST, bits)
    if minus_zero_after:
        zeros = values == 0.0
        ranks[zeros] = -1 - ranks[zeros]
    ranks[np.isnan(values)] = _SMALLEST if nan_first else _LARGEST
    return pa.array(ranks, mask=np.asarray(leaf.is_null()))
