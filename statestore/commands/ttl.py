"""Time to live on its way into a checkpoint: which one a state has, and times for rows without.

What was stored goes on: a state keeps its time to live until another is given, or ``"off"``. Flink
calls turning it on or off a migration; here it is a full snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from statestore.errors import InvalidArgumentError, SchemaMismatchError
from statestore.files.engines import engine_of
from statestore.files.merge import check_instant
from statestore.format.schema import type_text
from statestore.format.state import TIME_TYPES, KeyedState, TimeToLive

__all__ = ["OFF", "TtlAsked", "changed_ttl", "kept_ttl", "refuse_new_times", "stamped"]

OFF = "off"
"""What turns the time to live of a stored state off; its column is an ordinary one from then on."""

TtlAsked = TimeToLive | str | None


def kept_ttl(
    asked: TtlAsked, stored: TimeToLive | None, renamed: Mapping[str, str]
) -> TimeToLive | None:
    """Return the time to live of a state: as asked for, else as stored, under its column's new
    name. InvalidArgumentError for what is neither a TimeToLive nor "off".
    """
    if isinstance(asked, TimeToLive):
        return asked
    if asked == OFF:
        return None
    if asked is not None:
        raise InvalidArgumentError(
            f"ttl={asked!r}: give ttl=TimeToLive(duration_ms, column), or ttl={OFF!r} to end it"
        )
    if stored is None or stored.column not in renamed:
        return stored
    column = renamed[stored.column]
    return TimeToLive(stored.duration_ms, column, stored.update, stored.visibility)


def changed_ttl(asked: TtlAsked, base: KeyedState) -> TimeToLive | None:
    """Return the time to live of a state of which changes are written: its base's, or one that goes
    by the same column.

    Raises SchemaMismatchError for another column, or where one of the two has none.
    """
    ttl = kept_ttl(asked, base.ttl, {})
    if (ttl and ttl.column) == (base.ttl and base.ttl.column):
        return ttl
    raise SchemaMismatchError(
        f"{base} has {_text(base.ttl)} where its changes build on, and is to have {_text(ttl)}; "
        "take a full snapshot to turn a time to live on or off, or to go by another column"
    )


def refuse_new_times(
    ttl: TimeToLive | None, stored: KeyedState | None, names: Sequence[str]
) -> None:
    """Refuse all rows of a state that lives for a time already when they come without times."""
    if ttl is None or stored is None or stored.ttl is None or ttl.column in names:
        return
    raise InvalidArgumentError(
        f"{stored} has a time to live, and its rows lack the column {ttl.column!r}: they would all "
        "begin to live anew. Give each row its time, write what changed with .changes(…), which "
        f"may leave it out, or end the time to live with ttl={OFF!r}"
    )


def stamped(rows: Any, ttl: TimeToLive | None, stored: KeyedState | None, now_ms: int) -> Any:
    """Return rows that lack the column of times with the clock in it; others as they are.

    The column has the type that it is stored with, else long.
    """
    if ttl is None:
        return rows
    engine, rows = engine_of(rows)
    if ttl.column in engine.schema_of(rows).names:
        return rows
    kind = "long"
    if stored is not None and ttl.column in stored.schema.names:
        kind = type_text(stored.schema.type_of(ttl.column))
    if kind not in TIME_TYPES:
        return rows  # the state refuses its column, with its type
    if kind != "long":
        check_instant(now_ms)
    return engine.with_time(rows, ttl.column, kind, now_ms)


def _text(ttl: TimeToLive | None) -> str:
    return "no time to live" if ttl is None else f"a time to live by {ttl.column!r}"
