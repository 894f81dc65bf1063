"""Elements of two operator states compared: as a multiset, and place by place where that helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.files.elements import stored_schema
from statestore.files.equality import common_schema, hashes_of
from statestore.files.reader import read_batches
from statestore.files.values import shown
from statestore.format.manifest import OperatorEntry
from statestore.model.diff import Example
from statestore.storage import Storage

__all__ = ["ComparedElements", "compare_elements"]

_STEP = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class ComparedElements:
    """How many elements were added, removed and changed, and some of them."""

    added: int
    removed: int
    changed: int
    examples: tuple[Example, ...]


def compare_elements(
    a: tuple[Storage, OperatorEntry],
    b: tuple[Storage, OperatorEntry],
    limit: int,
) -> ComparedElements:
    """Compare the elements of two states by the columns that both have; all are in memory.

    An element that is at the same subtask and position on both sides, with other values, has
    changed, if the subtasks have as many elements on both sides. Else it was removed, and another
    one added. An element that only moved is neither.
    """
    old, new = _elements(*a), _elements(*b)
    own, other = a[1].state.schema, b[1].state.schema
    ids_a, ids_b = _ids(old, common_schema(own, other)), _ids(new, common_schema(other, own))
    removed = np.flatnonzero(~np.isin(ids_a, ids_b))
    added = np.flatnonzero(~np.isin(ids_b, ids_a))
    changed = np.zeros(0, np.intp)
    if a[1].counts == b[1].counts:
        changed = np.intersect1d(removed, added, assume_unique=True)
        removed, added = np.setdiff1d(removed, changed), np.setdiff1d(added, changed)
    examples: list[Example] = []
    for change, of_a, of_b in (
        ("changed", changed, changed),
        ("added", None, added),
        ("removed", removed, None),
    ):
        room = max(limit - len(examples), 0)
        before: list[Any] | None = None if of_a is None else shown(old.take(pa.array(of_a[:room])))
        now: list[Any] | None = None if of_b is None else shown(new.take(pa.array(of_b[:room])))
        size = len(before or now or ())
        pairs = zip(before or [None] * size, now or [None] * size, strict=True)
        for was, new_one in pairs:
            examples.append(Example(change=change, key_group=None, identity={}, a=was, b=new_one))
    return ComparedElements(len(added), len(removed), len(changed), tuple(examples))


def _elements(storage: Storage, entry: OperatorEntry) -> pa.Table:
    schema = stored_schema(entry.state.schema)
    batches = [
        batch
        for handle in entry.handles
        for batch in read_batches(storage, entry.table.path, handle, schema)
    ]
    return pa.Table.from_batches(batches, schema).select(list(entry.state.schema.names))


def _ids(elements: pa.Table, columns: pa.Schema) -> npt.NDArray[np.uint64]:
    """Return a number per element: equal ones have the same first, the same second, and so on."""
    if not columns.names or not elements.num_rows:
        return np.zeros(elements.num_rows, np.uint64)
    hashes = hashes_of(elements, columns)
    order = np.argsort(hashes, kind="stable")
    ranked = hashes[order]
    starts = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    sizes = np.diff(np.concatenate((starts, [len(ranked)])))
    rank = np.arange(len(ranked)) - np.repeat(starts, sizes)
    ids = np.empty_like(hashes)
    ids[order] = ranked + rank.astype(np.uint64) * _STEP
    return ids
