"""Slices: the parts of an input that are assigned to subtasks; a skewed subpartition has several.

An input's bytes form a table, with one row per partition (the output of one upstream subtask) and
one column per subpartition (the data of one range of keys). It follows
``AggregatedBlockingInputInfo``, ``AllToAllVertexInputInfoComputer`` and
``PointwiseVertexInputInfoComputer`` of Flink 2.3. Data that must stay together, such as the data
of a key group, is never split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, product
from typing import NamedTuple

from statestore.jobgraph.parallelism import Cutter, SizeCutter, Span, even_spans

ByteTable = Sequence[Sequence[int]]


class Slice(NamedTuple):
    """A rectangle of an input's table, and its size in bytes."""

    partitions: Span
    subpartitions: Span
    size: int


class Group(NamedTuple):
    """A part of a subtask's input: each of these subpartitions of each of these partitions."""

    partitions: Span
    subpartitions: Span


class _DistinctCutter:
    """Cuts combinations of slices. A slice that is repeated in a range is read and counted once.

    The first combination of a range counts in full, as in the upper bound of the search.
    """

    def __init__(self, combinations: Sequence[tuple[Slice, ...]]) -> None:
        self._combinations = combinations
        sizes = [_size(combination) for combination in combinations]
        self.total, self.smallest = sum(sizes), min(sizes)

    def __len__(self) -> int:
        return len(self._combinations)

    def stops(self, limit: int, most: int) -> list[int]:
        stops: list[int] = []
        held: set[tuple[int, Slice]] = set()
        size = 0
        for index, combination in enumerate(self._combinations):
            fresh = set(enumerate(combination)) - held
            size += sum(part.size for _, part in fresh)
            if held and size > limit:
                stops.append(index)
                if len(stops) >= most:
                    return stops
                size = _size(combination)
                held, fresh = set(), set(enumerate(combination))
            held |= fresh
        return [*stops, len(self)]


def cutter_of(sides: Sequence[Sequence[Slice]]) -> Cutter:
    """Return a cutter for sides that are read together: their i-th slices form one combination.

    Slices that recur, as in a product of split sides, are counted once per range.
    """
    combinations = list(zip(*sides, strict=True))
    if all(len(set(side)) == len(side) for side in sides):
        return SizeCutter([_size(combination) for combination in combinations])
    return _DistinctCutter(combinations)


def joined_slices(
    sides: Sequence[tuple[Sequence[ByteTable], bool]], limit: int, factor: float, threshold: int
) -> list[list[Slice]]:
    """Return the slices of inputs whose keys must meet, with equally many slices for each side.

    A side is its tables, and whether its subpartitions may be split. A subpartition is split if it
    has more bytes than ``factor`` times the side's median, and more than ``threshold``. Then every
    piece of one side must meet every piece of the others.
    """
    pieces = [_slice_pieces(tables, split, limit, factor, threshold) for tables, split in sides]
    rows = [row for parts in zip(*pieces, strict=True) for row in product(*parts)]
    return [list(side) for side in zip(*rows, strict=True)]


def _slice_pieces(
    tables: Sequence[ByteTable], split: bool, limit: int, factor: float, threshold: int
) -> Iterator[list[Slice]]:
    """Yield the slices of each subpartition in turn; sizes are summed over one side's inputs."""
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
            for rows in _spans_below(column, target)
        ]


def _spans_below(sizes: Sequence[int], target: int) -> Iterator[Span]:
    """Yield spans of less than ``target`` bytes, each with at least one element."""
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
    """Return a slice for each subpartition, that is one range of keys in all partitions."""
    rows = Span(0, len(table) - 1)
    sizes = (sum(column) for column in zip(*table, strict=True))
    return [Slice(rows, Span(index, index), size) for index, size in enumerate(sizes)]


def cells(table: ByteTable) -> list[Slice]:
    """Return a slice for each subpartition of each partition, partition by partition."""
    return [
        Slice(Span(row, row), Span(index, index), size)
        for row, sizes in enumerate(table)
        for index, size in enumerate(sizes)
    ]


def aligned_slices(table: ByteTable, count: int) -> list[Slice]:
    """Return ``count`` slices with nearly equal numbers of cells.

    Each slice consists of whole partitions, or is a part of a single partition. Raises
    InvalidArgumentError if there are fewer cells than ``count``.
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
    """Return the groups that a subtask with these slices reads from an input, in order.

    Slices are merged into few groups. For a pointwise input they are merged along subpartitions
    first, so that no partition is in two groups. For any other input they are merged along
    partitions first, so that no subpartition is in two groups.
    """
    lines: dict[Span, list[Span]] = {}
    for piece in slices:
        rows = Span(piece.partitions.first, min(piece.partitions.last, partitions - 1))
        line, place = (rows, piece.subpartitions) if pointwise else (piece.subpartitions, rows)
        lines.setdefault(line, []).append(place)
    alike: dict[Span, list[Span]] = {}
    for line, places in lines.items():
        for place in _merge_spans(places):
            alike.setdefault(place, []).append(line)
    pairs = [(line, place) for place, lines in alike.items() for line in _merge_spans(lines)]
    groups = [Group(*pair) if pointwise else Group(*reversed(pair)) for pair in pairs]
    return tuple(sorted(groups))


def groups_by_number(
    partitions: int, subpartitions: int, parallelism: int
) -> tuple[tuple[Group, ...], ...]:
    """Return the input of each subtask by number, if a pointwise input cannot be cut by bytes.

    If there are fewer partitions than subtasks, several subtasks share the subpartitions of one
    partition. This fallback follows ``VertexInputInfoComputationUtils``.
    """
    full = Span(0, subpartitions - 1)
    if partitions >= parallelism:
        return tuple((Group(rows, full),) for rows in even_spans(partitions, parallelism))
    groups: list[tuple[Group, ...]] = []
    for row in range(partitions):
        stop = ((row + 1) * parallelism + partitions - 1) // partitions
        readers = stop - len(groups)
        parts = even_spans(subpartitions, readers)
        groups += [
            (Group(Span(row, row), parts[subtask % readers]),)
            for subtask in range(len(groups), stop)
        ]
    return tuple(groups)


def _merge_spans(spans: Iterable[Span]) -> list[Span]:
    """Return the spans in order, with touching and overlapping ones merged."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.first <= merged[-1].last + 1:
            merged[-1] = Span(merged[-1].first, max(merged[-1].last, span.last))
        else:
            merged.append(span)
    return merged


def _size(combination: Iterable[Slice]) -> int:
    return sum(part.size for part in combination)
