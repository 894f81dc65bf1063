"""Expired rows, found a column at a time: what a restore leaves out, and what compaction drops."""

from __future__ import annotations

import time
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import InvalidArgumentError
from statestore.format.layers import MARK
from statestore.format.state import KeyedState, check_time

__all__ = [
    "check_instant",
    "clock_ms",
    "expired_rows",
    "hides",
    "marked_expired",
    "not_cleaned_up",
    "time_column",
    "unexpired",
]

Flags = npt.NDArray[np.bool_]
T = TypeVar("T", pa.RecordBatch, pa.Table)

_LONG_MAX = np.iinfo(np.int64).max
_MICROS = 1000


def clock_ms(now_ms: int | None) -> int:
    """Return a caller's clock, in ms since 1970, or else that of this machine."""
    return time.time_ns() // 1_000_000 if now_ms is None else check_time(now_ms)


def hides(state: KeyedState, now_ms: int | None) -> bool:
    """Return whether a restore at that time leaves rows out: None is a restore without a clock."""
    return now_ms is not None and state.ttl is not None and state.ttl.hides


def unexpired(rows: T, state: KeyedState, now_ms: int | None) -> T:
    """Return the rows that a restore at that time hands over: all without a clock, or if the
    state's time to live does not hide expired ones.
    """
    return rows if not hides(state, now_ms) else not_cleaned_up(rows, state, now_ms)


def not_cleaned_up(rows: T, state: KeyedState, now_ms: int | None) -> T:
    """Return the rows that compaction at that time leaves, whatever may be seen of expired ones."""
    if now_ms is None or state.ttl is None:
        return rows
    gone = expired_rows(rows, state, now_ms)
    return rows.filter(pa.array(~gone)) if gone.any() else rows


def marked_expired(changes: pa.Table, state: KeyedState, now_ms: int | None) -> pa.Table:
    """Return changes in which the rows that come and have expired are deletes of their identity.

    Leaving them out would bring back the older rows that they stand in front of. Their marks are
    negative, as those of rows that may come again.
    """
    if now_ms is None or state.ttl is None:
        return changes
    marks = np.asarray(changes.column(MARK))
    gone = (marks == 0) & expired_rows(changes, state, now_ms)
    if not gone.any():
        return changes
    places = pa.array(np.arange(changes.num_rows), mask=gone)
    for name in state.values:
        at = changes.column_names.index(name)
        kept = changes.column(name).take(places)  # a null for those that go
        changes = changes.set_column(at, changes.field(name), kept)
    at = changes.column_names.index(MARK)
    widths = pa.array(np.where(gone, -len(state.identity), marks))
    return changes.set_column(at, MARK, widths)


def expired_rows(rows: pa.RecordBatch | pa.Table, state: KeyedState, now_ms: int) -> Flags:
    """Return which rows have expired, by the rule of :func:`statestore.format.state.expired`.

    A row without a time, which only foreign hands can have written, has not.
    """
    assert state.ttl is not None
    column = rows.column(state.ttl.column)
    known = np.asarray(column.is_valid())
    times = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
    if pa.types.is_timestamp(column.type):
        times = times // _MICROS  # rounded down, before 1970 too
    duration = np.int64(state.ttl.duration_ms)
    left = np.where(times > 0, np.minimum(_LONG_MAX - np.maximum(times, 0), duration), duration)
    return known & (times + left <= now_ms)


def time_column(kind: str, rows: int, now_ms: int) -> pa.Array:
    """Return a column of one time, as ``long`` or ``timestamp``."""
    if kind == "long":
        return pa.array(np.full(rows, now_ms, np.int64))
    check_instant(now_ms)
    return pa.array(np.full(rows, now_ms * _MICROS, np.int64)).cast(pa.timestamp("us", "UTC"))


def check_instant(now_ms: int) -> int:
    """Return a time that a timestamp can hold; InvalidArgumentError for one that none can."""
    if abs(now_ms) > _LONG_MAX // _MICROS:
        raise InvalidArgumentError(f"no timestamp is {now_ms} ms after 1970; give another now_ms")
    return now_ms
