"""Choose the parallelism of a batch vertex, and the data that each subtask reads, from its input.

It follows ``DefaultVertexParallelismAndInputInfosDecider`` of Flink 2.3, which the adaptive batch
scheduler calls once the inputs of a vertex are complete:

1. The first guess is the number of bytes that are not broadcast, divided by the bytes per task,
   within the bounds.
2. Each input is cut into contiguous ranges by bytes (``parallelism.py``). The number of ranges *is*
   the parallelism, so it may differ from the guess.
3. Inputs whose keys must meet are cut together, and a skewed subpartition may be split. The other
   inputs are then cut for this parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Final, NamedTuple

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.parallelism import (
    Cutter,
    SizeCutter,
    Span,
    check_bounds,
    check_bytes,
    check_positive,
    even_spans,
    first_guess,
    share_of,
    spans_by_bytes,
)
from statestore.keys.groups import MAX_PARALLELISM

__all__ = [
    "BYTES_PER_TASK",
    "DEFAULT_MAX_PARALLELISM",
    "BatchDecision",
    "ByteTable",
    "ConsumedInput",
    "Group",
    "Options",
    "Slice",
    "Span",
    "aligned_slices",
    "cells",
    "columns",
    "cutter_of",
    "decide",
    "groups_by_number",
    "groups_of",
    "joined_slices",
]


# Slices: the parts of an input that are assigned to subtasks; a skewed subpartition has several.
#
# An input's bytes form a table, with one row per partition (the output of one upstream subtask) and
# one column per subpartition (the data of one range of keys). It follows
# ``AggregatedBlockingInputInfo``, ``AllToAllVertexInputInfoComputer`` and
# ``PointwiseVertexInputInfoComputer`` of Flink 2.3. Data that must stay together, such as the data
# of a key group, is never split.


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


BYTES_PER_TASK: Final = 16 << 20
"""The default number of bytes that one task should read: 16 MiB."""

DEFAULT_MAX_PARALLELISM: Final = 128
"""The default of the largest parallelism."""

_SLICES_PER_SUBTASK: Final = 32  # of a pointwise input; more would only cost time

Groups = tuple[tuple[Group, ...], ...]
_Inputs = Mapping[int, "ConsumedInput"]


@dataclass(frozen=True, slots=True)
class ConsumedInput:
    """One input of a vertex: the bytes of each subpartition of each partition, and its pattern.

    ``type_number`` is its side of a join. With ``inter_correlated`` the keys of this input and of
    the others must meet in one subtask. With ``intra_correlated`` a subpartition stays in one
    subtask (for a pointwise input, a partition does). ``pointwise`` and ``broadcast`` are the
    patterns other than all-to-all by key. For a pointwise input ``type_number`` and
    ``inter_correlated`` are ignored. Raises InvalidArgumentError for an empty or ragged table, for
    sizes that are not bytes, and for a pointwise input that is also broadcast.
    """

    partitions: Sequence[Sequence[int]]
    type_number: int = 0
    broadcast: bool = False
    pointwise: bool = False
    inter_correlated: bool = True
    intra_correlated: bool = True

    def __post_init__(self) -> None:
        # Convert the given sequences to tuples, so that the value is immutable.
        object.__setattr__(self, "partitions", tuple(map(tuple, self.partitions)))
        widths = [len(sizes) for sizes in self.partitions]
        if not widths or not widths[0]:
            raise InvalidArgumentError(
                "an input needs at least one partition with at least one subpartition"
            )
        for row, sizes in enumerate(self.partitions):
            if widths[row] != widths[0]:
                raise InvalidArgumentError(
                    f"partition {row} has {widths[row]} subpartitions and partition 0 has "
                    f"{widths[0]}: all partitions of an input need the same number"
                )
            for index, size in enumerate(sizes):
                check_bytes(f"partition {row}, subpartition {index}", size)
        if self.pointwise and self.broadcast:
            raise InvalidArgumentError("an input is either pointwise or broadcast, not both")

    @property
    def subpartitions(self) -> int:
        """The number of subpartitions of each partition."""
        return len(self.partitions[0])

    @property
    def size_bytes(self) -> int:
        """The bytes of all partitions."""
        return sum(map(sum, self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The bounds of a decision; the defaults are Flink's.

    ``vertex_…`` are the vertex's own settings. Its maximum takes precedence over
    ``min_parallelism``, and ``vertex_parallelism`` is the explicit parallelism of a source.
    ``default_source_parallelism`` None stands for ``max_parallelism``. A subpartition is skewed if
    it has more bytes than ``skewed_factor`` times the median and than ``skewed_threshold``. Raises
    InvalidArgumentError for a value out of bounds.
    """

    bytes_per_task: int = BYTES_PER_TASK
    min_parallelism: int = 1
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    default_source_parallelism: int | None = None
    vertex_parallelism: int | None = None
    vertex_min_parallelism: int | None = None
    vertex_max_parallelism: int = MAX_PARALLELISM
    skewed_factor: float = 4.0
    skewed_threshold: int = 256 << 20

    def __post_init__(self) -> None:
        check_positive("bytes_per_task", self.bytes_per_task)
        check_bounds(self.min_parallelism, self.max_parallelism)
        check_positive("skewed_threshold", self.skewed_threshold)
        if not 0 < self.skewed_factor < float("inf"):
            raise InvalidArgumentError(f"skewed_factor must be above 0, not {self.skewed_factor}")
        if self.default_source_parallelism is not None:
            check_positive("default_source_parallelism", self.default_source_parallelism)
        highest = self.vertex_max_parallelism
        check_bounds(1, highest, ("1", "vertex_max_parallelism"))
        for name in ("vertex_parallelism", "vertex_min_parallelism"):
            if (value := getattr(self, name)) is not None:
                check_bounds(value, highest, (name, "vertex_max_parallelism"))

    def source_parallelism(self) -> int:
        """Return the parallelism of a vertex without inputs."""
        if self.vertex_parallelism is not None:
            return self.vertex_parallelism
        wanted = self.default_source_parallelism or self.max_parallelism
        return min(wanted, self.vertex_max_parallelism)

    def bounds(self) -> tuple[int, int]:
        """Return the smallest and the largest parallelism of a vertex with inputs.

        Raises InvalidArgumentError if the vertex's minimum is above the overall maximum, or if its
        parallelism is set explicitly.
        """
        if self.vertex_parallelism is not None:
            raise InvalidArgumentError(
                f"vertex_parallelism {self.vertex_parallelism} is set although the vertex has "
                "inputs, from which its parallelism is computed; remove it, or set the "
                "minimum and maximum parallelism to this value"
            )
        least = max(self.min_parallelism, self.vertex_min_parallelism or 1)
        least = min(least, self.vertex_max_parallelism)
        most = min(self.max_parallelism, self.vertex_max_parallelism)
        check_bounds(least, most, ("vertex_min_parallelism", "max_parallelism"))
        return least, most


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """A parallelism, and per input the groups that each subtask reads; see :func:`decide`.

    The groups of a subtask are in order of partitions and contain all of its data exactly once.
    ``first_guess`` is the number of bytes that are not broadcast, divided by the bytes per task,
    within the bounds.
    """

    parallelism: int
    inputs: tuple[Groups, ...]
    first_guess: int

    def by_first_partition(self) -> tuple[Groups, ...]:
        """Return ``inputs`` with at most one group for each first partition of a subtask.

        Split subpartitions can make two groups of a subtask start at the same partition. Then only
        the group with the lower subpartitions is included. Use it to compare with listings of this
        form; to read data, use ``inputs``.
        """
        return tuple(tuple(map(_reader_groups, subtasks)) for subtasks in self.inputs)


