"""Match the operators of a job to the stored ones, and suggest how to keep unclaimed state.

It follows Flink's ``StateAssignmentOperation`` and ``Checkpoints.loadAndValidateCheckpoint``. An
operator is looked up by its ``uid_hash`` if the snapshot has an operator with that id. Otherwise it
is looked up by its own id, which comes from its uid or is generated. An operator that is not found
starts empty. Stored state that no operator claims is refused unless the user gives it up
explicitly. Stored operators without state are ignored.

Differences from Flink: two operators that claim the same stored operator are refused (Flink gives
the state to one of them, and the other silently starts empty). An operator whose states have no
rows counts as an operator without state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Final

from statestore.errors import (
    InvalidArgumentError,
    ParallelismError,
    UnclaimedStateError,
)
from statestore.jobgraph.graph import JobGraph, Node
from statestore.jobgraph.operators import job_vertices, operator_id, operator_ids
from statestore.keys.groups import effective_max_parallelism

_ID: Final = re.compile("[0-9a-f]{32}")


class Outcome(StrEnum):
    """The result for an operator of the job, or for a stored operator."""

    FOUND = "found"
    EMPTY = "empty"
    DROPPED = "dropped"
    IGNORED = "ignored"


class FoundBy(StrEnum):
    """The id by which an operator was found."""

    USER_HASH = "uid_hash"
    UID = "uid"
    GENERATED = "generated id"


class HintReason(StrEnum):
    """The reason to assume that a stored operator is one of the job's."""

    SAME_NAME = "it has the same name"
    OLD_NAME = "the stored job used this name"
    OLD_POSITION = "it has the same position in the job"


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """One operator of a snapshot.

    ``uid`` is None if the id was generated, or if only the id is known. ``rows`` counts keyed rows
    and elements of operator state, and ``size_bytes`` the bytes of their files. ``max_parallelism``
    None means no keyed state. Raises InvalidArgumentError if the id is not 32 lower-case hex
    digits.
    """

    operator_id: str
    uid: str | None = None
    name: str | None = None
    states: tuple[str, ...] = ()
    rows: int = 0
    size_bytes: int = 0
    max_parallelism: int | None = None
    parallelism: int = 1

    def __post_init__(self) -> None:
        """Check the id."""
        if not _ID.fullmatch(str(self.operator_id)):
            raise InvalidArgumentError(
                f"the id of a stored operator is {self.operator_id!r}: it must be 32 lower-case "
                "hex digits"
            )

    @property
    def holds_state(self) -> bool:
        """True if dropping it would lose a row or an element."""
        return self.rows > 0

    @property
    def is_from_uid(self) -> bool:
        """True if its id is derived from its uid, so that an operator with that uid finds it."""
        return bool(self.uid) and operator_id(str(self.uid)) == self.operator_id

    def __str__(self) -> str:
        """Return the operator's name for messages: its uid, or its name and id."""
        if self.uid:
            return f"stored operator {self.uid!r}"
        return f"stored operator {f'{self.name!r} ' if self.name else ''}{self.operator_id}"


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """The stored operator that one operator of the job finds.

    ``operator_id`` is the operator's own id, under which its state will be stored. ``stored`` and
    ``found_by`` are None if it starts empty.
    """

    node: Node
    operator_id: str
    stored: StoredOperator | None = None
    found_by: FoundBy | None = None

    json_properties: ClassVar[tuple[str, ...]] = ("outcome",)

    @property
    def outcome(self) -> Outcome:
        """FOUND or EMPTY."""
        return Outcome.EMPTY if self.stored is None else Outcome.FOUND


@dataclass(frozen=True, slots=True)
class Hint:
    """A change to one operator of the job that makes it find a stored one.

    Exactly one of ``uid`` and ``uid_hash`` is given. All hints of a matching can be applied
    together, and no operator loses its match.
    """

    node: str
    stored: StoredOperator
    reason: HintReason
    uid: str | None = None
    uid_hash: str | None = None

    def applied_to(self, node: Node) -> Node:
        """Return the operator with the change applied."""
        uid = node.uid if self.uid is None else self.uid
        return replace(node, uid=uid, uid_hash=self.uid_hash or node.uid_hash)

    def __str__(self) -> str:
        """Return the change, the operator and the reason."""
        change = f"uid = {self.uid!r}" if self.uid is not None else f"uid_hash = {self.uid_hash!r}"
        return f"set {change} on operator {self.node!r} to keep {self.stored} ({self.reason.value})"


