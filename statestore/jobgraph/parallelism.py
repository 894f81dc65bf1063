"""Choose a parallelism from sizes in bytes: today's rules, and the rules of Flink 1.15 and 1.16.

It follows ``VertexParallelismAndInputInfosDeciderUtils`` of Flink 2.3. A row of sizes is cut into
contiguous ranges, and their number is the parallelism. Each range is filled up to a number of
bytes. If that gives too few or too many ranges, a bisection finds the number of bytes that gives an
allowed number of ranges. If none does, the row is cut evenly by count. Flink adds up all sizes in
each step of the bisection. Here a step jumps from range to range over prefix sums, and stops as
soon as the answer is known. The resulting ranges are the same.

:func:`parallelism_of_flink_1_16` follows ``DefaultVertexParallelismDecider`` of Flink 1.16: a power
of two that depends only on the total of all inputs. It does not assign input to subtasks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import ClassVar, Final, NamedTuple, Protocol

from statestore.errors import InvalidArgumentError
from statestore.keys.groups import (
    MAX_PARALLELISM,
    MIN_PARALLELISM,
    KeyGroupAssignment,
    KeyGroupRange,
    is_int,
    round_up_to_power_of_two,
)


class Span(NamedTuple):
    """The closed range of indexes ``first`` .. ``last``; never empty."""

    first: int
    last: int


class Cutter(Protocol):
    """A sequence of elements that can be divided into ranges by bytes."""

    total: int
    """The bytes of all elements, each counted in full."""
    smallest: int
    """The bytes of the smallest element."""

    def __len__(self) -> int:
        """Return the number of elements."""

    def stops(self, limit: int, most: int) -> list[int]:
        """Return the ends (exclusive) of ranges of up to ``limit`` bytes, in order.

        At most ``most`` ends are returned. A range has at least one element, however large it is.
        """


class SizeCutter:
    """A sequence that is represented by the sizes of its elements in bytes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Take sizes that are not negative; at least one."""
        self._upto = list(accumulate(sizes, initial=0))
        self.total = self._upto[-1]
        self.smallest = min(sizes)

    def __len__(self) -> int:
        return len(self._upto) - 1

    def stops(self, limit: int, most: int) -> list[int]:
        """Return the ends of the ranges, with one bisection per range."""
        upto, end = self._upto, len(self)
        stops: list[int] = []
        stop = 0
        while stop < end and len(stops) < most:
            stop = max(stop + 1, bisect_right(upto, upto[stop] + limit, stop) - 1)
            stops.append(stop)
        return stops


def share_of(bytes_per_task: int, part: int, total: int) -> int:
    """Return the bytes per task for a part of the inputs, by its share of all bytes.

    The result is computed in doubles and truncated, as in Java; it is 0 if ``total`` is 0 (NaN in
    Java).
    """
    return int(float(part) / float(total) * bytes_per_task) if total else 0


def first_guess(total: int, bytes_per_task: int, least: int, most: int) -> int:
    """Return how many tasks ``total`` bytes need, within the bounds, before the bytes are cut.

    The quotient is computed in doubles, as in ``DefaultVertexParallelismAndInputInfosDecider``.
    """
    return min(max(math.ceil(float(total) / float(bytes_per_task)), least), most)


def even_spans(count: int, parallelism: int) -> tuple[Span, ...]:
    """Return ``parallelism`` spans of ``count`` elements whose lengths differ by at most one.

    Raises InvalidArgumentError if a span would be empty.
    """
    if parallelism > count:
        raise InvalidArgumentError(
            f"{count} parts cannot be spread over a parallelism of {parallelism}: lower the "
            "minimum parallelism, or produce more subpartitions"
        )
    starts = [turn * count // parallelism for turn in range(parallelism + 1)]
    return tuple(Span(first, stop - 1) for first, stop in pairwise(starts))


def spans_by_bytes(row: Cutter, limit: int, least: int, most: int) -> tuple[Span, ...] | None:
    """Return ranges of about ``limit`` bytes whose number is in ``least`` .. ``most``.

    If there are too many ranges, use the smallest limit that gives at most ``most``. If there are
    too few, find the largest limit that gives at least ``least``; of all limits that give the same
    number, use the smallest, because its ranges are the most even. Return None if there are fewer
    elements than ``least``.
    """
    stops = row.stops(limit, most + 1)
    if not least <= len(stops) <= most:
        stops = row.stops(_fitting_limit(row, limit, least, most, len(stops)), most + 1)
    if least <= len(stops) <= most:
        return tuple(Span(first, stop - 1) for first, stop in pairwise([0, *stops]))
    return None if len(row) < least else even_spans(len(row), min(len(row), most))


def _fitting_limit(row: Cutter, limit: int, least: int, most: int, number: int) -> int:
    if number > most:
        return _least_legal(lambda x: len(row.stops(x, most + 1)) <= most, limit, row.total)
    smallest = min(limit, row.smallest)
    largest = _greatest_legal(lambda x: len(row.stops(x, least)) >= least, smallest, limit)
    # -1 means that no limit was found. It is then used as a limit, as in Flink for sizes of zero.
    wanted = len(row.stops(largest, len(row)))
    return _least_legal(lambda x: len(row.stops(x, wanted + 1)) == wanted, smallest, largest)


def _least_legal(legal: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest legal value (``BisectionSearchUtils``); -1 if ``high`` is not legal."""
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
    """Return the largest legal value (``BisectionSearchUtils``); -1 if ``low`` is not legal."""
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


