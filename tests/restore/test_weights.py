"""The weight of key groups: the sum over all states, and with changes only the rows that count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from statestore.errors import InvalidArgumentError
from statestore.format.handles import GroupIndex, KeyedStateHandle
from statestore.format.manifest import Layer
from statestore.keys.groups import KeyGroupRange
from statestore.restore.key_group_weights import Weight, weights_of
from statestore.restore.skew import SkewedGroup, heaviest_groups, skewed_groups
from tests.restore.test_plan import handle, keyed


def ranged(first: int, *rows: int, size: int) -> KeyedStateHandle:
    index = GroupIndex.of(rows, [0] * len(rows))
    span = KeyGroupRange(first, first + len(rows) - 1)
    return KeyedStateHandle(f"r{first}", span, sum(rows), size, 1, 0, "", "", index)


def test_a_partitioned_file_counts_in_its_key_group() -> None:
    entry = keyed((handle(1, 3), handle(6, 2)))
    assert weights_of([entry], Weight.ROWS) == [0, 3, 0, 0, 0, 0, 2, 0]
    assert weights_of([entry]) == [0, 300, 0, 0, 0, 0, 200, 0]


def test_a_ranged_file_is_divided_by_the_rows_of_each_group() -> None:
    entry = keyed((ranged(2, 1, 0, 3, size=401),))
    assert weights_of([entry], Weight.ROWS) == [0, 0, 1, 0, 3, 0, 0, 0]
    assert weights_of([entry]) == [0, 0, 101, 0, 301, 0, 0, 0]  # shares are rounded up


def test_states_of_an_operator_are_added() -> None:
    one, two = keyed((handle(0, 1),)), keyed((handle(0, 4), handle(7, 1)))
    assert weights_of([one, two], Weight.ROWS) == [5, 0, 0, 0, 0, 0, 0, 1]


def test_changes_count_only_in_live_key_groups() -> None:
    changes = keyed((handle(0, 5), handle(3, 6)))
    layer = Layer(changes, 1, 0, (KeyGroupRange(2, 4),))
    entry = replace(keyed((handle(0, 1),)), layers=(layer,))
    assert weights_of([entry], Weight.ROWS) == [1, 0, 0, 6, 0, 0, 0, 0]


@pytest.mark.parametrize("wrong", ["files", "", "BYTES", None])
def test_an_unknown_weight_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="'bytes', 'rows'"):
        Weight(wrong)


def test_skew_is_more_than_a_multiple_of_the_even_share() -> None:
    # 16 rows of 8 key groups: the even share is 2.
    entry = keyed((handle(0, 4), handle(2, 5), handle(5, 7)))
    assert skewed_groups([entry], Weight.ROWS, 2) == (
        SkewedGroup(5, 7, 700, 7 / 16, 3.5),
        SkewedGroup(2, 5, 500, 5 / 16, 2.5),
    )
    assert [skewed_group.key_group for skewed_group in skewed_groups([entry], factor=1)] == [
        5,
        2,
        0,
    ]
    assert skewed_groups([entry], factor=4) == ()


def test_equal_weights_are_never_skewed() -> None:
    entry = keyed(tuple(handle(group) for group in range(8)))
    assert skewed_groups([entry], factor=1) == ()
    assert skewed_groups([keyed(())]) == skewed_groups([]) == ()


@pytest.mark.parametrize("factor", [0.5, 0, -1, float("nan")])
def test_a_multiple_below_one_is_refused(factor: float) -> None:
    with pytest.raises(InvalidArgumentError, match="even share"):
        skewed_groups([keyed(())], factor=factor)


def test_the_heaviest_key_groups_and_the_rest() -> None:
    entry = keyed((handle(0, 4), handle(2, 5), handle(5, 4)))
    assert heaviest_groups(entry, 1) == (((2, 5),), 4)
    assert heaviest_groups(entry, 2) == (((2, 5), (0, 4)), 4)
    assert heaviest_groups(entry, 9) == (((2, 5), (0, 4), (5, 4)), 0)
    assert heaviest_groups(entry, 0) == ((), 5)
