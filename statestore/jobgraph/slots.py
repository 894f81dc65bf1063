"""Slots: which free slot a subtask gets, and how many slots each slot sharing group gets.

It follows Flink 2.3. :func:`select_slot` implements the default scheduler's
``SlotSelectionStrategy`` family: ``DefaultLocationPreferenceSlotSelectionStrategy``,
``EvenlySpreadOutLocationPreferenceSlotSelectionStrategy``, and
``PreviousAllocationSlotSelectionStrategy``, which wraps either. :func:`preferred_locations`
implements its ``DefaultPreferredLocationsRetriever``. :func:`slots_per_group` implements the
adaptive scheduler's ``SlotSharingSlotAllocator``. :func:`assign_by_locality` implements that
scheduler's ``StateLocalitySlotAssigner``, which restores a subtask close to its state, and
:func:`place_subtasks` applies the same rule to the subtasks of one operator.

Where Flink's choice among equals is arbitrary, these functions are deterministic. Among equally
good slots :func:`select_slot` takes the first one offered. Sharing groups with equal headroom are
served in the given order. Groups without a score get the remaining slots in ascending order.

Deliberate differences: resource profiles are not supported, so offer only slots that fit. Too few
slots, a slot offered twice and an unknown vertex are errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from statestore.errors import InvalidArgumentError, ParallelismError, unknown_choice
from statestore.keys.groups import (
    Assignment,
    KeyGroupAssignment,
    KeyGroupRange,
    RangeAssignment,
    check_int,
    check_parallelism,
)

_MOST_NEIGHBOURS: Final = 8


class Locality(StrEnum):
    """How close a slot is to the preferred locations."""

    LOCAL = "LOCAL"
    HOST_LOCAL = "HOST_LOCAL"
    NON_LOCAL = "NON_LOCAL"
    UNCONSTRAINED = "UNCONSTRAINED"  # there was no preference


class SlotStrategy(StrEnum):
    """The strategy by which the default scheduler picks a slot.

    EVENLY is ``taskmanager.load-balance.mode: SLOTS``. A streaming job with local recovery uses a
    strategy that prefers previous allocations; a batch job never does.
    """

    DEFAULT = "default"
    EVENLY = "evenly"
    PREVIOUS_DEFAULT = "previous-default"
    PREVIOUS_EVENLY = "previous-evenly"

    @classmethod
    def _missing_(cls, value: object) -> SlotStrategy:
        raise unknown_choice("slot strategy", value, cls)


@dataclass(frozen=True, slots=True)
class Location:
    """A task manager and the host that it runs on."""

    task_manager: str
    host: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A free slot; ``utilization`` is the used share of its task manager's slots.

    Raises InvalidArgumentError if the id is not an int, or utilization is not in 0..1.
    """

    slot: int
    task_manager: str
    host: str
    utilization: float = 0.0

    def __post_init__(self) -> None:
        check_int("a slot id", self.slot)
        if isinstance(self.utilization, bool) or not 0 <= self.utilization <= 1:
            raise InvalidArgumentError(
                f"slot {self.slot}: utilization must be in 0..1, not {self.utilization!r}"
            )


class Selection(NamedTuple):
    """The selected slot, and its locality."""

    slot: int
    locality: Locality


@dataclass(frozen=True, slots=True)
class ProducerInput:
    """One input of a subtask: the locations of its producers, and its number of consumers."""

    producers: tuple[Location, ...]
    consumers: int = 1


@dataclass(frozen=True, slots=True)
class VertexDemand:
    """The minimum and the wanted parallelism of a vertex.

    Raises InvalidArgumentError unless both are in 1..32768, ParallelismError for minimum > wanted.
    """

    minimum: int
    wanted: int

    def __post_init__(self) -> None:
        check_parallelism(self.minimum, "the minimum parallelism")
        check_parallelism(self.wanted, "the desired parallelism")
        if self.minimum > self.wanted:
            raise ParallelismError(
                f"the minimum parallelism {self.minimum} is above the desired parallelism "
                f"{self.wanted}"
            )

    def parallelism(self, slots: int) -> int:
        """Return the parallelism in a sharing group of ``slots`` slots."""
        return min(self.wanted, slots)


