"""Bounds in a Delta log contain every value of their column."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statestore.format.schema import Field
from statestore.parquet.statistics import (
    LONGEST_TEXT,
    bound_forms,
    file_statistics,
    time_bounds,
    upper_bound_text,
)
from statestore.rows.column_types import arrow_type

EPOCH = dt.datetime(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)
# Small alphabets, so that long texts share the truncated prefix.
TEXTS = st.text(st.sampled_from("ab\x7f\ud7ff\ue000\uffff\U00020000\U0010ffff")) | st.text()
DECIMALS = st.decimals("-99999999.99", "99999999.99", places=2)


def statistics(values: list[Any], data_type: str, row_group_size: int = 2) -> dict[str, Any]:
    """Return the statistics of a file with one column, as a reader parses them."""
    sink = io.BytesIO()
    table = pa.table({"x": pa.array(values, arrow_type(data_type))})
    pq.write_table(table, sink, row_group_size=row_group_size, store_schema=False)
    text = file_statistics(pq.read_metadata(sink), (Field("x", data_type),))
    parsed: dict[str, Any] = json.loads(text, parse_float=Decimal)
    assert parsed["numRecords"] == len(values)
    return parsed


@given(TEXTS)
@example("\U0010ffff" * (LONGEST_TEXT + 1))
@example("a" * (LONGEST_TEXT - 1) + "\ud7ffb")
def test_incremented_text_is_an_upper_bound(text: str) -> None:
    """Bounds are ordered by UTF-8 bytes, and the bound is as short as possible."""
    raised = upper_bound_text(text)
    assert raised.encode() >= text.encode()
    assert len(raised) <= LONGEST_TEXT or set(text[:LONGEST_TEXT]) == {"\U0010ffff"}
    assert (raised == text) is (len(text) <= LONGEST_TEXT or len(raised) > LONGEST_TEXT)


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_text_is_within_its_bounds(values: list[str]) -> None:
    known = statistics(values, "string")
    low, high = known["minValues"]["x"], known["maxValues"]["x"]
    assert all(low.encode() <= value.encode() <= high.encode() for value in values)
    for value in (min(values), max(values)):
        assert {low, high} & {*bound_forms(value)}


@given(st.lists(st.datetimes(), min_size=1, max_size=6), st.sampled_from(["", "Z"]))
@example([EPOCH, dt.datetime.max], "Z")
def test_times_are_within_their_bounds(values: list[dt.datetime], zone: str) -> None:
    data_type = "timestamp" if zone else "timestamp_ntz"
    known = statistics([(value - EPOCH) // MICROSECOND for value in values], data_type)
    if max(values) > dt.datetime(9999, 12, 31, 23, 59, 59, 999000):
        assert known.keys() == {"numRecords"}
        return
    low, high = known["minValues"]["x"], known["maxValues"]["x"]
    assert {low[23:], high[23:]} == {zone}
    least, most = (dt.datetime.fromisoformat(bound.removesuffix("Z")) for bound in (low, high))
    assert all(least <= value <= most for value in values)
    assert max(min(values) - least, most - max(values)) < dt.timedelta(milliseconds=1)


@given(st.integers(-(2**63), 2**63 - 1))
def test_times_that_json_cannot_represent_have_no_bounds(micros: int) -> None:
    bounds = time_bounds(micros, micros, "timestamp")
    first, last = dt.datetime.min, dt.datetime.max.replace(microsecond=999000)
    inside = (first - EPOCH) // MICROSECOND <= micros <= (last - EPOCH) // MICROSECOND
    assert (bounds is not None) is inside


@given(st.lists(DECIMALS, min_size=1, max_size=6))
def test_decimals_are_exact_numbers(values: list[Decimal]) -> None:
    known = statistics(values, "decimal(10,2)")
    assert known["minValues"]["x"] == min(values)
    assert known["maxValues"]["x"] == max(values)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=6))
def test_integers_are_exact(values: list[int]) -> None:
    known = statistics(values, "long")
    assert (known["minValues"]["x"], known["maxValues"]["x"]) == (min(values), max(values))


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        ([None, None], "string"),
        (["a", None], "string"),
        ([2**31 - 1], "date"),
        ([], "long"),
        (["x" * 5000], "string"),
    ],
)
def test_without_all_bounds_there_is_only_the_row_count(values: list[Any], data_type: str) -> None:
    """A row group of nulls, a day that JSON cannot represent, no row, or text without a bound in
    the footer.
    """
    assert statistics(values, data_type, row_group_size=1).keys() == {"numRecords"}


def test_nulls_are_counted_in_addition_to_the_bounds() -> None:
    known = statistics(["b", None, "a", None], "string")
    assert known["nullCount"] == {"x": 2}
    assert (known["minValues"], known["maxValues"]) == ({"x": "a"}, {"x": "b"})


def test_a_footer_of_another_type_gives_no_bounds() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array([1, 2], pa.int32())}), sink)
    metadata = pq.read_metadata(sink)
    assert json.loads(file_statistics(metadata, (Field("x", "date"),))) == {"numRecords": 2}
    assert json.loads(file_statistics(metadata, (Field("y", "long"),))) == {"numRecords": 2}
