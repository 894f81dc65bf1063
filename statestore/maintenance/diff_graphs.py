"""Compare two job graphs: operators, their settings, edges and options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields

from statestore.jobgraph.graph import Edge, JobGraph, Node
from statestore.maintenance.diff_report import Other, others

__all__ = ["graph_others"]


_OPTIONS = ("chaining", "chain_different_max", "auto_generate_uids")


def graph_others(a: JobGraph | None, b: JobGraph | None) -> tuple[Other, ...]:
    """Return the differences; none if both graphs are missing.

    Operators are matched by uid, or by name if they have no uid.
    """
    if a is None or b is None:
        return others([("job graph", a and _size(a), b and _size(b))])
    options = others((name, getattr(a, name), getattr(b, name)) for name in _OPTIONS)
    return (*options, *_nodes(a, b), *_edges(a, b))


def _size(graph: JobGraph) -> str:
    return f"{len(graph.nodes)} operators"


def _nodes(a: JobGraph, b: JobGraph) -> Iterator[Other]:
    old, new = _nodes_by_label(a), _nodes_by_label(b)
    for name in (*old, *(name for name in new if name not in old)):
        label = f"operator {name}"
        if name not in old or name not in new:
            yield from others([(label, _node(old.get(name)), _node(new.get(name)))])
            continue
        for field in fields(Node):
            values = getattr(old[name], field.name), getattr(new[name], field.name)
            yield from others([(f"{field.name} of {label}", *values)])


def _nodes_by_label(graph: JobGraph) -> dict[str, Node]:
    """Return the operators by uid, or by name if they have no uid.

    Operators with the same name are numbered.
    """
    names = [node.uid or node.name for node in graph.nodes]
    occurrences: Counter[str] = Counter()
    nodes = {}
    for name, node in zip(names, graph.nodes, strict=True):
        occurrences[name] += 1
        nodes[repr(name) if occurrences[name] == 1 else f"{name!r} ({occurrences[name]})"] = node
    return nodes


def _node(node: Node | None) -> str | None:
    return None if node is None else f"parallelism {node.parallelism}"


def _edges(a: JobGraph, b: JobGraph) -> Iterator[Other]:
    old, new = Counter(map(_edge, a.edges)), Counter(map(_edge, b.edges))
    for edge in sorted((old - new).elements()):
        yield Other("edge", edge, None)
    for edge in sorted((new - old).elements()):
        yield Other("edge", None, edge)


def _edge(edge: Edge) -> str:
    words = [edge.partitioner and edge.partitioner.value, edge.exchange.value]
    text = ", ".join(word for word in words if word)
    return f"{edge.source} → {edge.target} (input {edge.number}, {text})"
