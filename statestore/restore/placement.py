"""Choose the host for each subtask of a restore, so that it finds its state in the local cache.

It is for users who start the consumers themselves. The input is hosts and their slots, the output
is a host for each subtask. The rules follow Flink's adaptive scheduler or its default scheduler
(:mod:`statestore.jobgraph.slots`). A host here corresponds to a task manager in Flink. The last
location of a subtask is the host that has most of its bytes.

As in Flink, slots are placed, not operators. Subtask i of every operator in a slot sharing group
runs in the i-th slot of that group, so chained operators always stay together. Without a job graph
all operators share one group.

A restore that starts no consumers only prefers hosts with copies of a subtask's files. The copies
on hosts become previous allocations, from which
:func:`~statestore.jobgraph.slots.place_subtasks` chooses. Flink's adaptive scheduler does
the same with the slots of the previous job (``StateLocalitySlotAssigner``).

There are two deliberate differences. Flink knows one slot per old subtask, with its range. Here
each file names the host of its copy, so a host's files are cut at the boundaries of the new
subtasks, and each piece is in one of the host's slots. Every host offers an equal number of
slots, however much it holds, so that one host with all copies does not get all the work of a
cluster. A subtask that is placed on a host without its files gets no preferred host, because it
would gain nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from statestore.errors import InvalidArgumentError
from statestore.format.handles import KeyedStateHandle
from statestore.format.manifest import Manifest
from statestore.jobgraph.graph import JobGraph, Node
from statestore.jobgraph.operators import job_vertices, label_of, operator_ids
from statestore.jobgraph.slots import (
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
from statestore.keys.groups import Assignment, KeyGroupRange, RangeAssignment
from statestore.restore.plan import OperatorPlan

LOCALITY = "locality"


STRATEGIES = (LOCALITY, *(strategy.value for strategy in SlotStrategy))


_SHARED = "default"  # the slot sharing group of an operator without one


@dataclass(frozen=True, slots=True)
class PlacedSubtask:
    """A subtask, its host, and the number of its bytes that have a copy there."""

    subtask: int
    host: str
    local_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorPlacement:
    """The hosts of one operator's subtasks, in order of subtask.

    Subtasks with the same number and the same ``slot_group`` share a slot, and therefore a host.
    """

    operator: str
    strategy: str
    subtasks: tuple[PlacedSubtask, ...]
    slot_group: str = _SHARED

    @property
    def local_bytes(self) -> int:
        """The bytes that stay local, for all subtasks together."""
        return sum(subtask.local_bytes for subtask in self.subtasks)


def place_operators(
    manifest: Manifest,
    operators: Sequence[OperatorPlan],
    hosts: Mapping[str, int],
    strategy: str = LOCALITY,
    graph: JobGraph | None = None,
) -> tuple[OperatorPlacement, ...]:
    """Return a host for each subtask of the planned operators; ``hosts`` maps hosts to their slots.

    ``strategy`` is ``locality``, or ``default``, ``evenly``, ``previous-default`` or
    ``previous-evenly``. A slot sharing group needs as many slots as its widest operator has
    subtasks. With ``graph`` operators without state count as well. Without it the groups come from
    the stored graph, if there is one. If no copies exist, slots are assigned in order. Raises
    InvalidArgumentError for an unknown strategy, a host without slots, or too few slots.
    """
    if strategy not in STRATEGIES:
        raise InvalidArgumentError(
            f"unknown strategy {strategy!r}; the strategies are {', '.join(STRATEGIES)}"
        )
    for host, slots in hosts.items():
        if type(slots) is not int or slots < 1:
            raise InvalidArgumentError(
                f"host {host!r} offers {slots!r} slots; it must be 1 or more"
            )
    for plan in operators:
        for keyed in plan.keyed:
            stored = keyed.entry.state.max_parallelism
            if plan.assignment is not None and plan.assignment.max_parallelism != stored:
                raise InvalidArgumentError(
                    f"operator {plan.operator!r} is planned with max parallelism "
                    f"{plan.assignment.max_parallelism}, but its files have the key groups of max "
                    f"parallelism {stored}; plan without max_parallelism"
                )
    offered = [host for host, slots in hosts.items() for _ in range(slots)]
    known = graph or manifest.graph
    nodes = {label_of(node): node for node in known.nodes} if known else {}
    widths = _widths(operators, nodes, graph)
    places = [(group, index) for group, width in widths.items() for index in range(width)]
    slots_per_group({g: [VertexDemand(n, n)] for g, n in widths.items()}, len(offered))
    tasks = _tasks(manifest, operators, nodes, known)
    if strategy == LOCALITY:
        chosen = _place_by_locality(places, tasks, offered)
    else:
        chosen = _place_one_by_one(places, tasks, hosts, offered, SlotStrategy(strategy))
    return tuple(
        _operator_placement(manifest, plan, strategy, _group_of(nodes, plan), chosen)
        for plan in operators
    )


Place = tuple[str, int]  # a slot sharing group, and the index of a slot in it


@dataclass(frozen=True)
class _Task:
    """The operators of a job vertex with the same assignment, and their state on each host."""

    group: str
    assignment: Assignment
    held: Held


def _group_of(nodes: Mapping[str, Node], plan: OperatorPlan) -> str:
    node = nodes.get(plan.operator)
    return _SHARED if node is None else node.slot_group


def _widths(
    operators: Iterable[OperatorPlan], nodes: Mapping[str, Node], graph: JobGraph | None
) -> dict[str, int]:
    """Return the number of slots that each slot sharing group needs."""
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
    """Return the tasks with keyed state; chained operators are one task with their total bytes."""
    vertices = job_vertices(graph, operator_ids(graph)) if graph else ()
    heads = {name: vertex.id for vertex in vertices for name in vertex.in_order}
    chains: dict[tuple[str, Assignment], list[OperatorPlan]] = {}
    for plan in operators:
        if plan.assignment is not None:
            node = nodes.get(plan.operator)
            vertex = f"alone {plan.operator}" if node is None else heads[node.name]
            chains.setdefault((vertex, plan.assignment), []).append(plan)
    return [
        _Task(_group_of(nodes, plans[0]), assignment, _pieces_by_host(manifest, assignment, plans))
        for (_, assignment), plans in chains.items()
    ]


def _pieces_by_host(
    manifest: Manifest, assignment: Assignment, plans: Iterable[OperatorPlan]
) -> Held:
    """Return the pieces on each host of the keyed states of some operators, in total."""
    stored = {plan.stored_operator for plan in plans}
    handles = [
        handle
        for entry in manifest.keyed
        if entry.state.uid in stored
        for part in entry.parts
        for handle in part.handles
    ]
    return pieces_of_hosts(handles, assignment)


def _place_by_locality(
    places: Sequence[Place], tasks: Iterable[_Task], offered: Sequence[str]
) -> dict[Place, str]:
    names = {
        place: f"{index:05}" for index, place in enumerate(places)
    }  # ties are broken by their order
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


def _place_one_by_one(
    places: Sequence[Place],
    tasks: Iterable[_Task],
    hosts: Mapping[str, int],
    offered: Sequence[str],
    strategy: SlotStrategy,
) -> dict[Place, str]:
    """Place one slot after another, as the default scheduler does."""
    last: dict[Place, list[str]] = {place: [] for place in places}
    for task in tasks:
        for subtask in range(task.assignment.parallelism):
            if host := _last_host(task.held, hosts, subtask):
                last[task.group, subtask].append(host)
    free = dict(enumerate(offered))
    used: Counter[str] = Counter()
    chosen: dict[Place, str] = {}
    for number, place in enumerate(places):
        slots = [Slot(slot, on, on, used[on] / hosts[on]) for slot, on in free.items()]
        later = {host for other in places[number + 1 :] for host in last[other]}
        preferred = [
            location
            for host in last[place]
            for location in preferred_locations(Location(host, host))
        ]
        selection = select_slot(
            strategy,
            slots,
            preferred=preferred,
            prior=[slot for slot, on in free.items() if on in last[place]],
            reserved=[slot for slot, on in free.items() if on in later],
        ) or select_slot(SlotStrategy.DEFAULT, slots)
        assert selection is not None  # there are as many slots as places
        chosen[place] = free.pop(selection.slot)
        used[chosen[place]] += 1
    return chosen


def _last_host(held: Held, hosts: Mapping[str, int], subtask: int) -> str:
    """Return the offered host with most of a subtask's bytes; empty if no host has any."""
    most = max(hosts, key=lambda host: _bytes(held, host, subtask))
    return most if _bytes(held, most, subtask) else ""


def _bytes(held: Held, host: str, subtask: int) -> int:
    piece = held.get(host, {}).get(subtask)
    return piece.size_bytes if piece else 0


def _operator_placement(
    manifest: Manifest,
    plan: OperatorPlan,
    strategy: str,
    group: str,
    chosen: Mapping[Place, str],
) -> OperatorPlacement:
    held = {} if plan.assignment is None else _pieces_by_host(manifest, plan.assignment, [plan])
    on = [chosen[group, subtask] for subtask in range(len(plan.subtasks))]
    subtasks = tuple(PlacedSubtask(i, host, _bytes(held, host, i)) for i, host in enumerate(on))
    return OperatorPlacement(plan.operator, strategy, subtasks, group)


class StatePiece(NamedTuple):
    """The first and last key group of a subtask's state on a host, and the number of bytes."""

    first: int
    last: int
    size_bytes: int


Held = Mapping[str, Mapping[int, StatePiece]]


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
