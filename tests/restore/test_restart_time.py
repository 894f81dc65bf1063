"""The predicted time of a restore, against restores whose speed is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.restore.restart_time import (
    TOLERANCE,
    Certainty,
    MeasuredRestore,
    RestoreSpeed,
    fitted_speed,
    predict,
)

TOTAL_BYTES, TOTAL_REQUESTS = 2_000_000_000, 1200


def restore(parallelism: int, speed: RestoreSpeed, factor: float = 1.0) -> MeasuredRestore:
    """Return a restore of evenly divided bytes, which takes some times as long as the speed."""
    one = MeasuredRestore(
        at_ms=0,
        checkpoint_id=1,
        parallelism=parallelism,
        size_bytes=TOTAL_BYTES // parallelism,
        requests=TOTAL_REQUESTS // parallelism + 3,
        seconds=1.0,
    )
    return MeasuredRestore(**vars(one) | {"seconds": factor * speed.seconds_of(one)})


SPEEDS = [
    RestoreSpeed(seconds_per_byte=1e-8),
    RestoreSpeed(seconds_per_request=0.02),
    RestoreSpeed(seconds_per_byte=1e-8, seconds_per_request=0.02),
    RestoreSpeed(seconds_per_byte=1e-8, seconds_per_request=0.01, seconds_at_least=0.5),
]


@pytest.mark.parametrize("speed", SPEEDS)
def test_exact_measurements_predict_exactly(speed: RestoreSpeed) -> None:
    measured = [restore(parallelism, speed) for parallelism in (2, 3, 4, 6, 8, 12)]
    other = restore(5, speed)
    found = predict(5, [other], measured)
    assert found.certainty is Certainty.DERIVED
    assert found.seconds == pytest.approx(other.seconds, rel=0.05)


@given(st.sampled_from(SPEEDS), st.integers(0, 10**6))
def test_a_known_time_is_within_its_tolerance(speed: RestoreSpeed, seed: int) -> None:
    """With errors of 10 % a prediction is known and right; with a factor of 4 it is unknown."""
    dice = random.Random(seed)
    others = (2, 3, 4, 6, 8, 12) * 2
    steady = [restore(one, speed, dice.uniform(0.9, 1.1)) for one in others]
    expected = restore(5, speed)
    found = predict(5, [expected], steady)
    assert found.certainty is Certainty.DERIVED
    assert found.seconds == pytest.approx(expected.seconds, rel=TOLERANCE)
    varying = [restore(one, speed, 4.0 if n % 2 else 1.0) for n, one in enumerate(others)]
    unknown = predict(5, [expected], varying)
    assert (unknown.certainty, unknown.seconds) == (Certainty.UNKNOWN, None)
    assert unknown.low_seconds is not None
    assert unknown.high_seconds is not None
    assert unknown.high_seconds > 1.5 * unknown.low_seconds


def test_one_outlier_of_ten_does_not_make_it_unknown() -> None:
    speed = SPEEDS[0]
    measured = [restore(4, speed, 1.0 + n / 100) for n in range(9)]
    found = predict(4, [restore(4, speed)], [*measured, restore(4, speed, 3.0)])
    assert found.certainty is Certainty.MEASURED
    assert found.seconds == pytest.approx(1.045 * restore(4, speed).seconds, rel=0.01)
    assert found.reason == "10 restores at this parallelism and size"


def test_what_is_missing_for_a_known_time_is_named() -> None:
    speed = SPEEDS[2]
    four = restore(4, speed)
    none = predict(4, [four], [])
    assert (none.certainty, none.seconds) == (Certainty.UNKNOWN, None)
    few = predict(4, [four], [restore(2, speed)])
    assert few.certainty is Certainty.GUESSED
    assert few.seconds is not None
    assert "only 1 restore" in few.reason
    same = predict(8, [restore(8, speed)], [four] * 9)
    assert same.certainty is Certainty.GUESSED
    assert "at two or more parallelisms" in same.reason
    far = predict(1, [restore(1, speed)], [restore(one, speed) for one in (4, 6, 8, 10, 12)])
    assert far.certainty is Certainty.GUESSED
    assert far.reason.startswith("the slowest subtask has 2000000000 bytes, and those of measured")


def test_no_number_of_a_speed_is_below_zero() -> None:
    """A restore that takes longer at a higher parallelism has no rate, but a fixed time."""
    speed = fitted_speed([restore(one, RestoreSpeed(seconds_at_least=one)) for one in (1, 2, 3, 4)])
    assert speed is not None
    assert min(speed.seconds_per_byte, speed.seconds_per_request, speed.seconds_at_least) >= 0
    assert fitted_speed([]) is None
    assert RestoreSpeed().seconds([]) == 0.0


def test_a_rate_becomes_a_speed() -> None:
    assert RestoreSpeed.of(100.0).rate == pytest.approx(100.0)
    assert RestoreSpeed.of(SPEEDS[1]) is SPEEDS[1]
    assert SPEEDS[1].rate is None
    for rate in (0, -1, float("inf"), float("nan")):
        with pytest.raises(InvalidArgumentError, match="rate must be above 0"):
            RestoreSpeed.of(rate)
