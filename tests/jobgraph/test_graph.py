"""Job graphs: invalid graphs, the order of edges, and TOML."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from statestore.errors import (
    InvalidArgumentError,
    ParallelismError,
    SettingsError,
)
from statestore.jobgraph.graph import (
    ChainingStrategy,
    Edge,
    EdgePartitioner,
    Exchange,
    JobGraph,
    Node,
)


def nodes(*names: str) -> tuple[Node, ...]:
    return tuple(map(Node, names))


# --- Order ----------------------------------------------------------------------------------------


def test_edges_are_ordered_by_target_and_keep_the_order_of_inputs() -> None:
    given_edges = (Edge("a", "c"), Edge("b", "c"), Edge("a", "c"), Edge("a", "b"))
    graph = JobGraph(nodes("a", "b", "c"), given_edges)
    assert graph.edges == (Edge("a", "b"), Edge("a", "c"), Edge("b", "c"), Edge("a", "c"))
    assert [edge.source for edge in graph.in_edges("c")] == ["a", "b", "a"]
    assert [edge.target for edge in graph.out_edges(graph.node("a"))] == ["b", "c", "c"]
    assert graph.position("c") == 2


def test_an_input_may_be_created_after_its_target() -> None:
    graph = JobGraph(nodes("late", "src"), (Edge("src", "late"),))
    assert graph.topological_order() == ("src", "late")


def test_a_graph_is_a_value() -> None:
    """Equal graphs compare equal, also after their indexes were built and after pickling."""
    one, two = (JobGraph(nodes("a", "b"), (Edge("a", "b"),)) for _ in range(2))
    one.in_edges("b")
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == two
    assert one != JobGraph(nodes("a", "b"), (Edge("a", "b"),), chaining=False)


def test_an_edge_without_partitioner_is_forward_or_rebalance() -> None:
    graph = JobGraph(
        (Node("a"), Node("b"), Node("c", parallelism=2)),
        (Edge("a", "b"), Edge("b", "c"), Edge("a", "c", partitioner=EdgePartitioner.HASH)),
    )
    assert [graph.partitioner(edge).value for edge in graph.edges] == [
        "FORWARD",
        "REBALANCE",
        "HASH",
    ]


# --- Invalid input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("edges", "path"),
    [
        ([("a", "a")], "'a' -> 'a'"),
        ([("a", "b"), ("b", "a")], "'a' -> 'b' -> 'a'"),
        ([("s", "a"), ("a", "b"), ("b", "c"), ("c", "a")], "'a' -> 'b' -> 'c' -> 'a'"),
    ],
)
def test_a_cycle_is_named(edges: list[tuple[str, str]], path: str) -> None:
    with pytest.raises(InvalidArgumentError, match="cycle") as caught:
        JobGraph(nodes("s", "a", "b", "c"), tuple(Edge(*edge) for edge in edges))
    around = str(caught.value).split(": ")[1].split(";")[0].split(" -> ")
    turns = [around[i:-1] + around[: i + 1] for i in range(len(around) - 1)]
    assert path.split(" -> ") in turns


@pytest.mark.parametrize(
    ("members", "edges", "message"),
    [
        (nodes("totals"), [Edge("total", "totals")], "no operator 'total'; did you mean 'totals'"),
        (nodes("totals"), [Edge("totals", "zzz")], "no operator 'zzz'; known names are 'totals'"),
        (nodes("a", "a"), [], "two operators are named 'a'"),
        ((Node("a", uid="u"), Node("b", uid="u")), [], "'a' and 'b' have the same uid 'u'"),
        (
            (Node("a", uid_hash="AB" * 16), Node("b", uid_hash="ab" * 16)),
            [],
            "'a' and 'b' have the same uid_hash",
        ),
        (
            (Node("a", parallelism=2), Node("b")),
            [Edge("a", "b", partitioner=EdgePartitioner.FORWARD)],
            "'a' -> 'b' is forward, but goes from parallelism 2 to 1",
        ),
        ((Node("a"), Node("b", source=True)), [Edge("a", "b")], "'b' is a source"),
        (["a"], [], r"nodes\[0\] must be a Node, not str"),
        (nodes("a", "b"), [Edge("a", "b"), ("a", "b")], r"edges\[1\] must be an Edge, not tuple"),
    ],
)
def test_an_inconsistent_graph_is_refused(members: Any, edges: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        JobGraph(members, edges)


def test_one_node_twice_is_refused() -> None:
    """This holds even for the same Python object."""
    node = Node("a")
    with pytest.raises(InvalidArgumentError, match="two operators are named 'a'"):
        JobGraph((node, node))


def test_without_generated_ids_every_operator_needs_a_uid() -> None:
    """A uid_hash is not enough, because new snapshots would still use a generated id."""
    JobGraph((Node("a", uid="a"),), auto_generate_uids=False)
    with pytest.raises(InvalidArgumentError, match="'b' has no uid"):
        JobGraph((Node("a", uid="a"), Node("b", uid_hash="0" * 32)), auto_generate_uids=False)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": ""}, InvalidArgumentError, "name of an operator"),
        ({"name": 3}, InvalidArgumentError, "name of an operator"),
        ({"uid": ""}, InvalidArgumentError, "uid of operator 'n'"),
        ({"uid_hash": "0" * 31}, InvalidArgumentError, "'n'.*32 hex digits"),
        ({"uid_hash": "g" * 32}, InvalidArgumentError, "'n'.*32 hex digits"),
        ({"uid_hash": "0" * 32 + "\n"}, InvalidArgumentError, "'n'.*32 hex digits"),
        ({"parallelism": 0}, InvalidArgumentError, "'n': parallelism 0 is out of bounds"),
        ({"parallelism": 32_769}, InvalidArgumentError, "'n': parallelism 32769"),
        ({"parallelism": True}, InvalidArgumentError, "'n': parallelism must be an int"),
        ({"max_parallelism": 0}, InvalidArgumentError, "'n': max parallelism 0"),
        ({"max_parallelism": 32_769}, InvalidArgumentError, "'n': max parallelism 32769"),
        ({"parallelism": 9, "max_parallelism": 8}, ParallelismError, "'n': max parallelism 8 is"),
        ({"strategy": "HEADS"}, InvalidArgumentError, "'n'.*'HEADS': did you mean 'HEAD'"),
        ({"slot_group": ""}, InvalidArgumentError, "slot group of operator 'n'"),
        ({"source": 1}, InvalidArgumentError, "source of operator 'n'"),
        ({"source": True, "legacy_source": True}, InvalidArgumentError, "choose one"),
    ],
)
def test_an_invalid_node_is_refused(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        Node(**{"name": "n", **arguments})


@pytest.mark.parametrize("number", [1, 32_768])
def test_parallelism_may_be_at_its_bounds(number: int) -> None:
    assert Node("n", parallelism=number, max_parallelism=number).parallelism == number


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"partitioner": "HASHED"}, "'a' -> 'b'.*did you mean 'HASH'"),
        ({"exchange": 1}, "'a' -> 'b': unknown exchange 1"),
        ({"number": -1}, "'a' -> 'b'.*-1"),
        ({"number": True}, "'a' -> 'b'.*True"),
        ({"target": None}, "target of an edge"),
    ],
)
def test_an_invalid_edge_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Edge(**{"source": "a", "target": "b", **arguments})


def test_values_accept_several_spellings() -> None:
    assert ChainingStrategy("head with-sources") is ChainingStrategy.HEAD_WITH_SOURCES
    assert Node("n", strategy="never").strategy is ChainingStrategy.NEVER  # type: ignore[arg-type]
    assert Node("n", uid_hash="AB" * 16).uid_hash == "ab" * 16


def test_a_missing_name_is_refused() -> None:
    graph = JobGraph(nodes("totals"))
    for ask in (graph.node, graph.position, graph.in_edges, graph.out_edges):
        with pytest.raises(InvalidArgumentError, match="did you mean 'totals'"):
            ask("total")


# --- TOML -----------------------------------------------------------------------------------------

TOML = """
[job]
chaining = false
chain_different_max = false
parallelism = 4
max_parallelism = 256

