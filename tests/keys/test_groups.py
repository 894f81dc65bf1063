"""Key groups and their ranges equal Flink's (golden/flink/keygroups.json, max_parallelism.json)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.keys.groups import (
    MAX_PARALLELISM,
    MIN_PARALLELISM,
    KeyGroupAssignment,
    KeyGroupRange,
    default_max_parallelism,
    effective_max_parallelism,
    key_group_of_hash,
    mix_hash,
    round_up_to_power_of_two,
    subtask_of_key_group,
)
from tests.support.vectors import cases

NUMBERS = st.integers(MIN_PARALLELISM, MAX_PARALLELISM)
HASHES = st.integers(-(2**31), 2**31 - 1)

# Our message for each error code of the vectors.
MESSAGES = {
    "parallelism_out_of_bounds": "out of bounds",
    "max_below_parallelism": "below parallelism",
    "invalid_argument": "does not exist",
    "parallelism_above_max": "above the configured max parallelism",
    "parallelism_above_stored_max": "above the stored max parallelism",
    "max_parallelism_changed": "is configured",
}


def answer(question: dict[str, Any]) -> Any:
    """Answer one question of the vectors with our functions."""
    match question["op"]:
        case "murmur":
            return mix_hash(question["hash"])
        case "round_up_pow2":
            return round_up_to_power_of_two(question["x"])
        case "default_max":
            return default_max_parallelism(question["p"])
        case "group_of_hash":
            return key_group_of_hash(question["hash"], question["max"])
        case "intersect":
            common = KeyGroupRange(*question["a"]).intersect(KeyGroupRange(*question["b"]))
            return [] if common is None else [common.first, common.last]
    assignment = KeyGroupAssignment(max_parallelism=question["max"], parallelism=question["p"])
    match question["op"]:
        case "subtask_of_group":
            return assignment.subtask_of(question["group"])
        case "range":
            own = assignment.range_of(question["i"])
            return [own.first, own.last]
        case _:
            return [[own.first, own.last] for own in assignment.ranges()]


def questions(*, failing: bool) -> list[dict[str, Any]]:
    """Return the vectors about key groups. Those about keys are in test_hashing.py.

    The vector in which Flink answers for a subtask past the end has its own test.
    """
    every = [case for case in cases("keygroups") if case["in"]["op"] != "key"]
    known = [case for case in every if not is_past_the_end(case["in"])]
    assert len(every) - len(known) == 1
    return [case for case in known if ("error" in case) == failing]


def is_past_the_end(question: dict[str, Any]) -> bool:
    return bool(question["op"] == "range" and question["i"] == question["p"] > 0)


def test_answers_equal_flinks() -> None:
    """Mixing, groups, ranges and intersections have the same results as Flink's classes."""
    known = questions(failing=False)
    assert len(known) > 300
    assert [case for case in known if answer(case["in"]) != case["out"]] == []


def test_refusals_equal_flinks() -> None:
    """Everything that Flink refuses is refused for the same reason, in the same order of checks."""
    bounds = ("invalid_argument", "parallelism_out_of_bounds")
    known = questions(failing=True)
    assert known
    for case in known:
        kind = InvalidArgumentError if case["error"] in bounds else ParallelismError
        with pytest.raises(kind, match=MESSAGES[case["error"]]):
            answer(case["in"])


def test_the_effective_max_equals_flinks() -> None:
    """The max parallelism of a restored job equals Flink's, except that operators without state are
    ignored.
    """
    known = cases("max_parallelism")
    assert len(known) == 201
    for case in known:
        check_effective_max(case)


def check_effective_max(case: Any) -> None:
    question = case["in"]
    stored = [maximum for _, maximum in question["ops"]]
    if "error" in case:
        out = case["error"] == "parallelism_out_of_bounds"
        kind = InvalidArgumentError if out else ParallelismError
        with pytest.raises(kind, match=MESSAGES[case["error"]]):
            effective_max_parallelism(stored, question["p"], question["configured_max"])
        return
    found = effective_max_parallelism(stored, question["p"], question["configured_max"])
    # Flink resets the max for an operator without state that follows another one.
    known = [maximum for maximum in stored if maximum is not None]
    quirk = None in stored and known != [] and question["configured_max"] == -1
    assert found == (known[-1] if quirk else case["out"]["effective_max"]), question


def test_one_stored_max_needs_no_list() -> None:
    """The max of a single operator, or None, can be passed without a list."""
    assert effective_max_parallelism(256, 4) == 256
    assert effective_max_parallelism(None, 4) == 128
    assert effective_max_parallelism([None, 64, None], 4, -1) == 64


def test_the_flag_for_the_maximum_counts_as_explicit() -> None:
    """2147483647 becomes 32768, and the snapshot's value does not replace it."""
    assert effective_max_parallelism(None, 4, 2**31 - 1) == MAX_PARALLELISM
    with pytest.raises(ParallelismError, match="stored with max parallelism 128 but 32768"):
        effective_max_parallelism(128, 4, 2**31 - 1)


