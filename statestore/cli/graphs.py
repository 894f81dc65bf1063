"""A job graph drawn, and which operator of it finds which state.

::

    job vertex 1  orders → clean  (parallelism 2)
      orders  cbc357ccb763df2852fee8c4fc7d55f2  uid orders  offsets: 4 elements, 1.8 kB
      clean   9dd63673dd41ea021b896d5203f3ba7c  no uid      no state
      └ HASH to job vertex 2
"""

from __future__ import annotations

from collections.abc import Iterator

from statestore.cli.drawing import ASCII
from statestore.cli.output import Page
from statestore.cli.units import count, counted, size
from statestore.flink.chaining import JobVertex, job_vertices
from statestore.flink.graph import JobGraph
from statestore.flink.matching import Matching, StoredOperator
from statestore.flink.operators import label_of, operator_ids
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.restore.plan import ParallelismChoice

__all__ = ["write_choices", "write_graph", "write_matching"]


def write_graph(page: Page, manifest: Manifest, graph: JobGraph) -> None:
    """Draw which operators chain to which job vertex, what state each holds, and the edges."""
    ids = operator_ids(graph)
    vertices = job_vertices(graph, ids)
    number = {name: at for at, v in enumerate(vertices, 1) for name in v.in_order}
    arrow, corner = ("->", "`-") if page.pen == ASCII else ("→", "└")
    width = max(len(node.name) for node in graph.nodes)
    wide = max(len(_uid(graph, node.name)) for node in graph.nodes)
    for at, vertex in enumerate(vertices, 1):
        page.line()
        page.line(
            f"job vertex {at}  {f' {arrow} '.join(vertex.in_order)}  ({_parallelism(vertex)})",
            "bold",
        )
        for name in vertex.in_order:
            states = "; ".join(_states(manifest, label_of(graph.node(name)))) or "no state"
            uid = _uid(graph, name)
            page.line(f"  {name:<{width}}  {ids[name]}  {uid:<{wide}}  {states}")
        for name in vertex.in_order:
            for edge in graph.out_edges(name):
                if number[edge.target] != at:
                    kind = graph.partitioner(edge).value
                    page.line(f"  {corner} {kind} to job vertex {number[edge.target]}")


def write_matching(page: Page, matching: Matching) -> None:
    """Write what each operator of the new job finds, what would be lost, and how to keep it."""
    page.line()
    page.line("state of the operators", "bold")
    width = max(len(found.node.name) for found in matching.nodes) if matching.nodes else 0
    for found in matching.nodes:
        how = (
            "starts empty"
            if found.stored is None or found.found_by is None
            else f"finds {found.stored} by {found.found_by.value}: {_held(found.stored)}"
        )
        page.line(f"  {found.node.name:<{width}}  {how}")
    for stored in matching.dropped:
        page.line(f"  dropped: {stored}: {_held(stored)}", "bold red")
    for stored in matching.ignored:
        page.line(f"  left out, it holds nothing: {stored}")
    for hint in matching.hints:
        page.line(f"  hint: {hint}")
    if matching.dropped:
        page.line("  a restore refuses to drop state; --allow-non-restored-state allows it", "bold")


def write_choices(page: Page, choices: tuple[ParallelismChoice, ...], parallelism: int) -> None:
    """Write how a parallelism was chosen from the bytes of the key groups."""
    page.line(f"parallelism {parallelism} is chosen by bytes:", "bold")
    for choice in choices:
        how = choice.decision
        page.line(
            f"  {choice.uid}: {size(how.total_bytes)} of keyed state; first guess "
            f"{how.first_guess}, cut by bytes into {counted(len(how.byte_ranges), 'range')}: "
            f"parallelism {how.parallelism}; its largest subtask gets "
            f"{size(how.largest_by_number)} (with ranges cut by bytes: "
            f"{size(how.largest_by_bytes)})"
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
