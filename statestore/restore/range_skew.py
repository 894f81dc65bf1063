"""The imbalance of key-group ranges: Flink's even ranges compared with balanced ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from statestore.format.manifest import Manifest
from statestore.keys.groups import KeyGroupAssignment
from statestore.keys.ranges import Assignment, RangeAssignment, balance_ranges
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.restore.plan import RestorePlan

__all__ = ["RangeSkew", "loads_of", "skews_of"]


@dataclass(frozen=True)
class RangeSkew:
    """The bytes or rows of each subtask of an operator, with even ranges and with balanced ones."""

    operator: str
    by: Weight
    even: tuple[int, ...]
    balanced: tuple[int, ...]
    ranges: RangeAssignment

    json_properties: ClassVar[tuple[str, ...]] = ("gain",)

    @property
    def mean(self) -> float:
        """The load of each subtask if all had the same."""
        return sum(self.even) / len(self.even)

    @property
    def gain(self) -> float:
        """The largest even subtask divided by the largest balanced one; at least 1."""
        most = max(self.balanced)
        return max(self.even) / most if most else 1.0

    def ratio(self, loads: Sequence[int]) -> float:
        """Return the largest load divided by the mean; 1 if there is no load."""
        return max(loads) / self.mean if self.mean else 1.0


def loads_of(weights: Sequence[int], assignment: Assignment) -> tuple[int, ...]:
    """Return the weight of each subtask, given the weight of each key group."""
    upto = [*accumulate(weights, initial=0)]
    return tuple(upto[own.last + 1] - upto[own.first] for own in assignment.ranges())


def skews_of(manifest: Manifest, plan: RestorePlan, by: Weight) -> tuple[RangeSkew, ...]:
    """Return the imbalance of each planned operator with keyed state, for both kinds of ranges."""
    skews = []
    for operator in plan.operators:
        entries = [entry for entry in manifest.keyed if entry.state.uid == operator.stored_operator]
        if not entries:
            continue
        weights, parallelism = weights_of(entries, by), len(operator.subtasks)
        even = KeyGroupAssignment(max_parallelism=len(weights), parallelism=parallelism)
        ranges = balance_ranges(weights, parallelism)
        loads = loads_of(weights, even), loads_of(weights, ranges)
        skews.append(RangeSkew(operator.operator, by, *loads, ranges))
    return tuple(skews)
