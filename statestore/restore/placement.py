"""On which of some hosts each subtask of a restore should run, so that it finds its state there.

For who starts the consumers himself: hosts and their slots in, a host for each subtask out, by the
rule of Flink's adaptive scheduler or one of the default scheduler's
(:mod:`statestore.flink.slots`). Where a Flink task manager stands, here is a host; the
last location of a subtask is the host that holds most of its bytes.

What is placed are slots, not operators, as in Flink: subtask i of every operator of a slot sharing
group runs in the i-th slot of that group, so operators that chain are never torn apart. Without a
job graph all operators share one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statestore.errors import InvalidArgumentError
from statestore.flink.chaining import job_vertices
from statestore.flink.graph import JobGraph, Node
from statestore.flink.operators import label_of, operator_ids
from statestore.flink.slots import (
    Location,
    PreviousAllocation,
    Slot,
    SlotStrategy,
    VertexDemand,
    VertexState,
    assign_by_locality,
    place_subtasks,
    preferred_locations,
    select_slot,
    slots_per_group,
)
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import Manifest
from statestore.keys.groups import KeyGroupRange
from statestore.keys.ranges import Assignment, RangeAssignment
from statestore.restore.plan import OperatorPlan

__all__ = [
    "LOCALITY",
    "STRATEGIES",
    "HostSlots",
    "OperatorPlacement",
    "Piece",
    "PlacedSubtask",
    "pieces_of_hosts",
    "place_operators",
    "preferred_hosts",
    "previous_allocations",
]


# Which host each subtask is restored on best: where copies of its files lie.
#
# What hosts hold becomes previous allocations, and :func:`~statestore.flink.slots.place_subtasks`
# chooses by them, as Flink's adaptive scheduler does with the slots of the job before
# (``StateLocalitySlotAssigner``).
#
# Differs on purpose. Flink knows one slot per old subtask and its range; here a file names the host
# of its copy, so what a host holds is cut at the new subtasks, and each piece lies in one of the
# host's slots. Every host offers an equal share of slots, however much it holds, so that one host
# with all copies does not get all the work of a cluster. A subtask that is placed where none of its
# files lies names no host: nothing is gained there.


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


LOCALITY = "locality"
STRATEGIES = (LOCALITY, *(strategy.value for strategy in SlotStrategy))

Held = Mapping[str, Mapping[int, Piece]]

_SHARED = "default"  # the slot sharing group of an operator that names none


@dataclass(frozen=True, slots=True)
class PlacedSubtask:
    """A subtask, its host, and how many of its bytes have a copy there."""

    subtask: int
    host: str
    local_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorPlacement:
    """The hosts of the subtasks of one operator, in order of subtask.

    Subtasks of one number and one ``slot_group`` share a slot, and so a host.
    """

    uid: str
    strategy: str
    subtasks: tuple[PlacedSubtask, ...]
    slot_group: str = _SHARED

    @property
    def local_bytes(self) -> int:
        """Bytes that stay local, all subtasks together."""
        return sum(subtask.local_bytes for subtask in self.subtasks)


def place_operators(
    manifest: Manifest,
    operators: Sequence[OperatorPlan],
    hosts: Mapping[str, int],
    strategy: str = LOCALITY,
    graph: JobGraph | None = None,
) -> tuple[OperatorPlacement, ...]:
    """Return a host for each subtask of the planned operators; ``hosts`` says the slots of each.

    ``strategy`` is ``locality``, or ``default``, ``evenly``, ``previous-default`` or
    ``previous-evenly``. A slot sharing group needs as many slots as its widest operator has
    subtasks, by ``graph`` also when that one has no state; without a graph the groups are those of
    the stored one, if there is one. Without copies anywhere, slots are given out in order. Raises
    InvalidArgumentError for an unknown strategy, a host without slots, or too few slots.
    """
    if strategy not in STRATEGIES:
        raise InvalidArgumentError(f"no strategy {strategy!r}; there is {', '.join(STRATEGIES)}")
    for host, slots in hosts.items():
        if type(slots) is not int or slots < 1:
            raise InvalidArgumentError(
                f"host {host!r} offers {slots!r} slots; it must be 1 or more"
            )
    offered = [host for host, slots in hosts.items() for _ in range(slots)]
    known = graph or manifest.graph
    nodes = {label_of(node): node for node in known.nodes} if known else {}
    widths = _widths(operators, nodes, graph)
    places = [(group, at) for group, width in widths.items() for at in range(width)]
    slots_per_group({g: [VertexDemand(n, n)] for g, n in widths.items()}, len(offered))
    tasks = _tasks(manifest, operators, nodes, known)
    if strategy == LOCALITY:
        chosen = _by_locality(places, tasks, offered)
    else:
        chosen = _one_by_one(places, tasks, hosts, offered, SlotStrategy(strategy))
    return tuple(
        _placed(manifest, plan, strategy, _group_of(nodes, plan), chosen) for plan in operators
    )


Place = tuple[str, int]  # a slot sharing group, and which of its slots


@dataclass(frozen=True)
class _Task:
    """The operators of a job vertex that go by one assignment, and what each host holds of them."""

    group: str
    assignment: Assignment
    held: Held


def _group_of(nodes: Mapping[str, Node], plan: OperatorPlan) -> str:
    node = nodes.get(plan.uid)
    return _SHARED if node is None else node.slot_group


def _widths(
    operators: Iterable[OperatorPlan], nodes: Mapping[str, Node], graph: JobGraph | None
) -> dict[str, int]:
    """How many slots each slot sharing group needs."""
    wanted = [(node.slot_group, node.parallelism) for node in (graph.nodes if graph else ())]
    wanted += [(_group_of(nodes, plan), len(plan.subtasks)) for plan in operators]
    widths: dict[str, int] = {}
    for group, parallelism in wanted:
        widths[group] = max(parallelism, widths.get(group, 0))
    return widths


def _tasks(
    manifest: Manifest,
    operators: Iterable[OperatorPlan],
    nodes: Mapping[str, Node],
    graph: JobGraph | None,
) -> list[_Task]:
    """What has keyed state, chained operators together: their bytes count as those of one task."""
    vertices = job_vertices(graph, operator_ids(graph)) if graph else ()
    heads = {name: vertex.id for vertex in vertices for name in vertex.in_order}
    chains: dict[tuple[str, Assignment], list[OperatorPlan]] = {}
    for plan in operators:
        if plan.assignment is not None:
            node = nodes.get(plan.uid)
            vertex = f"alone {plan.uid}" if node is None else heads[node.name]
            chains.setdefault((vertex, plan.assignment), []).append(plan)
    return [
        _Task(_group_of(nodes, plans[0]), assignment, _held(manifest, assignment, plans))
        for (_, assignment), plans in chains.items()
    ]


def _held(manifest: Manifest, assignment: Assignment, plans: Iterable[OperatorPlan]) -> Held:
    """Return what each host holds of the keyed states of some operators, all of them together."""
    stored = {plan.stored_uid for plan in plans}
    handles = [
        handle
        for entry in manifest.keyed
        if entry.state.uid in stored
        for part in entry.parts
        for handle in part.handles
    ]
    return pieces_of_hosts(handles, assignment)


def _by_locality(
    places: Sequence[Place], tasks: Iterable[_Task], offered: Sequence[str]
) -> dict[Place, str]:
    names = {place: f"{at:05}" for at, place in enumerate(places)}  # ties go by their order
    groups: dict[str, list[tuple[int, int]]] = {name: [] for name in names.values()}
    vertices = []
    for number, task in enumerate(tasks):
        for subtask in range(task.assignment.parallelism):
            groups[names[task.group, subtask]].append((number, subtask))
        previous = tuple(
            PreviousAllocation(slot, KeyGroupRange(piece.first, piece.last), piece.size_bytes)
            for slot, host in enumerate(offered)
            for piece in task.held.get(host, {}).values()
        )
        own = task.assignment
        ranges = own if isinstance(own, RangeAssignment) else None
        vertices.append(VertexState(number, own.max_parallelism, previous, ranges))
    slots = assign_by_locality(vertices, groups, range(len(offered))).slots
    return {place: offered[slots[name]] for place, name in names.items()}


def _one_by_one(
    places: Sequence[Place],
    tasks: Iterable[_Task],
    hosts: Mapping[str, int],
    offered: Sequence[str],
    strategy: SlotStrategy,
) -> dict[Place, str]:
    """Place one slot after the other, as the default scheduler does."""
    last: dict[Place, list[str]] = {place: [] for place in places}
    for task in tasks:
        for subtask in range(task.assignment.parallelism):
            if host := _last_host(task.held, hosts, subtask):
                last[task.group, subtask].append(host)
    free = dict(enumerate(offered))
    used: Counter[str] = Counter()
    chosen: dict[Place, str] = {}
    for number, place in enumerate(places):
        slots = [Slot(at, on, on, used[on] / hosts[on]) for at, on in free.items()]
        later = {host for other in places[number + 1 :] for host in last[other]}
        preferred = [
            one for host in last[place] for one in preferred_locations(Location(host, host))
        ]
        selection = select_slot(
            strategy,
            slots,
            preferred=preferred,
            prior=[at for at, on in free.items() if on in last[place]],
            reserved=[at for at, on in free.items() if on in later],
        ) or select_slot(SlotStrategy.DEFAULT, slots)
        assert selection is not None  # there are as many slots as places
        chosen[place] = free.pop(selection.slot)
        used[chosen[place]] += 1
    return chosen


def _last_host(held: Held, hosts: Mapping[str, int], subtask: int) -> str:
    """Return the offered host that holds most of a subtask's bytes, empty when none has any."""
    most = max(hosts, key=lambda host: _bytes(held, host, subtask))
    return most if _bytes(held, most, subtask) else ""


def _bytes(held: Held, host: str, subtask: int) -> int:
    piece = held.get(host, {}).get(subtask)
    return piece.size_bytes if piece else 0


def _placed(
    manifest: Manifest,
    plan: OperatorPlan,
    strategy: str,
    group: str,
    chosen: Mapping[Place, str],
) -> OperatorPlacement:
    held = {} if plan.assignment is None else _held(manifest, plan.assignment, [plan])
    on = [chosen[group, subtask] for subtask in range(len(plan.subtasks))]
    subtasks = tuple(PlacedSubtask(i, host, _bytes(held, host, i)) for i, host in enumerate(on))
    return OperatorPlacement(plan.uid, strategy, subtasks, group)
