"""How many subtasks some bytes need: ranges of sizes, and what Flink 1.15 and 1.16 chose."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Protocol

from statestore.errors import InvalidArgumentError
from statestore.keys.groups import (
    MAX_PARALLELISM,
    MIN_PARALLELISM,
    KeyGroupAssignment,
    KeyGroupRange,
    is_int,
    round_up_to_power_of_two,
)

__all__ = [
    "BYTES_PER_TASK_2022",
    "Cutter",
    "Input2022",
    "KeyGroupDecision",
    "SizeCutter",
    "Span",
    "check_bounds",
    "check_bytes",
    "check_positive",
    "decide_2022",
    "decide_for_key_groups",
    "even_spans",
    "first_guess",
    "share_of",
    "spans_by_bytes",
]


# Cutting a row of sizes into contiguous ranges, so that the number of ranges is a parallelism.
#
# Follows ``VertexParallelismAndInputInfosDeciderUtils`` of Flink 2.3: fill each range up to a
# number of bytes, and when that makes too few or too many ranges, look by bisection for the number
# of bytes that makes as many as are allowed; when no number of bytes does, cut evenly by count.
#
# A probe of the bisection jumps from range to range over prefix sums, and stops as soon as the
# answer is known, where Flink adds up all sizes each time; the ranges are the same.


class Span(NamedTuple):
    """The closed range of indexes ``first`` .. ``last``; never empty."""

    first: int
    last: int


class Cutter(Protocol):
    """A row of elements that can be cut by bytes."""

    total: int
    """Bytes of all elements, each counted in full."""
    smallest: int
    """Bytes of the smallest element."""

    def __len__(self) -> int:
        """Return how many elements there are."""

    def stops(self, limit: int, most: int) -> list[int]:
        """Return where the ranges of up to ``limit`` bytes end (exclusive), in order; up to
        ``most`` of them. A range holds one element at least, however large it is.
        """


class SizeCutter:
    """Elements that are nothing but their sizes in bytes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Take sizes that are not negative; one at least."""
        self._upto = list(accumulate(sizes, initial=0))
        self.total = self._upto[-1]
        self.smallest = min(sizes)

    def __len__(self) -> int:
        return len(self._upto) - 1

    def stops(self, limit: int, most: int) -> list[int]:
        """Return where ranges end, at the cost of one bisection a range."""
        upto, end = self._upto, len(self)
        found: list[int] = []
        at = 0
        while at < end and len(found) < most:
            at = max(at + 1, bisect_right(upto, upto[at] + limit, at) - 1)
            found.append(at)
        return found


def share_of(bytes_per_task: int, part: int, total: int) -> int:
    """The bytes per task that a part of all inputs may use, by its share of all bytes.

    In doubles and truncated, as Java does; 0 when there are no bytes at all (NaN in Java).
    """
    return int(float(part) / float(total) * bytes_per_task) if total else 0


def first_guess(total: int, bytes_per_task: int, least: int, most: int) -> int:
    """How many tasks ``total`` bytes need, before any byte is laid out; within the bounds.

    The quotient is one of doubles, as in ``DefaultVertexParallelismAndInputInfosDecider``.
    """
    return min(max(math.ceil(float(total) / float(bytes_per_task)), least), most)


def even_spans(count: int, parallelism: int) -> tuple[Span, ...]:
    """``count`` elements in ``parallelism`` spans whose lengths differ by at most one.

    Raises InvalidArgumentError when a span would be empty.
    """
    if parallelism > count:
        raise InvalidArgumentError(
            f"{count} parts cannot be spread over a parallelism of {parallelism}: lower the "
            "minimum parallelism, or produce more subpartitions"
        )
    starts = [turn * count // parallelism for turn in range(parallelism + 1)]
    return tuple(Span(first, stop - 1) for first, stop in pairwise(starts))


def spans_by_bytes(row: Cutter, limit: int, least: int, most: int) -> tuple[Span, ...] | None:
    """Ranges of about ``limit`` bytes whose number lies in ``least`` .. ``most``.

    Too many: the smallest limit that makes ``most`` or fewer. Too few: the largest limit that makes
    ``least`` or more, and of all limits that make the same number the smallest, which is the
    evenest. None when there are fewer elements than ``least``.
    """
    stops = row.stops(limit, most + 1)
    if not least <= len(stops) <= most:
        stops = row.stops(_fitting_limit(row, limit, least, most, len(stops)), most + 1)
    if least <= len(stops) <= most:
        return tuple(Span(first, stop - 1) for first, stop in pairwise([0, *stops]))
    return None if len(row) < least else even_spans(len(row), min(len(row), most))


def _fitting_limit(row: Cutter, limit: int, least: int, most: int, found: int) -> int:
    if found > most:
        return _least_legal(lambda x: len(row.stops(x, most + 1)) <= most, limit, row.total)
    smallest = min(limit, row.smallest)
    largest = _greatest_legal(lambda x: len(row.stops(x, least)) >= least, smallest, limit)
    # -1 stands for no such limit, and then is used as one: what Flink does for sizes of zero.
    wanted = len(row.stops(largest, len(row)))
    return _least_legal(lambda x: len(row.stops(x, wanted + 1)) == wanted, smallest, largest)


def _least_legal(legal: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest legal value (``BisectionSearchUtils``), -1 when ``high`` is not legal."""
    if not legal(high):
        return -1
    while low <= high:
        middle = (low + high) // 2
        if legal(middle):
            high = middle - 1
        else:
            low = middle + 1
    return high + 1


