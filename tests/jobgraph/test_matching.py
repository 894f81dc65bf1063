"""Matching operators to stored state: which state is found, which is lost, and which hints recover
it.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError, UnclaimedStateError
from statestore.jobgraph.graph import ChainingStrategy, Edge, JobGraph, Node
from statestore.jobgraph.matching import (
    FoundBy,
    HintReason,
    Matching,
    Outcome,
    StoredOperator,
    check_parallelism,
    match,
)
from statestore.jobgraph.operators import operator_id, operator_ids

HASH = "0123456789abcdef0123456789abcdef"


def of_uid(uid: str, rows: int = 1, **more: Any) -> StoredOperator:
    return StoredOperator(operator_id(uid), uid, rows=rows, **more)


def line(*nodes: Node | str) -> JobGraph:
    """Return a graph of operators one after another."""
    made = tuple(Node(node) if isinstance(node, str) else node for node in nodes)
    return JobGraph(made, tuple(Edge(a.name, b.name) for a, b in pairwise(made)))


def snapshot(graph: JobGraph, *, names: bool = False) -> tuple[StoredOperator, ...]:
    """Return the stored operators of a job, with one row each."""
    return tuple(
        StoredOperator(found, graph.node(name).uid, name if names else None, rows=1)
        for name, found in operator_ids(graph).items()
    )


def followed(graph: JobGraph, matching: Matching) -> JobGraph:
    """Return the graph after every hint was followed."""
    changes = {hint.node: hint for hint in matching.hints}
    nodes = (
        changes[node.name].applied_to(node) if node.name in changes else node
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


# --- Looking up -----------------------------------------------------------------------------------


def test_an_operator_is_found_by_its_uid() -> None:
    """Its name, its position and the other operators do not matter."""
    matching = match([of_uid("totals")], line("src", "new", Node("sums", uid="totals")))
    found = matching.node("sums")
    assert (found.outcome, found.found_by) == (Outcome.FOUND, FoundBy.UID)
    assert found.stored == of_uid("totals")
    assert matching.node("new").outcome is Outcome.EMPTY
    assert matching.outcome_of(of_uid("totals")) is Outcome.FOUND
    matching.refuse_unclaimed()


def test_an_operator_is_found_by_its_generated_id() -> None:
    """The job is the same, and the operator's name differs."""
    stored = snapshot(line("src", "a"))
    matching = match(stored, line("x", "y"))
    assert [node.found_by for node in matching.nodes] == [FoundBy.GENERATED] * 2
    assert [node.stored for node in matching.nodes] == list(stored)


def test_a_uid_hash_is_looked_up_first() -> None:
    """The uid would match too, and its stored state then stays unclaimed. The operator keeps its
    own id.
    """
    stored = [of_uid("totals"), StoredOperator(HASH, rows=2)]
    matching = match(stored, line(Node("t", uid="totals", uid_hash=HASH)))
    (found,) = matching.nodes
    assert (found.found_by, found.stored) == (FoundBy.USER_HASH, stored[1])
    assert found.operator_id == operator_id("totals")
    assert matching.dropped == (stored[0],)


def test_a_uid_hash_that_is_not_in_the_snapshot_gives_way_to_the_own_id() -> None:
    matching = match([of_uid("totals")], line(Node("t", uid="totals", uid_hash=HASH)))
    assert matching.node("t").found_by is FoundBy.UID


def test_two_operators_that_claim_one_stored_are_refused() -> None:
    graph = line(Node("a", uid="u"), Node("b", uid_hash=operator_id("u")))
    with pytest.raises(InvalidArgumentError, match="'a' and 'b' both claim stored operator 'u'"):
        match([of_uid("u")], graph)
    match([], graph)


def test_one_stored_operator_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=f"two stored operators have the id {HASH}"):
        match([StoredOperator(HASH), StoredOperator(HASH, "u")], line("a"))


@pytest.mark.parametrize("wrong", ["", "0" * 31, HASH.upper(), None, HASH + "\n"])
def test_an_invalid_operator_id_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="32 lower-case hex digits"):
        StoredOperator(wrong)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no operator 'b'"):
        match([], line("a")).node("b")


# --- Unclaimed state ------------------------------------------------------------------------------


