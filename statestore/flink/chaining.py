"""Chaining: which operators of a job run in one task, a *job vertex*.

Follows Flink 2.3's ``StreamingJobGraphGenerator``. Chaining decides where state moves together and,
because a generated operator id depends on it, which state is found again (``operators.py``).

A chain keeps the parallelism and the max parallelism of its first operator, its head. A source
that runs inside a HEAD_WITH_SOURCES operator is no member of Flink's list of a vertex's operators;
here it is not in ``operators`` either but has a field of its own, so that no operator is missing.
The forward edges that chain only in a graph that changes while it runs (adaptive batch) are left
out: state belongs to streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from statestore.errors import InvalidArgumentError
from statestore.flink.graph import ChainingStrategy, Edge, Exchange, JobGraph, Partitioner

__all__ = ["JobVertex", "chainable_edges", "is_chainable", "job_vertices"]


@dataclass(frozen=True, slots=True)
class JobVertex:
    """One task of a job and the operators in it.

    ``nodes`` are the operators' names, the last one of the chain first and the head last;
    ``operators`` their (operator id, uid_hash or None), in the same order. ``id`` is the head's
    operator id. ``max_parallelism`` None means derived. ``chained_sources`` are the names of the
    sources that run as inputs of the head. ``name`` is written as Flink's web page shows it.
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
        """The names of all its operators in the order in which records pass: sources, head, …"""
        return (*self.chained_sources, *reversed(self.nodes))


def chainable_edges(graph: JobGraph) -> tuple[Edge, ...]:
    """Return the edges whose two operators run in one chain, in the graph's order.

    At most one edge of a target is among them. Sources inside a HEAD_WITH_SOURCES operator of
    several inputs are no such edges, as in Flink.
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
    """Say whether the two operators of one edge run in one chain.

    Looks at the whole graph: ask :func:`chainable_edges` once for many. Raises
    InvalidArgumentError when the graph has no such edge.
    """
    if edge not in graph.in_edges(edge.target):
        raise InvalidArgumentError(f"the job graph has no {edge}: take one of its edges")
    return edge in chainable_edges(graph)


def job_vertices(graph: JobGraph, ids: Mapping[str, str]) -> tuple[JobVertex, ...]:
    """Return the tasks of a job, sources first, in the order in which Flink lists them.

    ``ids`` is what :func:`statestore.flink.operators.operator_ids` returns. Raises
    InvalidArgumentError when the id of an operator is missing.
    """
    missing = [node.name for node in graph.nodes if node.name not in ids]
    if missing:
        raise InvalidArgumentError(
            f"ids has no operator id of {missing[0]!r}: pass operator_ids(graph) of the same graph"
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
        for head in _from_sources(walk.created, walk.targets)
    )


def _may_chain(graph: JobGraph, edge: Edge, head: str) -> bool:
    """Every rule but the number of in-edges; ``head`` is the first operator of the source's chain.

    ``isChainableInput`` without its look at unions, ``areOperatorsChainable`` and
    ``arePartitionerAndExchangeModeChainable``.
    """
    source, target = graph.node(edge.source), graph.node(edge.target)
    if target.yielding and graph.node(head).legacy_source:
        return False  # a legacy source holds the thread that the operator would yield to
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
        and graph.partitioner(edge) is Partitioner.FORWARD
        and edge.exchange is not Exchange.BATCH
    )


def _chained_source(graph: JobGraph, source: str) -> str | None:
    """The HEAD_WITH_SOURCES operator that a source runs inside of, or None."""
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

    From each operator first its chainable out-edges, into the same chain, then the others, each of
    which opens a chain at its target unless there is one. It needs no recursion: a job's chain may
    be longer than Python's stack.
    """

    def __init__(self, graph: JobGraph) -> None:
        self.graph = graph
        self.chainable = frozenset((edge.source, edge.target) for edge in chainable_edges(graph))
        starts = [node.name for node in graph.nodes if not graph.in_edges(node)]
        self.inside = {name: _chained_source(graph, name) for name in starts}
        self.members: dict[str, list[str]] = {}
        self.targets: dict[str, list[str]] = {}
        self.titles: dict[str, str] = {}
        self.created: list[str] = []  # heads, in the order in which their chains were finished
        entries = {self.inside[name] or name for name in starts}
        for entry in sorted(entries, key=graph.position):
            self._open(entry)

    def sources_of(self, name: str) -> tuple[str, ...]:
        """The sources inside an operator, in the order of its inputs."""
        sources = [edge.source for edge in self.graph.in_edges(name)]
        return tuple(source for source in sources if self.inside.get(source) == name)

    def _open(self, entry: str) -> None:
        # (operator, head of its chain, whether everything behind it is done)
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


def _from_sources(created: Sequence[str], targets: Mapping[str, Sequence[str]]) -> list[str]:
    """Order vertices so that each follows its producers, depth first from the sources.

    Flink's ``JobGraph.getVerticesSortedTopologicallyFromSources``.
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
    for start in order:  # grows while it is walked
        stack: list[Iterator[str]] = [iter(targets[start])]
        while stack:
            found = next(stack[-1], None)
            if found is None:
                stack.pop()
            elif found not in placed and not waiting[found]:
                order.append(found)
                placed.add(found)
                _release(targets[found], waiting)
                stack.append(iter(targets[found]))
    return order


def _release(targets: Sequence[str], waiting: dict[str, int]) -> None:
    for target in set(targets):
        waiting[target] -= 1