def _greatest_legal(legal: Callable[[int], bool], low: int, high: int) -> int:
    """The largest legal value (``BisectionSearchUtils``), -1 when ``low`` is not legal."""
    if not legal(low):
        return -1
    while low <= high:
        middle = (low + high) // 2
        if legal(middle):
            low = middle + 1
        else:
            high = middle - 1
    return low - 1


@dataclass(frozen=True, slots=True)
class KeyGroupDecision:
    """A parallelism for keyed state, and how it came about; from :func:`decide_for_key_groups`.

    ``first_guess`` is the total divided by the bytes per task, within the bounds;
    ``ranges_at_limit`` how many ranges of that many bytes there are; ``parallelism`` the number of
    ``byte_ranges``, which lies within the bounds. ``byte_range_bytes`` and ``even_range_bytes``
    hold the bytes of each subtask: with ``byte_ranges``, and with the even ranges that
    KeyGroupAssignment gives the same number of subtasks.
    """

    parallelism: int
    byte_ranges: tuple[KeyGroupRange, ...]
    total_bytes: int
    first_guess: int
    ranges_at_limit: int
    byte_range_bytes: tuple[int, ...]
    even_range_bytes: tuple[int, ...]

    @property
    def largest_by_bytes(self) -> int:
        """Bytes of the largest subtask when the ranges are cut by bytes."""
        return max(self.byte_range_bytes)

    @property
    def largest_by_number(self) -> int:
        """Bytes of the largest subtask when every subtask has as many key groups."""
        return max(self.even_range_bytes)


