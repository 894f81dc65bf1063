"""Show a job graph, and the state that each of its operators finds, as JSON and as a drawing.

::

    job vertex 1  orders → clean  (parallelism 2)
      orders  cbc357ccb763df2852fee8c4fc7d55f2  uid orders  offsets: 4 elements, 1.8 kB
      clean   9dd63673dd41ea021b896d5203f3ba7c  no uid      no state
      └ HASH to job vertex 2
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from statestore.cli.drawing import ASCII, count, counted, size
from statestore.cli.output import Page
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.jobgraph.graph import EdgePartitioner, JobGraph
from statestore.jobgraph.matching import Matching, StoredOperator
from statestore.jobgraph.operators import JobVertex, job_vertices, label_of, operator_ids

__all__ = [
    "ShownGraph",
    "shown_graph",
    "write_graph",
    "write_matching",
]


@dataclass(frozen=True, kw_only=True)
class VertexOperator:
    """An operator of a job vertex. ``states`` has the names of its states."""

    name: str
    uid: str | None
    uid_hash: str | None
    operator_id: str
    states: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ShownVertex:
    """A job vertex with its chained operators."""

    id: str
    parallelism: int
    max_parallelism: int | None
    operators: tuple[VertexOperator, ...]


@dataclass(frozen=True, kw_only=True)
class ShownEdge:
    """An edge between two operators."""

    source: str
    target: str
    partitioner: EdgePartitioner


@dataclass(frozen=True, kw_only=True)
class ShownGraph:
    """With ``--job-graph``: the job graph of a checkpoint."""

    store: str
    checkpoint_id: int
    vertices: tuple[ShownVertex, ...]
    edges: tuple[ShownEdge, ...]


def shown_graph(store: str, manifest: Manifest, graph: JobGraph) -> ShownGraph:
    """Return the job vertices with their operators, and the edges between them."""
    ids = operator_ids(graph)
    return ShownGraph(
        store=store,
        checkpoint_id=manifest.checkpoint_id,
        vertices=tuple(
            ShownVertex(
                id=vertex.id,
                parallelism=vertex.parallelism,
                max_parallelism=vertex.max_parallelism,
                operators=tuple(
                    VertexOperator(
                        name=name,
                        uid=graph.node(name).uid,
                        uid_hash=graph.node(name).uid_hash,
                        operator_id=ids[name],
                        states=tuple(
                            entry.state.name
                            for entry in manifest.entries
                            if entry.state.uid == label_of(graph.node(name))
                        ),
                    )
                    for name in vertex.in_order
                ),
            )
            for vertex in job_vertices(graph, ids)
        ),
        edges=tuple(
            ShownEdge(source=edge.source, target=edge.target, partitioner=graph.partitioner(edge))
            for edge in graph.edges
        ),
    )


def write_graph(page: Page, manifest: Manifest, graph: JobGraph) -> None:
    """Draw the job vertices with their chained operators, each operator's state, and the edges."""
    ids = operator_ids(graph)
    vertices = job_vertices(graph, ids)
    vertex_of = {
        name: number for number, vertex in enumerate(vertices, 1) for name in vertex.in_order
    }
    arrow, corner = ("->", "`-") if page.pen == ASCII else ("→", "└")
    width = max(len(node.name) for node in graph.nodes)
    wide = max(len(_uid(graph, node.name)) for node in graph.nodes)
    for number, vertex in enumerate(vertices, 1):
        page.line()
        page.line(
            f"job vertex {number}  {f' {arrow} '.join(vertex.in_order)}  ({_parallelism(vertex)})",
            "bold",
        )
        for name in vertex.in_order:
            states = "; ".join(_states(manifest, label_of(graph.node(name)))) or "no state"
            uid = _uid(graph, name)
            page.line(f"  {name:<{width}}  {ids[name]}  {uid:<{wide}}  {states}")
        for name in vertex.in_order:
            for edge in graph.out_edges(name):
                if vertex_of[edge.target] != number:
                    partitioner = graph.partitioner(edge).value
                    page.line(f"  {corner} {partitioner} to job vertex {vertex_of[edge.target]}")


def write_matching(page: Page, matching: Matching) -> None:
    """Write the state that each operator of the new job finds, and how to keep the other state."""
    page.line()
    page.line("state of the operators", "bold")
    width = max(len(node.node.name) for node in matching.nodes) if matching.nodes else 0
    for node in matching.nodes:
        outcome = (
            "starts empty"
            if node.stored is None or node.found_by is None
            else f"finds {node.stored} by {node.found_by.value}: {_held(node.stored)}"
        )
        page.line(f"  {node.node.name:<{width}}  {outcome}")
    for stored in matching.dropped:
        page.line(f"  dropped: {stored}: {_held(stored)}", "bold red")
    for stored in matching.ignored:
        page.line(f"  omitted because it has no state: {stored}")
    for hint in matching.hints:
        page.line(f"  hint: {hint}")
    if matching.dropped:
        page.line(
            "  a restore does not drop state unless --allow-non-restored-state is passed", "bold"
        )


def _parallelism(vertex: JobVertex) -> str:
    most = vertex.max_parallelism
    return f"parallelism {vertex.parallelism}" + (f", max parallelism {most}" if most else "")


def _uid(graph: JobGraph, name: str) -> str:
    uid = graph.node(name).uid
    return "no uid" if uid is None else f"uid {uid}"


def _states(manifest: Manifest, label: str) -> Iterator[str]:
    for entry in manifest.entries:
        if entry.state.uid == label:
            noun = "row" if isinstance(entry, KeyedEntry) else "element"
            changed = entry.changed_rows if isinstance(entry, KeyedEntry) else 0
            more = f" and {counted(changed, noun)} of changes" if changed else ""
            amount = f"{counted(entry.rows - changed, noun)}{more}, {size(entry.size_bytes)}"
            yield f"{entry.state.name}: {amount}"


def _held(stored: StoredOperator) -> str:
    names = ", ".join(stored.states)
    return f"{names}; {count(stored.rows)} rows and elements, {size(stored.size_bytes)}"
