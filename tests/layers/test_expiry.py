"""Expired rows in columns: batches, tables and changes follow the rule for a single row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import InvalidArgumentError
from statestore.format.names import MARK
from statestore.format.schema import Field, Schema
from statestore.format.state import (
    KeyedState,
    StateKind,
    TimeToLive,
    TtlVisibility,
    check_instant,
    clock_ms,
    is_expired,
)
from statestore.layers.expiry import (
    drop_expired,
    hides_expired,
    replace_expired,
    rows_to_keep,
    time_column,
)

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
LONGS = st.integers(LONG_MIN, LONG_MAX) | st.sampled_from([LONG_MIN, -1, 0, 1, LONG_MAX])
DURATIONS = st.integers(1, LONG_MAX) | st.sampled_from([1, LONG_MAX])
UTC = pa.timestamp("us", "UTC")


def state(duration: int, kind: str = "long", **options: Any) -> KeyedState:
    return KeyedState(
        uid="u",
        name="n",
        kind=StateKind.VALUE,
        schema=Schema(
            (
                Field("k", "long"),
                Field("at", kind),
                Field("v", {"type": "array", "elementType": "long", "containsNull": True}),
            )
        ),
        key=("k",),
        key_types=("Long",),
        max_parallelism=8,
        hash_scheme="java",
        ttl=TimeToLive(f"{duration}ms", "at", **options),
    )


def batch(times: Sequence[int | None], kind: pa.DataType | None = None) -> pa.RecordBatch:
    at = pa.array(times, pa.int64())
    return pa.RecordBatch.from_pydict(
        {
            "k": pa.array(range(len(times)), pa.int64()),
            "at": at if kind is None else at.cast(kind),
            "v": pa.array([[n] for n in range(len(times))], pa.list_(pa.int64())),
        }
    )


@given(st.lists(LONGS, min_size=1, max_size=6), DURATIONS, LONGS)
def test_a_batch_expires_row_by_row(times: list[int], duration: int, now: int) -> None:
    """The result equals the rule for one row, for all 64-bit values."""
    kept = [n for n, at in enumerate(times) if not is_expired(at, duration, now)]
    rows = batch(times)
    assert drop_expired(rows, state(duration), now).column(0).to_pylist() == kept
    table = pa.Table.from_batches([rows, rows.slice(0, 0)])
    assert drop_expired(table, state(duration), now).column(0).to_pylist() == kept


@given(st.lists(LONGS, min_size=1, max_size=6), DURATIONS, LONGS)
def test_timestamps_count_in_whole_milliseconds(micros: list[int], duration: int, now: int) -> None:
    """They are rounded down, also before 1970."""
    kept = [n for n, at in enumerate(micros) if not is_expired(at // 1000, duration, now)]
    rows = drop_expired(batch(micros, UTC), state(duration, "timestamp"), now)
    assert rows.column(0).to_pylist() == kept


def test_a_row_is_expired_at_its_end_time() -> None:
    """A row with a TTL of 10 ms is valid for exactly 10 ms."""
    rows = batch([-20, -10, -9, 0, 1])
    assert drop_expired(rows, state(10), 0).column(0).to_pylist() == [2, 3, 4]


def test_rows_without_a_clock_or_a_time_stay() -> None:
    """All rows stay if expired rows are visible until cleanup."""
    rows, shown = batch([0, None, 5]), state(10, visibility="return_expired_if_not_cleaned_up")
    assert drop_expired(rows, state(10), None) is rows
    assert drop_expired(rows, replace(state(10), ttl=None), 99) is rows
    assert drop_expired(rows, shown, 99) is rows
    assert rows_to_keep(rows, shown, None) is rows
    assert rows_to_keep(rows, shown, 99).column(0).to_pylist() == [1]
    assert drop_expired(rows, state(10), 99).column(0).to_pylist() == [1]


@pytest.mark.parametrize("visibility", TtlVisibility)
def test_hiding_requires_a_clock_and_the_default_visibility(visibility: TtlVisibility) -> None:
    """If nothing is hidden, the stored digest equals the digest of the returned rows."""
    some = state(10, visibility=visibility)
    assert hides_expired(some, 0) is (visibility is TtlVisibility.NEVER_RETURN_EXPIRED)
    assert not hides_expired(some, None)
    assert not hides_expired(replace(some, ttl=None), 0)


def test_expired_changes_become_deletes() -> None:
    """The delete names the complete identity, without values. Deletes and other rows stay
    unchanged.
    """
    rows = pa.Table.from_batches([batch([0, None, 95, None])]).append_column(
        MARK, pa.array([0, -1, 0, 0], pa.int64())
    )
    marked = replace_expired(rows, state(10), 100)
    assert marked.schema == rows.schema
    assert marked.to_pylist() == [
        {"k": 0, "at": None, "v": None, MARK: -1},
        {"k": 1, "at": None, "v": [1], MARK: -1},
        {"k": 2, "at": 95, "v": [2], MARK: 0},
        {"k": 3, "at": None, "v": [3], MARK: 0},
    ]
    assert replace_expired(rows, state(10), None) is rows
    assert replace_expired(rows, state(10), 9) is rows
    assert replace_expired(rows, replace(state(10), ttl=None), 100) is rows


def test_a_column_of_one_time_is_exact() -> None:
    """It is exact as a long and as a timestamp."""
    assert time_column("long", 2, LONG_MIN).to_pylist() == [LONG_MIN, LONG_MIN]
    column = time_column("timestamp", 2, -1)
    assert column.type == UTC
    assert column.cast(pa.int64()).to_pylist() == [-1000, -1000]
    assert len(time_column("timestamp", 0, 1)) == 0


def test_a_time_beyond_all_timestamps_is_refused() -> None:
    """Microseconds have 64 bits."""
    last = LONG_MAX // 1000
    assert check_instant(last) == last
    for beyond in (last + 1, -last - 1):
        with pytest.raises(InvalidArgumentError, match="pass another now_ms"):
            time_column("timestamp", 1, beyond)


def test_the_clock_is_that_of_the_caller_or_of_the_machine() -> None:
    """Both are in milliseconds."""
    assert clock_ms(-5) == -5
    assert abs(clock_ms(None) - time.time() * 1000) < 60_000
    with pytest.raises(InvalidArgumentError, match="now_ms"):
        clock_ms(2**63)
