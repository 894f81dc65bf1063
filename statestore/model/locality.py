"""Which host each subtask is restored on best: where copies of its files lie.

What hosts hold becomes previous allocations, and
:func:`~statestore.flink.slots.place_subtasks` chooses by them, as Flink's adaptive scheduler
does with the slots of the job before (``StateLocalitySlotAssigner``).

Differs on purpose. Flink knows one slot per old subtask and its range; here a file names the host
of its copy, so what a host holds is cut at the new subtasks, and each piece lies in one of the
host's slots. Every host offers an equal share of slots, however much it holds, so that one host
with all copies does not get all the work of a cluster. A subtask that is placed where none of its
files lies names no host: nothing is gained there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statestore.flink.slots import PreviousAllocation, place_subtasks
from statestore.format.handles import KeyedStateHandle
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment

__all__ = ["HostSlots", "Piece", "pieces_of_hosts", "preferred_hosts", "previous_allocations"]


class Piece(NamedTuple):
    """First and last key group that a host holds of a subtask's state, and the bytes."""

    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HostSlots:
    """The slots of the hosts that hold copies of a state, and what lies in them.

    Host i, in the order of the state's key groups, offers ``per_host`` slots: those from i times
    ``per_host`` on. ``previous`` has one item per host and new subtask that finds files there.
    """

    hosts: tuple[str, ...]
    per_host: int
    previous: tuple[PreviousAllocation, ...]

    @property
    def slots(self) -> range:
        """All slots of all hosts, as many as subtasks or more."""
        return range(len(self.hosts) * self.per_host)

    def host_of(self, slot: int) -> str:
        """Return the host that offers a slot."""
        return self.hosts[slot // self.per_host]


def previous_allocations(handles: Sequence[KeyedStateHandle], assignment: Assignment) -> HostSlots:
    """Return what each host holds of every new subtask, in bytes, and in which slot it lies.

    A range goes from the first to the last key group of the subtask that the host has a copy of;
    a file of several subtasks counts in each by its share of key groups. While no host is the best
    one of more subtasks than it has slots, each of them has a slot there for itself. Handles
    without a host are left out; without any other there is no host and no slot.

    Raises InvalidArgumentError when a handle's key groups are not below max parallelism.
    """
    held = pieces_of_hosts(handles, assignment)
    most: dict[int, int] = {}
    for pieces in held.values():
        for subtask, (_, _, size_bytes) in pieces.items():
            most[subtask] = max(size_bytes, most.get(subtask, 0))
    per_host = -(-assignment.parallelism // len(held)) if held else 0
    previous = []
    for host, pieces in enumerate(held.values()):
        # Those that would go elsewhere come last: they share a slot, if any has to.
        ranks = sorted(
            (size < most[subtask], -size, subtask) for subtask, (_, _, size) in pieces.items()
        )
        for rank, (_, _, subtask) in enumerate(ranks):
            first, last, size_bytes = pieces[subtask]
            slot = host * per_host + rank % per_host
            previous.append(PreviousAllocation(slot, KeyGroupRange(first, last), size_bytes))
    return HostSlots(tuple(held), per_host, tuple(previous))


def preferred_hosts(handles: Sequence[KeyedStateHandle], assignment: Assignment) -> tuple[str, ...]:
    """Return the host on which each new subtask would run best, empty where none holds its files.

    No host is named more than its share: parallelism by the number of hosts, rounded up. The
    result is empty when no handle has a host. Errors as :func:`previous_allocations`.
    """
    offered = previous_allocations(handles, assignment)
    if not offered.hosts:
        return ()
    held = {
        (assignment.subtask_of(one.key_groups.first), offered.host_of(one.slot))
        for one in offered.previous
    }
    placed = enumerate(place_subtasks(assignment, offered.previous, offered.slots))
    wanted = ((subtask, offered.host_of(slot)) for subtask, slot in placed)
    return tuple(pair[1] if pair in held else "" for pair in wanted)


def pieces_of_hosts(
    handles: Iterable[KeyedStateHandle], assignment: Assignment
) -> dict[str, dict[int, Piece]]:
    """Return, per host and new subtask, what the host holds of the subtask's state."""
    held: dict[str, dict[int, Piece]] = {}
    for handle in handles:
        if handle.host:
            _add(held.setdefault(handle.host, {}), handle, assignment)
    return held


def _add(
    pieces: dict[int, Piece],
    handle: KeyedStateHandle,
    assignment: Assignment,
) -> None:
    """Add a file to what its host holds: per subtask the first and last key group, and bytes."""
    groups = handle.key_groups
    begin, end = assignment.subtask_of(groups.first), assignment.subtask_of(groups.last)
    for subtask in range(begin, end + 1):
        first, last, size_bytes = groups.first, groups.last, handle.size_bytes
        if begin < end:
            owned = assignment.range_of(subtask)
            first, last = max(first, owned.first), min(last, owned.last)
            size_bytes = size_bytes * (last - first + 1) // len(groups)
        low, high, total = pieces.get(subtask, (first, last, 0))
        pieces[subtask] = Piece(min(low, first), max(high, last), total + size_bytes)
