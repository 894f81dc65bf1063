"""Exactly the differences between two job graphs are reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statestore.jobgraph.graph import Edge, EdgePartitioner, JobGraph, Node
from statestore.maintenance.diff import graph_others
from statestore.maintenance.diff_report import Other

pytestmark = pytest.mark.slow

GRAPH = JobGraph(
    (Node("in", uid="source"), Node("map"), Node("sum", uid="totals", parallelism=2)),
    (Edge("in", "map"), Edge("map", "sum", partitioner=EdgePartitioner.HASH)),
)


def test_a_graph_equals_itself() -> None:
    assert graph_others(GRAPH, GRAPH) == ()
    assert graph_others(None, None) == ()


def test_a_missing_graph_is_one_difference() -> None:
    assert graph_others(None, GRAPH) == (Other("job graph", None, "3 operators"),)
    assert graph_others(GRAPH, None) == (Other("job graph", "3 operators", None),)


def test_settings_of_an_operator_are_reported() -> None:
    nodes = (*GRAPH.nodes[:2], replace(GRAPH.nodes[2], parallelism=4, name="total"))
    edges = (GRAPH.edges[0], replace(GRAPH.edges[1], target="total"))
    found = graph_others(GRAPH, replace(GRAPH, nodes=nodes, edges=edges))
    assert Other("parallelism of operator 'totals'", "2", "4") in found
    assert Other("name of operator 'totals'", "sum", "total") in found
    assert {other.what for other in found} == {
        "parallelism of operator 'totals'",
        "name of operator 'totals'",
        "edge",
    }


def test_operators_of_one_side_and_their_edges_are_reported() -> None:
    smaller = JobGraph(GRAPH.nodes[:2], GRAPH.edges[:1])
    added, edge = graph_others(smaller, GRAPH)
    assert added == Other("operator 'totals'", None, "parallelism 2")
    assert (edge.what, edge.a) == ("edge", None)
    assert "map → sum" in str(edge.b)
    removed, edge = graph_others(GRAPH, smaller)
    assert removed == Other("operator 'totals'", "parallelism 2", None)
    assert edge.b is None


def test_a_partitioner_and_an_option_are_reported() -> None:
    edges = (GRAPH.edges[0], replace(GRAPH.edges[1], partitioner=EdgePartitioner.REBALANCE))
    found = graph_others(GRAPH, replace(GRAPH, edges=edges, chaining=False))
    assert found[0] == Other("chaining", "True", "False")
    assert [(other.a is None, other.b is None) for other in found[1:]] == [
        (False, True),
        (True, False),
    ]
