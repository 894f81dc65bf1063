"""How uneven the ranges of key groups are: Flink's even ones beside those balanced by a weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from statestore.format.manifest import Manifest
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.ranges import Assignment, RangeAssignment, balanced
from statestore.model.plan import RestorePlan
from statestore.model.weights import Weight, weights_of

__all__ = ["RangeSkew", "loads_of", "skews_of"]


@dataclass(frozen=True)
class RangeSkew:
    """The bytes or rows of each subtask of an operator, with even ranges and with balanced ones."""

    uid: str
    by: Weight
    even: tuple[int, ...]
    balanced: tuple[int, ...]
    ranges: RangeAssignment

    @property
    def mean(self) -> float:
        """What each subtask would have if all had the same."""
        return sum(self.even) / len(self.even)

    @property
    def gain(self) -> float:
        """The largest even subtask as a multiple of the largest balanced one; 1 at least."""
        most = max(self.balanced)
        return max(self.even) / most if most else 1.0

    def ratio(self, loads: Sequence[int]) -> float:
        """Return the largest of some loads as a multiple of the mean; 1 when there is nothing."""
        return max(loads) / self.mean if self.mean else 1.0


def loads_of(weights: Sequence[int], assignment: Assignment) -> tuple[int, ...]:
    """Return the weight of each subtask, given that of each key group."""
    upto = [*accumulate(weights, initial=0)]
    return tuple(upto[own.last + 1] - upto[own.first] for own in assignment.ranges())


def skews_of(manifest: Manifest, plan: RestorePlan, by: Weight) -> tuple[RangeSkew, ...]:
    """Return, for each planned operator with keyed state, how uneven its subtasks are both ways."""
    found = []
    for operator in plan.operators:
        entries = [one for one in manifest.keyed if one.state.uid == operator.stored_uid]
        if not entries:
            continue
        weights, parallelism = weights_of(entries, by), len(operator.subtasks)
        even = KeyGroupAssignment(max_parallelism=len(weights), parallelism=parallelism)
        ranges = balanced(weights, parallelism)
        loads = loads_of(weights, even), loads_of(weights, ranges)
        found.append(RangeSkew(operator.uid, by, *loads, ranges))
    return tuple(found)
