"""A rescale moves operator state exactly as in Flink, and nothing is lost (I7, I11)."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.redistribution import (
    ElementRun,
    RedistributionMode,
    plan_redistribution,
    redistribute,
    redistribute_counts,
    subtask_elements,
)
from tests.support.vectors import cases

CASES = cases("operator_state")
SPLIT, UNION, BROADCAST = RedistributionMode

parallelisms = st.integers(1, 40)
# Per old subtask: None if it had finished, or the elements that it reported.
reports = st.lists(st.none() | st.lists(st.integers(), max_size=12), min_size=1, max_size=12)


def _counts(case: Any) -> Any:
    return [
        None if states is None else {name: (s["mode"], s["n"]) for name, s in states.items()}
        for states in case["in"]["old"]
    ]


def _without_empty(subtask: Any) -> dict[str, list[list[int]]]:
    return {name: [list(place) for place in got] for name, got in subtask.items() if got}


def _one_state(mode: str, reported: Any) -> list[Any]:
    return [None if elements is None else {"s": (mode, elements)} for elements in reported]


def _all_elements(reported: Any) -> list[Any]:
    return [element for elements in reported for element in elements or ()]


def _sizes(old: Any, parallelism: int) -> list[int]:
    return [len(got["s"]) for got in redistribute_counts(old, parallelism)]


# --- Flink's answers ------------------------------------------------------------------------------


def test_every_element_goes_where_flink_sends_it() -> None:
    """I11: the result of Flink's class for every case. Absent and empty lists are equivalent."""
    assert len(CASES) == 152
    for case in CASES:
        if "error" in case:
            with pytest.raises(InvalidArgumentError):
                redistribute_counts(_counts(case), case["in"]["new_p"])
        else:
            got = redistribute_counts(_counts(case), case["in"]["new_p"])
            expected = list(map(_without_empty, case["out"]))
            assert list(map(_without_empty, got)) == expected, case["in"]


# Orders of java.util.HashMap (Java 17) for cases in which the vectors do not determine its table
# size.
_THIRTEEN = "s1 s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 s12 s13"


@pytest.mark.parametrize(
    ("reported", "order"),
    [
        pytest.param([_THIRTEEN], "s3 s4 s11 s5 s10 s6 s13 s7 s12 s8 s9 s1 s2", id="full"),
        pytest.param(
            [_THIRTEEN, "s1"],
            "s3 s4 s5 s6 s7 s8 s9 s11 s10 s13 s12 s1 s2",
            id="grown-a-look-up-late",
        ),
        pytest.param(
            ["s8 s12 s23 s34 s45 s56 s67 s78"],
            "s8 s78 s67 s56 s45 s34 s23 s12",
            id="crowded-bucket",
        ),
    ],
)
def test_states_are_dealt_in_the_order_of_javas_hash_map(reported: list[str], order: str) -> None:
    """I11: with one element each, the k-th state of the order gets to the k-th new subtask."""
    old = [
        dict.fromkeys(names.split(), ("split", 1 if subtask == 0 else 0))
        for subtask, names in enumerate(reported)
    ]
    dealt = [name for got in redistribute_counts(old, 20) for name, places in got.items() if places]
    assert dealt == order.split()


def test_kafka_offsets_of_two_subtasks_split_over_three() -> None:
    """Two old subtasks have two partitions each. The first of the three new subtasks takes the
    remainder.
    """
    old = _one_state("split", [["P1 1000", "P2 1500"], ["P3 2000", "P4 2200"]])
    assert [got["s"] for got in redistribute(old, 3)] == [
        ("P1 1000", "P2 1500"),
        ("P3 2000",),
        ("P4 2200",),
    ]


def test_kafka_offsets_of_three_subtasks_split_over_two() -> None:
    """A rescale from three back to two restores the original blocks."""
    old = _one_state("split", [["P1 1000", "P2 1500"], ["P3 2000"], ["P4 2200"]])
    assert [got["s"] for got in redistribute(old, 2)] == [
        ("P1 1000", "P2 1500"),
        ("P3 2000", "P4 2200"),
    ]


