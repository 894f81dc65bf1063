"""What tells two job graphs apart: operators, their settings, edges, options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields

from statestore.flink.graph import Edge, JobGraph, Node
from statestore.model.diff import Other, others

__all__ = ["graph_others"]

_OPTIONS = ("chaining", "chain_different_max", "auto_generate_uids")


def graph_others(a: JobGraph | None, b: JobGraph | None) -> tuple[Other, ...]:
    """Return the differences, none when both are missing.

    Operators are the same when they have the same uid, or without one the same name.
    """
    if a is None or b is None:
        return others([("job graph", a and _size(a), b and _size(b))])
    return (*_options(a, b), *_nodes(a, b), *_edges(a, b))


def _size(graph: JobGraph) -> str:
    return f"{len(graph.nodes)} operators"


def _options(a: JobGraph, b: JobGraph) -> Iterable[Other]:
    return others((name, getattr(a, name), getattr(b, name)) for name in _OPTIONS)


def _nodes(a: JobGraph, b: JobGraph) -> Iterator[Other]:
    old, new = _named(a), _named(b)
    for name in (*old, *(name for name in new if name not in old)):
        label = f"operator {name}"
        if name not in old or name not in new:
            yield from others([(label, _node(old.get(name)), _node(new.get(name)))])
            continue
        for field in fields(Node):
            values = getattr(old[name], field.name), getattr(new[name], field.name)
            yield from others([(f"{field.name} of {label}", *values)])


def _named(graph: JobGraph) -> dict[str, Node]:
    """Return the operators by uid, else by name; of several of a name with their place in it."""
    names = [node.uid or node.name for node in graph.nodes]
    seen: Counter[str] = Counter()
    found = {}
    for name, node in zip(names, graph.nodes, strict=True):
        seen[name] += 1
        found[repr(name) if seen[name] == 1 else f"{name!r} ({seen[name]})"] = node
    return found


def _node(node: Node | None) -> str | None:
    return None if node is None else f"parallelism {node.parallelism}"


def _edges(a: JobGraph, b: JobGraph) -> Iterator[Other]:
    old, new = Counter(map(_edge, a.edges)), Counter(map(_edge, b.edges))
    for edge in sorted((old - new).elements()):
        yield Other("edge", edge, None)
    for edge in sorted((new - old).elements()):
        yield Other("edge", None, edge)


def _edge(edge: Edge) -> str:
    how = [edge.partitioner and edge.partitioner.value, edge.exchange.value]
    text = ", ".join(word for word in how if word)
    return f"{edge.source} → {edge.target} (input {edge.number}, {text})"
