"""Runs timed in turn, and the figures that come of them: a value, its spread, its ratio, its goal.

Runs that are compared take turns, so that what else the machine does falls on all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Figure", "Runs", "counted", "in_turn", "times"]

Runs = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Figure:
    """One line of the table: what was measured, as a ratio to a floor of the same run if it has
    one.

    ``goal`` bounds the ratio, or where there is none the value: from above, or from below with
    ``at_least``.
    """

    target: str
    what: str
    value: float
    unit: str
    low: float
    high: float
    floor: str = ""
    ratio: float | None = None
    goal: float | None = None
    at_least: bool = False

    @property
    def reached(self) -> bool | None:
        """Whether the goal was reached; None without one."""
        if self.goal is None:
            return None
        found = self.value if self.ratio is None else self.ratio
        return found >= self.goal if self.at_least else found <= self.goal

    def to_json(self) -> dict[str, Any]:
        """Return plain values, in the order of the fields."""
        return asdict(self) | {"reached": self.reached}


def in_turn(runs: Runs, repeats: int) -> dict[str, list[float]]:
    """Return seconds per run, each repeated, all in turn, after one unmeasured round."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def times(
    target: str,
    what: str,
    seconds: Mapping[str, Sequence[float]],
    *,
    floor: str = "",
    goal: float | None = None,
) -> Figure:
    """Return the median of the run ``what``, and its ratio to the median of the run ``floor``."""
    own = statistics.median(seconds[what])
    ratio = own / statistics.median(seconds[floor]) if floor else None
    return Figure(
        target, what, own, "s", min(seconds[what]), max(seconds[what]), floor, ratio, goal
    )


def counted(
    target: str,
    what: str,
    value: float,
    unit: str,
    *,
    goal: float | None = None,
    at_least: bool = False,
) -> Figure:
    """Return a figure that has no spread: a count, the same in every run."""
    return Figure(target, what, value, unit, value, value, goal=goal, at_least=at_least)
