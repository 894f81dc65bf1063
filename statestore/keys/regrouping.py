"""Another max parallelism than the stored one, without rewriting: a multiple of it, or a divisor.

A key's group is its hash modulo max parallelism. Since ``(h mod k·m) mod m = h mod m``, each of
the k·m new key groups is within one stored key group. If k·m key groups are stored, each of m key
groups consists of whole stored ones. Flink cannot change the max parallelism of stored state.
This follows arithmetically from its rule (``KeyGroupRangeAssignment``).
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.keys.groups import MAX_PARALLELISM, KeyGroupRange, merge_ranges

__all__ = ["Ceiling", "ceiling_of"]


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
