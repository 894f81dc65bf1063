"""Chains and job vertices equal Flink's (golden/flink/operator_ids.json, operation ``graph``)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.graph import Edge, JobGraph, Node
from statestore.jobgraph.operators import (
    JobVertex,
    chainable_edges,
    is_chainable,
    job_vertices,
    operator_ids,
)
from tests.support.vectors import cases

GRAPHS = [case for case in cases("operator_ids", "graph") if "out" in case]


def graph_of(out: dict[str, Any]) -> JobGraph:
    """Return the graph of a vector: nodes in order of id, edges per target in order of its inputs.

    Two edges between the same operators may feed different inputs, so they are used one after
    another.
    """
    names = {node["id"]: node["name"] for node in out["nodes"]}
    left = {node["id"]: list(node["out"]) for node in out["nodes"]}
    edges = []
    for node in out["nodes"]:
        for source in node["in_from"]:
            found = next(edge for edge in left[source] if edge["to"] == node["id"])
            left[source].remove(found)
            edges.append(
                Edge(
                    names[source],
                    node["name"],
                    partitioner=found["partitioner"],
                    exchange=found["exchange"],
                    number=found["input"],
                )
            )
    assert not any(left.values())
    nodes = tuple(
        Node(
            node["name"],
            max_parallelism=None if node["max_parallelism"] == -1 else node["max_parallelism"],
            **{key: node[key] for key in NODE_KEYS},
        )
        for node in out["nodes"]
    )
    options = {key: out[key] for key in ("chaining", "chain_different_max")}
    return JobGraph(nodes, tuple(edges), **options)


NODE_KEYS = (
    "uid",
    "uid_hash",
    "parallelism",
    "strategy",
    "slot_group",
    "source",
    "legacy_source",
    "yielding",
)


def vertices(graph: JobGraph) -> tuple[JobVertex, ...]:
    return job_vertices(graph, operator_ids(graph))


def chained(graph: JobGraph) -> list[tuple[str, str]]:
    return [(edge.source, edge.target) for edge in chainable_edges(graph)]


# --- Vectors --------------------------------------------------------------------------------------


def test_the_vectors_hold_graphs() -> None:
    """The parametrized tests below did not run over an empty list."""
    assert len(GRAPHS) == 61


def test_the_chainable_edges_are_flinks() -> None:
    for case in GRAPHS:
        names = {node["id"]: node["name"] for node in case["out"]["nodes"]}
        found = chained(graph_of(case["out"]))
        assert sorted(found) == sorted((names[u], names[d]) for u, d in case["out"]["chainable"])


def test_the_job_vertices_are_flinks() -> None:
    """Their order, names, operators and numbers are compared."""
    for case in GRAPHS:
        found = [
            {
                "id": vertex.id,
                "name": vertex.name,
                "parallelism": vertex.parallelism,
                "max_parallelism": vertex.max_parallelism or -1,
                "operators": [list(pair) for pair in vertex.operators],
            }
            for vertex in vertices(graph_of(case["out"]))
        ]
        assert found == case["out"]["vertices"]


# --- Each rule, on two operators ------------------------------------------------------------------


def pair(
    source: dict[str, Any] | None = None,
    target: dict[str, Any] | None = None,
    edge: dict[str, Any] | None = None,
    **options: Any,
) -> JobGraph:
    """Return a source and its downstream operator."""
    up = Node("up", **{"source": True, **(source or {})})
    return JobGraph(
        (up, Node("down", **(target or {}))), (Edge("up", "down", **edge or {}),), **options
    )


@pytest.mark.parametrize(
    ("graph", "chains"),
    [
        (pair(), True),
        (pair(chaining=False), False),
        (pair(target={"slot_group": "g"}), False),
        (pair({"strategy": "NEVER"}), False),
        (pair({"strategy": "HEAD"}), True),
        (pair({"strategy": "HEAD_WITH_SOURCES"}), True),
        (pair(target={"strategy": "NEVER"}), False),
        (pair(target={"strategy": "HEAD"}), False),
        (pair(target={"strategy": "HEAD_WITH_SOURCES"}), True),
        (pair({"source": False}, {"strategy": "HEAD_WITH_SOURCES"}), False),
        (pair({"parallelism": 2}), False),
        (pair({"max_parallelism": 200}), True),
        (pair({"max_parallelism": 200}, chain_different_max=False), False),
        (pair({"max_parallelism": 9}, {"max_parallelism": 9}, chain_different_max=False), True),
        (pair(edge={"partitioner": "REBALANCE"}), False),
        (pair(edge={"partitioner": "FORWARD"}), True),
        (pair(edge={"exchange": "BATCH"}), False),
        (pair(edge={"exchange": "PIPELINED"}), True),
        (pair(target={"yielding": True}), True),
        (pair({"source": False, "legacy_source": True}, {"yielding": True}), False),
        (pair({"source": False, "legacy_source": True}), True),
    ],
)
def test_each_rule_is_independent(graph: JobGraph, chains: bool) -> None:
    assert is_chainable(graph, graph.edges[0]) is chains
    assert len(vertices(graph)) == (1 if chains else 2)


def test_an_edge_of_another_graph_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no edge 'up' -> 'down'"):
        is_chainable(pair(), Edge("up", "down", number=3))


def test_an_operator_of_two_inputs_is_not_chained() -> None:
    """An operator with two edges from the same operator is not chained either."""
    nodes = (Node("a", source=True), Node("b", source=True), Node("c"))
    assert chained(JobGraph(nodes, (Edge("a", "c"), Edge("b", "c")))) == []
    assert chained(JobGraph((nodes[0], nodes[2]), (Edge("a", "c"), Edge("a", "c")))) == []


def test_a_yielding_operator_looks_at_the_head_of_the_chain() -> None:
    """A legacy source two operators upstream breaks the chain. One upstream of a break does not."""
    nodes = [Node("old", legacy_source=True), Node("m"), Node("wait", yielding=True)]
    edges = (Edge("old", "m"), Edge("m", "wait"))
    assert chained(JobGraph(tuple(nodes), edges)) == [("old", "m")]
    nodes[1] = Node("m", strategy="HEAD")  # type: ignore[arg-type]
    assert chained(JobGraph(tuple(nodes), edges)) == [("m", "wait")]


# --- Vertices -------------------------------------------------------------------------------------


def test_a_vertex_takes_the_numbers_of_its_head() -> None:
    (vertex,) = vertices(pair({"max_parallelism": 256}, {"max_parallelism": 128}))
    assert (vertex.parallelism, vertex.max_parallelism) == (1, 256)
    assert vertex.nodes == ("down", "up")


def two_inputs(*numbers: int, extra: tuple[Edge, ...] = ()) -> JobGraph:
    """Return two sources that feed one HEAD_WITH_SOURCES operator, and a downstream operator."""
    nodes = (
        Node("s", source=True),
        Node("t", source=True),
        Node("join", strategy="HEAD_WITH_SOURCES"),  # type: ignore[arg-type]
        Node("out", uid_hash="0" * 32),
    )
    inputs = (Edge("s", "join", number=numbers[0]), Edge("t", "join", number=numbers[1]))
    return JobGraph(nodes, (*inputs, *extra, Edge("join", "out")))


def test_sources_run_inside_an_operator_of_several_inputs() -> None:
    """The operator heads a single vertex. The sources are its inputs and not members of
    the chain.
    """
    graph = two_inputs(1, 2)
    ids = operator_ids(graph)
    (vertex,) = vertices(graph)
    assert vertex.id == ids["join"]
    assert vertex.name == "join [s, t] -> out"
    assert vertex.operators == ((ids["out"], "0" * 32), (ids["join"], None))
    assert vertex.chained_sources == ("s", "t")
    assert chained(graph) == [("join", "out")]


def test_sources_that_share_an_input_stay_outside() -> None:
    """The network merges their records, so there are three vertices."""
    found = vertices(two_inputs(1, 1))
    assert [vertex.name for vertex in found] == ["s", "t", "join -> out"]
    assert {vertex.chained_sources for vertex in found} == {()}


def test_a_source_with_two_outputs_stays_outside() -> None:
    """The other source still runs inside."""
    found = vertices(two_inputs(1, 2, extra=(Edge("s", "out"),)))
    assert [(vertex.name, vertex.chained_sources) for vertex in found] == [
        ("s", ()),
        ("join [t]", ("t",)),
        ("out", ()),
    ]


def test_the_only_source_of_an_operator_runs_inside_it() -> None:
    """With one input the edge is chainable too, but the head is the operator and not the source."""
    graph = pair(target={"strategy": "HEAD_WITH_SOURCES"})
    (vertex,) = vertices(graph)
    assert (vertex.name, vertex.chained_sources) == ("down [up]", ("up",))
    assert vertex.nodes == ("down",)


@pytest.mark.slow
def test_every_operator_is_in_one_vertex() -> None:
    """This includes a chain far longer than Python's stack, and one that breaks at every
    operator.
    """
    names = [f"n{i}" for i in range(3000)]
    nodes = tuple(Node(name, yielding=True) for name in names)
    edges = tuple(Edge(a, b) for a, b in pairwise(names))
    (one,) = vertices(JobGraph(nodes, edges))
    assert one.nodes == tuple(reversed(names))
    many = vertices(JobGraph(nodes, edges, chaining=False))
    assert [vertex.nodes for vertex in many] == [(name,) for name in names]


def test_missing_ids_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no operator id for 'down'"):
        job_vertices(pair(), {"up": "0" * 32})