[[operator]]
name = "orders"
kind = "source"
uid = "orders"

[[operator]]
name = "rates"
kind = "legacy source"
parallelism = 1

[[operator]]
name = "join"
uid_hash = "0123456789abcdef0123456789abcdef"
slot_group = "big"
chaining = "head with sources"
max_parallelism = 512

[[operator.input]]
from = "orders"
number = 1

[[operator.input]]
from = "rates"
partitioner = "broadcast"
exchange = "pipelined"
number = 2

[[operator]]
name = "out"
kind = "sink"
inputs = ["join", { from = "orders", partitioner = "hash" }]
"""


def test_a_graph_is_read_from_toml() -> None:
    assert JobGraph.from_toml(TOML) == JobGraph(
        (
            Node("orders", source=True, uid="orders", parallelism=4, max_parallelism=256),
            Node("rates", legacy_source=True, parallelism=1, max_parallelism=256),
            Node(
                "join",
                uid_hash="0123456789abcdef0123456789abcdef",
                slot_group="big",
                strategy=ChainingStrategy.HEAD_WITH_SOURCES,
                parallelism=4,
                max_parallelism=512,
            ),
            Node("out", yielding=True, parallelism=4, max_parallelism=256),
        ),
        (
            Edge("orders", "join", number=1),
            Edge(
                "rates",
                "join",
                partitioner=EdgePartitioner.BROADCAST,
                exchange=Exchange.PIPELINED,
                number=2,
            ),
            Edge("join", "out"),
            Edge("orders", "out", partitioner=EdgePartitioner.HASH),
        ),
        chaining=False,
        chain_different_max=False,
    )


def test_an_operator_without_inputs_is_a_source() -> None:
    """A kind that says otherwise takes precedence."""
    graph = JobGraph.from_toml(
        '[[operator]]\nname = "a"\n[[operator]]\nname = "b"\ninputs = ["a"]\n'
        '[[operator]]\nname = "c"\nkind = "operator"'
    )
    assert [node.source for node in graph.nodes] == [True, False, False]


def test_an_empty_document_is_an_empty_graph() -> None:
    assert JobGraph.from_toml("") == JobGraph(())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[operator]", "not valid TOML"),
        ("[jobs]", "the job graph: unknown key 'jobs': did you mean 'job'"),
        ("job = 1", "job must be a table"),
        ("[job]\nchainng = true", "job: unknown key 'chainng': did you mean 'chaining'"),
        ("[operator]", "operator must be a list"),
        ("[[operator]]\nuid = 'a'", r"operator\[0\]: the key 'name' is missing"),
        (
            "[[operator]]\nname = 'a'\nuidd = 'a'",
            r"operator\[0\] \('a'\): unknown key 'uidd': did you mean 'uid'",
        ),
        ("[[operator]]\nname = 'a'\nkind = 'sorce'", "unknown kind 'sorce': did you mean 'source'"),
        ("[[operator]]\nname = 'a'\nkind = 3", "unknown kind 3: known names are 'source'"),
        ("[[operator]]\nname = 'a'\ninputs = 'b'", "inputs must be a list, not 'b'"),
        ("[[operator]]\nname = 'a'\ninputs = [3]", r"inputs\[0\] must be a table, not 3"),
        ("[[operator]]\nname = 'a'\ninputs = [{ form = 'b' }]", "did you mean 'from'"),
        ("[[operator]]\nname = 'a'\ninputs = [{ number = 1 }]", "the key 'from' is missing"),
        ("[[operator]]\nname = 'a'\ninputs = []\ninput = []", "use only one of them"),
    ],
)
def test_a_document_of_another_shape_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        JobGraph.from_toml(text)


@pytest.mark.parametrize(
    ("text", "error", "message", "place"),
    [
        ("name = 'a'\nchaining = 'heed'", InvalidArgumentError, "did you mean 'HEAD'", "'a'"),
        ("name = 'a'\nparallelism = 0", InvalidArgumentError, "'a': parallelism 0", "'a'"),
        (
            "name = 'a'\ninputs = [{ from = 'b', partitioner = 'forwrad' }]",
            InvalidArgumentError,
            "'b' -> 'a'.*did you mean 'FORWARD'",
            "inputs[0]",
        ),
    ],
)
def test_a_value_in_a_document_is_refused_with_its_place(
    text: str, error: Any, message: str, place: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        JobGraph.from_toml(f"[[operator]]\n{text}")
    (note,) = caught.value.__notes__
    assert "operator[0]" in note
    assert place in note


@pytest.mark.parametrize("text", [None, b"", 3])
def test_a_document_that_is_not_text_is_refused(text: Any) -> None:
    with pytest.raises(SettingsError, match="string of TOML"):
        JobGraph.from_toml(text)
