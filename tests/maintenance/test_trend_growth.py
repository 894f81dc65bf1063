"""Growth against a count of all pairs, and against lines whose slope is known."""

from __future__ import annotations

import random
from itertools import combinations
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.maintenance.trend_report import (
    FAR_SPANS,
    MOST_SPANS,
    POINTS_NEEDED,
    SPAN_NEEDED_MS,
    Growth,
    forecast_of,
    growth_of,
    lacks_growth,
)

DAY_MS = 86_400_000


def noisy(seed: int, slope: float, count: int = 20) -> tuple[list[int], list[float]]:
    """Return days and values around a line."""
    chance = random.Random(seed)
    times = sorted(chance.randrange(30 * DAY_MS) for _ in range(count))
    return times, [1000 + slope * at / DAY_MS + chance.gauss(0, 20) for at in times]


def known(times: list[int], values: list[float]) -> Growth:
    found = growth_of(times, values)
    assert found is not None
    return found


def test_a_line_has_its_own_slope() -> None:
    found = known([day * DAY_MS for day in range(8)], [5 + 3 * day for day in range(8)])
    assert (found.per_day, found.low_per_day, found.high_per_day) == (3, 3, 3)
    assert (found.points, found.span_ms, found.direction) == (8, 7 * DAY_MS, "grows")
    falling = known([day * DAY_MS for day in range(8)], [5 - 3 * day for day in range(8)])
    assert (falling.per_day, falling.direction) == (-3, "shrinks")


points = st.lists(
    st.tuples(st.integers(0, 10**10), st.integers(0, 10**12)), min_size=POINTS_NEEDED, max_size=12
)


@given(points)
def test_it_is_the_median_of_the_slopes_of_all_pairs(points: list[tuple[int, int]]) -> None:
    times, values = [at for at, _ in points], [value for _, value in points]
    found = growth_of(times, values)
    if len(set(times)) < POINTS_NEEDED or max(times) - min(times) < SPAN_NEEDED_MS:
        assert found is None
        return
    slopes = [(w - v) / ((b - a) / DAY_MS) for (a, v), (b, w) in combinations(points, 2) if a != b]
    assert found is not None
    assert found.per_day == pytest.approx(median(slopes))
    rounding = 1e-9 * max(map(abs, slopes))
    assert min(slopes) - rounding <= found.low_per_day <= found.per_day
    assert found.per_day <= found.high_per_day <= max(slopes) + rounding


def test_a_quarter_of_the_points_may_be_arbitrary() -> None:
    times, values = noisy(1, slope=50)
    before = known(times, values)
    for index in (2, 7, 11, 13, 19):
        values[index] = 1e15
    after = known(times, values)
    assert after.per_day == pytest.approx(before.per_day, abs=3)


def test_the_bounds_contain_the_slope_as_often_as_they_say() -> None:
    found = [known(*noisy(seed, slope=4)) for seed in range(300)]
    inside = sum(each.low_per_day <= 4 <= each.high_per_day for each in found)
    assert 0.85 * 300 <= inside <= 0.96 * 300
    wide = [growth_of(*noisy(seed, slope=4), confidence=0.99) for seed in range(300)]
    assert sum(each is not None and each.low_per_day <= 4 <= each.high_per_day for each in wide) > (
        0.96 * 300
    )


def test_values_without_a_trend_are_steady() -> None:
    assert known([*range(0, 9 * DAY_MS, DAY_MS)], [7.0] * 9).direction == "steady"
    directions = [known(*noisy(seed, slope=0)).direction for seed in range(100)]
    assert directions.count("steady") >= 80


@pytest.mark.parametrize("days", [[], [1, 2, 3, 4], [1, 1, 2, 2, 3, 3, 4, 4]])
def test_few_points_give_nothing(days: list[int]) -> None:
    assert growth_of([day * DAY_MS for day in days], [*range(len(days))]) is None


def test_seconds_are_not_continued_to_a_day() -> None:
    times = [round(at * SPAN_NEEDED_MS / 8) for at in range(9)]
    assert lacks_growth(times) is None
    assert known(times, [*range(9)]).per_day == pytest.approx(8 * 24)
    short = [1000 * at for at in range(28)]
    assert growth_of(short, [*range(28)]) is None
    assert lacks_growth(short) == (
        "27 s is too short: growth needs checkpoints over at least an hour"
    )


def test_of_many_points_some_are_used_from_the_first_to_the_last() -> None:
    days = range(20_000)
    found = known([day * DAY_MS for day in days], [2.5 * day for day in days])
    assert (found.per_day, found.points, found.span_ms) == (2.5, 300, 19_999 * DAY_MS)


def growth(per_day: float, low: float, high: float, days: int = 10) -> Growth:
    return Growth(
        per_day=per_day, low_per_day=low, high_per_day=high, points=9, span_ms=days * DAY_MS
    )


def test_a_forecast_divides_the_distance_by_the_growth() -> None:
    found = forecast_of(growth(10, 5, 20), value=100, at_ms=DAY_MS, limit=200, shown_limit=200)
    assert (found.earliest_ms, found.at_ms, found.latest_ms) == (
        6 * DAY_MS,
        11 * DAY_MS,
        21 * DAY_MS,
    )
    assert (found.is_far, found.is_reached, found.reason) == (False, False, None)


@pytest.mark.parametrize(
    ("grown", "value", "reason"),
    [
        (None, 100, "not enough checkpoints"),
        (growth(10, -1, 20), 100, "it does not clearly grow"),
        (growth(-10, -20, -1), 100, "it shrinks"),
        (growth(10, 5, 20, days=1), -1000, "it is more than 100 times as far away"),
    ],
)
def test_without_a_forecast_there_is_a_reason(
    grown: Growth | None, value: float, reason: str
) -> None:
    found = forecast_of(grown, value=value, at_ms=0, limit=200, shown_limit=200)
    assert (found.at_ms, found.earliest_ms, found.latest_ms) == (None, None, None)
    assert (found.reason or "").startswith(reason)
    assert not found.is_reached


def test_a_limit_may_be_reached_already() -> None:
    found = forecast_of(None, value=200, at_ms=0, limit=200, shown_limit=200)
    assert (found.is_reached, found.reason, found.at_ms) == (True, None, None)


@pytest.mark.parametrize(("spans", "far"), [(FAR_SPANS, False), (FAR_SPANS + 1, True)])
def test_a_time_beyond_ten_spans_is_far(spans: int, far: bool) -> None:
    assert spans < MOST_SPANS
    found = forecast_of(growth(1, 1, 1, days=1), value=0, at_ms=0, limit=spans, shown_limit=spans)
    assert found.is_far is far
