"""Slot selection equals Flink's: every answer of its classes, and further properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.jobgraph.slots import (
    Locality,
    Location,
    ProducerInput,
    Selection,
    Slot,
    SlotStrategy,
    VertexDemand,
    preferred_locations,
    select_slot,
    slots_per_group,
)
from tests.support.vectors import cases

SELECTIONS = cases("slots", "slot_select")

A1, A2 = Location("a1", "a"), Location("a2", "a")
B1, B2 = Location("b1", "b"), Location("b2", "b")

# --- Flink's answers ------------------------------------------------------------------------------


def test_the_vectors_are_all_here() -> None:
    assert {case["in"]["op"] for case in cases("slots")} == {"slot_select", "locality_slots"}
    assert len(SELECTIONS) == 50


def test_a_slot_is_selected_as_flink_does() -> None:
    for selection in SELECTIONS:
        case = selection["in"]
        free = [Slot(s["slot"], s["tm"], s["host"], s["utilization"]) for s in case["free"]]
        preferred = [Location(p["tm"], p["host"]) for p in case["preferred"]]
        got = select_slot(
            case["strategy"],
            free,
            preferred=preferred,
            prior=case["prior"],
            reserved=case["reserved"],
        )
        expected = selection["out"]
        assert (got and {"slot": got.slot, "locality": got.locality}) == expected


# --- Selecting a slot -----------------------------------------------------------------------------


def test_the_first_offered_of_equally_good_slots_is_taken() -> None:
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


@pytest.mark.parametrize("slot", ["1", 1.0, True, None])
def test_a_slot_id_is_an_int(slot: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a slot id must be an int"):
        Slot(slot, "a", "h")


# --- Preferred locations --------------------------------------------------------------------------


def test_a_subtask_with_state_prefers_only_its_last_task_manager() -> None:
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
    # 3 are needed. The other 5 are shared: narrow takes 1 of its 2, and wide gets the rest.
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
def test_every_group_gets_at_least_its_minimum_and_at_most_its_demand(
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
    kind = ParallelismError if minimum > wanted else InvalidArgumentError
    with pytest.raises(kind):
        VertexDemand(minimum, wanted)


def test_a_sharing_group_without_vertices_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'a' has no vertex"):
        slots_per_group({"a": []}, 3)
