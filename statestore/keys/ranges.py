"""Contiguous key-group ranges that are balanced by bytes or rows instead of by count.

This is an alternative to Flink's even ranges (``KeyGroupRangeAssignment``) for state whose key
groups differ in size. It cuts the key groups into contiguous, nonempty ranges such that the
largest range is as small as possible.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange

__all__ = ["Assignment", "RangeAssignment", "balance_ranges"]


@dataclass(frozen=True)
class RangeAssignment:
    """The owner of each key group: ``stops[i]`` is one more than the last key group of subtask i.

    Raises ParallelismError unless each subtask owns at least one key group.
    """

    stops: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check that the ranges tile all key groups."""
        if not self.stops or any(stop <= first for first, stop in pairwise((0, *self.stops))):
            raise ParallelismError(
                f"every subtask must own at least one key group, which {self.stops} does not "
                "satisfy"
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
        """Return the key groups of a subtask; ParallelismError if the subtask does not exist."""
        if not 0 <= subtask < self.parallelism:
            raise ParallelismError(
                f"subtask {subtask} does not exist: the subtasks are 0..{self.parallelism - 1}"
            )
        return self.ranges()[subtask]

    def subtask_of(self, key_group: int) -> int:
        """Return the owner of a key group; ParallelismError if the group does not exist."""
        if not 0 <= key_group < self.max_parallelism:
            raise ParallelismError(
                f"key group {key_group} does not exist: the key groups are "
                f"0..{self.max_parallelism - 1}"
            )
        return bisect_right(self.stops, key_group)

    def ranges(self) -> tuple[KeyGroupRange, ...]:
        """Return the key groups of all subtasks, in order."""
        return self._ranges

    @cached_property
    def _ranges(self) -> tuple[KeyGroupRange, ...]:
        return tuple(KeyGroupRange(a, b - 1) for a, b in pairwise((0, *self.stops)))


Assignment = KeyGroupAssignment | RangeAssignment


def balance_ranges(weights: Sequence[int], parallelism: int) -> RangeAssignment:
    """Return contiguous ranges of weighted key groups whose largest sum is as small as possible.

    The function bisects over that sum. A limit is large enough if filling ranges up to it gives at
    most ``parallelism`` ranges. If fewer ranges are needed, the first ones with two key groups are
    split. Raises ParallelismError for more subtasks than key groups, InvalidArgumentError for fewer
    than one subtask.
    """
    if parallelism < 1:
        raise InvalidArgumentError(f"parallelism must be 1 or more, not {parallelism}")
    if parallelism > len(weights):
        raise ParallelismError(
            f"parallelism {parallelism} is above {len(weights)}, the number of key groups: lower "
            "the parallelism"
        )
    upto = [*accumulate(weights, initial=0)]
    low, high = max(max(weights), -(-upto[-1] // parallelism)), upto[-1]
    while low < high:
        middle = (low + high) // 2
        if len(_fill_to_limit(upto, middle, parallelism)) <= parallelism:
            high = middle
        else:
            low = middle + 1
    return RangeAssignment(
        tuple(_divide_ranges(_fill_to_limit(upto, low, parallelism), parallelism))
    )


def _fill_to_limit(upto: Sequence[int], limit: int, most: int) -> list[int]:
    """Return where ranges with sums up to ``limit`` end; stop once there are more than ``most``."""
    stops: list[int] = []
    stop = 0
    while stop < len(upto) - 1 and len(stops) <= most:
        stop = bisect_right(upto, upto[stop] + limit, stop) - 1
        stops.append(stop)
    return stops


def _divide_ranges(stops: list[int], parallelism: int) -> list[int]:
    """Split ranges until there are ``parallelism`` of them; no sum grows."""
    wanted = set(stops)
    spare = (stop for stop in range(1, stops[-1]) if stop not in wanted)
    while len(wanted) < parallelism:
        wanted.add(next(spare))
    return sorted(wanted)
