"""Placement of subtasks by their state: every answer of Flink's class, and further properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.jobgraph.slots import (
    PreviousAllocation,
    VertexState,
    assign_by_locality,
    place_subtasks,
)
from statestore.keys.groups import KeyGroupAssignment, KeyGroupRange
from tests.support.vectors import cases

ASSIGNMENTS = cases("slots", "locality_slots")


def old(slot: int, first: int, last: int, size: int) -> PreviousAllocation:
    return PreviousAllocation(slot, KeyGroupRange(first, last), size)


def vertex_of(given: Any) -> VertexState:
    previous = tuple(
        PreviousAllocation(p["slot"], KeyGroupRange(*p["range"]), p["bytes"])
        for p in given["previous"]
    )
    return VertexState(given["id"], given["max"], previous)


# --- Flink's answers ------------------------------------------------------------------------------


def test_the_vectors_are_all_here() -> None:
    assert {case["in"]["op"] for case in cases("slots")} == {"slot_select", "locality_slots"}
    assert len(ASSIGNMENTS) == 45


def test_slots_are_assigned_by_locality_as_flink_does() -> None:
    for assignment in ASSIGNMENTS:
        case, expected = assignment["in"], assignment["out"]
        groups = {g["id"]: [tuple(pair) for pair in g["subtasks"]] for g in case["groups"]}
        got = assign_by_locality(list(map(vertex_of, case["vertices"])), groups, case["free"])
        scores = {g: {str(slot): n for slot, n in each.items()} for g, each in got.scores.items()}
        assert scores == expected["scores"]
        assert got.by_score == expected["assigned"]
        assert list(got.rest) == expected["rest"]
        assert got.slots.keys() == groups.keys()
        assert set(got.slots.values()) <= set(case["free"])
        assert len(set(got.slots.values())) == len(groups)


# --- By locality ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "score"), [(0, 1), (1, 4), (7, 4), (8, 4), (15, 4), (16, 8), (800, 400)]
)
def test_a_score_is_whole_bytes_per_key_group_and_never_less_than_one(
    size: int, score: int
) -> None:
    """Half of an old subtask's 8 groups count as half of its bytes, except for rounding."""
    vertex = VertexState("v", 8, (old(5, 0, 7, size),))
    got = assign_by_locality([vertex], {"g": [("v", 0)], "h": [("v", 1)]}, [5, 6])
    assert got.scores == {"g": {5: score}, "h": {5: score}}
    assert (got.by_score, got.rest, got.slots) == ({"g": 5}, ("h",), {"g": 5, "h": 6})


def test_groups_left_over_get_the_remaining_slots_in_ascending_order() -> None:
    got = assign_by_locality([], {"b": [], "a": []}, [9, -4, 2])
    assert (got.rest, got.slots) == (("b", "a"), {"b": -4, "a": 2})


def test_a_slot_offered_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="slot 1 is offered twice"):
        assign_by_locality([], {}, [1, 2, 1])


def test_fewer_slots_than_groups_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="2 slots are needed and 1 are free"):
        assign_by_locality([], {"b": [], "a": []}, [9])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"g": [("w", 0)]}, r"group 'g' names the unknown vertex 'w'; known vertices: \['v'\]"),
        (
            {"g": [("v", 0)], "h": [("v", 0)]},
            "subtask 0 of vertex 'v' is in both group 'g' and group 'h'",
        ),
        ({"g": [("v", 1)]}, "no group contains subtask 0 of vertex 'v'"),
    ],
)
def test_groups_that_do_not_hold_each_subtask_once_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        assign_by_locality([VertexState("v", 8)], groups, [1, 2])


def test_a_vertex_given_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="listed twice"):
        assign_by_locality([VertexState("v", 8), VertexState("v", 8)], {}, [])


def test_more_subtasks_than_key_groups_are_refused() -> None:
    groups: Any = {str(i): [("v", i)] for i in range(3)}
    with pytest.raises(ParallelismError):
        assign_by_locality([VertexState("v", 2)], groups, [1, 2, 3])


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="slot 3 has a negative size of -1 bytes"):
        old(3, 0, 7, -1)


@pytest.mark.parametrize("slot", ["1", 1.0, True, None])
def test_a_slot_id_is_an_int(slot: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a slot id must be an int"):
        old(slot, 0, 1, 0)
    with pytest.raises(InvalidArgumentError, match="a slot id must be an int"):
        place_subtasks(KeyGroupAssignment(max_parallelism=1, parallelism=1), [], [slot])


# --- One operator ---------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_one_operator_is_placed_as_groups_of_one_subtask(
    before: int, after: int, data: st.DataObject
) -> None:
    previous = tuple(
        PreviousAllocation(data.draw(st.integers(0, 15)), key_groups, data.draw(st.integers(0, 99)))
        for key_groups in KeyGroupAssignment(max_parallelism=24, parallelism=before).ranges()
    )
    free = data.draw(st.lists(st.integers(0, 20), min_size=after, max_size=21, unique=True))
    assignment = KeyGroupAssignment(max_parallelism=24, parallelism=after)
    groups: Any = {f"{i:02}": [("v", i)] for i in range(after)}
    together = assign_by_locality([VertexState("v", 24, previous)], groups, free)
    assert place_subtasks(assignment, previous, free) == tuple(together.slots[g] for g in groups)


@given(st.integers(1, 20), st.randoms())
def test_without_a_rescale_every_subtask_stays(parallelism: int, random: Any) -> None:
    assignment = KeyGroupAssignment(max_parallelism=128, parallelism=parallelism)
    slots = random.sample(range(100), parallelism + 5)
    previous = [
        PreviousAllocation(slot, key_groups, random.randrange(10**9))
        for slot, key_groups in zip(slots, assignment.ranges(), strict=False)
    ]
    placed = place_subtasks(assignment, previous, sorted(slots))
    assert placed == tuple(slots[:parallelism])


def test_of_two_subtasks_the_one_with_more_bytes_in_a_slot_gets_it() -> None:
    assignment = KeyGroupAssignment(max_parallelism=8, parallelism=2)
    assert place_subtasks(assignment, [old(5, 2, 7, 600)], [4, 5]) == (4, 5)
    assert place_subtasks(assignment, [old(5, 0, 5, 600)], [4, 5]) == (5, 4)
    assert place_subtasks(assignment, [], [9, 4]) == (4, 9)


def test_key_groups_past_the_max_parallelism_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="key group 8 does not exist"):
        place_subtasks(KeyGroupAssignment(max_parallelism=8, parallelism=1), [old(1, 0, 8, 1)], [1])


@pytest.mark.slow
def test_the_largest_parallelism_is_placed() -> None:
    """The placement does not compare every old subtask with every new one."""
    assignment = KeyGroupAssignment(max_parallelism=32_768, parallelism=32_768)
    previous = [PreviousAllocation(-i, r, 1) for i, r in enumerate(assignment.ranges())]
    assert place_subtasks(assignment, previous, range(-32_767, 1))[:3] == (0, -1, -2)
