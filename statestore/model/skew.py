"""What can be handed out of an input: slices of its bytes, skewed subpartitions split into several.

An input's bytes form a table: one row per partition (what one upstream subtask wrote), one column
per subpartition (what belongs to one range of keys). Follows ``AggregatedBlockingInputInfo``,
``AllToAllVertexInputInfoComputer`` and ``PointwiseVertexInputInfoComputer`` of Flink 2.3. Data that
has to stay together, as that of a key group has, is never split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import NamedTuple

from statestore.model.byte_ranges import Cutter, SizeCutter, Span, even_spans

__all__ = [
    "ByteTable",
    "Group",
    "Slice",
    "aligned_slices",
    "cells",
    "columns",
    "cutter_of",
    "groups_by_number",
    "groups_of",
    "joined_slices",
]

ByteTable = Sequence[Sequence[int]]


class Slice(NamedTuple):
    """A rectangle of an input's table, and the bytes in it."""

    partitions: Span
    subpartitions: Span
    size: int


class Group(NamedTuple):
    """What a subtask reads: of each of these partitions, each of these subpartitions."""

    partitions: Span
    subpartitions: Span


class _DistinctCutter:
    """Combinations of slices; one that a range already holds is read once, and counts once.

    The first combination of a range counts in full, as does the search's upper bound.
    """

    def __init__(self, combinations: Sequence[tuple[Slice, ...]]) -> None:
        self._combinations = combinations
        sizes = [_size(one) for one in combinations]
        self.total, self.smallest = sum(sizes), min(sizes)

    def __len__(self) -> int:
        return len(self._combinations)

    def stops(self, limit: int, most: int) -> list[int]:
        found: list[int] = []
        held: set[tuple[int, Slice]] = set()
        size = 0
        for index, combination in enumerate(self._combinations):
            fresh = set(enumerate(combination)) - held
            size += sum(one.size for _, one in fresh)
            if held and size > limit:
                found.append(index)
                if len(found) >= most:
                    return found
                size = _size(combination)
                held, fresh = set(), set(enumerate(combination))
            held |= fresh
        return [*found, len(self)]


def cutter_of(sides: Sequence[Sequence[Slice]]) -> Cutter:
    """How to cut sides that are read together: the i-th slice of one with the i-th of the others.

    Slices that recur, which a product of split sides has, are counted once in each range.
    """
    combinations = list(zip(*sides, strict=True))
    if all(len(set(side)) == len(side) for side in sides):
        return SizeCutter([_size(one) for one in combinations])
    return _DistinctCutter(combinations)


def joined_slices(
    sides: Sequence[tuple[Sequence[ByteTable], bool]], limit: int, factor: float, threshold: int
) -> list[list[Slice]]:
    """The slices of inputs whose keys must meet, side by side: equally many of each side.

    A side is its tables, and whether a subpartition of it may be split. One that holds more bytes
    than ``factor`` times the side's median, and more than ``threshold``, is; every piece of one
    side then has to meet every piece of the others.
    """
    pieces = [_pieces(tables, split, limit, factor, threshold) for tables, split in sides]
    rows = [row for parts in zip(*pieces, strict=True) for row in product(*parts)]
    return [list(side) for side in zip(*rows, strict=True)]


