"""Equal rows of two tables: found by 64-bit hashes, and what was found is compared.

What is equal says :mod:`statestore.table.equality`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.table.digest import row_hashes
from statestore.table.equality import equal_rows
from statestore.table.values import shown

__all__ = ["found"]

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
