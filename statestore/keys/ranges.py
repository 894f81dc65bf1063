"""Contiguous key-group ranges balanced by bytes or rows, and reads at another max parallelism.

Balanced ranges are an alternative to Flink's even ranges (``KeyGroupRangeAssignment``) for state
whose key groups differ in size. :func:`balance_ranges` cuts the key groups into contiguous,
nonempty ranges such that the largest range is as small as possible.

Max parallelism can be read as a multiple or a divisor of the stored one, without rewriting. A key's
group is its hash modulo max parallelism. Since ``(h mod k·m) mod m = h mod m``, each of the k·m new
key groups is within one stored key group. If k·m key groups are stored, each of m key groups
consists of whole stored ones. This follows from Flink's rule (``KeyGroupRangeAssignment``),
although Flink itself cannot change the max parallelism of stored state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.keys.groups import MAX_PARALLELISM, KeyGroupAssignment, KeyGroupRange, merge_ranges


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


@dataclass(frozen=True)
class Ceiling:
    """A stored max parallelism and the requested one, which is a multiple or a divisor of it."""

    stored: int
    wanted: int

    @property
    def is_raised(self) -> bool:
        """True if a stored key group is divided among several new ones."""
        return self.wanted > self.stored

    def stored_groups(self, own: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        """Return the stored key groups that contain rows of the new key groups ``own``.

        They are ascending, in as few ranges as possible.
        """
        if self.is_raised:
            return self._within(own)
        spans = range(0, self.stored, self.wanted)
        return merge_ranges(
            KeyGroupRange(own.first + offset, own.last + offset) for offset in spans
        )

    def _within(self, own: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        if len(own) >= self.stored:
            return (KeyGroupRange.every(self.stored),)
        first, last = own.first % self.stored, own.last % self.stored
        if first <= last:
            return (KeyGroupRange(first, last),)
        return merge_ranges((KeyGroupRange(0, last), KeyGroupRange(first, self.stored - 1)))


def ceiling_of(stored: int, wanted: int) -> Ceiling | None:
    """Return how to read ``stored`` key groups as ``wanted``; None if the numbers are equal.

    Raises ParallelismError if neither divides the other, InvalidArgumentError if ``wanted`` is out
    of bounds.
    """
    if not 0 < wanted <= MAX_PARALLELISM:
        raise InvalidArgumentError(f"max parallelism must be in 1..{MAX_PARALLELISM}, not {wanted}")
    if wanted == stored:
        return None
    if wanted % stored and stored % wanted:
        divisor = next(n for n in range(stored // 2, 0, -1) if stored % n == 0)
        near = [n for n in (divisor, stored * 2, stored * 4) if n <= MAX_PARALLELISM]
        raise ParallelismError(
            f"stored max parallelism {stored} cannot be read as {wanted} without a rewrite: "
            f"{wanted} is neither a multiple nor a divisor of it (for example "
            f"{', '.join(map(str, near))}). Use 'statestore rekey' for any other value"
        )
    return Ceiling(stored, wanted)