def test_four_elements_onto_five_subtasks_leave_the_last_one_empty() -> None:
    """There are more subtasks than elements: 1, 1, 1, 1, 0."""
    assert _sizes(_one_state("split", [2, 2]), 5) == [1, 1, 1, 1, 0]


def test_uneven_lists_become_blocks_within_one() -> None:
    """7, 1 and 2 elements for 4 subtasks become 3, 3, 2, 2, across the boundaries of the
    old lists.
    """
    old = _one_state("split", [7, 1, 2])
    assert _sizes(old, 4) == [3, 3, 2, 2]
    assert redistribute_counts(old, 4)[2] == {"s": ((0, 6), (1, 0))}


def test_the_remainder_of_a_second_state_starts_where_the_first_one_ended() -> None:
    """Two list states with one element per old subtask, rescaled from 2 to 3: a on 0 and 1, b on 2
    and 0.
    """
    old = [{"a": ("split", [f"a{i}"]), "b": ("split", [f"b{i}"])} for i in range(2)]
    assert redistribute(old, 3) == (
        {"a": ("a0",), "b": ("b1",)},
        {"a": ("a1",), "b": ()},
        {"a": (), "b": ("b0",)},
    )


# --- Modes ----------------------------------------------------------------------------------------


@given(reports, parallelisms)
def test_split_conserves_elements_in_contiguous_blocks_within_one(
    reported: list[list[int] | None], parallelism: int
) -> None:
    """I7: the blocks concatenated are the old lists concatenated, and their sizes differ by at most
    one.
    """
    restored = [
        got.get("s", ()) for got in redistribute(_one_state("split", reported), parallelism)
    ]
    assert [element for block in restored for element in block] == _all_elements(reported)
    if parallelism != len(reported):
        sizes = list(map(len, restored))
        assert max(sizes) - min(sizes) <= 1


@given(reports)
def test_split_stays_where_it_was_at_unchanged_parallelism(
    reported: list[list[int] | None],
) -> None:
    """A restore without a rescale moves nothing, even if the lists are uneven."""
    restored = redistribute(_one_state("split", reported), len(reported))
    assert [got.get("s", ()) for got in restored] == [tuple(e or ()) for e in reported]


@given(
    st.lists(
        st.none() | st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=20),
        min_size=1,
        max_size=6,
    ),
    parallelisms,
)
def test_split_places_every_element_of_many_states_once(
    counts: list[dict[str, int] | None], parallelism: int
) -> None:
    """I11: each element of each state has exactly one new subtask, for any order of names."""
    old = [None if c is None else {name: ("split", n) for name, n in c.items()} for c in counts]
    expected = Counter(
        (name, subtask, position)
        for subtask, states in enumerate(counts)
        for name, n in (states or {}).items()
        for position in range(n)
    )
    placed = Counter(
        (name, *place)
        for got in redistribute_counts(old, parallelism)
        for name, places in got.items()
        for place in places
    )
    assert placed == expected


@given(reports, parallelisms)
def test_union_is_given_in_full_to_each(reported: list[list[int] | None], parallelism: int) -> None:
    """I7: every new subtask gets every element, also at unchanged parallelism."""
    restored = redistribute(_one_state("union", reported), parallelism)
    assert all(list(got.get("s", ())) == _all_elements(reported) for got in restored)


@given(reports, st.lists(parallelisms, min_size=1, max_size=5))
def test_union_does_not_grow_over_restores(
    reported: list[list[int] | None], path: list[int]
) -> None:
    """I7: after repeated restores, in which one subtask reports each element, the union stays
    equal.
    """
    expected = Counter(_all_elements(reported))
    for parallelism in path:
        restored = redistribute(_one_state("union", reported), parallelism)
        assert restored == redistribute(_one_state("union", reported), parallelism)
        reported = [list(got.get("s", ()))[i::parallelism] for i, got in enumerate(restored)]
        assert Counter(_all_elements(reported)) == expected


