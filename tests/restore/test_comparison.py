"""Compare parallelisms: moved bytes, seconds, cost, and the choice between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.format.manifest import Manifest
from statestore.jobgraph.redistribution import RedistributionMode
from statestore.keys.groups import RangeAssignment
from statestore.restore.compare_plans import (
    ALIKE,
    NOISE_SECONDS,
    SLOWER,
    Compared,
    Prices,
    choose_parallelism,
    compare_plans,
    moved_between_hosts,
    moved_between_subtasks,
)
from statestore.restore.plan import RestorePlan, plan_restore
from tests.restore.test_plan import handle, keyed, manifest, operator

EVEN = tuple(handle(group) for group in range(8))  # 100 bytes each


def plans(found: Manifest, *parallelisms: int) -> dict[int, RestorePlan]:
    return {parallelism: plan_restore(found, parallelism) for parallelism in parallelisms}


def moved(found: Manifest, parallelism: int) -> int:
    (plan,) = plan_restore(found, parallelism).operators
    return moved_between_subtasks(found, plan)


def test_moved_bytes_are_owned_by_another_subtask() -> None:
    found = manifest(keyed(EVEN), parallelism=2)  # key groups 0-3 and 4-7
    assert moved(found, 2) == 0
    assert moved(found, 1) == 400
    assert moved(found, 4) == 100 * len({2, 3, 4, 5, 6, 7})  # only 0 and 1 stay with subtask 0


def test_moved_bytes_are_computed_from_the_recorded_ranges() -> None:
    found = replace(manifest(keyed(EVEN), parallelism=2), ranges={"u": RangeAssignment((1, 8))})
    assert moved(found, 2) == 300  # 1, 2 and 3 go from subtask 1 to 0
    assert moved(found, 1) == 700


def test_without_keyed_state_nothing_moves() -> None:
    found = manifest(operator(RedistributionMode.SPLIT, "s", 1, 2), parallelism=2)
    assert moved(found, 5) == 0


def test_a_plan_with_another_max_parallelism_is_refused() -> None:
    found = manifest(keyed(EVEN))
    (plan,) = plan_restore(found, 2, 16).operators
    with pytest.raises(InvalidArgumentError, match="operator 'u' has 8 key groups"):
        moved_between_subtasks(found, plan)


def test_moved_bytes_between_hosts_have_no_copy_on_the_new_host() -> None:
    handles = tuple(replace(one, host="a" if i < 4 else "b") for i, one in enumerate(EVEN))
    found = manifest(keyed(handles), parallelism=2)
    plan = plan_restore(found, 2)
    assert moved_between_hosts(found, plan, {"a": 1, "b": 1}) == 0
    assert moved_between_hosts(found, plan, {"a": 1, "c": 1}) == 400
    assert moved_between_hosts(found, plan, {"c": 2}) == 800


def test_too_few_slots_names_the_parallelism() -> None:
    found = manifest(keyed(EVEN))
    with pytest.raises(InvalidArgumentError) as caught:
        compare_plans(found, plans(found, 2, 4), hosts={"a": 3})
    assert caught.value.__notes__ == ["while comparing parallelism 4"]


def test_each_number_comes_from_the_plan() -> None:
    found = manifest(keyed(EVEN), parallelism=2)
    prices = Prices("EUR", 10.0, 2e9, 3e9, 36.0)
    comparison = compare_plans(found, plans(found, 4, 1), rate=100, prices=prices)
    assert [one.parallelism for one in comparison.options] == [1, 4]
    four = comparison.options[1]
    plan = plan_restore(found, 4)
    assert (four.size_bytes, four.files, four.requests) == (800, plan.files, 8 * 4)
    assert (four.largest_bytes, four.seconds, four.moved_bytes) == (200, 2.0, 600)
    expected = 32 / 1000 * 10 + 800 * 2 + 600 * 3 + 4 * 2.0 / 3600 * 36
    assert four.money == pytest.approx(expected)
    assert (comparison.old_parallelism, comparison.rate) == (2, 100)


def test_without_a_rate_there_are_no_seconds() -> None:
    found = manifest(keyed(EVEN))
    comparison = compare_plans(found, plans(found, 1, 8), prices=Prices(per_subtask_hour=5))
    assert [(one.seconds, one.money) for one in comparison.options] == [(None, 0.0), (None, 0.0)]
    assert compare_plans(found, plans(found, 1, 8)).why == (
        "2 have about the smallest largest subtask, and it moves the fewest bytes of them"
    )


def option(
    parallelism: int, seconds: float, money: float | None = None, moved: int = 0
) -> Compared:
    return Compared(parallelism, moved, 0, 0, 0, 0, seconds, money)


def test_without_prices_the_fastest_is_chosen() -> None:
    chosen, why = choose_parallelism([option(2, 9), option(4, 5), option(8, 6)])
    assert (chosen, why) == (4, "the least expected time")


def test_among_equal_options_the_one_that_moves_least_is_chosen() -> None:
    chosen, why = choose_parallelism(
        [option(2, 5, moved=9), option(4, 5, moved=3), option(8, 5, moved=3)]
    )
    assert chosen == 4
    assert "3 have about the least expected time, and it moves the fewest bytes" in why


def test_small_differences_are_ignored() -> None:
    """Microseconds between small states do not count, nor do a few bytes without a known rate."""
    chosen, why = choose_parallelism([option(2, 9e-6), option(4, 6e-6, moved=7), option(8, 0.2)])
    assert chosen == 2
    assert "2 have about" in why
    sizes = [Compared(n, 9 * (n > 1), size, 0, 0, 0, None, None) for n, size in ((1, 900), (4, 7))]
    assert choose_parallelism(sizes)[0] == 1


def test_with_prices_the_cheapest_that_is_not_much_slower_is_chosen() -> None:
    options = [option(1, 20, 1.0), option(2, 15, 2.0), option(4, 10, 3.0)]
    assert choose_parallelism(options)[0] == 2
    assert choose_parallelism([option(1, 15.01, 1.0), option(4, 10, 3.0)])[0] == 4
    assert "1.5 times" in choose_parallelism(options)[1]


costs = st.floats(0, 100) | st.just(1.0)


@given(st.lists(st.tuples(st.floats(0.1, 100), costs), min_size=1, max_size=6))
def test_the_choice_satisfies_its_limits(values: list[tuple[float, float]]) -> None:
    options = [option(i + 1, *value) for i, value in enumerate(values)]
    chosen, _ = choose_parallelism(options)
    own = options[chosen - 1]
    least = min(seconds for seconds, _ in values)
    assert own.seconds is not None
    most = max(SLOWER * least, least + NOISE_SECONDS)
    assert own.seconds <= most
    assert own.money is not None
    assert own.money <= ALIKE * min(money for seconds, money in values if seconds <= most)


@pytest.mark.parametrize("rate", [0, -1, float("inf"), float("nan")])
def test_a_rate_must_be_positive_and_finite(rate: float) -> None:
    found = manifest(keyed(EVEN))
    with pytest.raises(InvalidArgumentError, match="rate"):
        compare_plans(found, plans(found, 1), rate=rate)


def test_a_comparison_needs_a_parallelism() -> None:
    with pytest.raises(InvalidArgumentError, match="4,8,16"):
        compare_plans(manifest(keyed(EVEN)), {})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"per_gb": 1}, "unknown price 'per_gb'; known prices: currency, per_1000_requests"),
        ({"per_gb_read": -1}, "per_gb_read must be a number of at least 0, not -1"),
        ({"per_gb_read": "1"}, "per_gb_read must be a number"),
        ({"per_gb_read": True}, "per_gb_read must be a number"),
        ({"per_gb_moved": float("nan")}, "per_gb_moved must be a number"),
        ({"currency": 5}, "currency must be text"),
    ],
)
def test_invalid_prices_are_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Prices.of(table)


def test_prices_are_read_from_a_table() -> None:
    assert Prices.of({"currency": "EUR", "per_gb_read": 2}) == Prices("EUR", per_gb_read=2)


@given(st.lists(st.floats(1.0, 1.049), min_size=2, max_size=6), st.integers(0, 5))
def test_among_similar_options_the_current_parallelism_is_kept(
    noise: list[float], present: int
) -> None:
    """Among similar parallelisms, the current one is kept, because it moves nothing."""
    present %= len(noise)
    seconds = [10 * one / min(noise) for one in noise]
    options = [
        option(2 + at, spent, moved=0 if at == present else 7) for at, spent in enumerate(seconds)
    ]
    assert choose_parallelism(options)[0] == 2 + present
    assert choose_parallelism([*options, option(99, 9.0, moved=9)])[0] == 99
