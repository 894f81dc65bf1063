"""Heavy key groups: those that have several times what each would have if all had the same.

A key group is never divided, so the heaviest one bounds what any parallelism, and any way to cut
ranges, can do for the largest subtask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import KeyedEntry
from statestore.model.weights import Weight, weights_of

__all__ = ["FACTOR", "HeavyGroup", "heaviest", "heavy_groups"]

FACTOR = 2.0
"""How many times the even share makes a key group heavy, unless it is said."""


@dataclass(frozen=True, slots=True)
class HeavyGroup:
    """A key group, what it has, its share of the operator's bytes or rows (0 to 1), and how many
    times the even share that is.
    """

    key_group: int
    rows: int
    size_bytes: int
    share: float
    times: float


def heavy_groups(
    entries: Sequence[KeyedEntry], by: Weight = Weight.BYTES, factor: float = FACTOR
) -> tuple[HeavyGroup, ...]:
    """Return the key groups of states of one operator whose share is above ``factor`` times the
    even share, heaviest first; the even share is one by the number of key groups.

    Changes count as a restore reads them. InvalidArgumentError unless ``factor`` is 1 or more.
    """
    if not factor >= 1:
        raise InvalidArgumentError(
            f"a heavy key group has a multiple of the even share; {factor} is below 1"
        )
    if not entries:
        return ()
    rows, sizes = weights_of(entries, Weight.ROWS), weights_of(entries, Weight.BYTES)
    weights = sizes if by is Weight.BYTES else rows
    total, count = sum(weights), len(weights)
    found = [group for group, weight in enumerate(weights) if weight * count > factor * total]
    found.sort(key=lambda group: (-weights[group], group))
    return tuple(
        HeavyGroup(
            key_group=group,
            rows=rows[group],
            size_bytes=sizes[group],
            share=weights[group] / total,
            times=weights[group] * count / total,
        )
        for group in found
    )


def heaviest(entry: KeyedEntry, most: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return up to ``most`` key groups of a state with most rows, as (key group, rows), most first,
    and the rows of the one that would come next, 0 for none. Those without rows are left out.
    """
    weights = weights_of([entry], Weight.ROWS)
    first = nlargest(most + 1, enumerate(weights), key=lambda one: (one[1], -one[0]))
    found = [one for one in first if one[1]]
    return tuple(found[:most]), found[most][1] if len(found) > most else 0