@dataclass(frozen=True, slots=True)
class Matching:
    """The result of :func:`match`: nodes in the job's order, stored operators in the given order.

    ``dropped`` are stored operators whose state no operator claims. ``ignored`` are stored
    operators without state.
    """

    nodes: tuple[NodeMatch, ...]
    dropped: tuple[StoredOperator, ...] = ()
    ignored: tuple[StoredOperator, ...] = ()
    hints: tuple[Hint, ...] = ()

    def node(self, name: str) -> NodeMatch:
        """Return the match of the operator ``name``; InvalidArgumentError for an unknown name."""
        for match in self.nodes:
            if match.node.name == name:
                return match
        raise InvalidArgumentError(f"the job graph has no operator {name!r}")

    def outcome_of(self, stored: StoredOperator) -> Outcome:
        """Return FOUND, DROPPED or IGNORED for one of the stored operators."""
        if stored in self.dropped:
            return Outcome.DROPPED
        return Outcome.IGNORED if stored in self.ignored else Outcome.FOUND

    def refuse_unclaimed(self) -> None:
        """Raise UnclaimedStateError if state would be lost, naming it and the ways to keep it."""
        if not self.dropped:
            return
        losses = "; ".join(
            (
                f"{stored} with {stored.rows} rows, {stored.size_bytes} bytes "
                f"({', '.join(stored.states) or 'state names unknown'})"
            )
            for stored in self.dropped
        )
        advice = "; ".join(map(str, self.hints))
        advice = f"To keep it: {advice}. " if advice else ""
        raise UnclaimedStateError(
            f"no operator of the job claims this state, so it would be lost: {losses}. "
            f"{advice}To drop it: allow_non_restored_state=True (--allow-non-restored-state)"
        )


def match(
    stored: Sequence[StoredOperator], graph: JobGraph, old_graph: JobGraph | None = None
) -> Matching:
    """Match the operators of ``graph`` to stored ones, with hints for unclaimed stored operators.

    ``old_graph`` is the graph of the job that stored them, if known; it is used only for hints.
    Raises InvalidArgumentError if two stored operators have the same id, or if two operators of the
    job claim the same stored operator.
    """
    by_id = {operator.operator_id: operator for operator in stored}
    if len(by_id) != len(stored):
        ids = [operator.operator_id for operator in stored]
        twice = next(repeated for repeated in ids if ids.count(repeated) > 1)
        raise InvalidArgumentError(f"two stored operators have the id {twice}: pass each only once")
    nodes = _match_nodes(by_id, graph)
    claimants: dict[str, str] = {}
    for node in nodes:
        if node.stored is None:
            continue
        other = claimants.setdefault(node.stored.operator_id, node.node.name)
        if other != node.node.name:
            raise InvalidArgumentError(
                f"the operators {other!r} and {node.node.name!r} both claim {node.stored}: "
                "remove the uid_hash of one of them, or give it another uid"
            )
    unclaimed = [operator for operator in stored if operator.operator_id not in claimants]
    dropped = tuple(operator for operator in unclaimed if operator.holds_state)
    ignored = tuple(operator for operator in unclaimed if not operator.holds_state)
    hints = _hints(nodes, dropped, graph, old_graph)
    if not _is_consistent(hints, nodes, by_id, graph):
        # A uid changes the generated ids of operators after it; a uid_hash changes no id.
        hints = [replace(hint, uid=None, uid_hash=hint.stored.operator_id) for hint in hints]
    return Matching(nodes, dropped, ignored, tuple(hints))


