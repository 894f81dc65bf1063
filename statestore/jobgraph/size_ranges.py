"""Cut a row of sizes into contiguous ranges, so that the number of ranges is a parallelism.

It follows ``VertexParallelismAndInputInfosDeciderUtils`` of Flink 2.3. Each range is filled up to
a number of bytes. If that gives too few or too many ranges, a bisection finds the number of bytes
that gives an allowed number of ranges. If none does, the row is cut evenly by
count.

Flink adds up all sizes in each step of the bisection. Here a step jumps from range to range over
prefix sums, and stops as soon as the answer is known. The resulting ranges are the same.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

from statestore.errors import InvalidArgumentError

__all__ = [
    "Cutter",
    "SizeCutter",
    "Span",
    "even_spans",
    "first_guess",
    "share_of",
    "spans_by_bytes",
]


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
