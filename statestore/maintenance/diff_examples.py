"""Choose which differing rows a comparison shows: from as many key groups as possible."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import zip_longest
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from statestore.maintenance.diff_report import Example

__all__ = ["ExampleSample", "fair_shares", "spread"]

G = TypeVar("G", bound=Hashable)
_CHANGES = ("changed", "added", "removed")


class ExampleSample:
    """At most ``limit`` examples, divided as evenly as possible among the key groups.

    If more key groups than ``limit`` differ, the shown ones are spread over all of them. Examples
    arrive in any order of key groups, and at most twice ``limit`` of them are in memory.
    """

    def __init__(self, limit: int, groups: Sequence[int]) -> None:
        """Start without examples; ``groups`` are the ascending key groups that may differ."""
        self._limit = limit
        self._first = {groups[place] for place in spread(len(groups), limit)}
        self._examples: dict[int, list[Example]] = {}

    def room(self, group: int) -> int:
        """Return how many more examples of a key group are wanted."""
        sizes = {number: len(examples) for number, examples in self._examples.items()}
        shares = self._shares(sizes | {group: self._limit})
        return max(shares[group] - sizes.get(group, 0), 0)

    def add(self, group: int, examples: Sequence[Example]) -> None:
        """Add examples of a key group; other key groups lose those that exceed their share."""
        if not examples:
            return
        # In turns, so that a part of them has every kind of change.
        by_change = [[e for e in examples if e.change == change] for change in _CHANGES]
        turns = zip_longest(*by_change)
        self._examples.setdefault(group, []).extend(e for turn in turns for e in turn if e)
        shares = self._shares({number: len(kept) for number, kept in self._examples.items()})
        self._examples = {
            number: kept[: shares[number]]
            for number, kept in self._examples.items()
            if shares[number]
        }

    def examples(self) -> tuple[Example, ...]:
        """Return the chosen examples, by key group and change."""
        return tuple(
            example
            for group in sorted(self._examples)
            for example in sorted(self._examples[group], key=lambda e: _CHANGES.index(e.change))
        )

    def _shares(self, wanted: Mapping[int, int]) -> dict[int, int]:
        order = sorted(wanted, key=lambda group: (group not in self._first, group))
        return fair_shares({group: wanted[group] for group in order}, self._limit)


def fair_shares(wanted: Mapping[G, int], limit: int) -> dict[G, int]:
    """Divide ``limit`` among parts that want some of it, as evenly as possible.

    What a part does not want goes to the others. The first parts get the rest of a division.
    """
    shares = dict.fromkeys(wanted, 0)
    active = [part for part in wanted if wanted[part]]
    while limit > 0 and active:
        each = max(limit // len(active), 1)
        for part in active[:limit]:
            given = min(each, wanted[part] - shares[part])
            shares[part] += given
            limit -= given
        active = [part for part in active if shares[part] < wanted[part]]
    return shares


def spread(number: int, wanted: int) -> npt.NDArray[np.intp]:
    """Return at most ``wanted`` positions of ``range(number)``, evenly spaced."""
    chosen = min(number, wanted)
    return np.arange(chosen, dtype=np.intp) * number // max(chosen, 1)
