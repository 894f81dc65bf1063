"""Equal rows of two tables: found by 64-bit hashes, and what was found is compared.

Equal as keys are: null and null, NaN and NaN, and 0.0 is not -0.0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.table.digest import row_hashes
from statestore.table.runs import equal_values, leaf_columns

__all__ = ["equal_rows", "found"]

Flags = npt.NDArray[np.bool_]
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
    known = {repr(row): place for place, row in enumerate(new.to_pylist())}
    pairs = [
        (place, known[text])
        for place, text in enumerate(map(repr, old.to_pylist()))
        if text in known
    ]
    return np.array([a for a, _ in pairs], np.intp), np.array([b for _, b in pairs], np.intp)


def _hashes(rows: pa.Table) -> npt.NDArray[np.uint64]:
    return np.concatenate([row_hashes(batch) for batch in rows.to_batches()])


def equal_rows(a: pa.Table, b: pa.Table) -> Flags:
    """Return which rows are equal to those at the same place of the other table."""
    same = np.ones(a.num_rows, np.bool_)
    for name in a.column_names:
        left, right = _whole(a.column(name)), _whole(b.column(name))
        for one, other in zip(leaf_columns(left), leaf_columns(right), strict=True):
            same &= equal_values(one, other)
    return same


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
