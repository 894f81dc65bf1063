"""The flow of key groups from the old subtasks of operators to the subtasks that would read them.

Heights are from 0 (top) to 1, and subtasks have gaps between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from statestore.cli.drawing import UNICODE, range_text, size
from statestore.format.manifest import Manifest
from statestore.keys.groups import KeyGroupRange
from statestore.restore.key_group_weights import weights_of
from statestore.restore.plan import RestorePlan, owners_of

__all__ = ["Band", "Flow", "Label", "flows_of"]

_SPACE: Final = 0.3  # the share of the height that is left between subtasks


@dataclass(frozen=True)
class Band:
    """Key groups of subtask ``old`` that subtask ``new`` reads, and the heights at both ends."""

    old: int
    new: int
    left: tuple[float, float]
    right: tuple[float, float]
    text: str

    @property
    def moves(self) -> bool:
        """Whether another subtask reads the key groups than before."""
        return self.old != self.new


@dataclass(frozen=True)
class Label:
    """A subtask, and the height of its middle."""

    subtask: int
    height: float


@dataclass(frozen=True)
class Flow:
    """The bands and subtasks of operators that are divided in the same way.

    ``can_be_drawn`` is false if old and new subtasks have different numbers of key groups.
    """

    uids: tuple[str, ...]
    key_groups: int
    old: tuple[Label, ...]
    new: tuple[Label, ...]
    bands: tuple[Band, ...]
    can_be_drawn: bool


def flows_of(manifest: Manifest, plan: RestorePlan, most_subtasks: int) -> Iterator[Flow]:
    """Yield a flow for each group of operators with the same old and new ranges.

    A flow with more subtasks than ``most_subtasks`` on a side has no bands and cannot be drawn.
    """
    alike: dict[tuple[Any, Any], list[str]] = {}
    for operator in plan.operators:
        if operator.assignment is not None:
            old = owners_of(manifest, operator.stored_operator).ranges()
            ranges = old, operator.assignment.ranges()
            alike.setdefault(ranges, []).append(operator.stored_operator)
    for (old, new), uids in alike.items():
        groups = new[-1].last + 1
        can_be_drawn = old[-1].last + 1 == groups and max(len(old), len(new)) <= most_subtasks
        bands: tuple[Band, ...] = ()
        if can_be_drawn:
            entries = [entry for entry in manifest.keyed if entry.state.uid in uids]
            bands = tuple(_bands(old, new, weights_of(entries)))
        yield Flow(tuple(uids), groups, _labels(old), _labels(new), bands, can_be_drawn)


def _bands(
    old: Sequence[KeyGroupRange], new: Sequence[KeyGroupRange], weights: Sequence[int]
) -> Iterator[Band]:
    upto = [*accumulate(weights, initial=0)]
    left, right = _heights(old), _heights(new)
    for i, a in enumerate(old):
        for j, b in enumerate(new):
            first, last = max(a.first, b.first), min(a.last, b.last)
            if first > last:
                continue
            held = size(upto[last + 1] - upto[first])
            shown = range_text(KeyGroupRange(first, last), UNICODE)
            yield Band(
                old=i,
                new=j,
                left=(left(i, first), left(i, last + 1)),
                right=(right(j, first), right(j, last + 1)),
                text=f"key groups {shown}, {held}: subtask {i} to subtask {j}",
            )


def _labels(ranges: Sequence[KeyGroupRange]) -> tuple[Label, ...]:
    heights = _heights(ranges)
    return tuple(
        Label(subtask, (heights(subtask, span.first) + heights(subtask, span.last + 1)) / 2)
        for subtask, span in enumerate(ranges)
    )


def _heights(ranges: Sequence[KeyGroupRange]) -> Callable[[int, int], float]:
    """Return a function from a subtask and a key group's border to its height."""
    groups = ranges[-1].last + 1
    space = _SPACE / (len(ranges) - 1) if len(ranges) > 1 else 0.0
    scale = (1 - _SPACE if len(ranges) > 1 else 1.0) / groups
    return lambda subtask, border: border * scale + subtask * space
