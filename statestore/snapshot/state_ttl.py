"""The TTL that a state has in a checkpoint.

A state keeps its stored TTL until another one, or ``"off"``, is given. Flink calls turning it on
or off a migration; here it is a full snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

from statestore.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
)
from statestore.format.state import (
    KeyedState,
)
from statestore.format.ttl import TimeToLive

__all__ = ["OFF", "TtlAsked", "changed_ttl", "kept_ttl"]


OFF = "off"
"""What turns the time to live of a stored state off; its column is an ordinary one from then on."""

TtlAsked = TimeToLive | str | None


def kept_ttl(
    requested: TtlAsked, stored: TimeToLive | None, renamed: Mapping[str, str]
) -> TimeToLive | None:
    """Return the TTL of a state: the requested one, or the stored one under its column's new name.

    Raises InvalidArgumentError for a value that is neither a TimeToLive nor "off".
    """
    if isinstance(requested, TimeToLive):
        return requested
    if requested == OFF:
        return None
    if requested is not None:
        raise InvalidArgumentError(
            f"invalid ttl={requested!r}: pass ttl=TimeToLive('36h', column), or ttl={OFF!r} "
            "to end the TTL"
        )
    if stored is None or stored.column not in renamed:
        return stored
    column = renamed[stored.column]
    return TimeToLive(stored.duration, column, stored.update, stored.visibility)


def changed_ttl(requested: TtlAsked, base: KeyedState) -> TimeToLive | None:
    """Return the TTL of a state with changes: its base's, or another one on the same column.

    Raises SchemaMismatchError for another column, or if only one of the two has a TTL.
    """
    ttl = kept_ttl(requested, base.ttl, {})
    if (ttl and ttl.column) == (base.ttl and base.ttl.column):
        return ttl
    raise SchemaMismatchError(
        f"{base} has {_ttl_text(base.ttl)} in the checkpoint that its changes are based on, "
        f"but {_ttl_text(ttl)} is requested; take a full snapshot to enable or disable the "
        "TTL, or to use another column"
    )


def _ttl_text(ttl: TimeToLive | None) -> str:
    return "no TTL" if ttl is None else f"a TTL on {ttl.column!r}"
