"""Ranges balanced by weight are optimal according to brute force, and tile without an
empty range.
"""

from __future__ import annotations

from itertools import combinations, pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError, ParallelismError
from statestore.keys.groups import KeyGroupRange, RangeAssignment, balance_ranges
from statestore.restore.skew import loads_of

weights = st.lists(st.integers(0, 2**40), min_size=1, max_size=60)


def least(loads: list[int], parallelism: int) -> int:
    """Return the smallest largest sum over all ways to cut."""
    inner = range(1, len(loads))
    cuts = ((0, *cut, len(loads)) for cut in combinations(inner, parallelism - 1))
    return min(max(sum(loads[a:b]) for a, b in pairwise(cut)) for cut in cuts)


@pytest.mark.parametrize("length", range(1, 7))
def test_optimal_for_all_small_cases(length: int) -> None:
    values = (0, 1, 2, 5) if length < 6 else (0, 1, 4)
    for loads in product(values, repeat=length):
        for parallelism in range(1, length + 1):
            found = balance_ranges(loads, parallelism)
            assert max(loads_of(loads, found)) == least(list(loads), parallelism)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=9), st.data())
def test_optimal_for_random_ones(loads: list[int], data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, len(loads)))
    found = balance_ranges(loads, parallelism)
    assert max(loads_of(loads, found)) == least(loads, parallelism)


@given(weights, st.data())
def test_ranges_tile_and_none_is_empty(loads: list[int], data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, len(loads)))
    found = balance_ranges(loads, parallelism)
    assert (found.parallelism, found.max_parallelism) == (parallelism, len(loads))
    assert [g for own in found.ranges() for g in own] == list(range(len(loads)))
    for subtask, own in enumerate(found.ranges()):
        assert found.range_of(subtask) == own
        assert {found.subtask_of(group) for group in own} == {subtask}
    assert sum(loads_of(loads, found)) == sum(loads)


@given(weights, st.data())
def test_more_subtasks_are_never_worse(loads: list[int], data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, len(loads)))
    most = [max(loads_of(loads, balance_ranges(loads, n))) for n in range(1, parallelism + 1)]
    assert most == sorted(most, reverse=True)
    assert most[-1] >= max(loads)


@pytest.mark.parametrize("parallelism", [0, -1, 4])
def test_parallelism_is_at_most_the_number_of_key_groups(parallelism: int) -> None:
    kind = ParallelismError if parallelism > 3 else InvalidArgumentError
    with pytest.raises(kind, match=r"key groups|1 or more"):
        balance_ranges([1, 2, 3], parallelism)


@pytest.mark.parametrize("stops", [(), (0,), (2, 2), (3, 1), (-1, 4)])
def test_each_subtask_owns_a_key_group(stops: tuple[int, ...]) -> None:
    with pytest.raises(ParallelismError, match="every subtask must own at least one key group"):
        RangeAssignment(stops)


def test_other_subtasks_and_key_groups_are_refused() -> None:
    own = RangeAssignment((1, 4))
    assert own.ranges() == (KeyGroupRange(0, 0), KeyGroupRange(1, 3))
    for subtask in (-1, 2):
        with pytest.raises(ParallelismError, match=f"subtask {subtask} does not exist"):
            own.range_of(subtask)
    for group in (-1, 4):
        with pytest.raises(ParallelismError, match=f"key group {group} does not exist"):
            own.subtask_of(group)