def preferred_locations(
    last: Location | None, inputs: Iterable[ProducerInput] = ()
) -> tuple[Location, ...]:
    """Return the preferred locations of a subtask, each location once.

    ``last`` is the subtask's previous location, if it restores state; then it is the only
    preference. Otherwise the preferred locations are the producers of the input with the fewest
    locations; on a tie the later input wins. Inputs without producers, or with more than 8
    producers or consumers, are ignored. For a slot that several subtasks share, concatenate their
    locations: a location that is named twice has twice the weight.
    """
    if last is not None:
        return (last,)
    best: tuple[Location, ...] = ()
    for producer_input in inputs:
        if (
            producer_input.consumers <= _MOST_NEIGHBOURS
            and len(producer_input.producers) <= _MOST_NEIGHBOURS
        ):
            distinct = tuple(dict.fromkeys(producer_input.producers))
            if distinct and (not best or len(distinct) <= len(best)):
                best = distinct
    return best


def select_slot(
    strategy: SlotStrategy | str,
    free: Sequence[Slot],
    *,
    preferred: Sequence[Location] = (),
    prior: Collection[int] = (),
    reserved: Collection[int] = (),
) -> Selection | None:
    """Return the slot for a subtask or for one shared slot; None if no slot is suitable.

    The strategies with previous allocations prefer a slot in ``prior``, even if it is reserved.
    Otherwise they avoid the slots in ``reserved``, which have the local state of other subtasks.
    The other strategies ignore both. Raises InvalidArgumentError for an unknown strategy, or a slot
    offered twice.
    """
    strategy = SlotStrategy(strategy)
    check_slots([slot.slot for slot in free])
    if strategy in (SlotStrategy.PREVIOUS_DEFAULT, SlotStrategy.PREVIOUS_EVENLY):
        for slot in free:
            if slot.slot in prior:
                return Selection(slot.slot, Locality.LOCAL)
        free = [slot for slot in free if slot.slot not in reserved]
    if not free:
        return None
    best = max(free, key=lambda slot: _preference(strategy, slot, preferred))
    return Selection(best.slot, _locality(best, preferred))


def _preference(strategy: SlotStrategy, slot: Slot, preferred: Sequence[Location]) -> float:
    local = sum(place.task_manager == slot.task_manager for place in preferred)
    on_host = sum(place.host == slot.host for place in preferred)
    if strategy in (SlotStrategy.EVENLY, SlotStrategy.PREVIOUS_EVENLY):
        return local * 20 + on_host * 2 - slot.utilization
    return local * 10 + on_host


def _locality(slot: Slot, preferred: Sequence[Location]) -> Locality:
    if not preferred:
        return Locality.UNCONSTRAINED
    if any(place.task_manager == slot.task_manager for place in preferred):
        return Locality.LOCAL
    if any(place.host == slot.host for place in preferred):
        return Locality.HOST_LOCAL
    return Locality.NON_LOCAL