def decide(inputs: Sequence[ConsumedInput], options: Options | None = None) -> BatchDecision:
    """Return the parallelism of a vertex with these inputs, and the input of each subtask.

    Raises InvalidArgumentError if no parallelism within the bounds is possible (usually because
    there are too few subpartitions), or if the inputs contradict each other.
    """
    options = options or Options()
    if not inputs:
        alone = options.source_parallelism()
        return BatchDecision(alone, (), alone)
    per_task = options.bytes_per_task
    first = guess = _first_bounds(inputs, per_task, *options.bounds())
    numbered = dict(enumerate(inputs))
    aligned = {number: consumed for number, consumed in numbered.items() if consumed.pointwise}
    spread = {number: consumed for number, consumed in numbered.items() if not consumed.pointwise}
    if aligned and not all(consumed.broadcast for consumed in spread.values()):
        guess = _Bounds(guess.guess, guess.guess, guess.guess)
    groups: dict[int, Groups] = {}
    if aligned:
        groups |= _cut_aligned(aligned, _share_of_limit(per_task, aligned, numbered), guess)
        guess = _bounds_after_cut(groups)
    if spread:
        groups |= _cut_all_to_all(
            spread, _share_of_limit(per_task, spread, numbered), guess, options
        )
    parallelism = _bounds_after_cut(groups).guess
    for number, consumed in numbered.items():
        _check_room(number, consumed, parallelism)
    return BatchDecision(parallelism, tuple(groups[number] for number in numbered), first.guess)


