"""Slots: which free slot a subtask gets, and how many slots each slot sharing group gets.

It follows Flink 2.3. :func:`select_slot` implements the default scheduler's
``SlotSelectionStrategy`` family: ``DefaultLocationPreferenceSlotSelectionStrategy``,
``EvenlySpreadOutLocationPreferenceSlotSelectionStrategy``, and
``PreviousAllocationSlotSelectionStrategy``, which wraps either. :func:`preferred_locations`
implements its ``DefaultPreferredLocationsRetriever``. :func:`slots_per_group` implements the
adaptive scheduler's ``SlotSharingSlotAllocator``, and :func:`assign_by_locality` its choice by
state.

Where Flink's choice among equals is arbitrary, these functions are deterministic. Among equally
good slots :func:`select_slot` takes the first one offered. Sharing groups with equal headroom are
served in the given order.

Deliberate differences: resource profiles are not supported, so offer only slots that fit. Too few
slots and a slot offered twice are errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.keys.groups import check_parallelism, is_int

__all__ = [
    "Locality",
    "Location",
    "ProducerInput",
    "Selection",
    "Slot",
    "SlotStrategy",
    "VertexDemand",
    "check_int",
    "check_slots",
    "preferred_locations",
    "select_slot",
    "slots_per_group",
    "too_few_slots",
]

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
        known = ", ".join(repr(strategy.value) for strategy in cls)
        raise InvalidArgumentError(f"unknown slot strategy {value!r}: use one of {known}")


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


def check_int(name: str, value: object) -> int:
    """Return ``value``; InvalidArgumentError with ``name`` unless it is an int."""
    if not is_int(value):
        raise InvalidArgumentError(f"{name} must be an int, not {value!r}")
    return value
