"""The proof that a rescale changed nothing: each subtask's rows, against those that are stored.

A digest of a set of rows does not depend on their order, and those of disjoint sets add up. So if
the subtasks' rows and digests sum to the stored ones, every stored row went to one subtask, and no
other did (I7). Of union and broadcast state each subtask gets a copy, equal to what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.model.digest import combine

__all__ = ["RescaleProof", "RowSet"]


@dataclass(frozen=True)
class RowSet:
    """A multiset of rows, by their number and their order-free digest."""

    rows: int
    digest: int


@dataclass(frozen=True)
class RescaleProof:
    """What is stored, and what each subtask got of it; with ``copies`` each should get all."""

    stored: RowSet
    subtasks: tuple[RowSet, ...]
    copies: bool = False

    @property
    def together(self) -> RowSet:
        """All subtasks' rows; of copies, one that is not what is stored, if there is such a one."""
        if self.copies:
            return next((found for found in self.subtasks if found != self.stored), self.stored)
        return RowSet(
            sum(found.rows for found in self.subtasks),
            combine(found.digest for found in self.subtasks),
        )

    @property
    def holds(self) -> bool:
        """Whether the rows are the stored ones: none lost, none twice, none changed."""
        return self.together == self.stored