def test_stored_state_that_nobody_claims_is_refused() -> None:
    """The message names the lost state and explains how to drop it."""
    gone = of_uid("gone", 12, states=("count", "last"), size_bytes=345)
    matching = match([gone], line(Node("a", uid="a")))
    assert matching.dropped == (gone,)
    assert matching.outcome_of(gone) is Outcome.DROPPED
    with pytest.raises(UnclaimedStateError) as caught:
        matching.refuse_unclaimed()
    message = str(caught.value)
    assert "stored operator 'gone' with 12 rows, 345 bytes (count, last)" in message
    assert "allow_non_restored_state=True" in message
    assert "--allow-non-restored-state" in message
    assert "To keep it" not in message


def test_a_stored_operator_without_state_is_passed_over() -> None:
    """It may name its states. Without a row nothing is lost."""
    empty = of_uid("gone", 0, states=("count",))
    matching = match([empty], line("a"))
    assert (matching.dropped, matching.ignored, matching.hints) == ((), (empty,), ())
    assert matching.outcome_of(empty) is Outcome.IGNORED
    matching.refuse_unclaimed()


def test_a_matching_is_a_value() -> None:
    matching = match([of_uid("gone", name="a")], line("a"))
    assert pickle.loads(pickle.dumps(matching)) == matching


# --- Hints ----------------------------------------------------------------------------------------


def test_a_lost_uid_is_named_for_the_operator_of_the_same_name() -> None:
    matching = match([of_uid("u", name="totals")], line("src", "totals"))
    (hint,) = matching.hints
    assert (hint.node, hint.uid, hint.uid_hash) == ("totals", "u", None)
    assert hint.reason is HintReason.SAME_NAME
    with pytest.raises(UnclaimedStateError, match="set uid = 'u' on operator 'totals'"):
        matching.refuse_unclaimed()


def test_a_generated_id_is_named_as_uid_hash() -> None:
    stored = StoredOperator(HASH, name="totals", rows=1)
    (hint,) = match([stored], line("totals")).hints
    assert (hint.node, hint.uid, hint.uid_hash) == ("totals", None, HASH)
    assert f"set uid_hash = '{HASH}' on operator 'totals'" in str(hint)


def test_a_uid_that_does_not_produce_the_id_is_ignored() -> None:
    """The lookup uses the id."""
    (hint,) = match([StoredOperator(HASH, "u", "totals", rows=1)], line("totals")).hints
    assert (hint.uid, hint.uid_hash) == (None, HASH)


def test_a_uid_that_another_operator_has_is_named_as_uid_hash() -> None:
    """That operator was found by its uid_hash and keeps its uid."""
    stored = [StoredOperator(HASH, rows=1), of_uid("u", name="b")]
    matching = match(stored, line(Node("a", uid="u", uid_hash=HASH), "b"))
    (hint,) = matching.hints
    assert (hint.node, hint.uid, hint.uid_hash) == ("b", None, operator_id("u"))


def test_the_old_graph_supplies_the_name_and_then_the_position() -> None:
    """One operator was moved and keeps its name. Another was renamed and keeps its position."""
    old = line("src", "a", "b")
    stored = [one for one in snapshot(old) if one.operator_id != operator_ids(old)["src"]]
    new = line("src", Node("b2", uid="x"), Node("filter", uid="y"), Node("a", uid="z"))
    assert match(stored, new).hints == ()
    by_node = {hint.node: hint for hint in match(stored, new, old).hints}
    assert by_node["a"].reason is HintReason.OLD_NAME
    assert by_node["a"].uid_hash == operator_ids(old)["a"]
    assert by_node["filter"].reason is HintReason.OLD_POSITION
    assert by_node["filter"].uid_hash == operator_ids(old)["b"]
    assert by_node.keys() == {"a", "filter"}


def test_only_operators_that_start_empty_are_hinted_at() -> None:
    """Each operator gets at most one hint."""
    stored = [
        of_uid("a"),
        of_uid("old", name="a"),
        of_uid("one", name="b"),
        of_uid("two", name="b"),
    ]
    matching = match(stored, line(Node("a", uid="a"), Node("b", uid="b")))
    assert [(hint.node, hint.uid) for hint in matching.hints] == [("b", "one")]


def test_a_uid_that_would_change_downstream_ids_becomes_a_uid_hash() -> None:
    """The downstream operator is found by its generated id, which must not change."""
    job = line("src", "totals", "out")
    kept = [one for one in snapshot(job) if one.operator_id != operator_ids(job)["totals"]]
    matching = match([*kept, of_uid("u", name="totals")], job)
    (hint,) = matching.hints
    assert (hint.uid, hint.uid_hash) == (None, operator_id("u"))
    after = match([*kept, of_uid("u", name="totals")], followed(job, matching))
    assert after.dropped == ()


