"""Where subtasks run: every answer of Flink's classes, and what holds beyond them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.model.keygroups import KeyGroupAssignment, KeyGroupRange
from statestore.model.placement import (
    Locality,
    Location,
    PreviousAllocation,
    ProducerInput,
    Selection,
    Slot,
    SlotStrategy,
    VertexDemand,
    VertexState,
    assign_by_locality,
    place_subtasks,
    preferred_locations,
    select_slot,
    slots_per_group,
)
from tests.vectors import cases

SELECTIONS = cases("slots", "slot_select")
ASSIGNMENTS = cases("slots", "locality_slots")

A1, A2 = Location("a1", "a"), Location("a2", "a")
B1, B2 = Location("b1", "b"), Location("b2", "b")


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
    assert len(SELECTIONS) + len(ASSIGNMENTS) == len(cases("slots")) == 95


@pytest.mark.parametrize("number", range(len(SELECTIONS)))
def test_a_slot_is_selected_as_flink_does(number: int) -> None:
    case = SELECTIONS[number]["in"]
    free = [Slot(s["slot"], s["tm"], s["host"], s["utilization"]) for s in case["free"]]
    preferred = [Location(p["tm"], p["host"]) for p in case["preferred"]]
    got = select_slot(
        case["strategy"], free, preferred=preferred, prior=case["prior"], reserved=case["reserved"]
    )
    expected = SELECTIONS[number]["out"]
    assert (got and {"slot": got.slot, "locality": got.locality}) == expected


@pytest.mark.parametrize("number", range(len(ASSIGNMENTS)))
def test_slots_are_assigned_by_locality_as_flink_does(number: int) -> None:
    case, expected = ASSIGNMENTS[number]["in"], ASSIGNMENTS[number]["out"]
    groups = {g["id"]: [tuple(pair) for pair in g["subtasks"]] for g in case["groups"]}
    got = assign_by_locality(list(map(vertex_of, case["vertices"])), groups, case["free"])
    scores = {g: {str(slot): n for slot, n in each.items()} for g, each in got.scores.items()}
    assert scores == expected["scores"]
    assert got.by_score == expected["assigned"]
    assert list(got.rest) == expected["rest"]
    assert got.slots.keys() == groups.keys()
    assert set(got.slots.values()) <= set(case["free"])
    assert len(set(got.slots.values())) == len(groups)


# --- Selecting a slot -----------------------------------------------------------------------------


def test_of_equally_good_slots_the_first_offered_is_taken() -> None:
    slots = [Slot(7, "a1", "a", 0.5), Slot(3, "a1", "a", 0.5)]
    for strategy in SlotStrategy:
        for preferred in ([], [A1], [A2], [B1]):
            first = select_slot(strategy, slots, preferred=preferred)
            turned = select_slot(strategy, slots[::-1], preferred=preferred)
            assert (first and first.slot, turned and turned.slot) == (7, 3)


@pytest.mark.parametrize(
    ("preferred", "locality"),
    [
        ([], Locality.UNCONSTRAINED),
        ([B1], Locality.NON_LOCAL),
        ([A2], Locality.HOST_LOCAL),
        ([A2, A1], Locality.LOCAL),
    ],
)
def test_the_locality_says_how_close_the_slot_is(
    preferred: list[Location], locality: Locality
) -> None:
    assert select_slot("default", [Slot(1, "a1", "a")], preferred=preferred) == (1, locality)


def test_load_decides_between_equally_close_slots_only_when_spreading() -> None:
    slots = [Slot(1, "a1", "a", 1.0), Slot(2, "a2", "a", 0.0), Slot(3, "b1", "b", 0.0)]
    near = [Location("a3", "a")]
    assert select_slot("default", slots, preferred=near) == Selection(1, Locality.HOST_LOCAL)
    assert select_slot("evenly", slots, preferred=near) == Selection(2, Locality.HOST_LOCAL)


def test_a_location_named_twice_weighs_twice() -> None:
    slots = [Slot(1, "a1", "a"), Slot(2, "b1", "b")]
    assert select_slot("default", slots, preferred=[A1, B1, B1]) == (2, Locality.LOCAL)


def test_reserved_slots_are_left_to_others_unless_they_are_prior() -> None:
    slots = [Slot(1, "a1", "a"), Slot(2, "b1", "b")]
    assert select_slot("previous-default", slots, reserved=[1]) == (2, Locality.UNCONSTRAINED)
    assert select_slot("previous-default", slots, prior=[1], reserved=[1]) == (1, Locality.LOCAL)
    assert select_slot("previous-default", slots, reserved=[1, 2]) is None
    assert select_slot("default", slots, reserved=[1, 2]) == (1, Locality.UNCONSTRAINED)


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'previous-evenly'"):
        select_slot("evenly-ish", [])


@pytest.mark.parametrize("utilization", [-0.001, 1.001, float("nan"), True])
def test_a_utilization_out_of_bounds_is_refused(utilization: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"slot 4: utilization must be in 0\.\.1"):
        Slot(4, "a1", "a", utilization)


def test_both_ends_of_utilization_are_allowed() -> None:
    assert [Slot(1, "a", "h", share).utilization for share in (0, 1)] == [0, 1]


def test_a_slot_offered_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="slot 1 is offered twice"):
        select_slot("default", [Slot(1, "a1", "a"), Slot(1, "b1", "b")])
    with pytest.raises(InvalidArgumentError, match="slot 1 is offered twice"):
        assign_by_locality([], {}, [1, 2, 1])


# --- Preferred locations --------------------------------------------------------------------------


def test_a_subtask_with_state_prefers_its_last_task_manager_alone() -> None:
    assert preferred_locations(A1, [ProducerInput((B1, B2))]) == (A1,)


def test_the_input_with_the_fewest_locations_wins_the_later_one_on_a_tie() -> None:
    one, same, two = ProducerInput((A1, A1)), ProducerInput((B1,)), ProducerInput((A1, B1))
    assert preferred_locations(None, [one, two]) == (A1,)
    assert preferred_locations(None, [two, one]) == (A1,)
    assert preferred_locations(None, [one, same]) == (B1,)
    assert preferred_locations(None, [one, ProducerInput(())]) == (A1,)
    assert preferred_locations(None) == ()


def test_inputs_with_more_than_eight_neighbours_are_ignored() -> None:
    assert preferred_locations(None, [ProducerInput((A1,) * 8, 8)]) == (A1,)
    assert preferred_locations(None, [ProducerInput((A1,) * 9)]) == ()
    assert preferred_locations(None, [ProducerInput((A1,), 9)]) == ()


# --- Slots per sharing group ----------------------------------------------------------------------


def test_free_slots_beyond_all_needs_are_shared_equally() -> None:
    groups = {"wide": [VertexDemand(1, 10), VertexDemand(2, 3)], "narrow": [VertexDemand(1, 2)]}
    # 3 are needed. Of the 5 beyond, narrow wants 1 of its share of 2, and wide gets what is left.
    assert slots_per_group(groups, 8) == {"wide": 6, "narrow": 2}
    assert slots_per_group(groups, 3) == {"wide": 2, "narrow": 1}
    assert slots_per_group(groups, 100) == {"wide": 10, "narrow": 2}
    assert [demand.parallelism(6) for demand in groups["wide"]] == [6, 3]


def test_too_few_slots_for_the_needs_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="3 slots are needed and 2 are free"):
        slots_per_group({"a": [VertexDemand(2, 2)], "b": [VertexDemand(1, 1)]}, 2)


demands = st.tuples(st.integers(1, 9), st.integers(0, 9)).map(lambda d: VertexDemand(d[0], sum(d)))


@given(
    st.dictionaries(st.text(max_size=2), st.lists(demands, min_size=1, max_size=4), max_size=5),
    st.integers(0, 40),
)
def test_every_group_gets_what_it_needs_and_no_more_than_it_wants(
    groups: dict[str, list[VertexDemand]], extra: int
) -> None:
    needs = {g: max(d.minimum for d in each) for g, each in groups.items()}
    wants = {g: max(d.wanted for d in each) for g, each in groups.items()}
    free = sum(needs.values()) + extra
    got = slots_per_group(groups, free)
    assert all(needs[group] <= got[group] <= wants[group] for group in groups)
    assert sum(got.values()) == min(free, sum(wants.values()))


@pytest.mark.parametrize(("minimum", "wanted"), [(0, 1), (1, 32_769), (3, 2)])
def test_a_demand_out_of_bounds_is_refused(minimum: int, wanted: int) -> None:
    with pytest.raises(ParallelismError):
        VertexDemand(minimum, wanted)


def test_a_sharing_group_without_vertices_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'a' has no vertex"):
        slots_per_group({"a": []}, 3)


# --- By locality ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "score"), [(0, 1), (1, 4), (7, 4), (8, 4), (15, 4), (16, 8), (800, 400)]
)
def test_a_score_is_whole_bytes_per_key_group_and_never_less_than_one(
    size: int, score: int
) -> None:
    """Half of the 8 groups of an old subtask: half of its bytes, but for rounding."""
    vertex = VertexState("v", 8, (old(5, 0, 7, size),))
    got = assign_by_locality([vertex], {"g": [("v", 0)], "h": [("v", 1)]}, [5, 6])
    assert got.scores == {"g": {5: score}, "h": {5: score}}
    assert (got.by_score, got.rest, got.slots) == ({"g": 5}, ("h",), {"g": 5, "h": 6})


def test_groups_left_over_get_the_remaining_slots_in_ascending_order() -> None:
    got = assign_by_locality([], {"b": [], "a": []}, [9, -4, 2])
    assert (got.rest, got.slots) == (("b", "a"), {"b": -4, "a": 2})


def test_fewer_slots_than_groups_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="2 slots are needed and 1 are free"):
        assign_by_locality([], {"b": [], "a": []}, [9])


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"g": [("w", 0)]}, r"group 'g' has vertex 'w'; there is \['v'\]"),
        ({"g": [("v", 0)], "h": [("v", 0)]}, "subtask 0 of vertex 'v' is in groups 'g' and 'h'"),
        ({"g": [("v", 1)]}, "no group has subtask 0 of vertex 'v'"),
    ],
)
def test_groups_that_do_not_hold_each_subtask_once_are_refused(groups: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        assign_by_locality([VertexState("v", 8)], groups, [1, 2])


def test_a_vertex_given_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="given twice"):
        assign_by_locality([VertexState("v", 8), VertexState("v", 8)], {}, [])


def test_more_subtasks_than_key_groups_are_refused() -> None:
    groups: Any = {str(i): [("v", i)] for i in range(3)}
    with pytest.raises(ParallelismError):
        assign_by_locality([VertexState("v", 2)], groups, [1, 2, 3])


def test_negative_bytes_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="slot 3: -1 bytes"):
        old(3, 0, 7, -1)


@pytest.mark.parametrize("slot", ["1", 1.0, True, None])
def test_a_slot_id_is_an_int(slot: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a slot id must be an int"):
        Slot(slot, "a", "h")
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


def test_the_largest_parallelism_is_placed() -> None:
    """Old and new subtasks are not compared each with each."""
    assignment = KeyGroupAssignment(max_parallelism=32_768, parallelism=32_768)
    previous = [PreviousAllocation(-i, r, 1) for i, r in enumerate(assignment.ranges())]
    assert place_subtasks(assignment, previous, range(-32_767, 1))[:3] == (0, -1, -2)