def slots_per_group(groups: Mapping[str, Sequence[VertexDemand]], free: int) -> dict[str, int]:
    """Return the number of slots that each slot sharing group gets.

    A group gets the slots that its neediest vertex needs. In addition it gets an equal share of the
    free slots beyond all needs, up to the number that its widest vertex wants. The groups that want
    the fewest extra slots come first, so that the others share their leftovers. A vertex then runs
    with :meth:`VertexDemand.parallelism`.

    Raises InvalidArgumentError if a group is empty, or if fewer slots are free than needed.
    """
    for group, demands in groups.items():
        if not demands:
            raise InvalidArgumentError(f"slot sharing group {group!r} has no vertex: remove it")
    needs = {group: max(vertex.minimum for vertex in each) for group, each in groups.items()}
    room = {g: max(vertex.wanted for vertex in each) - needs[g] for g, each in groups.items()}
    left = check_int("the number of free slots", free) - sum(needs.values())
    if left < 0:
        raise too_few_slots(sum(needs.values()), free)
    slots = {}
    for done, group in enumerate(sorted(groups, key=lambda group: room[group])):
        extra = min(room[group], left // (len(groups) - done))
        slots[group] = needs[group] + extra
        left -= extra
    return {group: slots[group] for group in groups}


def too_few_slots(needed: int, free: int) -> InvalidArgumentError:
    """Return the error for too few slots, with the needed number."""
    return InvalidArgumentError(
        f"{needed} slots are needed and {free} are free: free more slots, or lower the parallelism"
    )


def check_slots(slots: Sequence[int]) -> None:
    """Raise InvalidArgumentError for a slot id that is not an int or is duplicated."""
    for slot, times in Counter(slots).items():
        check_int("a slot id", slot)
        if times > 1:
            raise InvalidArgumentError(f"slot {slot} is offered twice; offer it once")


Group = TypeVar("Group", int, str)
Vertex = int | str


@dataclass(frozen=True, slots=True)
class PreviousAllocation:
    """The previous allocation of an old subtask: its slot, its key groups, and their state's bytes.

    The bytes are the full sizes of its keyed handles, including shared files. Raises
    InvalidArgumentError if the slot is not an int or the size is negative.
    """

    slot: int
    key_groups: KeyGroupRange
    size_bytes: int

    def __post_init__(self) -> None:
        check_int("a slot id", self.slot)
        if check_int("size_bytes", self.size_bytes) < 0:
            raise InvalidArgumentError(
                f"slot {self.slot} has a negative size of {self.size_bytes} bytes"
            )


@dataclass(frozen=True, slots=True)
class VertexState:
    """A vertex to be placed: its max parallelism, and the locations of its state.

    ``ranges`` has the owners of the key groups if these are not Flink's even ranges.
    """

    vertex: Vertex
    max_parallelism: int
    previous: tuple[PreviousAllocation, ...] = ()
    ranges: RangeAssignment | None = None


class LocalityAssignment(NamedTuple):
    """The slots of all groups.

    ``scores`` has the positive scores per group and old slot. ``by_score`` has the slots that were
    assigned by score. ``slots`` has these, and the slots of the remaining groups in ``rest``.
    """

    scores: dict[str, dict[int, int]]
    by_score: dict[str, int]
    rest: tuple[str, ...]
    slots: dict[str, int]


def assign_by_locality(
    vertices: Sequence[VertexState],
    groups: Mapping[str, Sequence[tuple[Vertex, int]]],
    free: Sequence[int],
) -> LocalityAssignment:
    """Return the slot of every group of subtasks that share one.

    ``groups`` has the (vertex, subtask) pairs of each group; a vertex has as many subtasks as the
    groups name. A group's score for an old slot is about the number of bytes of its new key groups
    in that slot. The highest score is served first; on a tie the smaller slot id, then the smaller
    group.

    Raises InvalidArgumentError if a vertex is unknown or given twice, a subtask is missing or in
    two groups, a slot is offered twice or there are too few slots; ParallelismError if a vertex has
    more subtasks than its max parallelism.
    """
    known = {state.vertex: state for state in vertices}
    if len(known) < len(vertices):
        raise InvalidArgumentError(
            "a vertex is listed twice: combine its old subtasks in one entry"
        )
    scores: dict[str, dict[int, int]] = {}
    for vertex, owners in _owners(groups, known).items():
        state = known[vertex]
        assignment = state.ranges or KeyGroupAssignment(
            max_parallelism=state.max_parallelism, parallelism=len(owners)
        )
        if assignment.parallelism != len(owners):
            raise InvalidArgumentError(
                f"vertex {vertex!r} has {assignment.parallelism} ranges, but the groups name "
                f"{len(owners)} of its subtasks"
            )
        _add_scores(scores, owners, assignment, state.previous)
    by_score, remaining = _assign(scores, tuple(groups), free)
    return LocalityAssignment(scores, by_score, tuple(remaining), by_score | remaining)


def place_subtasks(
    assignment: Assignment, previous: Sequence[PreviousAllocation], free: Sequence[int]
) -> tuple[int, ...]:
    """Return the slot of every new subtask of one operator: the slot with most of its bytes.

    It works like :func:`assign_by_locality` with one group per subtask; on a tie the smaller
    subtask is first. Raises InvalidArgumentError if a slot is offered twice, or if there are fewer
    slots than subtasks.
    """
    scores: dict[int, dict[int, int]] = {}
    subtasks = range(assignment.parallelism)
    _add_scores(scores, dict(enumerate(subtasks)), assignment, previous)
    by_score, remaining = _assign(scores, subtasks, free)
    slots = by_score | remaining
    return tuple(slots[subtask] for subtask in subtasks)


def _owners(
    groups: Mapping[str, Sequence[tuple[Vertex, int]]], known: Collection[Vertex]
) -> dict[Vertex, dict[int, str]]:
    """Return, per vertex, the group of each of its subtasks; refuse missing and duplicate ones."""
    owners: dict[Vertex, dict[int, str]] = {}
    for group, members in groups.items():
        for vertex, subtask in members:
            if vertex not in known:
                raise InvalidArgumentError(
                    f"group {group!r} names the unknown vertex {vertex!r}; known vertices: "
                    f"{[*known]}"
                )
            owner = owners.setdefault(vertex, {}).setdefault(subtask, group)
            if owner != group:
                raise InvalidArgumentError(
                    f"subtask {subtask} of vertex {vertex!r} is in both group {owner!r} and "
                    f"group {group!r}"
                )
    for vertex, subtasks in owners.items():
        if missing := set(range(len(subtasks))) - subtasks.keys():
            raise InvalidArgumentError(
                f"no group contains subtask {min(missing)} of vertex {vertex!r}, whose "
                f"subtasks are {[*subtasks]}"
            )
    return owners


def _add_scores(
    scores: dict[Group, dict[int, int]],
    owners: Mapping[int, Group],
    assignment: Assignment,
    previous: Iterable[PreviousAllocation],
) -> None:
    """Add the bytes that each new subtask of one vertex has in old slots to its group's scores."""
    for old in previous:
        # Flink's rounding: whole bytes per key group, at least 1; an empty state counts 1 in total.
        per_group = max(1, old.size_bytes // len(old.key_groups))
        first, last = map(assignment.subtask_of, (old.key_groups.first, old.key_groups.last))
        for subtask in range(first, last + 1):
            common = assignment.range_of(subtask).intersect(old.key_groups)
            score = len(common) * per_group if common and old.size_bytes else 1
            in_slot = scores.setdefault(owners[subtask], {})
            in_slot[old.slot] = in_slot.get(old.slot, 0) + score


def _assign(
    scores: Mapping[Group, Mapping[int, int]], groups: Sequence[Group], free: Sequence[int]
) -> tuple[dict[Group, int], dict[Group, int]]:
    """Return the slots assigned by score, and the slots of the remaining groups."""
    check_slots(free)
    if len(free) < len(groups):
        raise too_few_slots(len(groups), len(free))
    pairs = sorted((-n, slot, g) for g, in_slot in scores.items() for slot, n in in_slot.items())
    left, chosen = set(free), dict[Group, int]()
    for _, slot, group in pairs:
        if slot in left and group not in chosen:
            chosen[group] = slot
            left.remove(slot)
    rest = (group for group in groups if group not in chosen)
    return chosen, dict(zip(rest, sorted(left), strict=False))