def test_union_is_built_once_for_all_subtasks() -> None:
    """2,000 subtasks with 100,000 elements share one list instead of having 2,000."""
    old = _one_state("union", [range(50)] * 2_000)
    restored = redistribute(old, 1_999)
    assert len(restored[0]["s"]) == 100_000
    assert all(got["s"] is restored[0]["s"] for got in restored)


@given(st.integers(1, 12), parallelisms, st.lists(st.integers(), max_size=5))
def test_broadcast_gives_one_copy_to_each(
    old_parallelism: int, parallelism: int, copy: list[int]
) -> None:
    """I7: every new subtask gets one copy that equals the old copies."""
    restored = redistribute(_one_state("broadcast", [copy] * old_parallelism), parallelism)
    assert [got["s"] for got in restored] == [tuple(copy)] * parallelism


@given(st.lists(st.none() | st.just([1, 2]), min_size=1, max_size=12), parallelisms)
def test_broadcast_gives_one_copy_to_each_although_some_had_finished(
    reported: list[list[int] | None], parallelism: int
) -> None:
    """I7: a copy that only some subtasks reported reaches every subtask once."""
    restored = redistribute(_one_state("broadcast", reported), parallelism)
    expected = [(1, 2)] * parallelism if any(reported) else [()] * parallelism
    assert [got.get("s", ()) for got in restored] == expected


def test_broadcast_is_dealt_from_the_reporting_subtasks_in_turn() -> None:
    """New subtask i gets the copy of the i-th reporting subtask, in a round-robin."""
    places = redistribute_counts(_one_state("broadcast", [1, None, 1]), 5)
    assert [got["s"] for got in places] == [((0, 0),), ((2, 0),), ((0, 0),), ((2, 0),), ((0, 0),)]


def test_of_two_broadcast_copies_the_own_one_is_restored() -> None:
    """At unchanged parallelism Flink returns both its own copy and a distributed one. Only one is
    read.
    """
    old = _one_state("broadcast", [None, ["copy of 1"], ["copy of 2"]])
    handed = redistribute_counts(_one_state("broadcast", [None, 1, 1]), 3)
    assert [got["s"] for got in handed] == [((1, 0),), ((1, 0), (2, 0)), ((1, 0), (2, 0))]
    assert [got["s"] for got in redistribute(old, 3)] == [
        ("copy of 1",),
        ("copy of 1",),
        ("copy of 2",),
    ]


# --- Plans and single subtasks --------------------------------------------------------------------


@given(reports, parallelisms, st.sampled_from(RedistributionMode))
def test_a_single_subtask_gets_the_same_as_among_all(
    reported: list[list[int] | None], parallelism: int, mode: RedistributionMode
) -> None:
    """I11: the result for one subtask does not depend on the other subtasks."""
    old = _one_state(mode, reported)
    together = redistribute(old, parallelism)
    alone = [subtask_elements(old, parallelism, i) for i in range(parallelism)]
    assert alone == list(together)


def test_the_plan_names_the_runs_that_a_subtask_reads() -> None:
    """A plan is made from counts before any element is read."""
    plan = plan_redistribution(_one_state("split", [7, 1, 2]), 4)
    assert plan.modes == {"s": SPLIT}
    assert plan.runs(2) == {"s": (ElementRun(0, 6, 7), ElementRun(1, 0, 1))}
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("subtask", [-1, 4, 1.0, True])
def test_a_subtask_that_does_not_exist_is_refused(subtask: Any) -> None:
    """Flink would return a result for it, but a reader must not."""
    with pytest.raises(InvalidArgumentError, match="0 to 3"):
        plan_redistribution(_one_state("split", [1]), 4).runs(subtask)


def test_every_state_is_named_in_every_subtask() -> None:
    """A subtask without elements of a state gets an empty tuple, and the name is still there."""
    assert redistribute([{"s": ("split", [])}, None], 3) == ({"s": ()}, {"s": ()}, {"s": ()})


