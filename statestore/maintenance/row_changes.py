"""Rows that an edit adds, removes or changes: their numbers, and the first of them as examples."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from statestore.format.names import KEY_GROUP
from statestore.format.state import KeyedState
from statestore.maintenance.diff_report import Example
from statestore.rows.key_group_runs import take_rows
from statestore.rows.matching import matching_rows
from statestore.rows.python_values import display_rows

__all__ = ["MOST_EXAMPLES", "RowChanges"]

MOST_EXAMPLES = 20


@dataclass
class RowChanges:
    """The number of rows that were added, removed and changed, and at most ``limit`` examples."""

    state: KeyedState
    limit: int = MOST_EXAMPLES
    added: int = 0
    removed: int = 0
    changed: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def room(self) -> int:
        """The number of examples that are still wanted."""
        return self.limit - len(self.examples)

    def add(self, before: pa.Table, after: pa.Table) -> None:
        """Compare rows of some key groups; rows with the same identity are a changed row.

        Both tables have the column ``key_group``. Equal rows do not count.
        """
        names = self.state.schema.names
        old_at, new_at, same = matching_rows(
            before.select(names), after.select(names), self.state.identity
        )
        removed = np.setdiff1d(np.arange(before.num_rows), old_at, assume_unique=True)
        added = np.setdiff1d(np.arange(after.num_rows), new_at, assume_unique=True)
        self.added += len(added)
        self.removed += len(removed)
        self.changed += int((~same).sum())
        self._show("changed", (before, old_at[~same]), (after, new_at[~same]))
        self._show("removed", (before, removed), None)
        self._show("added", None, (after, added))

    def _show(
        self,
        change: str,
        before: tuple[pa.Table, np.ndarray] | None,
        after: tuple[pa.Table, np.ndarray] | None,
    ) -> None:
        room = self.room
        sides = [
            None if side is None else take_rows(side[0], side[1][:room]) for side in (before, after)
        ]
        (first, *_) = (rows for rows in sides if rows is not None)
        groups = first.column(KEY_GROUP).to_pylist()
        names = self.state.schema.names
        shown = [
            [None] * len(groups) if rows is None else display_rows(rows.select(names))
            for rows in sides
        ]
        for group, old, new in zip(groups, *shown, strict=True):
            identity = {name: (old or new)[name] for name in self.state.identity}
            self.examples.append(
                Example(change=change, key_group=group, identity=identity, a=old, b=new)
            )
