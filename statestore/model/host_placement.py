"""On which of some hosts each subtask of a restore should run, so that it finds its state there.

For who starts the consumers himself: hosts and their slots in, a host for each subtask out, by the
rule of Flink's adaptive scheduler (:mod:`statestore.model.placement`) or one of the default
scheduler's (:mod:`statestore.model.slots`). Where a Flink task manager stands, here is a host; the
last location of a subtask is the host that holds most of its bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from statestore.errors import InvalidArgumentError
from statestore.model.keygroups import KeyGroupRange
from statestore.model.locality import Piece, pieces_of_hosts
from statestore.model.manifest import KeyedEntry, Manifest
from statestore.model.placement import PreviousAllocation, place_subtasks
from statestore.model.plan import OperatorPlan
from statestore.model.slots import (
    Location,
    Slot,
    SlotStrategy,
    preferred_locations,
    select_slot,
    too_few_slots,
)

__all__ = ["LOCALITY", "STRATEGIES", "OperatorPlacement", "PlacedSubtask", "place_operator"]

LOCALITY = "locality"
STRATEGIES = (LOCALITY, *(strategy.value for strategy in SlotStrategy))

Held = Mapping[str, Mapping[int, Piece]]


@dataclass(frozen=True, slots=True)
class PlacedSubtask:
    """A subtask, its host, and how many of its bytes have a copy there."""

    subtask: int
    host: str
    local_bytes: int


@dataclass(frozen=True, slots=True)
class OperatorPlacement:
    """The hosts of the subtasks of one operator, in order of subtask."""

    uid: str
    strategy: str
    subtasks: tuple[PlacedSubtask, ...]

    @property
    def local_bytes(self) -> int:
        """Bytes that stay local, all subtasks together."""
        return sum(subtask.local_bytes for subtask in self.subtasks)


def place_operator(
    manifest: Manifest, plan: OperatorPlan, hosts: Mapping[str, int], strategy: str = LOCALITY
) -> OperatorPlacement:
    """Return a host for each subtask of a planned operator; ``hosts`` says the slots of each.

    ``strategy`` is ``locality``, or ``default``, ``evenly``, ``previous-default`` or
    ``previous-evenly``. Without copies anywhere, slots are given out in order. Raises
    InvalidArgumentError for an unknown strategy, a host without slots, or fewer slots than
    subtasks.
    """
    if strategy not in STRATEGIES:
        raise InvalidArgumentError(f"no strategy {strategy!r}; there is {', '.join(STRATEGIES)}")
    for host, slots in hosts.items():
        if type(slots) is not int or slots < 1:
            raise InvalidArgumentError(
                f"host {host!r} offers {slots!r} slots; it must be 1 or more"
            )
    offered = [host for host, slots in hosts.items() for _ in range(slots)]
    if len(offered) < len(plan.subtasks):
        raise too_few_slots(len(plan.subtasks), len(offered))
    held = _held(manifest, plan)
    chosen = (
        _by_locality(plan, offered, held)
        if strategy == LOCALITY
        else _one_by_one(plan, hosts, offered, held, SlotStrategy(strategy))
    )
    subtasks = tuple(
        PlacedSubtask(subtask, offered[slot], _bytes(held, offered[slot], subtask))
        for subtask, slot in enumerate(chosen)
    )
    return OperatorPlacement(plan.uid, strategy, subtasks)


def _held(manifest: Manifest, plan: OperatorPlan) -> Held:
    """Return what each host holds of the operator's keyed states, all of them together."""
    if plan.assignment is None:
        return {}
    handles = [
        handle
        for entry in manifest.entries
        if isinstance(entry, KeyedEntry) and entry.state.uid == plan.stored_uid
        for part in entry.parts
        for handle in part.handles
    ]
    return pieces_of_hosts(handles, plan.assignment)


def _by_locality(plan: OperatorPlan, offered: list[str], held: Held) -> tuple[int, ...]:
    if plan.assignment is None or not held:
        return tuple(range(len(plan.subtasks)))
    previous = [
        PreviousAllocation(slot, KeyGroupRange(piece.first, piece.last), piece.size_bytes)
        for slot, host in enumerate(offered)
        for piece in held.get(host, {}).values()
    ]
    return place_subtasks(plan.assignment, previous, range(len(offered)))


def _one_by_one(
    plan: OperatorPlan,
    hosts: Mapping[str, int],
    offered: list[str],
    held: Held,
    strategy: SlotStrategy,
) -> tuple[int, ...]:
    """Place one subtask after the other, as the default scheduler does."""
    last = [_last_host(held, hosts, subtask.subtask) for subtask in plan.subtasks]
    free = dict(enumerate(offered))
    used: Counter[str] = Counter()
    chosen = []
    for subtask, host in enumerate(last):
        slots = [Slot(at, on, on, used[on] / hosts[on]) for at, on in free.items()]
        later = {other for other in last[subtask + 1 :] if other}
        selection = select_slot(
            strategy,
            slots,
            preferred=preferred_locations(Location(host, host) if host else None),
            prior=[at for at, on in free.items() if on == host],
            reserved=[at for at, on in free.items() if on in later],
        ) or select_slot(SlotStrategy.DEFAULT, slots)
        assert selection is not None  # there are as many slots as subtasks
        chosen.append(selection.slot)
        used[free.pop(selection.slot)] += 1
    return tuple(chosen)


def _last_host(held: Held, hosts: Mapping[str, int], subtask: int) -> str:
    """Return the offered host that holds most of a subtask's bytes, empty when none has any."""
    most = max(hosts, key=lambda host: _bytes(held, host, subtask))
    return most if _bytes(held, most, subtask) else ""


def _bytes(held: Held, host: str, subtask: int) -> int:
    piece = held.get(host, {}).get(subtask)
    return piece.size_bytes if piece else 0
