"""Dates and times that Python lacks, as text and back."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from statestore.rows.lossless_cast import far_time, time_text

DATE, NAIVE, UTC = pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")
DAY = 86_400 * 10**6
YEAR_10000 = 2_932_897
"""Days from 1970 to the year 10000."""
YEAR_1 = -719_162


def far_days(least: int, most: int) -> st.SearchStrategy[int]:
    """Draw days of years before 1 and after 9999."""
    return st.integers(least, YEAR_1 - 1) | st.integers(YEAR_10000, most)


@given(far_days(1 - 2**31, 2**31 - 2))
def test_a_far_date_survives(days: int) -> None:
    assert number_of(time_text(days, DATE), DATE) == days


@given(far_days(2 - 2**63 // DAY, 2**63 // DAY - 2), st.integers(0, DAY - 1), st.booleans())
def test_a_far_timestamp_survives(days: int, micros: int, naive: bool) -> None:
    data_type = NAIVE if naive else UTC
    number = days * DAY + micros
    assert number_of(time_text(number, data_type), data_type) == number


def test_an_offset_counts_hours_and_minutes() -> None:
    wrong = []
    for sign, hours, minutes in itertools.product((1, -1), range(24), range(60)):
        offset = f"{'+' if sign > 0 else '-'}{hours:02}:{minutes:02}"
        moved = number_of(f"10000-01-01 00:00:00{offset}", UTC) - YEAR_10000 * DAY
        if moved != -sign * (hours * 3600 + minutes * 60) * 10**6:
            wrong.append(offset)
    assert wrong == []


def number_of(text: str, data_type: pa.DataType) -> int:
    found = far_time(text, data_type)
    assert found is not None, text
    return found.number