class _Bounds(NamedTuple):
    guess: int
    least: int
    most: int


def _bounds_after_cut(groups: Mapping[int, Groups]) -> _Bounds:
    """Return the bounds for the remaining inputs, once some inputs are cut."""
    parallelism = len(next(iter(groups.values())))
    return _Bounds(parallelism, parallelism, parallelism)


def _first_bounds(inputs: Sequence[ConsumedInput], per_task: int, least: int, most: int) -> _Bounds:
    sizes = [consumed.size_bytes for consumed in inputs if not consumed.broadcast]
    guess = first_guess(sum(sizes), per_task, least, most) if sizes else least
    return _Bounds(guess, least, most)


def _share_of_limit(limit: int, part: _Inputs, total: _Inputs) -> int:
    part_bytes = sum(consumed.size_bytes for consumed in part.values())
    return share_of(limit, part_bytes, sum(consumed.size_bytes for consumed in total.values()))


def _cut_aligned(inputs: _Inputs, limit: int, bounds: _Bounds) -> dict[int, Groups]:
    """Cut pointwise inputs together: their i-th slices go to the same subtask."""
    kept = {len(consumed.partitions) for consumed in inputs.values() if consumed.intra_correlated}
    if len(kept) > 1:
        raise InvalidArgumentError(
            f"pointwise inputs that keep partitions whole have {sorted(kept)} partitions: "
            "they must all have the same number"
        )
    cell_counts = [
        len(consumed.partitions) * consumed.subpartitions for consumed in inputs.values()
    ]
    count = kept.pop() if kept else min(*cell_counts, _SLICES_PER_SUBTASK * bounds.most)
    sides = {
        number: aligned_slices(consumed.partitions, count) for number, consumed in inputs.items()
    }
    spans = spans_by_bytes(cutter_of(list(sides.values())), limit, bounds.least, bounds.most)
    if spans is None:
        return {
            number: groups_by_number(len(consumed.partitions), consumed.subpartitions, bounds.guess)
            for number, consumed in inputs.items()
        }
    return {number: _groups(consumed, sides[number], spans) for number, consumed in inputs.items()}


def _cut_all_to_all(
    inputs: _Inputs, limit: int, bounds: _Bounds, options: Options
) -> dict[int, Groups]:
    """Cut all-to-all inputs: together if their keys must meet, and then one by one."""
    joined = {number: consumed for number, consumed in inputs.items() if consumed.inter_correlated}
    alone = {
        number: consumed for number, consumed in inputs.items() if not consumed.inter_correlated
    }
    groups: dict[int, Groups] = {}
    if joined:
        groups |= _cut_joined(joined, _share_of_limit(limit, joined, inputs), bounds, options)
        bounds = _bounds_after_cut(groups)
    rest = _share_of_limit(limit, alone, inputs)
    for number, consumed in alone.items():
        groups[number] = _cut_alone(
            consumed, _share_of_limit(rest, {number: consumed}, alone), bounds.guess
        )
    return groups


