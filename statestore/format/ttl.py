"""TTL: when a row of keyed state expires, depending on the time of its last use.

The rule is Flink's (``TtlUtils``): a row expires as soon as its time plus the TTL is not after
the clock. Each row has its own time, so a list expires per element and a map per entry. The clock
is always an argument; this module never reads one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from statestore.durations import Duration, duration_text, milliseconds_of
from statestore.errors import InvalidArgumentError, unknown_choice

__all__ = [
    "TIME_TYPES",
    "TimeToLive",
    "TtlUpdate",
    "TtlVisibility",
    "check_instant",
    "check_time",
    "clock_ms",
    "is_expired",
]


TIME_TYPES = ("long", "timestamp")
"""The types of a time column: milliseconds since 1970 in UTC, or a timestamp with time zone."""

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


class TtlUpdate(StrEnum):
    """The operations that renew a row's time: ``StateTtlConfig.UpdateType``."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"

    @classmethod
    def _missing_(cls, value: object) -> TtlUpdate:
        raise unknown_choice("TTL update mode", value, cls)


class TtlVisibility(StrEnum):
    """Whether a restore returns expired rows: ``StateTtlConfig.StateVisibility``."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"

    @classmethod
    def _missing_(cls, value: object) -> TtlVisibility:
        raise unknown_choice("TTL visibility", value, cls)


@dataclass(frozen=True)
class TimeToLive:
    """The TTL of a keyed state's rows: how long they live after the time in their ``column``.

    The ``duration`` is a ``timedelta`` or text such as ``36h``, from 1 ms to 2**63 - 1 ms. The
    column is one of the state's values, a long (milliseconds since 1970, UTC) or a timestamp. With
    ``update="on_create_and_write"`` it is the time of the last write. With
    ``"on_read_and_write"`` it is the time of the last read or write. The store does not see the
    job's reads, so the job must upsert the rows that it read, with their values, in the next
    checkpoint. With the default ``visibility`` expired rows are never restored. With
    ``"return_expired_if_not_cleaned_up"`` they are restored until compaction drops them.
    """

    duration: Duration
    column: str
    update: TtlUpdate | str = TtlUpdate.ON_CREATE_AND_WRITE
    visibility: TtlVisibility | str = TtlVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        """Accept strings for enumeration members; InvalidArgumentError for other invalid values."""
        object.__setattr__(self, "update", TtlUpdate(self.update))
        object.__setattr__(self, "visibility", TtlVisibility(self.visibility))
        duration: object = self.duration
        if not isinstance(duration, timedelta | str) or milliseconds_of(duration) == 0:
            raise InvalidArgumentError(
                f"invalid TTL duration {duration!r}: pass a timedelta, or text such as '36h', of "
                "at least 1 ms"
            )
        object.__setattr__(self, "duration", duration_text(milliseconds_of(duration)))
        column: object = self.column
        if not isinstance(column, str) or not column:
            raise InvalidArgumentError(
                f"invalid TTL column {self.column!r}; name the column with the timestamps of "
                "the rows"
            )

    @property
    def duration_ms(self) -> int:
        """The duration in milliseconds."""
        return milliseconds_of(self.duration)

    @property
    def hides(self) -> bool:
        """True if a restore omits expired rows."""
        return self.visibility is TtlVisibility.NEVER_RETURN_EXPIRED

    def __str__(self) -> str:
        """Return the TTL as text."""
        return f"{self.duration} after {self.column}, {self.update}, {self.visibility}"


def is_expired(timestamp_ms: int, ttl_ms: int, now_ms: int) -> bool:
    """Return whether a row with this time is expired; all values are ms since 1970, in 64 bits.

    As in ``TtlUtils.expired``, an expiry time that does not fit into 64 bits is the largest one
    that does.
    """
    left = min(_LONG_MAX - timestamp_ms, ttl_ms) if timestamp_ms > 0 else ttl_ms
    return timestamp_ms + left <= now_ms


def check_time(now_ms: int) -> int:
    """Return the caller's clock in ms since 1970; InvalidArgumentError beyond 64 bits."""
    if isinstance(now_ms, bool) or not isinstance(now_ms, int):
        raise InvalidArgumentError(f"now_ms must be a number of milliseconds, not {now_ms!r}")
    if not _LONG_MIN <= now_ms <= _LONG_MAX:
        raise InvalidArgumentError(f"now_ms {now_ms} does not fit 64 bits; pass milliseconds")
    return now_ms


def clock_ms(now_ms: int | None) -> int:
    """Return the caller's clock, in ms since 1970, or this machine's clock if it is None."""
    return time.time_ns() // 1_000_000 if now_ms is None else check_time(now_ms)


def check_instant(now_ms: int) -> int:
    """Return the time if a timestamp can hold it; otherwise raise InvalidArgumentError."""
    if abs(now_ms) > _LONG_MAX // 1000:
        raise InvalidArgumentError(
            f"now_ms {now_ms} (milliseconds since 1970) is not a valid timestamp; pass another "
            "now_ms"
        )
    return now_ms
