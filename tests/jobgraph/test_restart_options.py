"""Flink's options for restart strategies: names, defaults, values and invalid input."""

from __future__ import annotations

from typing import Any

import pytest

from statestore.errors import SettingsError
from statestore.jobgraph.restart import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
    duration_ms,
    strategy_of,
)


@pytest.mark.parametrize(
    ("names", "strategy"),
    [
        ("disable none off OFF", NoRestart()),
        ("fixed-delay fixeddelay Fixed-Delay", FixedDelay(attempts=1, delay="1s")),
        (
            "failure-rate failurerate FAILURERATE",
            FailureRate(max_failures=1, interval="1m", delay="1s"),
        ),
        (
            "exponential-delay exponentialdelay ExponentialDelay",
            ExponentialDelay(
                initial_backoff="1s",
                max_backoff="1m",
                multiplier=1.5,
                reset_after="1h",
                jitter=0.1,
                attempts=None,
            ),
        ),
    ],
)
def test_a_strategy_has_flinks_names_and_defaults(names: str, strategy: RestartStrategy) -> None:
    for name in names.split():
        for key in ("restart-strategy.type", "restart-strategy"):
            assert strategy_of({key: name}) == strategy


def test_every_option_is_read() -> None:
    p = "restart-strategy"
    settings = {
        f"{p}.fixed-delay.attempts": "7",
        f"{p}.fixed-delay.delay": "2 s",
        f"{p}.failure-rate.max-failures-per-interval": "3",
        f"{p}.failure-rate.failure-rate-interval": "5 min",
        f"{p}.failure-rate.delay": "PT10S",
        f"{p}.exponential-delay.initial-backoff": "10 ms",
        f"{p}.exponential-delay.max-backoff": "2 h",
        f"{p}.exponential-delay.backoff-multiplier": "2.5",
        f"{p}.exponential-delay.reset-backoff-threshold": "1 d",
        f"{p}.exponential-delay.jitter-factor": "0",
        f"{p}.exponential-delay.attempts-before-reset-backoff": "9",
    }
    assert strategy_of({f"{p}.type": "fixed-delay", **settings}) == FixedDelay(
        attempts=7, delay="2s"
    )
    assert strategy_of({f"{p}.type": "failure-rate", **settings}) == FailureRate(
        max_failures=3, interval="5m", delay="10s"
    )
    assert strategy_of({f"{p}.type": "exponential-delay", **settings}) == ExponentialDelay(
        initial_backoff="10ms",
        max_backoff="2h",
        multiplier=2.5,
        reset_after="1d",
        jitter=0,
        attempts=9,
    )


def test_without_a_type_the_default_depends_on_checkpointing() -> None:
    other = {"state.backend.type": "rocksdb", "restart-strategy.fixed-delay.attempts": "3"}
    assert strategy_of({}) == strategy_of() == strategy_of(other) == ExponentialDelay()
    assert strategy_of(other, checkpointing=False) == NoRestart()


def test_the_newer_name_of_the_type_wins() -> None:
    both = {"restart-strategy": "none", "restart-strategy.type": "fixed-delay"}
    assert strategy_of(both) == FixedDelay()


def test_only_the_first_settings_with_a_type_apply() -> None:
    job = {"restart-strategy.fixed-delay.attempts": "9"}
    cluster = {"restart-strategy": "fixed-delay", "restart-strategy.fixed-delay.delay": "3 s"}
    assert strategy_of(job, cluster) == FixedDelay(delay="3s")
    assert strategy_of({"restart-strategy.type": "off"}, cluster) == NoRestart()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"restart-strategy.type": "fixed-dely"}, "'fixed-dely': did you mean 'fixed-delay'"),
        ({"restart-strategy.type": "zzz"}, "known names are disable, none, off"),
        ({"restart-strategy.typ": "off"}, "did you mean 'restart-strategy.type'"),
        ({"restart-stategy.type": "off"}, "did you mean 'restart-strategy.type'"),
        (
            {"restart-strategy.fixed-delay.attempt": "1"},
            "did you mean 'restart-strategy.fixed-delay.attempts'",
        ),
        ({"restart-strategy.type": False}, "must be a string, not False"),
    ],
)
def test_an_unknown_name_is_refused_with_one_that_is_close(settings: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        strategy_of(settings)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("fixed-delay.attempts", "-1", "attempts must be in 0"),
        ("fixed-delay.attempts", "1.5", "restart-strategy.fixed-delay.attempts: '1.5'"),
        ("fixed-delay.delay", "-1 s", "restart-strategy.fixed-delay.delay: '-1 s'"),
        ("fixed-delay.delay", "1 week", "'1 week' has an unknown unit"),
        ("failure-rate.max-failures-per-interval", "0", "max_failures must be in 1"),
        ("failure-rate.failure-rate-interval", "0", "interval must be at least 1ms"),
        ("exponential-delay.backoff-multiplier", "1", "multiplier must be above 1"),
        ("exponential-delay.backoff-multiplier", "two", "backoff-multiplier: 'two'"),
        ("exponential-delay.jitter-factor", "1.1", r"jitter must be in 0\.\.1"),
        ("exponential-delay.jitter-factor", "nan", "jitter must be a finite number"),
    ],
)
def test_an_invalid_value_is_refused(option: str, value: str, message: str) -> None:
    kind = option.partition(".")[0]
    with pytest.raises(SettingsError, match=message):
        strategy_of({"restart-strategy.type": kind, f"restart-strategy.{option}": value})


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("0", 0),
        ("250", 250),
        ("1 s", 1_000),
        (" 10 min ", 600_000),
        ("500ms", 500),
        ("1 h", 3_600_000),
        ("2 Days", 172_800_000),
        ("3m", 180_000),
        ("1 sec", 1_000),
        ("2500 micros", 2),
        ("1999999 ns", 1),
        ("7 µs", 0),
        ("PT10S", 10_000),
        ("pt0.5s", 500),
        ("PT0.0009S", 0),
        ("PT1,25S", 1_250),
        ("P1DT2H3M4S", 93_784_000),
        ("P1D", 86_400_000),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_durations_are_read_as_flink_writes_them(text: str, millis: int) -> None:
    assert duration_ms(text) == millis


@pytest.mark.parametrize(
    "text", ["", " ", "s", "-1", "-PT1S", "1.5 s", "1 s 2", "P", "PT", "P1DT", "P1H", "PT1D", "1 x"]
)
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        duration_ms(text)


def test_a_duration_that_no_long_can_hold_is_refused() -> None:
    with pytest.raises(SettingsError, match="is longer than"):
        duration_ms("9223372036854775808")