def _cut_joined(
    inputs: _Inputs, limit: int, bounds: _Bounds, options: Options
) -> dict[int, Groups]:
    sides: dict[int, list[ConsumedInput]] = {}
    for consumed in sorted(inputs.values(), key=lambda consumed: consumed.type_number):
        if not consumed.broadcast:
            sides.setdefault(consumed.type_number, []).append(consumed)
    if not sides:
        return {
            number: _whole_groups(consumed, bounds.guess) for number, consumed in inputs.items()
        }
    widths = {consumed.subpartitions for side in sides.values() for consumed in side}
    if len(widths) > 1:
        raise InvalidArgumentError(
            f"inputs whose keys must meet have {sorted(widths)} subpartitions: they must all "
            "have the same number"
        )
    for type_number, side in sides.items():
        if len({consumed.intra_correlated for consumed in side}) > 1:
            raise InvalidArgumentError(
                f"the inputs of type number {type_number} differ in intra_correlated: give "
                "all of them the same value"
            )
    tables = [
        ([consumed.partitions for consumed in side], not side[0].intra_correlated)
        for side in sides.values()
    ]
    slices = joined_slices(tables, limit, options.skewed_factor, options.skewed_threshold)
    spans = spans_by_bytes(cutter_of(slices), limit, bounds.least, bounds.most)
    if spans is None:
        raise _too_few_error(f"{widths.pop()} subpartitions", bounds.guess)
    of_type = dict(zip(sides, slices, strict=True))
    return {
        number: _whole_groups(consumed, len(spans))
        if consumed.broadcast
        else _groups(consumed, of_type[consumed.type_number], spans)
        for number, consumed in inputs.items()
    }


def _cut_alone(consumed: ConsumedInput, limit: int, parallelism: int) -> Groups:
    if consumed.broadcast:
        return _whole_groups(consumed, parallelism)
    slices = (
        columns(consumed.partitions) if consumed.intra_correlated else cells(consumed.partitions)
    )
    spans = spans_by_bytes(cutter_of([slices]), limit, parallelism, parallelism)
    if spans is None:
        raise _too_few_error(f"{consumed.subpartitions} subpartitions", parallelism)
    return _groups(consumed, slices, spans)


def _groups(consumed: ConsumedInput, slices: Sequence[Slice], spans: Sequence[Span]) -> Groups:
    return tuple(
        groups_of(
            slices[span.first : span.last + 1],
            len(consumed.partitions),
            pointwise=consumed.pointwise,
        )
        for span in spans
    )


def _whole_groups(consumed: ConsumedInput, parallelism: int) -> Groups:
    everything = Group(Span(0, len(consumed.partitions) - 1), Span(0, consumed.subpartitions - 1))
    return ((everything,),) * parallelism


def _check_room(number: int, consumed: ConsumedInput, parallelism: int) -> None:
    """Refuse more subtasks than an even split by number has parts.

    Flink also computes that split, to log the effect of cutting by bytes, and fails if it is
    impossible. So an all-to-all input never has more subtasks than subpartitions.
    """
    if consumed.broadcast:
        return
    parts = consumed.subpartitions * (len(consumed.partitions) if consumed.pointwise else 1)
    if parallelism > parts:
        unit = "cells" if consumed.pointwise else "subpartitions"
        raise _too_few_error(f"the {parts} {unit} of input {number}", parallelism)


def _too_few_error(what: str, parallelism: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{what} are too few for a parallelism of {parallelism}: lower the minimum parallelism, or "
        "produce more subpartitions"
    )


def _reader_groups(groups: Iterable[Group]) -> tuple[Group, ...]:
    first: dict[int, Group] = {}
    for group in sorted(groups, key=lambda group: group.subpartitions):
        first.setdefault(group.partitions.first, group)
    return tuple(sorted(first.values()))
