"""Chaining, operator ids, and the operators of a checkpoint.

Chaining determines which operators run in the same task, a *job vertex*, and so which state moves
together. It follows Flink 2.3's ``StreamingJobGraphGenerator``. A chain has the parallelism and
the max parallelism of its first operator, the head. In Flink a source inside a HEAD_WITH_SOURCES
operator is not in the vertex's list of operators. Here it is in ``chained_sources``, so that no
operator is missing. Forward edges that chain only in adaptive batch are not supported, because only
streaming jobs have state.

Operator ids are 128 bits that identify an operator across jobs. They follow Flink's
``StreamGraphHasherV2``.

If there is a uid, the id is the MurmurHash3 x64 128 hash with seed 0 of the uid's UTF-8 bytes,
each 64-bit half printed little-endian. The id depends only on the uid: not on the job, the
operator's name, its position in the graph or its parallelism. So state finds its operator again
after a job has changed, and so the uid must stay the same.

Without a uid, the id is generated from the number of operators visited before it, the number of
its chainable out-edges, and the ids of its inputs. If an earlier operator is added, removed or
moved, or chaining changes, the id changes. So chaining also determines which state is found again.
Names and code do not matter.

The store identifies an operator by a label, which is part of the path of its state. The label is
its uid, or its name for an operator of a job graph without a uid. Without a graph every label is
a uid, and all operators have the parallelism of the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.graph import (
    ChainingStrategy,
    Edge,
    EdgePartitioner,
    Exchange,
    JobGraph,
    Node,
    close_match,
)


@dataclass(frozen=True, slots=True)
class JobVertex:
    """One task of a job and its operators.

    ``nodes`` are the operators' names, from the last one of the chain to the head. ``operators``
    are their (operator id, uid_hash or None), in the same order. ``id`` is the head's operator id.
    ``max_parallelism`` None means that it is derived. ``chained_sources`` are the names of the
    sources that run as inputs of the head. ``name`` has the form of Flink's web UI.
    """

    id: str
    name: str
    nodes: tuple[str, ...]
    operators: tuple[tuple[str, str | None], ...]
    parallelism: int
    max_parallelism: int | None
    chained_sources: tuple[str, ...] = ()

    @property
    def in_order(self) -> tuple[str, ...]:
        """The names of all its operators in processing order: sources, head, …"""
        return (*self.chained_sources, *reversed(self.nodes))


def chainable_edges(graph: JobGraph) -> tuple[Edge, ...]:
    """Return the edges whose two operators run in one chain, in the graph's order.

    At most one edge of each target is included. As in Flink, edges from sources inside a
    HEAD_WITH_SOURCES operator with several inputs are not included.
    """
    heads: dict[str, str] = {}
    chainable = set()
    for name in graph.topological_order():
        heads[name] = name
        edges = graph.in_edges(name)
        if len(edges) == 1 and _may_chain(graph, edges[0], heads[edges[0].source]):
            heads[name] = heads[edges[0].source]
            chainable.add(name)
    return tuple(edge for edge in graph.edges if edge.target in chainable)


def is_chainable(graph: JobGraph, edge: Edge) -> bool:
    """Return whether the two operators of an edge run in one chain.

    It examines the whole graph: for many edges call :func:`chainable_edges` once. Raises
    InvalidArgumentError if the edge is not in the graph.
    """
    if edge not in graph.in_edges(edge.target):
        raise InvalidArgumentError(f"the job graph has no {edge}: choose one of its edges")
    return edge in chainable_edges(graph)


def job_vertices(graph: JobGraph, ids: Mapping[str, str]) -> tuple[JobVertex, ...]:
    """Return the tasks of a job, sources first, in Flink's order.

    ``ids`` is the result of :func:`statestore.jobgraph.operators.operator_ids`. Raises
    InvalidArgumentError if the id of an operator is missing.
    """
    missing = [node.name for node in graph.nodes if node.name not in ids]
    if missing:
        raise InvalidArgumentError(
            f"ids has no operator id for {missing[0]!r}: pass operator_ids(graph) of the same graph"
        )
    walk = _Walk(graph)
    return tuple(
        JobVertex(
            id=ids[head],
            name=walk.titles[head],
            nodes=tuple(walk.members[head]),
            operators=tuple((ids[name], graph.node(name).uid_hash) for name in walk.members[head]),
            parallelism=graph.node(head).parallelism,
            max_parallelism=graph.node(head).max_parallelism,
            chained_sources=walk.sources_of(head),
        )
        for head in _order_from_sources(walk.created, walk.targets)
    )


def _may_chain(graph: JobGraph, edge: Edge, head: str) -> bool:
    """Check all rules except the number of in-edges; ``head`` is the head of the source's chain.

    The rules are ``isChainableInput`` without its check for unions, ``areOperatorsChainable`` and
    ``arePartitionerAndExchangeModeChainable``.
    """
    source, target = graph.node(edge.source), graph.node(edge.target)
    if target.yielding and graph.node(head).legacy_source:
        return False  # a legacy source blocks the thread that the operator would yield
    follows = target.strategy is ChainingStrategy.ALWAYS or (
        target.strategy is ChainingStrategy.HEAD_WITH_SOURCES and source.source
    )
    equal_max = source.max_parallelism == target.max_parallelism
    return (
        graph.chaining
        and source.slot_group == target.slot_group
        and source.strategy is not ChainingStrategy.NEVER
        and follows
        and source.parallelism == target.parallelism
        and (graph.chain_different_max or equal_max)
        and graph.partitioner(edge) is EdgePartitioner.FORWARD
        and edge.exchange is not Exchange.BATCH
    )


def _chained_source(graph: JobGraph, source: str) -> str | None:
    """Return the HEAD_WITH_SOURCES operator that a source runs inside, or None."""
    edges = graph.out_edges(source)
    if len(edges) != 1:
        return None
    (edge,) = edges
    shared = [other for other in graph.in_edges(edge.target) if other.number == edge.number]
    with_sources = graph.node(edge.target).strategy is ChainingStrategy.HEAD_WITH_SOURCES
    inside = with_sources and len(shared) == 1 and _may_chain(graph, edge, source)
    return edge.target if inside else None


class _Walk:
    """The depth-first walk from the sources that cuts a graph into chains (``createChain``).

    Each operator's chainable out-edges come first and stay in its chain. The other out-edges
    follow, and each starts a chain at its target if the target has none. The walk uses a stack
    instead of recursion, because a job's chain may exceed Python's recursion limit.
    """

    def __init__(self, graph: JobGraph) -> None:
        self.graph = graph
        self.chainable = frozenset((edge.source, edge.target) for edge in chainable_edges(graph))
        starts = [node.name for node in graph.nodes if not graph.in_edges(node)]
        self.inside = {name: _chained_source(graph, name) for name in starts}
        self.members: dict[str, list[str]] = {}
        self.targets: dict[str, list[str]] = {}
        self.titles: dict[str, str] = {}
        self.created: list[str] = []  # heads, in the order in which their chains were completed
        entries = {self.inside[name] or name for name in starts}
        for entry in sorted(entries, key=graph.position):
            self._open(entry)

    def sources_of(self, name: str) -> tuple[str, ...]:
        """Return the sources inside an operator, in the order of its inputs."""
        sources = [edge.source for edge in self.graph.in_edges(name)]
        return tuple(source for source in sources if self.inside.get(source) == name)

    def _open(self, entry: str) -> None:
        # (operator, head of its chain, whether all operators after it are done)
        stack = [(entry, entry, False)]
        while stack:
            name, head, done = stack.pop()
            inner, outer = self._outputs(name)
            if done:
                self._close(name, head, inner, outer)
                continue
            if name == head:
                if head in self.members:
                    continue
                self.members[head], self.targets[head] = [], []
            stack.append((name, head, True))
            stack.extend((target, target, False) for target in reversed(outer))
            stack.extend((target, head, False) for target in reversed(inner))

    def _outputs(self, name: str) -> tuple[list[str], list[str]]:
        targets = [edge.target for edge in self.graph.out_edges(name)]
        inner = [target for target in targets if (name, target) in self.chainable]
        outer = [target for target in targets if (name, target) not in self.chainable]
        return inner, outer

    def _close(self, name: str, head: str, inner: Sequence[str], outer: Sequence[str]) -> None:
        self.members[head].append(name)
        self.targets[head].extend(outer)
        sources = self.sources_of(name)
        title = f"{name} [{', '.join(sources)}]" if sources else name
        behind = [self.titles[target] for target in inner]
        if behind:
            title += f" -> ({', '.join(behind)})" if len(behind) > 1 else f" -> {behind[0]}"
        self.titles[name] = title
        if name == head:
            self.created.append(head)


def _order_from_sources(created: Sequence[str], targets: Mapping[str, Sequence[str]]) -> list[str]:
    """Order vertices so that each follows its producers, depth first from the sources.

    It follows Flink's ``JobGraph.getVerticesSortedTopologicallyFromSources``.
    """
    producers: dict[str, set[str]] = {head: set() for head in created}
    for head in created:
        for target in targets[head]:
            producers[target].add(head)
    waiting = {head: len(heads) for head, heads in producers.items()}
    order = [head for head in created if not waiting[head]]
    placed = set(order)
    for head in order:
        _release(targets[head], waiting)
    for start in order:  # the list grows during the loop
        stack: list[Iterator[str]] = [iter(targets[start])]
        while stack:
            vertex = next(stack[-1], None)
            if vertex is None:
                stack.pop()
            elif vertex not in placed and not waiting[vertex]:
                order.append(vertex)
                placed.add(vertex)
                _release(targets[vertex], waiting)
                stack.append(iter(targets[vertex]))
    return order


def _release(targets: Sequence[str], waiting: dict[str, int]) -> None:
    for target in set(targets):
        waiting[target] -= 1


_U64 = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


def operator_id(uid: str) -> str:
    """Return the operator id of ``uid``: 32 lowercase hex digits.

    Surrogate code units are treated as in Java: a pair is one character, and a single one, which
    cannot be encoded, becomes ``?``.

    Raises :class:`InvalidArgumentError` for an empty uid, which Flink hashes but refuses later, and
    for anything but a string.
    """
    if not isinstance(uid, str):
        raise InvalidArgumentError(f"an operator uid must be a string, not {type(uid).__name__}")
    if not uid:
        raise InvalidArgumentError("an operator uid must not be empty; pass a name")
    return _hash_uid(uid)


# Cached, because a checkpoint needs the id of each operator many times.
@lru_cache(maxsize=1024)
def _hash_uid(uid: str) -> str:
    return _murmur3_128(_java_utf8(uid)).hex()


def operator_ids(graph: JobGraph) -> dict[str, str]:
    """Return the operator id of every operator of a job by its name, in creation order.

    Ids given as ``uid_hash`` are not included: they are looked up on restore, but never written.

    Raises :class:`InvalidArgumentError` if two uids have the same id (only possible for uids with
    unpaired surrogates).
    """
    chainable = {(edge.source, edge.target) for edge in chainable_edges(graph)}
    ids: dict[str, bytes] = {}
    owners: dict[bytes, str] = {}
    waiting = deque(node.name for node in graph.nodes if not graph.in_edges(node))
    visited = set(waiting)
    while waiting:
        name = waiting.popleft()
        uid = graph.node(name).uid
        inputs = [edge.source for edge in graph.in_edges(name)]
        targets = [edge.target for edge in graph.out_edges(name)]
        if uid is not None:
            own_id = bytes.fromhex(operator_id(uid))
        elif all(source in ids for source in inputs):
            chained = sum((name, target) in chainable for target in targets)
            own_id = _generate_id(len(ids), chained, [ids[source] for source in inputs])
        else:
            visited.discard(name)  # it is queued again by the last of its inputs
            continue
        if own_id in owners:
            raise InvalidArgumentError(
                f"the operators {owners[own_id]!r} and {name!r} have the same operator id "
                f"{own_id.hex()}: give one of them another uid"
            )
        ids[name], owners[own_id] = own_id, name
        for target in targets:
            if target not in visited:
                visited.add(target)
                waiting.append(target)
    return {node.name: ids[node.name].hex() for node in graph.nodes}


def _generate_id(before: int, chained: int, inputs: list[bytes]) -> bytes:
    """Return the id of an operator visited after ``before`` others, with ``chained`` outputs."""
    digest = _murmur3_128(before.to_bytes(4, "little") * (1 + chained))
    for other in inputs:
        digest = bytes((a * 37 & 0xFF) ^ b for a, b in zip(digest, other, strict=True))
    return digest


def _java_utf8(text: str) -> bytes:
    """Encode text as Java's ``String.getBytes(UTF_8)`` does.

    A surrogate pair becomes one character, and an unpaired surrogate becomes ``?``.
    """
    # Python strings can contain a pair as two code points; a round trip through UTF-16 joins it.
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return joined.encode("utf-8", "replace")


def _murmur3_128(data: bytes) -> bytes:
    """Return MurmurHash3 x64 128 with seed 0: 16 bytes, both halves little-endian."""
    h1 = h2 = 0
    tail_at = len(data) - len(data) % 16
    for offset in range(0, tail_at, 16):
        h1 ^= _scramble_low(data[offset : offset + 8])
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _U64
        h2 ^= _scramble_high(data[offset + 8 : offset + 16])
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _U64
    # Missing bytes count as zero, and a zero block scrambles to zero, so no special case is needed.
    h1 ^= _scramble_low(data[tail_at : tail_at + 8]) ^ len(data)
    h2 ^= _scramble_high(data[tail_at + 8 :]) ^ len(data)
    h1 = (h1 + h2) & _U64
    h2 = (h2 + h1) & _U64
    h1, h2 = _finalise(h1), _finalise(h2)
    h1 = (h1 + h2) & _U64
    h2 = (h2 + h1) & _U64
    return h1.to_bytes(8, "little") + h2.to_bytes(8, "little")


def _scramble_low(block: bytes) -> int:
    return _rotate(int.from_bytes(block, "little") * _C1 & _U64, 31) * _C2 & _U64


def _scramble_high(block: bytes) -> int:
    return _rotate(int.from_bytes(block, "little") * _C2 & _U64, 33) * _C1 & _U64


def _rotate(x: int, bits: int) -> int:
    return (x << bits | x >> (64 - bits)) & _U64


def _finalise(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & _U64
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & _U64
    return h ^ h >> 33


def label_of(node: Node) -> str:
    """Return the label of an operator: its uid, or its name without one."""
    return node.name if node.uid is None else node.uid


@dataclass(frozen=True)
class Operators:
    """The operators of a job at ``parallelism``, with the details of its graph if there is one.

    It has their ids, and their numbers of subtasks and key groups.
    """

    parallelism: int
    graph: JobGraph | None = None

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for two operators with the same label."""
        owners: dict[str, Node] = {}
        for node in self.graph.nodes if self.graph else ():
            other = owners.setdefault(label_of(node), node)
            if other is not node:
                raise InvalidArgumentError(
                    f"{other} and {node} would keep their state in the same place, "
                    f"{label_of(node)!r}: the uid of the first is the name of the second, "
                    "which has no uid; give the second a uid"
                )

    def parallelism_of(self, label: str) -> int:
        """Return the number of subtasks of an operator."""
        node = self._by_label.get(label)
        return self.parallelism if node is None else node.parallelism

    def max_parallelism_of(self, label: str) -> int | None:
        """Return the max parallelism of an operator in the graph; None if it is not set.

        It is the value of the head of the operator's chain, because a chain runs as one job vertex.
        """
        node = self._by_label.get(label)
        return None if node is None else self._max_parallelism.get(node.name)

    def has_uid(self, label: str) -> bool:
        """Return whether the label is a uid, from which the operator's id is computed."""
        node = self._by_label.get(label)
        return node is None or node.uid is not None

    def name_of(self, label: str) -> str | None:
        """Return the name of an operator in the graph; None without a graph."""
        node = self._by_label.get(label)
        return None if node is None else node.name

    def id_of(self, label: str) -> str:
        """Return the operator id: from the uid, or generated from the position in the graph."""
        node = self._by_label.get(label)
        return operator_id(label) if node is None else self._ids[node.name]

    def ids_of(self, label: str) -> frozenset[str]:
        """Return the ids that an operator's state may have: its own and its ``uid_hash``."""
        node = self._by_label.get(label)
        other = () if node is None or node.uid_hash is None else (node.uid_hash,)
        return frozenset({self.id_of(label), *other})

    def label_of_id(self, stored: str, label: str) -> str | None:
        """Return the label in this graph of an operator that is stored with an id and a label.

        None if the graph does not contain the operator.
        """
        if self.graph is None:
            return label
        return next((own for own in self._by_label if stored in self.ids_of(own)), None)

    def check(self, label: str) -> None:
        """Raise InvalidArgumentError if there is a graph without an operator with this label."""
        if self.graph is not None and label not in self._by_label:
            raise InvalidArgumentError(
                f"the job graph has no operator {label!r}: {close_match(label, self._by_label)}. "
                "State is stored under the operator's uid, or under its name if it has no uid"
            )

    @cached_property
    def _by_label(self) -> dict[str, Node]:
        return {label_of(node): node for node in self.graph.nodes} if self.graph else {}

    @cached_property
    def _ids(self) -> dict[str, str]:
        return operator_ids(self.graph) if self.graph else {}

    @cached_property
    def _max_parallelism(self) -> dict[str, int | None]:
        vertices = job_vertices(self.graph, self._ids) if self.graph else ()
        return {name: vertex.max_parallelism for vertex in vertices for name in vertex.nodes}
