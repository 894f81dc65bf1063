"""The proof that a rescale changed nothing: the subtasks' rows compared with the stored rows.

A digest does not depend on the order of rows, and the digests of disjoint sets add up. So if the
subtasks' rows and digests sum to the stored ones, every stored row went to exactly one subtask,
and no other row was added (I7). With union and broadcast state, each subtask gets a copy that
must equal the stored rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.format.digest import combine

__all__ = ["RescaleProof", "RowSet"]


@dataclass(frozen=True)
class RowSet:
    """A multiset of rows, represented by their number and their order-independent digest."""

    rows: int
    digest: int


@dataclass(frozen=True)
class RescaleProof:
    """The stored rows and each subtask's rows; with ``copies`` each subtask should get all rows."""

    stored: RowSet
    subtasks: tuple[RowSet, ...]
    copies: bool = False

    @property
    def together(self) -> RowSet:
        """The rows of all subtasks; with copies, the first one that differs from ``stored``."""
        if self.copies:
            return next(
                (subtask for subtask in self.subtasks if subtask != self.stored), self.stored
            )
        return RowSet(
            sum(subtask.rows for subtask in self.subtasks),
            combine(subtask.digest for subtask in self.subtasks),
        )

    @property
    def holds(self) -> bool:
        """True if the rows are the stored ones: none lost, none duplicated, none changed."""
        return self.together == self.stored
