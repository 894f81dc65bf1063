"""Convert job graphs to JSON values and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, MalformedManifestError
from statestore.format.manifest_json import graph_from_json, graph_to_json
from statestore.jobgraph.graph import (
    ChainingStrategy,
    Edge,
    EdgePartitioner,
    Exchange,
    JobGraph,
    Node,
)
from tests.jobgraph.test_chaining import GRAPHS, graph_of

GRAPH = JobGraph(
    (Node("a", strategy=ChainingStrategy.HEAD), Node("b", uid_hash="0" * 32)),
    (Edge("a", "b", partitioner=EdgePartitioner.HASH, exchange=Exchange.PIPELINED),),
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)


@st.composite
def graphs(draw: st.DrawFn) -> JobGraph:
    """Any graph whose edges lead from an earlier operator to a later one."""
    drawn = draw(st.lists(names, max_size=6, unique=True))
    uids = draw(st.lists(names, min_size=6, max_size=6, unique=True))
    members = tuple(
        Node(
            name,
            uid=uid if draw(st.booleans()) else None,
            uid_hash=draw(st.sampled_from([None, f"{index:032x}"])),
            parallelism=draw(st.integers(1, 9)),
            max_parallelism=draw(st.none() | st.integers(9, 32_768)),
            strategy=draw(st.sampled_from(ChainingStrategy)),
            slot_group=draw(names),
            legacy_source=index == 0,
            yielding=draw(st.booleans()),
        )
        for index, (name, uid) in enumerate(zip(drawn, uids, strict=False))
    )
    edges = draw(
        st.lists(
            st.tuples(
                st.sampled_from(drawn),
                st.sampled_from(drawn),
                st.none() | st.sampled_from([EdgePartitioner.HASH, EdgePartitioner.RESCALE]),
                st.sampled_from(Exchange),
                st.integers(0, 3),
            ).filter(lambda e: drawn.index(e[0]) < drawn.index(e[1])),
            max_size=8,
        )
        if len(drawn) > 1
        else st.just([])
    )
    return JobGraph(
        members,
        tuple(
            Edge(a, b, partitioner=partitioner, exchange=exchange, number=number)
            for a, b, partitioner, exchange, number in edges
        ),
        chaining=draw(st.booleans()),
        chain_different_max=draw(st.booleans()),
    )


def read(value: Any) -> JobGraph:
    return graph_from_json(value, "MANIFEST", ".graph")


@given(graphs())
def test_a_graph_survives_a_round_trip_through_json(graph: JobGraph) -> None:
    assert read(json.loads(json.dumps(graph_to_json(graph)))) == graph


def test_the_graphs_of_the_vectors_survive_a_round_trip() -> None:
    for case in GRAPHS:
        graph = graph_of(case["out"])
        assert read(json.loads(json.dumps(graph_to_json(graph)))) == graph


def test_the_value_holds_plain_json_only() -> None:
    value = graph_to_json(GRAPH)
    kinds = {type(x) for part in ("nodes", "edges") for one in value[part] for x in one.values()}
    assert kinds <= {str, int, bool, type(None)}


def test_an_option_survives_a_round_trip() -> None:
    graph = JobGraph((Node("a", uid="a"),), auto_generate_uids=False)
    assert read(graph_to_json(graph)) == graph


def test_a_text_that_utf8_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"the uid .* unpaired surrogate"):
        graph_to_json(JobGraph((Node("a", uid="\ud83d"),)))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["nodes", 0, "name"], 3, r"at \$\.graph\.nodes\[0\]\.name: Expected `str`"),
        (["nodes", 0, "name"], "", r"at \$\.graph\.nodes\[0\]: the name of an operator"),
        (["nodes", 0, "parallelism"], 0, r"at \$\.graph\.nodes\[0\]: .*parallelism 0"),
        (["nodes", 1, "strategy"], "X", r"at \$\.graph\.nodes\[1\]\.strategy: Invalid .* 'X'"),
        (["nodes", 1, "source"], 1, r"at \$\.graph\.nodes\[1\]\.source: Expected `bool`"),
        (["edges", 0, "number"], -1, r"at \$\.graph\.edges\[0\]\.number"),
        (["edges", 0, "exchange"], "X", r"at \$\.graph\.edges\[0\]\.exchange: Invalid .* 'X'"),
        (["edges", 0, "source"], "b", r"at \$\.graph: the job graph has a cycle"),
        (["chaining"], None, r"at \$\.graph\.chaining: Expected `bool`"),
        (["edges"], {}, r"at \$\.graph\.edges: Expected `array`"),
    ],
)
def test_an_invalid_value_is_named_with_its_position(
    path: list[Any], value: Any, message: str
) -> None:
    document = graph_to_json(JobGraph((Node("a"), Node("b")), (Edge("a", "b"),)))
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(MalformedManifestError, match=message):
        read(document)


@pytest.mark.parametrize("member", ["nodes", "edges", "auto_generate_uids"])
def test_a_missing_member_is_named(member: str) -> None:
    document = graph_to_json(JobGraph((Node("a"),)))
    del document[member]
    with pytest.raises(MalformedManifestError, match=f"missing required field `{member}`"):
        read(document)
