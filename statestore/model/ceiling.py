"""Another max parallelism than the stored one, without rewriting: a multiple of it, or a divisor.

A key's group is its hash modulo max parallelism. Since ``(h mod k·m) mod m = h mod m``, each of the
k·m new key groups lies within one stored one, and each of m key groups is made of whole stored ones
when k·m are stored. Flink cannot change the max parallelism of stored state; this is arithmetic on
its rule (``KeyGroupRangeAssignment``).
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.model.keygroups import MAX_PARALLELISM, KeyGroupRange, joined

__all__ = ["Ceiling", "ceiling_of"]


@dataclass(frozen=True)
class Ceiling:
    """A stored max parallelism, and the one that is asked for: a multiple of it, or a divisor."""

    stored: int
    wanted: int

    @property
    def is_raised(self) -> bool:
        """Whether a stored key group is divided among several new ones."""
        return self.wanted > self.stored

    def stored_groups(self, own: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        """Return the stored key groups in which rows of these new ones lie, ascending, in as few
        ranges as can be.
        """
        if self.is_raised:
            return self._within(own)
        spans = range(0, self.stored, self.wanted)
        return joined(KeyGroupRange(own.first + at, own.last + at) for at in spans)

    def _within(self, own: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        if len(own) >= self.stored:
            return (KeyGroupRange(0, self.stored - 1),)
        first, last = own.first % self.stored, own.last % self.stored
        if first <= last:
            return (KeyGroupRange(first, last),)
        return joined((KeyGroupRange(0, last), KeyGroupRange(first, self.stored - 1)))


def ceiling_of(stored: int, wanted: int) -> Ceiling | None:
    """Return what it takes to read ``stored`` key groups as ``wanted``, None when they are as many.

    Raises ParallelismError when neither divides the other, InvalidArgumentError when ``wanted`` is
    out of bounds.
    """
    if not 0 < wanted <= MAX_PARALLELISM:
        raise InvalidArgumentError(f"max parallelism lies in 1..{MAX_PARALLELISM}, not {wanted}")
    if wanted == stored:
        return None
    if wanted % stored and stored % wanted:
        divisor = next(n for n in range(stored // 2, 0, -1) if stored % n == 0)
        near = [n for n in (divisor, stored * 2, stored * 4) if n <= MAX_PARALLELISM]
        raise ParallelismError(
            f"max parallelism {wanted} cannot be read from the stored {stored} without rewriting: "
            f"it is neither a multiple nor a divisor (such as {', '.join(map(str, near))}). Use "
            "'statestore rekey' for any other"
        )
    return Ceiling(stored, wanted)
