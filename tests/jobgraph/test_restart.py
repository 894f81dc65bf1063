"""Restart strategies: every answer of Flink's classes, and further properties."""

from __future__ import annotations

import pickle
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.jobgraph.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)
from tests.support.vectors import cases

CASES = cases("restart", "restart")


def ms(milliseconds: int) -> str:
    return f"{milliseconds}ms"


def strategy_in(case: dict[str, Any]) -> RestartStrategy:
    given = case["in"]
    match given["strategy"]:
        case "disable":
            return NoRestart()
        case "fixed-delay":
            return FixedDelay(attempts=given["attempts"], delay=ms(given["delay"]))
        case "failure-rate":
            return FailureRate(
                max_failures=given["max_failures"],
                interval=ms(given["interval"]),
                delay=ms(given["delay"]),
            )
        case "exponential-delay":
            return ExponentialDelay(
                initial_backoff=ms(given["initial"]),
                max_backoff=ms(given["max"]),
                multiplier=given["multiplier"],
                reset_after=ms(given["reset"]),
                jitter=given["jitter"],
                attempts=given.get("attempts"),
            )
    raise AssertionError(given)


# --- Flink's answers ------------------------------------------------------------------------------


def test_the_vectors_are_all_here() -> None:
    assert len(CASES) == len(cases("restart")) == 57


def test_restarts_and_waits_equal_flinks() -> None:
    for case in CASES:
        if "error" in case:
            with pytest.raises(InvalidArgumentError):
                strategy_in(case)
            continue
        state = strategy_in(case).begin()
        for event, expected in zip(case["in"]["events"], case["out"], strict=True):
            now = event["at"]
            if event["ev"] == "fail":
                state, is_new = state.notify(now)
                assert is_new == expected["new_attempt"]
            assert state.can_restart(now) == expected["can_restart"]
            if expected["backoff"] is None:
                with pytest.raises(InvalidArgumentError, match="before the first failure"):
                    state.backoff_ms(now)
            else:
                assert state.backoff_ms(now) == expected["backoff"]


# --- Values ---------------------------------------------------------------------------------------

STRATEGIES: list[RestartStrategy] = [
    NoRestart(),
    FixedDelay(attempts=2),
    FailureRate(max_failures=2),
    ExponentialDelay(jitter=0),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: type(one).__name__)
def test_a_failure_leaves_the_state_before_it_as_it_was(strategy: RestartStrategy) -> None:
    before = strategy.begin()
    after = before.notify(0).state
    assert before == strategy.begin() != after
    assert before.notify(0).state == after
    assert pickle.loads(pickle.dumps(after)) == after
    assert len({before, after}) == 2


def test_the_failure_rate_keeps_no_more_failures_than_it_looks_at() -> None:
    state = FailureRate(max_failures=3).begin()
    for now in range(50):
        state = state.notify(now).state
    assert (state.failures_ms, state.attempts) == ((46, 47, 48, 49), 50)


@given(
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.floats(1.001, 1e9),
    st.floats(0, 1),
    st.integers(1, 60),
    st.integers(),
)
def test_a_wait_is_between_the_initial_and_the_largest_one(
    initial: int, more: int, multiplier: float, jitter: float, failures: int, seed: int
) -> None:
    strategy = ExponentialDelay(
        initial_backoff=ms(initial),
        max_backoff=ms(initial + more),
        multiplier=multiplier,
        jitter=jitter,
    )
    state, now = strategy.begin(), 0
    between = random.Random(seed).randint
    for attempt in range(1, failures + 1):
        state, is_new = state.notify(now, between)
        wait = state.backoff_ms(now)
        assert (is_new, state.attempts) == (True, attempt)
        assert initial <= wait <= initial + more
        assert not state.notify(now + wait, between).is_new_attempt
        now += wait + 1


def test_jitter_is_drawn_from_both_sides_of_the_backoff_before_it_is_capped() -> None:
    asked = []

    def most(low: int, high: int) -> int:
        asked.append((low, high))
        return high

    state = ExponentialDelay(max_backoff="1600ms", jitter=0.1).begin().notify(0, most).state
    assert state.backoff_ms(0) == 1_100
    assert state.notify(2_000, most).state.backoff_ms(2_000) == 1_600
    assert state.notify(2_000, lambda low, _: low).state.backoff_ms(2_000) == 1_350
    assert asked == [(-100, 100), (-150, 150)]
    least = ExponentialDelay(jitter=1).begin().notify(0, lambda low, _: low).state
    assert least.backoff_ms(0) == 1_000


def test_jitter_without_a_source_of_chance_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"pass random\.Random"):
        ExponentialDelay().begin().notify(0)


def test_a_backoff_past_all_floats_is_the_largest_one() -> None:
    state, now = ExponentialDelay(jitter=0, multiplier=1e300, max_backoff="5s").begin(), 0
    for _ in range(3):
        state, now = state.notify(now).state, now + 5_001
    assert state.backoff_ms(now - 5_001) == 5_000


def test_a_backoff_is_capped_where_a_long_would_overflow() -> None:
    longest = 2**63 - 1
    strategy = ExponentialDelay(
        initial_backoff=ms(longest),
        max_backoff=ms(longest),
        reset_after=ms(longest),
        jitter=1,
    )
    state = strategy.begin().notify(longest, lambda _, high: high).state
    assert state.backoff_ms(longest) == longest


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (FixedDelay, {"attempts": -1}, r"attempts must be in 0\.\."),
        (FixedDelay, {"delay": timedelta(-1)}, "the duration -1 day, 0:00:00 is negative"),
        (FixedDelay, {"delay": "-1s"}, "'-1s' is not a duration"),
        (FixedDelay, {"delay": 1.5}, "delay must be a timedelta or text such as '10s', not 1.5"),
        (FixedDelay, {"attempts": True}, "attempts must be an int, not True"),
        (FailureRate, {"max_failures": 0}, r"max_failures must be in 1\.\."),
        (FailureRate, {"interval": "0"}, "interval must be at least 1ms, not 0ms"),
        (FailureRate, {"delay": True}, "delay must be a timedelta or text such as '10s'"),
        (ExponentialDelay, {"initial_backoff": "0"}, "initial_backoff must be at least 1ms"),
        (ExponentialDelay, {"max_backoff": "999ms"}, "max_backoff must be at least 1000ms"),
        (ExponentialDelay, {"max_backoff": f"{2**63}ms"}, "is too long"),
        (ExponentialDelay, {"reset_after": "0s"}, "reset_after must be at least 1ms"),
        (ExponentialDelay, {"multiplier": 1}, "multiplier must be above 1, not 1"),
        (ExponentialDelay, {"multiplier": float("nan")}, "multiplier must be a finite number"),
        (ExponentialDelay, {"multiplier": float("inf")}, "multiplier must be a finite number"),
        (ExponentialDelay, {"multiplier": "2"}, "multiplier must be a finite number"),
        (ExponentialDelay, {"jitter": -0.01}, r"jitter must be in 0\.\.1"),
        (ExponentialDelay, {"jitter": 1.01}, r"jitter must be in 0\.\.1"),
        (ExponentialDelay, {"attempts": 0}, r"attempts must be in 1\.\."),
    ],
)
def test_a_setting_out_of_bounds_is_refused(kind: Any, fields: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kind(**fields)


@pytest.mark.parametrize("now", [1.5, "1", None, True])
def test_a_time_is_an_int(now: Any) -> None:
    state = NoRestart().begin()
    for ask in (state.notify, state.can_restart, state.backoff_ms):
        with pytest.raises(InvalidArgumentError, match="now_ms must be an int"):
            ask(now)