@pytest.mark.slow
@pytest.mark.parametrize("greatest", [128, pytest.param(256, marks=pytest.mark.long)])
def test_ranges_tile_at_every_parallelism(greatest: int) -> None:
    """I2: for every max up to the greatest and every parallelism, the ranges are ordered,
    contiguous, balanced and inverse.
    """
    for maximum in range(1, greatest + 1):
        groups = list(range(maximum))
        for parallelism in range(1, maximum + 1):
            assignment = KeyGroupAssignment(max_parallelism=maximum, parallelism=parallelism)
            owners: list[int] = []
            sizes = set()
            for subtask, own in enumerate(assignment.ranges()):
                assert own.first == len(owners)
                sizes.add(len(own))
                owners += [subtask] * len(own)
            assert len(owners) == maximum
            assert max(sizes) - min(sizes) <= 1
            # This is subtask_of() without its check of bounds, which is sampled below.
            found = [subtask_of_key_group(group, maximum, parallelism) for group in groups]
            assert found == owners


@given(st.tuples(NUMBERS, NUMBERS), st.data())
def test_range_and_subtask_are_inverse(numbers: tuple[int, int], data: st.DataObject) -> None:
    """I2, up to the largest max parallelism: a key group is only in the range of its subtask."""
    assignment = KeyGroupAssignment(max_parallelism=max(numbers), parallelism=min(numbers))
    group = data.draw(st.integers(0, max(numbers) - 1))
    subtask = assignment.subtask_of(group)
    own = assignment.range_of(subtask)
    assert group in own
    assert assignment.subtask_of(own.first) == assignment.subtask_of(own.last) == subtask
    assert own.first == 0 or assignment.subtask_of(own.first - 1) == subtask - 1


@given(HASHES, NUMBERS)
def test_every_hash_has_a_group(key_hash: int, maximum: int) -> None:
    """A group is in 0 .. max - 1 and depends only on the mixed hash."""
    assert 0 <= mix_hash(key_hash) < 2**31
    assert key_group_of_hash(key_hash, maximum) == mix_hash(key_hash) % maximum


def test_bounds_are_inclusive() -> None:
    """1 and 32768 are valid for parallelism and for max parallelism."""
    assert len(KeyGroupAssignment(max_parallelism=32768, parallelism=32768).ranges()) == 32768
    assert KeyGroupAssignment(max_parallelism=1, parallelism=1).range_of(0) == KeyGroupRange(0, 0)


def test_a_subtask_past_the_end_is_refused() -> None:
    """For subtask = parallelism Flink returns key groups that do not exist."""
    assignment = KeyGroupAssignment(max_parallelism=10, parallelism=3)
    for subtask in (-1, 3):
        with pytest.raises(InvalidArgumentError, match=r"subtask -?\d+ does not exist"):
            assignment.range_of(subtask)
    for group in (-1, 10):
        with pytest.raises(InvalidArgumentError, match=r"key group -?\d+ does not exist"):
            assignment.subtask_of(group)


@pytest.mark.parametrize("value", [True, 4.0, "4", None])
def test_only_ints_are_counts(value: Any) -> None:
    """A bool, float, string or None is refused with a message that shows it."""
    with pytest.raises(InvalidArgumentError, match="parallelism must be an int"):
        KeyGroupAssignment(max_parallelism=128, parallelism=value)
    with pytest.raises(InvalidArgumentError, match="max parallelism must be an int"):
        KeyGroupAssignment(max_parallelism=value, parallelism=1)
    with pytest.raises(InvalidArgumentError, match="parallelism must be an int"):
        default_max_parallelism(value)
    with pytest.raises(InvalidArgumentError, match="must be an int"):
        key_group_of_hash(0, value)


def test_a_range_is_a_collection_of_its_key_groups() -> None:
    """It has length, iteration, membership and text."""
    own = KeyGroupRange(40, 42)
    assert (len(own), list(own), str(own)) == (3, [40, 41, 42], "40..42")
    assert 40 in own
    assert 42 in own
    assert 43 not in own
    assert "40" not in own


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 3), (0, 32768)])
def test_impossible_ranges_are_refused(first: int, last: int) -> None:
    """A range is in 0 .. 32767 and contains at least one key group."""
    with pytest.raises(InvalidArgumentError, match="is not valid"):
        KeyGroupRange(first, last)


@given(*[st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)] * 2)
def test_intersection_is_that_of_sets(a: list[int], b: list[int]) -> None:
    """The result has the common key groups, or is None without any."""
    left, right = KeyGroupRange(*a), KeyGroupRange(*b)
    common = left.intersect(right)
    assert set(common or ()) == set(left) & set(right)
    assert common == right.intersect(left)
