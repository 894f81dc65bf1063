"""The drawings of docs/RESCALING.md, sections 1 to 5: text, computed for a :class:`Job`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from statestore import StateStore
from statestore.cli.drawing import UNICODE, key_group_bars
from statestore.errors import ParallelismError
from statestore.jobgraph import JobGraph, redistribute
from statestore.jobgraph.graph import Edge, Node
from statestore.jobgraph.operators import job_vertices, operator_ids
from statestore.jobgraph.partitioners import (
    Custom,
    Forward,
    Global,
    KeyGroup,
    Partitioner,
    Rebalance,
    Rescale,
    old_subtasks,
)
from statestore.jobgraph.partitioners import (
    wiring as wires,
)
from statestore.keys.groups import mix_hash
from statestore.keys.hashing import key_hash
from statestore.sources.offsets import subtask_of_partition
from tests.rescaling.job import NEW, OLD, STORE, Job
from tests.rescaling.layout import cells, cut, table

INDENT, CELL = 15, 5
SHOWN = 4
HANDED, KEPT, NONE = "○", "●", "·"
BY_USER = KeyGroup(key="user", max_parallelism=16)


def keys(job: Job) -> str:
    """Draw the path of some keys to their subtasks, and both ways to divide the key groups."""
    old, new = job.assignment(OLD), job.assignment(NEW)
    rows = []
    for user in job.users[:SHOWN]:
        group = job.key_group_of(user)
        hashed = key_hash(user)
        both = (old.subtask_of(group), new.subtask_of(group))
        rows.append((user, hashed, mix_hash(hashed), group, *both))
    columns = ["user", "hash", "mixed", f"modulo {job.max_parallelism}: key group"]
    columns += [f"subtask of {parallelism}" for parallelism in (OLD, NEW)]
    groups = range(job.max_parallelism)
    users = Counter(map(job.key_group_of, job.users))
    width = INDENT + CELL * job.max_parallelism
    owners = [f"{old.subtask_of(group)}→{new.subtask_of(group)}" for group in groups]
    return "\n".join(
        [
            table(columns, rows, left="user"),
            "",
            *key_group_bars(job.max_parallelism, [OLD, NEW], width=width, pen=UNICODE),
            cells("key group", groups, indent=INDENT, width=CELL),
            cells("users", ["█" * users[g] or NONE for g in groups], indent=INDENT, width=CELL),
            cells("subtask", owners, indent=INDENT, width=CELL),
        ]
    )


def offsets(job: Job) -> str:
    """Draw which subtask gets which elements of union state and of split state."""
    return f"{_union()}\n\n{_split()}"


def _union() -> str:
    """The offsets of the source that each new subtask receives, and the part that it keeps."""
    state = StateStore.open(STORE).restore().operator_state("orders", "offsets")
    lists = state.per_old_subtask()
    dealt = redistribute([{"offsets": ("union", tuple(old))} for old in lists], NEW)
    elements = sorted((e for old in lists for e in old), key=lambda e: e["partition"])
    reporter = [next(i for i, old in enumerate(lists) if e in old) for e in elements]
    rows: list[list[object]] = [["reported by old subtask", *reporter]]
    rows.append(["next offset", *(e["offset"] for e in elements)])
    for subtask, handed in enumerate(dealt):
        assert len(handed["offsets"]) == len(elements)
        own = [subtask_of_partition(e["topic"], e["partition"], NEW) == subtask for e in elements]
        rows.append([f"new subtask {subtask}", *(KEPT if mine else HANDED for mine in own)])
    return table(["partition", *(str(e["partition"]) for e in elements)], rows, left="partition")


def _split() -> str:
    """The concatenated lists of held-back records, divided again."""
    lists = StateStore.open(STORE).restore().operator_state("clean", "held_back").per_old_subtask()
    dealt = redistribute([{"held": ("split", tuple(old))} for old in lists], NEW)
    blocks = [states["held"] for states in dealt]
    joined = [element["record"] for old in lists for element in old]
    assert joined == [element["record"] for block in blocks for element in block]
    return "\n".join(
        [
            cut(f"parallelism {OLD}", _sized(lists), indent=INDENT, width=CELL + 2),
            cells("records", joined, indent=INDENT, width=CELL + 2),
            cut(f"parallelism {NEW}", _sized(blocks), indent=INDENT, width=CELL + 2),
        ]
    )


def ids(job: Job) -> str:
    """Draw the operator ids of the job, and which of them survive each change."""
    graph = job.graph
    known = operator_ids(graph)
    rows = [["as it was", *(f"{known[node.name][:8]}…" for node in graph.nodes)]]
    parsed = _extended(graph, "parse", after="orders", before="clean")
    variants = {
        f"parallelism {NEW}": _at(graph, NEW),
        "clean is renamed": _changed(graph, "clean", name="tidy"),
        "totals gets another uid": _changed(graph, "totals", uid="sums"),
        "an operator before clean": parsed,
        "an operator chained behind clean": _extended(graph, "count", after="clean"),
    }
    for what, variant in variants.items():
        found = operator_ids(variant)
        now = [found.get(node.name) or found["tidy"] for node in graph.nodes]
        kept = [new == known[node.name] for new, node in zip(now, graph.nodes, strict=True)]
        shown = ["=" if same else f"{new[:8]}…" for new, same in zip(now, kept, strict=True)]
        rows.append([what, *shown])
    names = [node.name for node in graph.nodes]
    how = ["", *("uid" if node.uid else "generated" for node in graph.nodes)]
    rows.insert(0, ["id from", *how[1:]])
    return table(["change", *names], rows, left=",".join(["change", *names]))


def chains(job: Job) -> str:
    """Draw the job vertices of the job, and of the job after each change."""
    graph = job.graph
    mixed = Edge("clean", "report", number=2)
    variants = {
        "orders stays at 3, the others at 4": _changed(_at(graph, NEW), "orders", parallelism=OLD),
        "report reads clean as well": replace(graph, edges=(*graph.edges, mixed)),
        'report: chaining = "never"': _changed(graph, "report", strategy="never"),
        "[job] chaining = false": replace(graph, chaining=False),
    }
    rows = []
    for what, variant in variants.items():
        vertices = job_vertices(variant, operator_ids(variant))
        drawn = " │ ".join(" → ".join(vertex.in_order) for vertex in vertices)
        rows.append((what, len(vertices), drawn))
    return table(["change", "job vertices", "chains"], rows, left="change,chains")


def wiring(job: Job) -> str:
    """Draw each sender's receivers on two kinds of edge, and the owners of in-flight records."""
    lines = []
    for partitioner in (Rescale(), BY_USER):
        channels = wires(partitioner, OLD, NEW).channels
        drawn = [
            [f"sender {sender}", *(own.index(d) if d in own else NONE for d in range(NEW))]
            for sender, own in enumerate(channels)
        ]
        header = [f"{partitioner} {OLD} → {NEW}", *(f"to {subtask}" for subtask in range(NEW))]
        lines.append(table(header, drawn, left=header[0]).splitlines())
    width = max(map(len, lines[0]))
    both = [f"{a:<{width}}        {b}" for a, b in zip(*lines, strict=True)]
    try:
        wires(Forward(), OLD, NEW)
    except ParallelismError as error:
        both.append(f"FORWARD {OLD} → {NEW}: {error}")
    return "\n".join([*both, "", _in_flight()])