def decide_for_key_groups(
    sizes: Sequence[int], *, bytes_per_task: int, min_parallelism: int = 1, max_parallelism: int
) -> KeyGroupDecision:
    """The parallelism at which subtasks hold about ``bytes_per_task`` bytes of keyed state each.

    ``sizes`` are the bytes of each key group, in order. What Flink's
    ``DefaultVertexParallelismAndInputInfosDecider`` decides for a single keyed input with these
    subpartitions. A maximum above the number of key groups counts as that number.
    Raises InvalidArgumentError for sizes that are not bytes, not 1..32768 key groups, bounds that
    are out of 1..32768 or crossed, or a minimum above the number of key groups.
    """
    check_positive("bytes_per_task", bytes_per_task)
    check_bounds(min_parallelism, max_parallelism)
    if not 1 <= len(sizes) <= MAX_PARALLELISM:
        raise InvalidArgumentError(
            f"{len(sizes)} key groups are out of bounds: there must be 1..{MAX_PARALLELISM}"
        )
    for key_group, size in enumerate(sizes):
        check_bytes(f"key group {key_group}", size)
    if min_parallelism > len(sizes):
        raise InvalidArgumentError(
            f"min_parallelism {min_parallelism} is above the number of key groups, {len(sizes)}: "
            "a subtask would own none; lower it"
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
    return tuple(sum(sizes[one.first : one.last + 1]) for one in ranges)


def check_bytes(name: str, value: object) -> int:
    """``value``, if it is a number of bytes: an int of 0 or more; else InvalidArgumentError."""
    if not is_int(value):
        raise InvalidArgumentError(f"the bytes of {name} must be an int, not {value!r}")
    if value < 0:
        raise InvalidArgumentError(f"the bytes of {name} must be 0 or more, not {value}")
    return value


def check_positive(name: str, value: object) -> int:
    """``value``, if it is an int of 1 or more; else InvalidArgumentError."""
    if not is_int(value) or value < 1:
        raise InvalidArgumentError(f"{name} must be an int of 1 or more, not {value!r}")
    return value


def check_bounds(
    least: object, most: object, names: tuple[str, str] = ("min_parallelism", "max_parallelism")
) -> None:
    """InvalidArgumentError unless both are in 1..32768, and in order."""
    for name, value in zip(names, (least, most), strict=True):
        if not is_int(value) or not MIN_PARALLELISM <= value <= MAX_PARALLELISM:
            raise InvalidArgumentError(
                f"{name} must be an int in {MIN_PARALLELISM}..{MAX_PARALLELISM}, not {value!r}"
            )
    if least > most:  # type: ignore[operator]
        raise InvalidArgumentError(
            f"{names[0]} {least} is above {names[1]} {most}: lower the one or raise the other"
        )


# The parallelism that Flink 1.15 and 1.16 chose: from bytes alone, and a power of two.
#
# Follows ``DefaultVertexParallelismDecider`` of Flink 1.16. It looks at the total of all inputs
# only, so nothing says which subtask reads what; ``parallelism.py`` has the algorithm of today.


BYTES_PER_TASK_2022: Final = 1 << 30
"""What one task was meant to read when nothing was configured: 1 GiB."""


@dataclass(frozen=True, slots=True)
class Input2022:
    """What one input consists of: bytes of each of its parts, and whether every subtask reads all.

    Raises InvalidArgumentError for what is not a number of bytes.
    """

    sizes: tuple[int, ...]
    broadcast: bool = False

    def __post_init__(self) -> None:
        for index, size in enumerate(self.sizes):
            check_bytes(f"part {index} of an input", size)


def decide_2022(
    inputs: Sequence[Input2022],
    *,
    bytes_per_task: int = BYTES_PER_TASK_2022,
    min_parallelism: int = 1,
    max_parallelism: int = 128,
    vertex_max_parallelism: int = MAX_PARALLELISM,
    default_source_parallelism: int = 1,
) -> int:
    """The power of two nearest to what the inputs need, ties upwards, within the bounds.

    The bounds are drawn in to powers of two first, and so is the vertex's own maximum, which is
    stronger than both. Broadcast bytes take room from every task, half of it at most. Without
    inputs it is a source: its default, up to the vertex's maximum, not rounded.
    Raises InvalidArgumentError for bounds out of 1..32768, or with no power of two between them.

    Above 2**30 needed tasks Flink rounds past the end of its 32 bits; here it is the maximum, as
    for any other number that is too large.
    """
    check_positive("bytes_per_task", bytes_per_task)
    check_bounds(min_parallelism, max_parallelism)
    check_bounds(1, vertex_max_parallelism, ("1", "vertex_max_parallelism"))
    check_bounds(1, default_source_parallelism, ("1", "default_source_parallelism"))
    least, most = round_up_to_power_of_two(min_parallelism), _power_of_two_below(max_parallelism)
    if least > most:
        raise InvalidArgumentError(
            f"no power of two lies in {min_parallelism}..{max_parallelism}, the minimum and "
            "maximum parallelism: move one of them"
        )
    if not inputs:
        return min(default_source_parallelism, vertex_max_parallelism)
    cap = _power_of_two_below(vertex_max_parallelism)
    return min(max(_nearest(_needed(inputs, bytes_per_task, cap)), min(least, cap)), min(most, cap))


def _needed(inputs: Sequence[Input2022], bytes_per_task: int, without_room: int) -> int:
    """How many tasks the bytes need, beside what is broadcast to each."""
    broadcast = sum(sum(one.sizes) for one in inputs if one.broadcast)
    total = sum(sum(one.sizes) for one in inputs if not one.broadcast)
    room = bytes_per_task - min(broadcast, math.ceil(bytes_per_task * 0.5))
    if not room:  # at one byte a task; a double divided by zero is endless, or NaN and then 0
        return without_room if total else 0
    return math.ceil(float(total) / float(room))


def _nearest(number: int) -> int:
    below, above = _power_of_two_below(number), round_up_to_power_of_two(number)
    return below if number < (above + below) // 2 else above


def _power_of_two_below(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number > 0 else 0
