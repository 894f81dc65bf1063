"""Expired rows, found column by column: a restore hides them, and compaction drops them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statestore.format.state import KeyedState, check_instant
from statestore.rows.delete_markers import are_upserts, replace_upserts
from statestore.rows.digests import Flags
from statestore.rows.key_group_runs import RUN_BYTES, T

_LONG_MAX = np.iinfo(np.int64).max
_MICROS = 1000


def hides_expired(state: KeyedState, now_ms: int | None) -> bool:
    """Return whether a restore at this time hides expired rows; None stands for no clock."""
    return now_ms is not None and state.ttl is not None and state.ttl.hides


def drop_expired(rows: T, state: KeyedState, now_ms: int | None) -> T:
    """Return the rows that a restore at this time returns.

    These are all rows without a clock, or if the state's TTL does not hide expired rows.
    """
    return rows if not hides_expired(state, now_ms) else rows_to_keep(rows, state, now_ms)


def rows_to_keep(rows: T, state: KeyedState, now_ms: int | None) -> T:
    """Return the rows that compaction at this time keeps, even if expired rows stay visible."""
    if now_ms is None or state.ttl is None:
        return rows
    gone = expired_rows(rows, state, now_ms)
    return rows.filter(pa.array(~gone)) if gone.any() else rows


def replace_expired(changes: pa.Table, state: KeyedState, now_ms: int | None) -> pa.Table:
    """Return changes in which expired upserts are replaced by deletes of their identity.

    If they were only dropped, the older rows that they replace would reappear. The deletes are
    cleared: rows of the identity may be upserted again.
    """
    if now_ms is None or state.ttl is None:
        return changes
    gone = are_upserts(changes) & expired_rows(changes, state, now_ms)
    return replace_upserts(changes, gone, state) if gone.any() else changes


def expired_rows(rows: pa.RecordBatch | pa.Table, state: KeyedState, now_ms: int) -> Flags:
    """Return which rows have expired, by the rule of :func:`statestore.format.state.is_expired`.

    A row without a time, which only another program can have written, has not expired.
    """
    assert state.ttl is not None
    column = rows.column(state.ttl.column)
    known = np.asarray(column.is_valid())
    times = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
    if pa.types.is_timestamp(column.type):
        times = times // _MICROS  # rounded down, also before 1970
    duration = np.int64(state.ttl.duration_ms)
    left = np.where(times > 0, np.minimum(_LONG_MAX - np.maximum(times, 0), duration), duration)
    return known & (times + left <= now_ms)


def time_column(time_type: str, rows: int, now_ms: int) -> pa.Array:
    """Return a column of one time, as ``long`` or ``timestamp``."""
    if time_type == "long":
        return pa.array(np.full(rows, now_ms, np.int64))
    check_instant(now_ms)
    return pa.array(np.full(rows, now_ms * _MICROS, np.int64)).cast(pa.timestamp("us", "UTC"))


MERGED_BYTES = 4 * RUN_BYTES
"""About this many bytes of each stream are merged at a time, since a merge has fixed costs."""