def check_parallelism(matching: Matching, graph: JobGraph) -> dict[str, int]:
    """Return the max parallelism of every operator that takes over state, by its name.

    The rules are in :func:`~statestore.keys.groups.effective_max_parallelism`. An operator uses the
    configured value of the head of its chain. Raises ParallelismError, which names the operator, if
    its parallelism is above the stored max parallelism, or if the configured max parallelism
    differs from the stored one.
    """
    result = {}
    ids = {match.node.name: match.operator_id for match in matching.nodes}
    configured = {
        name: vertex.max_parallelism for vertex in job_vertices(graph, ids) for name in vertex.nodes
    }
    for match in matching.nodes:
        if match.stored is None:
            continue
        node = match.node
        try:
            result[node.name] = effective_max_parallelism(
                match.stored.max_parallelism, node.parallelism, configured.get(node.name)
            )
        except ParallelismError as error:
            raise ParallelismError(f"{node}: {error}") from error
    return result


def _match_nodes(by_id: Mapping[str, StoredOperator], graph: JobGraph) -> tuple[NodeMatch, ...]:
    ids = operator_ids(graph)
    return tuple(_match_node(by_id, node, ids[node.name]) for node in graph.nodes)


def _match_node(by_id: Mapping[str, StoredOperator], node: Node, own: str) -> NodeMatch:
    if node.uid_hash in by_id:
        return NodeMatch(node, own, by_id[str(node.uid_hash)], FoundBy.USER_HASH)
    if own in by_id:
        found_by = FoundBy.GENERATED if node.uid is None else FoundBy.UID
        return NodeMatch(node, own, by_id[own], found_by)
    return NodeMatch(node, own)


def _hints(
    nodes: Sequence[NodeMatch],
    dropped: Sequence[StoredOperator],
    graph: JobGraph,
    old_graph: JobGraph | None,
) -> list[Hint]:
    """Return at most one hint per dropped operator and empty node, the best reasons first."""
    empty = [node.node.name for node in nodes if node.stored is None]
    ids = {node.operator_id for node in nodes}
    hints: dict[str, Hint] = {}
    for reason, stored, name in _candidates(dropped, graph, old_graph):
        taken = {hint.node for hint in hints.values()}
        if name not in empty or name in taken or stored.operator_id in hints:
            continue
        # An operator that was found by uid_hash may already have this uid.
        by_uid = stored.is_from_uid and stored.operator_id not in ids
        change = {"uid": stored.uid} if by_uid else {"uid_hash": stored.operator_id}
        hints[stored.operator_id] = Hint(name, stored, reason, **change)
    return [hints[operator.operator_id] for operator in dropped if operator.operator_id in hints]


def _candidates(
    dropped: Sequence[StoredOperator], graph: JobGraph, old_graph: JobGraph | None
) -> Iterator[tuple[HintReason, StoredOperator, str]]:
    """Yield the candidates for each dropped operator; the best reasons come first."""
    for stored in dropped:
        if stored.name is not None:
            yield HintReason.SAME_NAME, stored, stored.name
    if old_graph is None:
        return
    old_names = {operator_id: name for name, operator_id in operator_ids(old_graph).items()}
    known = [
        (operator, old_names[operator.operator_id])
        for operator in dropped
        if operator.operator_id in old_names
    ]
    for stored, name in known:
        yield HintReason.OLD_NAME, stored, name
    for stored, name in known:
        position = old_graph.position(name)
        if position < len(graph.nodes):
            yield HintReason.OLD_POSITION, stored, graph.nodes[position].name


def _is_consistent(
    hints: Sequence[Hint],
    nodes: Sequence[NodeMatch],
    by_id: Mapping[str, StoredOperator],
    graph: JobGraph,
) -> bool:
    """Return whether all hints work when applied together, and no operator loses its match."""
    wanted = {match.node.name: match.stored for match in nodes if match.stored is not None}
    wanted |= {hint.node: hint.stored for hint in hints}
    changes = {hint.node: hint for hint in hints}
    changed = tuple(
        changes[node.name].applied_to(node) if node.name in changes else node
        for node in graph.nodes
    )
    after = {
        match.node.name: match.stored
        for match in _match_nodes(by_id, replace(graph, nodes=changed))
        if match.stored is not None
    }
    alone = len({operator.operator_id for operator in after.values()}) == len(after)
    return alone and all(after.get(name) == operator for name, operator in wanted.items())
