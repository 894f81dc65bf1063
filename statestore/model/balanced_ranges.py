"""Contiguous key-group ranges that are balanced by bytes or rows instead of by count.

A declared alternative to Flink's even ranges (``KeyGroupRangeAssignment``), for state whose key
groups differ in size: of all ways to cut the key groups into contiguous ranges, none empty, one
whose largest range is smallest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.model.keygroups import KeyGroupAssignment, KeyGroupRange

__all__ = ["Assignment", "RangeAssignment", "balanced"]


@dataclass(frozen=True)
class RangeAssignment:
    """Who owns which key groups: ``stops[i]`` is one more than the last key group of subtask i.

    Raises ParallelismError unless each subtask owns one at least.
    """

    stops: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that the ranges tile all key groups."""
        if not self.stops or any(stop <= first for first, stop in pairwise((0, *self.stops))):
            raise ParallelismError(
                f"each subtask owns a key group, which is not so in {self.stops}"
            )

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self.stops[-1]

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""
        return len(self.stops)

    def range_of(self, subtask: int) -> KeyGroupRange:
        """Return the key groups of a subtask; ParallelismError when there is no such subtask."""
        if not 0 <= subtask < self.parallelism:
            raise ParallelismError(
                f"subtask {subtask} does not exist: they are 0..{self.parallelism - 1}"
            )
        return self.ranges()[subtask]

    def subtask_of(self, key_group: int) -> int:
        """Return who owns a key group; ParallelismError when there is no such key group."""
        if not 0 <= key_group < self.max_parallelism:
            raise ParallelismError(
                f"key group {key_group} does not exist: they are 0..{self.max_parallelism - 1}"
            )
        return bisect_right(self.stops, key_group)

    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """Return the key groups of all subtasks, in order."""
        return self._ranges

    @cached_property
    def _ranges(self) -> tuple[KeyGroupRange, ...]:
        return tuple(KeyGroupRange(a, b - 1) for a, b in pairwise((0, *self.stops)))


Assignment = KeyGroupAssignment | RangeAssignment


def balanced(weights: Sequence[int], parallelism: int) -> RangeAssignment:
    """Return ranges over key groups of these weights whose greatest sum is the least there is.

    By bisection over that sum: a limit will do if ranges that are filled up to it are no more than
    ``parallelism``. Where fewer are needed, the first ranges with two key groups are divided.
    Raises ParallelismError for more subtasks than key groups, InvalidArgumentError for fewer than
    one.
    """
    if parallelism < 1:
        raise InvalidArgumentError(f"parallelism must be 1 or more, not {parallelism}")
    if parallelism > len(weights):
        raise ParallelismError(
            f"parallelism {parallelism} is above {len(weights)}, the number of key groups"
        )
    upto = [*accumulate(weights, initial=0)]
    low, high = max(max(weights), -(-upto[-1] // parallelism)), upto[-1]
    while low < high:
        middle = (low + high) // 2
        if len(_filled(upto, middle, parallelism)) <= parallelism:
            high = middle
        else:
            low = middle + 1
    return RangeAssignment(tuple(_divided(_filled(upto, low, parallelism), parallelism)))


def _filled(upto: Sequence[int], limit: int, most: int) -> list[int]:
    """Return where ranges of up to ``limit`` end; more than ``most`` are not looked for."""
    stops: list[int] = []
    at = 0
    while at < len(upto) - 1 and len(stops) <= most:
        at = bisect_right(upto, upto[at] + limit, at) - 1
        stops.append(at)
    return stops


def _divided(stops: list[int], parallelism: int) -> list[int]:
    """Return as many ranges as are wanted, no sum greater: some are divided in two."""
    wanted = set(stops)
    spare = (stop for stop in range(1, stops[-1]) if stop not in wanted)
    while len(wanted) < parallelism:
        wanted.add(next(spare))
    return sorted(wanted)
