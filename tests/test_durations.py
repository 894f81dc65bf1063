"""Durations are text or a timedelta, and are exact."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.durations import Duration, duration_text, milliseconds_of
from statestore.errors import InvalidArgumentError

LONGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("duration", "milliseconds"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("15m", 900_000),
        ("15min", 900_000),
        ("1.5h", 5_400_000),
        ("36 h", 129_600_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("0.001s", 1),
        ("0", 0),
        (f"{LONGEST}ms", LONGEST),
        (timedelta(hours=36), 129_600_000),
        (timedelta(milliseconds=1), 1),
    ],
)
def test_a_duration_has_a_number_of_milliseconds(duration: Duration, milliseconds: int) -> None:
    assert milliseconds_of(duration) == milliseconds


@pytest.mark.parametrize("text", ["", "5", "-1h", "2 hours", "h", "1e3s", "1 s ", "\u0661s", "inf"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is not a duration; write it as .* or 0"):
        milliseconds_of(text)


@pytest.mark.parametrize(
    ("duration", "problem"),
    [
        (timedelta(milliseconds=-1), "is negative"),
        ("0.5ms", "not a whole number of milliseconds"),
        (timedelta(microseconds=1), "not a whole number of milliseconds"),
        (f"{LONGEST + 1}ms", f"the longest is {LONGEST}ms"),
        (f"{'1' * 5000}d", "is too long"),
    ],
)
def test_a_duration_that_would_change_is_refused(duration: Duration, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem):
        milliseconds_of(duration)


@given(st.integers(0, LONGEST))
def test_text_has_the_same_number_of_milliseconds(milliseconds: int) -> None:
    assert milliseconds_of(duration_text(milliseconds)) == milliseconds


def test_text_uses_the_largest_exact_unit() -> None:
    texts = ["0d", "1ms", "90s", "1m", "36h", "7d"]
    assert [duration_text(milliseconds_of(text)) for text in texts[1:]] == texts[1:]
    assert duration_text(0) == texts[0]
