"""The best host for each subtask: one that has copies of its files.

The copies on hosts become previous allocations, from which
:func:`~statestore.jobgraph.slot_locality.place_subtasks` chooses. Flink's adaptive scheduler does
the same with the slots of the previous job (``StateLocalitySlotAssigner``).

There are two deliberate differences. Flink knows one slot per old subtask, with its range. Here
each file names the host of its copy, so a host's files are cut at the boundaries of the new
subtasks, and each piece is in one of the host's slots. Every host offers an equal number of
slots, however much it holds, so that one host with all copies does not get all the work of a
cluster. A subtask that is placed on a host without its files gets no preferred host, because it
would gain nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statestore.format.handles import KeyedStateHandle
from statestore.jobgraph.slot_locality import (
    PreviousAllocation,
    place_subtasks,
)
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment

__all__ = ["HostSlots", "StatePiece", "pieces_of_hosts", "preferred_hosts", "previous_allocations"]


class StatePiece(NamedTuple):
    """The first and last key group of a subtask's state on a host, and the number of bytes."""

    first: int
    last: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class HostSlots:
    """The slots of the hosts that have copies of a state, and the allocations in them.

    Hosts are in the order of the state's key groups. Host i offers ``per_host`` slots, numbered
    from i times ``per_host``. ``previous`` has one item for each host and each new subtask with
    files there.
    """

    hosts: tuple[str, ...]
    per_host: int
    previous: tuple[PreviousAllocation, ...]

    @property
    def slots(self) -> range:
        """All slots of all hosts, at least as many as there are subtasks."""
        return range(len(self.hosts) * self.per_host)

    def host_of(self, slot: int) -> str:
        """Return the host that offers a slot."""
        return self.hosts[slot // self.per_host]


def previous_allocations(handles: Sequence[KeyedStateHandle], assignment: Assignment) -> HostSlots:
    """Return the bytes of every new subtask on each host, and the slot that they are in.

    A range covers the key groups of the subtask from the first to the last one with a copy on the
    host. A file of several subtasks counts for each by its share of key groups. If a host is the
    best one for at most as many subtasks as it has slots, each of them gets its own slot. Handles
    without a host are ignored; if no handle has a host, the result is empty.

    Raises InvalidArgumentError if a handle's key groups are not below max parallelism.
    """
    held = pieces_of_hosts(handles, assignment)
    most: dict[int, int] = {}
    for pieces in held.values():
        for subtask, (_, _, size_bytes) in pieces.items():
            most[subtask] = max(size_bytes, most.get(subtask, 0))
    per_host = -(-assignment.parallelism // len(held)) if held else 0
    previous = []
    for host, pieces in enumerate(held.values()):
        # Subtasks with a better host elsewhere come last, so that they share a slot if necessary.
        ranks = sorted(
            (size < most[subtask], -size, subtask) for subtask, (_, _, size) in pieces.items()
        )
        for rank, (_, _, subtask) in enumerate(ranks):
            first, last, size_bytes = pieces[subtask]
            slot = host * per_host + rank % per_host
            previous.append(PreviousAllocation(slot, KeyGroupRange(first, last), size_bytes))
    return HostSlots(tuple(held), per_host, tuple(previous))


def preferred_hosts(handles: Sequence[KeyedStateHandle], assignment: Assignment) -> tuple[str, ...]:
    """Return the best host for each new subtask; an empty string if no host has its files.

    No host gets more than its share: parallelism divided by the number of hosts, rounded up. The
    result is empty if no handle has a host. Raises the errors of :func:`previous_allocations`.
    """
    offered = previous_allocations(handles, assignment)
    if not offered.hosts:
        return ()
    held = {
        (assignment.subtask_of(allocation.key_groups.first), offered.host_of(allocation.slot))
        for allocation in offered.previous
    }
    placed = enumerate(place_subtasks(assignment, offered.previous, offered.slots))
    wanted = ((subtask, offered.host_of(slot)) for subtask, slot in placed)
    return tuple(pair[1] if pair in held else "" for pair in wanted)


def pieces_of_hosts(
    handles: Iterable[KeyedStateHandle], assignment: Assignment
) -> dict[str, dict[int, StatePiece]]:
    """Return, per host and new subtask, the piece of the subtask's state on that host."""
    held: dict[str, dict[int, StatePiece]] = {}
    for handle in handles:
        if handle.host:
            _add(held.setdefault(handle.host, {}), handle, assignment)
    return held


def _add(
    pieces: dict[int, StatePiece],
    handle: KeyedStateHandle,
    assignment: Assignment,
) -> None:
    """Add a file to its host's pieces: first and last key group and bytes, per subtask."""
    groups = handle.key_groups
    begin, end = assignment.subtask_of(groups.first), assignment.subtask_of(groups.last)
    for subtask in range(begin, end + 1):
        first, last, size_bytes = groups.first, groups.last, handle.size_bytes
        if begin < end:
            owned = assignment.range_of(subtask)
            first, last = max(first, owned.first), min(last, owned.last)
            size_bytes = size_bytes * (last - first + 1) // len(groups)
        low, high, total = pieces.get(subtask, (first, last, 0))
        pieces[subtask] = StatePiece(min(low, first), max(high, last), total + size_bytes)