BYTES_PER_TASK_2022: Final = 1 << 30
"""The default number of bytes that one task should read in these versions: 1 GiB."""


class InputBytes(Protocol):
    """The bytes of one input, and whether every subtask reads all of them."""

    @property
    def size_bytes(self) -> int:
        """The bytes of all parts."""

    @property
    def broadcast(self) -> bool:
        """Whether every subtask reads all parts."""


def parallelism_of_flink_1_16(
    inputs: Sequence[InputBytes],
    *,
    bytes_per_task: int = BYTES_PER_TASK_2022,
    min_parallelism: int = 1,
    max_parallelism: int = 128,
    vertex_max_parallelism: int = MAX_PARALLELISM,
    default_source_parallelism: int = 1,
) -> int:
    """Return the power of two that is nearest to the needed tasks, within the bounds; ties go up.

    First the bounds are narrowed to powers of two, and so is the vertex's own maximum, which takes
    precedence over both. Broadcast bytes reduce the bytes per task, by half of it at most. A vertex
    without inputs is a source: it gets the source default, limited by the vertex's maximum, without
    rounding. Raises InvalidArgumentError for bounds outside of 1..32768, or without a power of two
    between them.

    If more than 2**30 tasks are needed, Flink's rounding overflows its 32 bits. Here the result is
    the maximum, as for any other number that is too large.
    """
    check_positive("bytes_per_task", bytes_per_task)
    check_bounds(min_parallelism, max_parallelism)
    check_bounds(1, vertex_max_parallelism, ("1", "vertex_max_parallelism"))
    check_bounds(1, default_source_parallelism, ("1", "default_source_parallelism"))
    least, most = round_up_to_power_of_two(min_parallelism), _power_of_two_below(max_parallelism)
    if least > most:
        raise InvalidArgumentError(
            f"no power of two is in {min_parallelism}..{max_parallelism}, the range from "
            "minimum to maximum parallelism: change one of them"
        )
    if not inputs:
        return min(default_source_parallelism, vertex_max_parallelism)
    cap = _power_of_two_below(vertex_max_parallelism)
    return min(
        max(_nearest(_needed_tasks(inputs, bytes_per_task, cap)), min(least, cap)), min(most, cap)
    )


def _needed_tasks(inputs: Sequence[InputBytes], bytes_per_task: int, without_room: int) -> int:
    """Return how many tasks the bytes need, given the bytes that are broadcast to each task."""
    broadcast = sum(consumed.size_bytes for consumed in inputs if consumed.broadcast)
    total = sum(consumed.size_bytes for consumed in inputs if not consumed.broadcast)
    room = bytes_per_task - min(broadcast, math.ceil(bytes_per_task * 0.5))
    if not room:  # one byte per task; in Java, division by zero gives infinity, or NaN and then 0
        return without_room if total else 0
    return math.ceil(float(total) / float(room))


def _nearest(number: int) -> int:
    below, above = _power_of_two_below(number), round_up_to_power_of_two(number)
    return below if number < (above + below) // 2 else above


def _power_of_two_below(number: int) -> int:
    return 1 << (number.bit_length() - 1) if number > 0 else 0
