"""Compare the elements of two operator states as multisets, and by position where that helps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.format.manifest import Entry, OperatorEntry
from statestore.maintenance.diff_report import Example
from statestore.parquet.operator_elements import elements_of
from statestore.rows.equality import comparable_tables
from statestore.rows.matching import matching_positions as matched
from statestore.rows.python_values import display_rows
from statestore.storage import Storage

__all__ = ["Pair", "compare_elements"]


@dataclass(frozen=True)
class ComparedElements:
    """How many elements were added, removed and changed, with some examples."""

    added: int
    removed: int
    changed: int
    examples: tuple[Example, ...]


def compare_elements(
    a: tuple[Storage, OperatorEntry],
    b: tuple[Storage, OperatorEntry],
    limit: int,
) -> ComparedElements:
    """Compare the elements of two states by their common columns, in memory.

    If all subtasks have as many elements on both sides, an element with other values at the same
    subtask and position counts as changed. In all other cases it counts as removed, and another one
    as added. An element that only moved is not counted.
    """
    old, new = elements_of(*a), elements_of(*b)
    both = comparable_tables((old, a[1].state.schema), (new, b[1].state.schema))
    if not both[0].num_columns:
        return ComparedElements(0, 0, 0, ())
    in_a, in_b = matched(*map(_number_duplicates, both))
    removed = np.setdiff1d(np.arange(old.num_rows), in_a, assume_unique=True)
    added = np.setdiff1d(np.arange(new.num_rows), in_b, assume_unique=True)
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
        before: list[Any] | None = (
            None if of_a is None else display_rows(old.take(pa.array(of_a[:room])))
        )
        now: list[Any] | None = (
            None if of_b is None else display_rows(new.take(pa.array(of_b[:room])))
        )
        size = len(before or now or ())
        pairs = zip(before or [None] * size, now or [None] * size, strict=True)
        for old_element, new_element in pairs:
            examples.append(
                Example(change=change, key_group=None, identity={}, a=old_element, b=new_element)
            )
    return ComparedElements(len(added), len(removed), len(changed), tuple(examples))


def _number_duplicates(elements: pa.Table) -> pa.Table:
    """Number equal elements in a new column, which makes all of them distinct."""
    rows = elements.rename_columns([str(column) for column in range(elements.num_columns)])
    _, like = matched(rows, rows)
    order = np.argsort(like, kind="stable")
    starts = np.searchsorted(like[order], like[order])
    before = np.empty(len(order), np.intp)
    before[order] = np.arange(len(order)) - starts
    return rows.append_column("before", pa.array(before))


Pair = tuple[Entry | None, Entry | None]