def test_elements_are_moved_unopened() -> None:
    """Elements need no equality, order or hash: the new subtask has the same objects."""
    elements = [object(), {"not": "hashable"}, float("nan")]
    restored = redistribute(_one_state("split", [elements]), 2)
    moved = [element for got in restored for element in got["s"]]
    assert all(a is b for a, b in zip(moved, elements, strict=True))


# --- Arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mode"),
    [("SPLIT_DISTRIBUTE", SPLIT), ("UNION", UNION), ("BROADCAST", BROADCAST)]
    + [(mode.value, mode) for mode in RedistributionMode],
)
def test_a_mode_has_our_name_and_flinks(name: str, mode: RedistributionMode) -> None:
    """Both spellings are one mode, and a mode's value selects it."""
    assert RedistributionMode(name) is mode
    assert redistribute_counts([{"s": (name, 3)}], 2) == redistribute_counts([{"s": (mode, 3)}], 2)


@pytest.mark.parametrize("mode", ["round-robin", "Split", None, 0])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    """The message lists the available modes."""
    with pytest.raises(InvalidArgumentError, match="'split', 'union', 'broadcast'"):
        redistribute_counts([{"s": (mode, 1)}], 2)


def test_one_state_with_two_modes_is_refused() -> None:
    """The message names the state, both modes, and the subtasks that reported them."""
    old = [{"s": ("split", 1)}, None, {"s": ("union", 1)}]
    with pytest.raises(InvalidArgumentError, match=r"'s'.*split in old subtask 0, union in .* 2"):
        redistribute_counts(old, 2)


@pytest.mark.parametrize("parallelism", [0, -1, 32_769])
def test_parallelism_out_of_bounds_is_refused(parallelism: Any) -> None:
    """Parallelism is in 1..32768, both ends included."""
    with pytest.raises(InvalidArgumentError, match=r"1\.\.32768"):
        redistribute_counts([{"s": ("split", 1)}], parallelism)


@pytest.mark.parametrize("parallelism", [True, 2.0, "2", None])
def test_a_parallelism_that_is_not_a_number_is_refused(parallelism: Any) -> None:
    """2.0 is not a number of subtasks, and True would silently become 1."""
    with pytest.raises(InvalidArgumentError, match="integer"):
        redistribute_counts([{"s": ("split", 1)}], parallelism)


def test_the_largest_parallelism_is_allowed() -> None:
    """32,768 is valid for the old and for the new parallelism."""
    assert _sizes(_one_state("split", [1] + [None] * 32_767), 32_768)[0] == 1


@pytest.mark.parametrize("old", [[], [None] * 32_769])
def test_an_old_parallelism_out_of_bounds_is_refused(old: list[None]) -> None:
    """The number of old subtasks is the old parallelism."""
    with pytest.raises(InvalidArgumentError, match="old"):
        redistribute_counts(old, 2)


@pytest.mark.parametrize("count", [-1, 1.5, "3", None, True])
def test_an_invalid_element_count_is_refused(count: Any) -> None:
    """The message names the state and the old subtask."""
    with pytest.raises(InvalidArgumentError, match="'s' of old subtask 1"):
        redistribute_counts([None, {"s": ("split", count)}], 2)


@pytest.mark.parametrize("old", ["a", 3, None, ["s"], [{}, 3], {"s": ("split", [])}])
def test_reports_without_subtasks_are_refused(old: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match="the reports of the old subtasks must be a list"
    ):
        redistribute(old, 2)


@pytest.mark.parametrize("elements", ["text", b"bytes", {1}, None, iter([1])])
def test_elements_that_are_not_a_list_are_refused(elements: Any) -> None:
    """A string has a length too, but it is a single element."""
    with pytest.raises(InvalidArgumentError, match="'s' of old subtask 0"):
        redistribute([{"s": ("split", elements)}], 2)
