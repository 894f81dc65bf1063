"""Timed runs in turn, and their figures: a value with its spread, tail, ratio and goal.

Runs that are compared take turns, so that other load on the machine affects all of them.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Failure", "Figure", "Runs", "counted", "in_turn", "output_of", "sample", "times"]

Runs = Mapping[str, Callable[[], object]]
_ROOT = Path(__file__).parents[1]
_LAST_LINES = 10


@dataclass(frozen=True)
class Figure:
    """One line of the table: a measured value, and its ratio to a floor in the same run if any.

    ``p99`` and ``total`` are the 99th percentile and the sum of all runs, if the value is a median.
    ``goal`` bounds the ratio, or the value if it has no ratio. It is an upper bound, or a lower
    bound with ``at_least``. ``load`` is the number of cores that other programs kept busy.
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
    p99: float | None = None
    total: float | None = None
    load: float | None = None

    @property
    def reached(self) -> bool | None:
        """True if the goal was reached; None without a goal."""
        if self.goal is None:
            return None
        found = self.value if self.ratio is None else self.ratio
        return found >= self.goal if self.at_least else found <= self.goal

    def to_json(self) -> dict[str, Any]:
        """Return plain values, in the order of the fields."""
        return asdict(self) | {"reached": self.reached}


@dataclass(frozen=True)
class Failure:
    """A line that could not be measured, and the last words of what failed."""

    target: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values, in the order of the fields."""
        return asdict(self)


def output_of(command: Sequence[str]) -> str:
    """Run a program in the root of the repository and return what it printed.

    Raises:
        RuntimeError: It failed. The message has its exit code and its last lines.
    """
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        end = "\n".join(lines[-_LAST_LINES:]) or "it printed nothing"
        raise RuntimeError(f"{Path(command[0]).name} ended with exit {done.returncode}:\n{end}")
    return done.stdout


def in_turn(
    runs: Runs, repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of each repeated run, all in turn, after one unmeasured round."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = clock()
            run()
            if repeat:
                seconds[name].append(clock() - start)
    return seconds


def sample(
    target: str,
    what: str,
    values: Sequence[float],
    unit: str = "s",
    *,
    goal: float | None = None,
    tail: bool = False,
) -> Figure:
    """Return the median of some values and their spread.

    Args:
        target: The line of the table, such as ``B17``.
        what: What was measured.
        values: One value for each run, in ``unit``.
        unit: The unit of the values.
        goal: The largest median that reaches the goal.
        tail: Add the 99th percentile and the sum, which show runs that the median hides. The
            percentile is a measured value: of fewer than 100 runs it is the largest.
    """
    ordered = sorted(values)
    figure = Figure(
        target, what, statistics.median(ordered), unit, ordered[0], ordered[-1], goal=goal
    )
    if not tail:
        return figure
    nearest_rank = math.ceil(0.99 * len(ordered))
    return replace(figure, p99=ordered[nearest_rank - 1], total=sum(ordered))


def times(
    target: str,
    what: str,
    seconds: Mapping[str, Sequence[float]],
    *,
    floor: str = "",
    goal: float | None = None,
    tail: bool = False,
) -> Figure:
    """Return the median of the run ``what``, and its ratio to the median of the run ``floor``.

    ``tail`` is that of :func:`sample`.
    """
    figure = sample(target, what, seconds[what], goal=goal, tail=tail)
    if not floor:
        return figure
    return replace(figure, floor=floor, ratio=figure.value / statistics.median(seconds[floor]))


def counted(
    target: str,
    what: str,
    value: float,
    unit: str,
    *,
    goal: float | None = None,
    at_least: bool = False,
) -> Figure:
    """Return a figure without a spread: a count that is the same in every run."""
    return Figure(target, what, value, unit, value, value, goal=goal, at_least=at_least)
