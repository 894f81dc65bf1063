"""Choose a parallelism from sizes in bytes: today's rules, and the rules of Flink 1.15 and 1.16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.size_ranges import SizeCutter, first_guess, share_of, spans_by_bytes
from statestore.keys.groups import (
    MAX_PARALLELISM,
    MIN_PARALLELISM,
    KeyGroupAssignment,
    KeyGroupRange,
    is_int,
)

__all__ = [
    "KeyGroupDecision",
    "check_bounds",
    "check_bytes",
    "check_positive",
    "decide_for_key_groups",
]


@dataclass(frozen=True, slots=True)
class KeyGroupDecision:
    """A parallelism for keyed state, and its explanation; see :func:`decide_for_key_groups`.

    ``first_guess`` is the total divided by the bytes per task, within the bounds.
    ``ranges_at_limit`` is the number of ranges with that many bytes. ``parallelism`` is the number
    of ``byte_ranges`` and is within the bounds. ``byte_range_bytes`` and ``even_range_bytes`` have
    the bytes of each subtask: with ``byte_ranges``, and with the even ranges of KeyGroupAssignment
    for the same number of subtasks.
    """

    parallelism: int
    byte_ranges: tuple[KeyGroupRange, ...]
    total_bytes: int
    first_guess: int
    ranges_at_limit: int
    byte_range_bytes: tuple[int, ...]
    even_range_bytes: tuple[int, ...]

    json_properties: ClassVar[tuple[str, ...]] = ("largest_by_number", "largest_by_bytes")

    @property
    def largest_by_bytes(self) -> int:
        """The bytes of the largest subtask if the ranges are cut by bytes."""
        return max(self.byte_range_bytes)

    @property
    def largest_by_number(self) -> int:
        """The bytes of the largest subtask if all subtasks have equally many key groups."""
        return max(self.even_range_bytes)


def decide_for_key_groups(
    sizes: Sequence[int], *, bytes_per_task: int, min_parallelism: int = 1, max_parallelism: int
) -> KeyGroupDecision:
    """Choose the parallelism at which each subtask has about ``bytes_per_task`` of keyed state.

    ``sizes`` are the bytes of each key group, in order. The result is the decision of Flink's
    ``DefaultVertexParallelismAndInputInfosDecider`` for a single keyed input with these
    subpartitions. The maximum is limited to the number of key groups. Raises InvalidArgumentError
    for sizes that are not bytes, not 1..32768 key groups, bounds that are outside of 1..32768 or
    crossed, or a minimum above the number of key groups.
    """
    check_positive("bytes_per_task", bytes_per_task)
    check_bounds(min_parallelism, max_parallelism)
    if not 1 <= len(sizes) <= MAX_PARALLELISM:
        raise InvalidArgumentError(
            f"there are {len(sizes)} key groups: the number must be in 1..{MAX_PARALLELISM}"
        )
    for key_group, size in enumerate(sizes):
        check_bytes(f"key group {key_group}", size)
    if min_parallelism > len(sizes):
        raise InvalidArgumentError(
            f"min_parallelism {min_parallelism} is above the number of key groups, "
            f"{len(sizes)}, so a subtask would own none: lower it"
        )
    row = SizeCutter(sizes)
    most = min(max_parallelism, len(sizes))
    limit = share_of(bytes_per_task, row.total, row.total)
    spans = spans_by_bytes(row, limit, min_parallelism, most)
    assert spans is not None  # only with fewer key groups than the minimum
    assignment = KeyGroupAssignment(max_parallelism=len(sizes), parallelism=len(spans))
    ranges = tuple(KeyGroupRange(*span) for span in spans)
    return KeyGroupDecision(
        parallelism=len(spans),
        byte_ranges=ranges,
        total_bytes=row.total,
        first_guess=first_guess(row.total, bytes_per_task, min_parallelism, most),
        ranges_at_limit=len(row.stops(limit, len(sizes))),
        byte_range_bytes=_bytes_in(sizes, ranges),
        even_range_bytes=_bytes_in(sizes, assignment.ranges()),
    )


def _bytes_in(sizes: Sequence[int], ranges: Sequence[KeyGroupRange]) -> tuple[int, ...]:
    return tuple(sum(sizes[span.first : span.last + 1]) for span in ranges)


def check_bytes(name: str, value: object) -> int:
    """Return ``value`` if it is an int of 0 or more; InvalidArgumentError otherwise."""
    if not is_int(value):
        raise InvalidArgumentError(f"the bytes of {name} must be an int, not {value!r}")
    if value < 0:
        raise InvalidArgumentError(f"the bytes of {name} must be 0 or more, not {value}")
    return value


def check_positive(name: str, value: object) -> int:
    """Return ``value`` if it is an int of 1 or more; InvalidArgumentError otherwise."""
    if not is_int(value) or value < 1:
        raise InvalidArgumentError(f"{name} must be an int of 1 or more, not {value!r}")
    return value


def check_bounds(
    least: object, most: object, names: tuple[str, str] = ("min_parallelism", "max_parallelism")
) -> None:
    """Raise InvalidArgumentError unless both are in 1..32768 and in order."""
    for name, value in zip(names, (least, most), strict=True):
        if not is_int(value) or not MIN_PARALLELISM <= value <= MAX_PARALLELISM:
            raise InvalidArgumentError(
                f"{name} must be an int in {MIN_PARALLELISM}..{MAX_PARALLELISM}, not {value!r}"
            )
    if least > most:  # type: ignore[operator]
        raise InvalidArgumentError(
            f"{names[0]} {least} is above {names[1]} {most}: lower the first or raise the second"
        )
