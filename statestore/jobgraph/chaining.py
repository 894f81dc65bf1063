"""Chaining: which operators of a job run in the same task, a *job vertex*.

It follows Flink 2.3's ``StreamingJobGraphGenerator``. Chaining determines which state moves
together. Generated operator ids depend on it, so it also determines which state is found again
(``operators.py``).

A chain has the parallelism and the max parallelism of its first operator, the head. In Flink a
source inside a HEAD_WITH_SOURCES operator is not in the vertex's list of operators. Here it is not
in ``operators`` either, but in a separate field, so that no operator is missing. Forward edges that
chain only in a graph that changes at run time (adaptive batch) are not supported, because only
streaming jobs have state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.graph import ChainingStrategy, Edge, EdgePartitioner, Exchange, JobGraph

__all__ = ["JobVertex", "chainable_edges", "is_chainable", "job_vertices"]


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
