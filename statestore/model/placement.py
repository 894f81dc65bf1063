"""State locality: which slot a subtask is restored in, so that it lies close to its state.

Follows Flink 2.3. :func:`assign_by_locality` is the adaptive scheduler's
``StateLocalitySlotAssigner``, and :func:`place_subtasks` the same rule for the subtasks of one
operator. How the default scheduler picks a slot is in :mod:`statestore.model.slots`.

Where Flink takes any of several, these functions are deterministic: groups left over get the
remaining slots in ascending order.

Differs on purpose: resource profiles are left out, so offer only slots that fit; fewer slots than
groups, a slot offered twice and an unknown vertex are errors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from statestore.errors import InvalidArgumentError
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from statestore.keys.ranges import Assignment, RangeAssignment
from statestore.model.slots import check_int, check_slots, too_few_slots

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
    """What an old subtask had: its slot, its key groups, and the bytes of their state.

    Bytes are the full sizes of its keyed handles, shared files included. Raises
    InvalidArgumentError if the slot is not an int or the size is negative.
    """

    slot: int
    key_groups: KeyGroupRange
    size_bytes: int

    def __post_init__(self) -> None:
        check_int("a slot id", self.slot)
        if check_int("size_bytes", self.size_bytes) < 0:
            raise InvalidArgumentError(f"slot {self.slot}: {self.size_bytes} bytes, below 0")


@dataclass(frozen=True, slots=True)
class VertexState:
    """A vertex to be placed: its max parallelism, and where its state lies.

    ``ranges`` says who owns which key groups where these are not Flink's even ones.
    """

    vertex: Vertex
    max_parallelism: int
    previous: tuple[PreviousAllocation, ...] = ()
    ranges: RangeAssignment | None = None


class LocalityAssignment(NamedTuple):
    """Which group gets which slot.

    ``scores`` holds per group and old slot the score, where it is positive; ``by_score`` the slots
    that were given for their score; ``slots`` those and the ones for the ``rest`` of the groups.
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

    ``groups`` holds per group its (vertex, subtask) pairs; a vertex has as many subtasks as the
    groups name. A group scores, in an old slot, about the bytes of its new key groups that lie
    there. The highest score is served first; on a tie the smaller slot id, then the smaller group.

    Raises InvalidArgumentError if a vertex is unknown or given twice, a subtask is missing or in
    two groups, or a slot is offered twice or too few are; ParallelismError if a vertex has more
    subtasks than its max parallelism.
    """
    known = {state.vertex: state for state in vertices}
    if len(known) < len(vertices):
        raise InvalidArgumentError("a vertex is given twice: give its old subtasks together")
    scores: dict[str, dict[int, int]] = {}
    for vertex, owners in _owners(groups, known).items():
        state = known[vertex]
        assignment = state.ranges or KeyGroupAssignment(
            max_parallelism=state.max_parallelism, parallelism=len(owners)
        )
        if assignment.parallelism != len(owners):
            raise InvalidArgumentError(
                f"vertex {vertex!r} has {assignment.parallelism} ranges, and the groups name "
                f"{len(owners)} subtasks of it"
            )
        _add_scores(scores, owners, assignment, state.previous)
    by_score, remaining = _assign(scores, tuple(groups), free)
    return LocalityAssignment(scores, by_score, tuple(remaining), by_score | remaining)


def place_subtasks(
    assignment: Assignment, previous: Sequence[PreviousAllocation], free: Sequence[int]
) -> tuple[int, ...]:
    """Return the slot of every new subtask of one operator: where most of its bytes lie.

    As :func:`assign_by_locality` with one group per subtask, the smaller subtask being first on a
    tie. Raises InvalidArgumentError if a slot is offered twice, or fewer than subtasks are.
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
    """Per vertex the group of each of its subtasks, once all of them are known to be there."""
    owners: dict[Vertex, dict[int, str]] = {}
    for group, members in groups.items():
        for vertex, subtask in members:
            if vertex not in known:
                raise InvalidArgumentError(
                    f"group {group!r} has vertex {vertex!r}; there is {[*known]}"
                )
            owner = owners.setdefault(vertex, {}).setdefault(subtask, group)
            if owner != group:
                raise InvalidArgumentError(
                    f"subtask {subtask} of vertex {vertex!r} is in groups {owner!r} and {group!r}"
                )
    for vertex, subtasks in owners.items():
        if missing := set(range(len(subtasks))) - subtasks.keys():
            raise InvalidArgumentError(
                f"no group has subtask {min(missing)} of vertex {vertex!r}, which has {[*subtasks]}"
            )
    return owners


def _add_scores(
    scores: dict[Group, dict[int, int]],
    owners: Mapping[int, Group],
    assignment: Assignment,
    previous: Iterable[PreviousAllocation],
) -> None:
    """Add what every new subtask of one vertex finds in old slots to the score of its group."""
    for old in previous:
        # Flink's rounding: whole bytes per key group, and 1 at least; empty state counts 1 in all.
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
    """The slots given for their score, and those of the groups left over."""
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
