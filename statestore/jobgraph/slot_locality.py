"""State locality: choose the slot in which a subtask is restored, so that it is close to its state.

It follows Flink 2.3. :func:`assign_by_locality` implements the adaptive scheduler's
``StateLocalitySlotAssigner``, and :func:`place_subtasks` is the same rule for the subtasks of one
operator. :func:`select_slot` implements the default scheduler.

Where Flink's choice among equals is arbitrary, these functions are deterministic: the remaining
groups get the remaining slots in ascending order.

Deliberate differences: resource profiles are not supported, so offer only slots that fit. Fewer
slots than groups, a slot offered twice and an unknown vertex are errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.slots import check_int, check_slots, too_few_slots
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.keys.ranges import Assignment, RangeAssignment

__all__ = [
    "LocalityAssignment",
    "PreviousAllocation",
    "VertexState",
    "assign_by_locality",
    "place_subtasks",
]


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