def _pieces(
    tables: Sequence[ByteTable], split: bool, limit: int, factor: float, threshold: int
) -> Iterator[list[Slice]]:
    """The slices of each subpartition in turn, those of one side's inputs added up."""
    sizes = [sum(column) for column in zip(*chain.from_iterable(tables), strict=True)]
    partitions = {len(table) for table in tables}
    skewed = int(max(_median(sizes) * factor, float(threshold)))
    others = [size for size in sizes if size <= skewed]
    target = max(limit, sum(others) // len(others)) if others else limit
    whole = Span(0, max(partitions) - 1)
    for index, size in enumerate(sizes):
        if not split or len(partitions) > 1 or size <= skewed:
            yield [Slice(whole, Span(index, index), size)]
            continue
        column = [sum(table[row][index] for table in tables) for row in range(whole.last + 1)]
        yield [
            Slice(rows, Span(index, index), sum(column[rows.first : rows.last + 1]))
            for rows in _below(column, target)
        ]


def _below(sizes: Sequence[int], target: int) -> Iterator[Span]:
    """Spans that stay under ``target`` bytes; one element at least."""
    start, held = 0, 0
    for index, size in enumerate(sizes):
        if index > start and held + size >= target:
            yield Span(start, index - 1)
            start, held = index, 0
        held += size
    yield Span(start, len(sizes) - 1)


def _median(sizes: Sequence[int]) -> int:
    ordered, half = sorted(sizes), len(sizes) // 2
    middle = ordered[half] if len(sizes) % 2 else (ordered[half] + ordered[half - 1]) // 2
    return max(middle, 1)


def columns(table: ByteTable) -> list[Slice]:
    """A slice for each subpartition: what one range of keys holds, of all partitions."""
    rows = Span(0, len(table) - 1)
    sizes = (sum(column) for column in zip(*table, strict=True))
    return [Slice(rows, Span(index, index), size) for index, size in enumerate(sizes)]


def cells(table: ByteTable) -> list[Slice]:
    """A slice for each subpartition of each partition, partition by partition."""
    return [
        Slice(Span(row, row), Span(index, index), size)
        for row, sizes in enumerate(table)
        for index, size in enumerate(sizes)
    ]


def aligned_slices(table: ByteTable, count: int) -> list[Slice]:
    """``count`` slices of nearly equal numbers of cells: whole partitions, or parts of single ones.

    Raises InvalidArgumentError when there are not that many cells.
    """
    width = len(table[0])
    if len(table) >= count:
        full = Span(0, width - 1)
        return [
            Slice(rows, full, sum(map(sum, table[rows.first : rows.last + 1])))
            for rows in even_spans(len(table), count)
        ]
    return [
        Slice(Span(row, row), part, sum(table[row][part.first : part.last + 1]))
        for row, share in enumerate(even_spans(count, len(table)))
        for part in even_spans(width, share.last - share.first + 1)
    ]


def groups_of(slices: Iterable[Slice], partitions: int, *, pointwise: bool) -> tuple[Group, ...]:
    """What a subtask with these slices reads of an input with so many partitions, in order.

    Slices are put together into few groups: of a pointwise input first along subpartitions, so that
    no partition is in two groups; of any other first along partitions, so that no subpartition is.
    """
    lines: dict[Span, list[Span]] = {}
    for one in slices:
        rows = Span(one.partitions.first, min(one.partitions.last, partitions - 1))
        line, place = (rows, one.subpartitions) if pointwise else (one.subpartitions, rows)
        lines.setdefault(line, []).append(place)
    alike: dict[Span, list[Span]] = {}
    for line, places in lines.items():
        for place in _merged(places):
            alike.setdefault(place, []).append(line)
    pairs = [(line, place) for place, found in alike.items() for line in _merged(found)]
    groups = [Group(*pair) if pointwise else Group(*reversed(pair)) for pair in pairs]
    return tuple(sorted(groups))


def groups_by_number(
    partitions: int, subpartitions: int, parallelism: int
) -> tuple[tuple[Group, ...], ...]:
    """What each subtask reads when a pointwise input cannot be cut by bytes: shared by number.

    With fewer partitions than subtasks, several subtasks share the subpartitions of one. The last
    resort, ``VertexInputInfoComputationUtils``.
    """
    full = Span(0, subpartitions - 1)
    if partitions >= parallelism:
        return tuple((Group(rows, full),) for rows in even_spans(partitions, parallelism))
    found: list[tuple[Group, ...]] = []
    for row in range(partitions):
        stop = ((row + 1) * parallelism + partitions - 1) // partitions
        readers = stop - len(found)
        parts = even_spans(subpartitions, readers)
        found += [
            (Group(Span(row, row), parts[subtask % readers]),)
            for subtask in range(len(found), stop)
        ]
    return tuple(found)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, those that touch or overlap made one."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.first <= merged[-1].last + 1:
            merged[-1] = Span(merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return merged


def _size(combination: Iterable[Slice]) -> int:
    return sum(one.size for one in combination)
