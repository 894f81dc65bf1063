"""Operator ids equal Flink's, bit for bit (golden/flink/operator_ids.json)."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.graph import Edge, JobGraph, Node
from statestore.jobgraph.operators import operator_id, operator_ids
from tests.jobgraph.test_chaining import GRAPHS, graph_of
from tests.support.vectors import cases


def _uid_cases() -> list[Any]:
    # The vectors contain the empty uid, which hashes to zeros. It is refused, and has its own test.
    return [case for case in cases("operator_ids", "uid") if case["in"]["uid"]]


def test_the_id_of_a_uid_equals_flinks() -> None:
    """Every uid of the vectors hashes to the id that Flink's class returned."""
    for case in _uid_cases():
        assert operator_id(case["in"]["uid"]) == case["out"]


def test_the_vectors_hold_uids() -> None:
    """The parametrized test above did not run over an empty list."""
    assert len(_uid_cases()) == 58


def test_an_empty_uid_is_refused() -> None:
    """Flink hashes it to zeros and refuses the job later. Here it is refused before hashing."""
    with pytest.raises(InvalidArgumentError, match="empty"):
        operator_id("")


@pytest.mark.parametrize("uid", [None, b"uid", 7])
def test_a_uid_that_is_not_a_string_is_refused(uid: Any) -> None:
    """Bytes have no defined encoding, so they have no id."""
    with pytest.raises(InvalidArgumentError, match="string"):
        operator_id(uid)


@pytest.mark.parametrize("code", [0xD83D, 0xDE42])
def test_a_single_surrogate_hashes_like_a_question_mark(code: int) -> None:
    """Java's encoder replaces each code unit that it cannot encode by ``?``."""
    assert operator_id(f"a{chr(code)}b{chr(code)}c") == operator_id("a?b?c")


def test_a_pair_of_surrogates_hashes_like_its_character() -> None:
    """Java treats a pair as one character, in any representation that Python has of it."""
    assert operator_id("\ud83d" + "\ude42") == operator_id("\U0001f642")


# --- Generated ids --------------------------------------------------------------------------------


def test_the_ids_of_a_graph_equal_flinks() -> None:
    """These are generated ids and ids of uids, in creation order."""
    for case in GRAPHS:
        names = {str(node["id"]): node["name"] for node in case["out"]["nodes"]}
        expected = {names[node]: found for node, found in case["out"]["hashes"].items()}
        found = operator_ids(graph_of(case["out"]))
        assert found == expected
        assert list(found) == [node["name"] for node in case["out"]["nodes"]]


def test_a_graph_with_one_uid_twice_is_refused() -> None:
    """The error matches the vector's. Flink finds it while hashing, and the graph when it is
    created.
    """
    (case,) = [case for case in cases("operator_ids", "graph") if "error" in case]
    assert case["error"] == "duplicate_uid"
    ops = case["in"]["ops"]
    nodes = tuple(Node(op["name"], uid=op.get("uid")) for op in ops)
    edges = tuple(Edge(i["from"], op["name"]) for op in ops for g in op.get("in", ()) for i in g)
    with pytest.raises(InvalidArgumentError, match="'a' and 'b' have the same uid 'dup'"):
        JobGraph(nodes, edges)


def test_two_uids_with_one_id_are_refused() -> None:
    """Java reads an unpaired surrogate as a question mark, so these two are the same uid there."""
    with pytest.raises(InvalidArgumentError, match="'a' and 'b' have the same operator id"):
        operator_ids(JobGraph((Node("a", uid="x?"), Node("b", uid="x\ud83d"))))


def _line(*names: str, uids: tuple[str, ...] = (), **options: Any) -> dict[str, str]:
    nodes = tuple(Node(name, uid=name if name in uids else None) for name in names)
    return operator_ids(JobGraph(nodes, tuple(map(Edge, names, names[1:])), **options))


def test_a_generated_id_depends_on_upstream_operators() -> None:
    """A new upstream operator changes the downstream ids, unless they are derived from uids."""
    short, long = _line("src", "a", "b", uids=("b",)), _line("src", "new", "a", "b", uids=("b",))
    assert short["src"] == long["src"]
    assert short["a"] != long["a"]
    assert short["b"] == long["b"]


def test_a_generated_id_changes_with_chaining_and_not_with_the_name() -> None:
    assert _line("src", "a")["src"] != _line("src", "a", chaining=False)["src"]
    assert list(_line("src", "a").values()) == list(_line("x", "y").values())


def test_an_operator_with_a_uid_is_hashed_before_its_inputs() -> None:
    """The join is reached from the first source, counts as visited, and shifts the ids of later
    operators.
    """
    nodes = (Node("s"), Node("t"), Node("m"), Node("join", uid="join"), Node("n"))
    edges = (Edge("s", "join", number=1), Edge("m", "join", number=2), Edge("t", "m"))
    with_uid = operator_ids(JobGraph(nodes, (*edges, Edge("m", "n"))))
    without = JobGraph((*nodes[:3], Node("join"), nodes[4]), (*edges, Edge("m", "n")))
    assert with_uid["m"] != operator_ids(without)["m"]
