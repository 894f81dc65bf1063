"""How many subtasks a batch vertex gets, and which of them reads what, from the bytes it consumes.

Follows ``DefaultVertexParallelismAndInputInfosDecider`` of Flink 2.3, which the adaptive batch
scheduler asks once the inputs of a vertex are complete:

1. A first guess: all bytes that are not broadcast, divided by the bytes per task, in the bounds.
2. Each input is cut into contiguous ranges by bytes (``parallelism.py``). How many there are *is*
   the parallelism, so it may differ from the guess.
3. Inputs whose keys have to meet are cut together, and a skewed subpartition may be split
   (``skew.py``); the others follow at the parallelism that is then fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Final, NamedTuple

from statestore.errors import InvalidArgumentError
from statestore.flink.parallelism import (
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
    "ByteTable",
    "ConsumedInput",
    "Decision",
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


# What can be handed out of an input: slices of its bytes, skewed subpartitions split into several.
#
# An input's bytes form a table: one row per partition (what one upstream subtask wrote), one column
# per subpartition (what belongs to one range of keys). Follows ``AggregatedBlockingInputInfo``,
# ``AllToAllVertexInputInfoComputer`` and ``PointwiseVertexInputInfoComputer`` of Flink 2.3. Data
# that has to stay together, as that of a key group has, is never split.


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


BYTES_PER_TASK: Final = 16 << 20
"""What one task is meant to read when nothing is configured: 16 MiB."""

DEFAULT_MAX_PARALLELISM: Final = 128
"""The largest parallelism when nothing is configured."""

_SLICES_PER_SUBTASK: Final = 32  # of a pointwise input; more would only cost time

Groups = tuple[tuple[Group, ...], ...]
_Inputs = Mapping[int, "ConsumedInput"]


@dataclass(frozen=True, slots=True)
class ConsumedInput:
    """One input of a vertex: bytes of each subpartition, for each partition, and how it is read.

    ``type_number`` says which side of a join it is. With ``inter_correlated`` the keys of this
    input and of the others have to meet in one subtask, with ``intra_correlated`` a subpartition
    stays in one subtask (of a pointwise input: a partition). ``pointwise`` and ``broadcast`` are
    the patterns that are not all-to-all by key; of a pointwise input ``type_number`` and
    ``inter_correlated`` say nothing. Raises InvalidArgumentError for a table that is empty or
    ragged, for what is not bytes, and for a pointwise input that is also broadcast.
    """

    partitions: Sequence[Sequence[int]]
    type_number: int = 0
    broadcast: bool = False
    pointwise: bool = False
    inter_correlated: bool = True
    intra_correlated: bool = True

    def __post_init__(self) -> None:
        # Kept as tuples, whatever was given: a value does not change.
        object.__setattr__(self, "partitions", tuple(map(tuple, self.partitions)))
        widths = [len(sizes) for sizes in self.partitions]
        if not widths or not widths[0]:
            raise InvalidArgumentError("an input needs a partition with a subpartition")
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
        """How many subpartitions each partition has."""
        return len(self.partitions[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of all partitions."""
        return sum(map(sum, self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What bounds a decision; the defaults are Flink's.

    ``vertex_…`` are the vertex's own: its maximum is stronger than ``min_parallelism``, and
    ``vertex_parallelism`` is that of a source set by hand. ``default_source_parallelism`` is
    ``max_parallelism`` when None. A subpartition is skewed above ``skewed_factor`` times the median
    and ``skewed_threshold`` bytes. Raises InvalidArgumentError for a value out of its bounds.
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
        """The parallelism of a vertex without inputs."""
        if self.vertex_parallelism is not None:
            return self.vertex_parallelism
        wanted = self.default_source_parallelism or self.max_parallelism
        return min(wanted, self.vertex_max_parallelism)

    def bounds(self) -> tuple[int, int]:
        """The least and the largest parallelism of a vertex with inputs.

        Raises InvalidArgumentError when the vertex's minimum is above the maximum of all, or when
        its parallelism is set by hand.
        """
        if self.vertex_parallelism is not None:
            raise InvalidArgumentError(
                f"vertex_parallelism {self.vertex_parallelism} is set and the vertex has inputs: "
                "there is nothing to decide; leave it out, or set the bounds to it"
            )
        least = max(self.min_parallelism, self.vertex_min_parallelism or 1)
        least = min(least, self.vertex_max_parallelism)
        most = min(self.max_parallelism, self.vertex_max_parallelism)
        check_bounds(least, most, ("vertex_min_parallelism", "max_parallelism"))
        return least, most


@dataclass(frozen=True, slots=True)
class Decision:
    """A parallelism, and per input what each of its subtasks reads; from :func:`decide`.

    The groups of one subtask are in order of partitions and hold all of its data, each part once.
    ``first_guess`` is all bytes that are not broadcast by the bytes per task, within the bounds.
    """

    parallelism: int
    inputs: tuple[Groups, ...]
    first_guess: int

    def by_first_partition(self) -> tuple[Groups, ...]:
        """``inputs`` as a listing that knows one group for each first partition of a subtask.

        Where two groups of a subtask begin at one partition, which only split subpartitions bring
        about, just the one with the lower subpartitions is listed. For comparing with such
        listings; to read data, use ``inputs``.
        """
        return tuple(tuple(map(_listed, subtasks)) for subtasks in self.inputs)


def decide(inputs: Sequence[ConsumedInput], options: Options | None = None) -> Decision:
    """The parallelism of a vertex with these inputs, and what each subtask reads of them.

    Raises InvalidArgumentError when no parallelism within the bounds is possible (too few
    subpartitions, above all), or when the inputs contradict each other.
    """
    options = options or Options()
    if not inputs:
        alone = options.source_parallelism()
        return Decision(alone, (), alone)
    per_task = options.bytes_per_task
    first = guess = _guess(inputs, per_task, *options.bounds())
    numbered = dict(enumerate(inputs))
    aligned = {number: one for number, one in numbered.items() if one.pointwise}
    spread = {number: one for number, one in numbered.items() if not one.pointwise}
    if aligned and not all(one.broadcast for one in spread.values()):
        guess = _Bounds(guess.guess, guess.guess, guess.guess)
    found: dict[int, Groups] = {}
    if aligned:
        found |= _aligned(aligned, _share(per_task, aligned, numbered), guess)
        guess = _fixed(found)
    if spread:
        found |= _spread(spread, _share(per_task, spread, numbered), guess, options)
    parallelism = _fixed(found).guess
    for number, one in numbered.items():
        _check_room(number, one, parallelism)
    return Decision(parallelism, tuple(found[number] for number in numbered), first.guess)


class _Bounds(NamedTuple):
    guess: int
    least: int
    most: int


def _fixed(found: Mapping[int, Groups]) -> _Bounds:
    """The bounds of what is still to be cut, once some inputs are."""
    parallelism = len(next(iter(found.values())))
    return _Bounds(parallelism, parallelism, parallelism)


def _guess(inputs: Sequence[ConsumedInput], per_task: int, least: int, most: int) -> _Bounds:
    sizes = [one.size_bytes for one in inputs if not one.broadcast]
    guess = first_guess(sum(sizes), per_task, least, most) if sizes else least
    return _Bounds(guess, least, most)


def _share(limit: int, some: _Inputs, of: _Inputs) -> int:
    part = sum(one.size_bytes for one in some.values())
    return share_of(limit, part, sum(one.size_bytes for one in of.values()))


def _aligned(inputs: _Inputs, limit: int, bounds: _Bounds) -> dict[int, Groups]:
    """Pointwise inputs, cut together: the i-th slices of all of them go to one subtask."""
    kept = {len(one.partitions) for one in inputs.values() if one.intra_correlated}
    if len(kept) > 1:
        raise InvalidArgumentError(
            f"pointwise inputs that keep partitions whole have {sorted(kept)} partitions: they "
            "need the same number"
        )
    cell_counts = [len(one.partitions) * one.subpartitions for one in inputs.values()]
    count = kept.pop() if kept else min(*cell_counts, _SLICES_PER_SUBTASK * bounds.most)
    sides = {number: aligned_slices(one.partitions, count) for number, one in inputs.items()}
    spans = spans_by_bytes(cutter_of(list(sides.values())), limit, bounds.least, bounds.most)
    if spans is None:
        return {
            number: groups_by_number(len(one.partitions), one.subpartitions, bounds.guess)
            for number, one in inputs.items()
        }
    return {number: _groups(one, sides[number], spans) for number, one in inputs.items()}


def _spread(inputs: _Inputs, limit: int, bounds: _Bounds, options: Options) -> dict[int, Groups]:
    """All-to-all inputs: those whose keys must meet together, then the others one by one."""
    joined = {number: one for number, one in inputs.items() if one.inter_correlated}
    alone = {number: one for number, one in inputs.items() if not one.inter_correlated}
    found: dict[int, Groups] = {}
    if joined:
        found |= _joined(joined, _share(limit, joined, inputs), bounds, options)
        bounds = _fixed(found)
    rest = _share(limit, alone, inputs)
    for number, one in alone.items():
        found[number] = _alone(one, _share(rest, {number: one}, alone), bounds.guess)
    return found


def _joined(inputs: _Inputs, limit: int, bounds: _Bounds, options: Options) -> dict[int, Groups]:
    sides: dict[int, list[ConsumedInput]] = {}
    for one in sorted(inputs.values(), key=lambda one: one.type_number):
        if not one.broadcast:
            sides.setdefault(one.type_number, []).append(one)
    if not sides:
        return {number: _whole(one, bounds.guess) for number, one in inputs.items()}
    widths = {one.subpartitions for side in sides.values() for one in side}
    if len(widths) > 1:
        raise InvalidArgumentError(
            f"inputs whose keys must meet have {sorted(widths)} subpartitions: they need the same "
            "number"
        )
    for type_number, side in sides.items():
        if len({one.intra_correlated for one in side}) > 1:
            raise InvalidArgumentError(
                f"the inputs of type number {type_number} differ in intra_correlated: give all of "
                "them the same"
            )
    tables = [
        ([one.partitions for one in side], not side[0].intra_correlated) for side in sides.values()
    ]
    slices = joined_slices(tables, limit, options.skewed_factor, options.skewed_threshold)
    spans = spans_by_bytes(cutter_of(slices), limit, bounds.least, bounds.most)
    if spans is None:
        raise _too_few(f"{widths.pop()} subpartitions", bounds.guess)
    of_type = dict(zip(sides, slices, strict=True))
    return {
        number: _whole(one, len(spans))
        if one.broadcast
        else _groups(one, of_type[one.type_number], spans)
        for number, one in inputs.items()
    }


def _alone(one: ConsumedInput, limit: int, parallelism: int) -> Groups:
    if one.broadcast:
        return _whole(one, parallelism)
    slices = columns(one.partitions) if one.intra_correlated else cells(one.partitions)
    spans = spans_by_bytes(cutter_of([slices]), limit, parallelism, parallelism)
    if spans is None:
        raise _too_few(f"{one.subpartitions} subpartitions", parallelism)
    return _groups(one, slices, spans)


def _groups(one: ConsumedInput, slices: Sequence[Slice], spans: Sequence[Span]) -> Groups:
    return tuple(
        groups_of(slices[span.first : span.last + 1], len(one.partitions), pointwise=one.pointwise)
        for span in spans
    )


def _whole(one: ConsumedInput, parallelism: int) -> Groups:
    everything = Group(Span(0, len(one.partitions) - 1), Span(0, one.subpartitions - 1))
    return ((everything,),) * parallelism


def _check_room(number: int, one: ConsumedInput, parallelism: int) -> None:
    """Refuse more subtasks than an even split by number has parts for.

    Flink lays that split out as well, to log what cutting by bytes changed, and fails when it
    cannot. So an all-to-all input is never read by more subtasks than it has subpartitions.
    """
    if one.broadcast:
        return
    parts = one.subpartitions * (len(one.partitions) if one.pointwise else 1)
    if parallelism > parts:
        kind = "cells" if one.pointwise else "subpartitions"
        raise _too_few(f"the {parts} {kind} of input {number}", parallelism)


def _too_few(what: str, parallelism: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{what} are too few for a parallelism of {parallelism}: lower the minimum parallelism, or "
        "produce more subpartitions"
    )


def _listed(groups: Iterable[Group]) -> tuple[Group, ...]:
    first: dict[int, Group] = {}
    for group in sorted(groups, key=lambda group: group.subpartitions):
        first.setdefault(group.partitions.first, group)
    return tuple(sorted(first.values()))