def test_a_uid_that_restores_the_id_of_another_becomes_a_uid_hash() -> None:
    """With the uid on ``a``, ``b`` would claim the state that the other hint assigns to ``w``."""
    old = line("src", Node("a", uid="a"), "b")
    new = line("src", "a", "b", Node("w", strategy=ChainingStrategy.NEVER))
    names = {operator_id("a"): "a", operator_ids(old)["b"]: "w"}
    stored = [replace(one, name=names.get(one.operator_id)) for one in snapshot(old)]
    matching = match(stored, new)
    assert {hint.node: hint.uid_hash for hint in matching.hints} == {"a": operator_id("a")} | {
        "w": operator_ids(old)["b"]
    }
    assert match(stored, followed(new, matching)).dropped == ()


nodes = st.lists(
    st.tuples(st.sampled_from("abcdefg"), st.sampled_from([None, "u", "v", "w"])),
    min_size=1,
    max_size=6,
    unique_by=lambda pair: pair[0],
)


def _job(drawn: list[tuple[str, str | None]]) -> JobGraph:
    """Return a line of the drawn operators, in which a repeated uid is omitted."""
    seen: set[str] = set()
    made = []
    for name, uid in drawn:
        made.append(Node(name, uid=None if uid in seen else uid))
        seen |= {uid} if uid else set()
    return line(*made)


@given(nodes, nodes, st.booleans(), st.booleans())
def test_hints_recover_the_named_state_and_lose_nothing(
    before: Any, after: Any, names: bool, with_graph: bool
) -> None:
    """All hints are followed together, between any two jobs."""
    old, new = _job(before), _job(after)
    stored = snapshot(old, names=names)
    matching = match(stored, new, old if with_graph else None)
    better = match(stored, followed(new, matching))
    for hint in matching.hints:
        assert matching.node(hint.node).stored is None
        assert better.node(hint.node).stored == hint.stored
        assert hint.stored in matching.dropped
    for node in matching.nodes:
        if node.stored is not None:
            assert better.node(node.node.name).stored == node.stored
    assert len(better.dropped) <= len(matching.dropped) - len(matching.hints)


@given(nodes, nodes)
def test_every_stored_operator_is_found_or_dropped(before: Any, after: Any) -> None:
    """Each one is either found or dropped, and no two operators find the same."""
    stored = snapshot(_job(before))
    matching = match(stored, _job(after))
    found = [node.stored for node in matching.nodes if node.stored is not None]
    assert sorted(found + list(matching.dropped), key=str) == sorted(stored, key=str)


@given(nodes)
def test_a_job_finds_all_its_own_state(drawn: Any) -> None:
    matching = match(snapshot(_job(drawn)), _job(drawn))
    assert {node.outcome for node in matching.nodes} == {Outcome.FOUND}
    matching.refuse_unclaimed()


# --- Max parallelism ------------------------------------------------------------------------------


def test_a_derived_max_parallelism_yields_to_the_stored_one() -> None:
    """Operators that start empty are not in the result."""
    graph = JobGraph((Node("a", uid="a", parallelism=200), Node("b", uid="b")))
    assert check_parallelism(match([of_uid("a", max_parallelism=256)], graph), graph) == {"a": 256}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (Node("a", uid="u", parallelism=129), "operator 'a': parallelism 129 is above the stored"),
        (Node("a", uid="u", max_parallelism=256), "operator 'a': .* 128 but 256 is configured"),
    ],
)
def test_a_max_parallelism_that_does_not_fit_names_the_operator(node: Node, message: str) -> None:
    graph = line("src", node)
    unchained = replace(graph, chaining=False)
    with pytest.raises(ParallelismError, match=message):
        check_parallelism(match([of_uid("u", max_parallelism=128)], unchained), unchained)


def test_an_operator_has_the_max_parallelism_of_its_chains_head() -> None:
    """Flink runs a chain as one vertex; see also ``operators.py``."""
    graph = line(Node("head", max_parallelism=64), Node("a", uid="u", max_parallelism=128))
    with pytest.raises(ParallelismError, match=r"operator 'a': .* 128 but 64 is configured"):
        check_parallelism(match([of_uid("u", max_parallelism=128)], graph), graph)


def test_an_operator_stored_without_keyed_state_keeps_its_own() -> None:
    graph = line(Node("a", uid="u", max_parallelism=77))
    assert check_parallelism(match([of_uid("u")], graph), graph) == {"a": 77}
