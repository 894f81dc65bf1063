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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.input_slices import (
    Group,
    Slice,
    aligned_slices,
    cells,
    columns,
    cutter_of,
    groups_by_number,
    groups_of,
    joined_slices,
)
from statestore.jobgraph.parallelism import (
    Span,
    check_bounds,
    check_bytes,
    check_positive,
    first_guess,
    share_of,
    spans_by_bytes,
)
from statestore.keys.groups import MAX_PARALLELISM

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