def _in_flight() -> str:
    """Draw the old subtasks whose in-flight records each new subtask takes over, by partitioner."""
    custom = Custom(lambda key, channels: 0)
    rows = []
    for partitioner in (BY_USER, Rebalance(), Global(), custom, Rescale()):
        taken = [_taken_over(partitioner, subtask) for subtask in range(NEW)]
        rows.append((partitioner, partitioner.receiving, *taken))
    header = ["partitioner", "rule", *(f"new {subtask}" for subtask in range(NEW))]
    return table(header, rows, left=",".join(header))


def _taken_over(partitioner: Partitioner, subtask: int) -> str:
    try:
        old = old_subtasks(partitioner.receiving, subtask, OLD, NEW)
    except ParallelismError:
        return "refused"
    return " ".join(map(str, old)) or NONE


def _sized(lists: Sequence[Sequence[object]]) -> list[tuple[object, int]]:
    return [(subtask, len(elements)) for subtask, elements in enumerate(lists)]


def _at(graph: JobGraph, parallelism: int) -> JobGraph:
    nodes = tuple(replace(node, parallelism=parallelism) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def _changed(graph: JobGraph, name: str, /, **changes: Any) -> JobGraph:
    """Return the graph with one operator changed; its edges follow if its name changes."""
    nodes = tuple(replace(n, **changes) if n.name == name else n for n in graph.nodes)
    new = str(changes.get("name", name))
    edges = tuple(
        replace(
            edge,
            source=new if edge.source == name else edge.source,
            target=new if edge.target == name else edge.target,
        )
        for edge in graph.edges
    )
    return replace(graph, nodes=nodes, edges=edges)


def _extended(graph: JobGraph, name: str, *, after: str, before: str = "") -> JobGraph:
    """Return the graph with one more operator, between two others or at the end."""
    nodes = (*graph.nodes, Node(name, uid=name, parallelism=graph.node(after).parallelism))
    edges = [edge for edge in graph.edges if (edge.source, edge.target) != (after, before)]
    edges.append(Edge(after, name))
    if before:
        edges.append(Edge(name, before))
    return replace(graph, nodes=nodes, edges=tuple(edges))
