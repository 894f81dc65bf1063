"""Time to live: when a row of keyed state has expired, by the last time it was used.

Flink's rule (``TtlUtils``): a row expires as soon as its time plus the time to live is not after
the clock. Each row has its own time, so a list expires by element and a map by entry. The clock is
always an argument; nothing here looks at one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from statestore.errors import InvalidArgumentError
from statestore.model.choices import unknown_choice

__all__ = ["TIME_TYPES", "TimeToLive", "TtlUpdate", "TtlVisibility", "check_time", "expired"]

TIME_TYPES = ("long", "timestamp")
"""What a column of times may be: milliseconds since 1970, UTC, or an instant."""

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


class TtlUpdate(StrEnum):
    """What gives a row a new time: ``StateTtlConfig.UpdateType``."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"

    @classmethod
    def _missing_(cls, value: object) -> TtlUpdate:
        raise unknown_choice("update of a time to live", value, cls)


class TtlVisibility(StrEnum):
    """Whether a restore hands expired rows over: ``StateTtlConfig.StateVisibility``."""

    NEVER_RETURN_EXPIRED = "never_return_expired"
    RETURN_EXPIRED_IF_NOT_CLEANED_UP = "return_expired_if_not_cleaned_up"

    @classmethod
    def _missing_(cls, value: object) -> TtlVisibility:
        raise unknown_choice("visibility of a time to live", value, cls)


@dataclass(frozen=True)
class TimeToLive:
    """How long rows of a keyed state live, in milliseconds after the time in their ``column``.

    The column is one of the state's values, a long (milliseconds since 1970, UTC) or a timestamp.
    With ``update="on_create_and_write"`` it is the time of the last write. With
    ``"on_read_and_write"`` it is that of the last read too: reads are the job's own, so the job
    writes what it has read, with its values, as upserts of the next checkpoint. With the default
    ``visibility`` no expired row is ever restored; with ``"return_expired_if_not_cleaned_up"`` it
    is until compaction has dropped it.
    """

    duration_ms: int
    column: str
    update: TtlUpdate | str = TtlUpdate.ON_CREATE_AND_WRITE
    visibility: TtlVisibility | str = TtlVisibility.NEVER_RETURN_EXPIRED

    def __post_init__(self) -> None:
        """Take strings for members; InvalidArgumentError for what is no duration or column."""
        object.__setattr__(self, "update", TtlUpdate(self.update))
        object.__setattr__(self, "visibility", TtlVisibility(self.visibility))
        given: object = self.duration_ms
        if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= _LONG_MAX:
            raise InvalidArgumentError(
                f"a time to live of {given!r} ms: give a whole number of milliseconds from 1 to "
                f"{_LONG_MAX}"
            )
        column: object = self.column
        if not isinstance(column, str) or not column:
            raise InvalidArgumentError(
                f"a time to live goes by the column {self.column!r}; name the column that has the "
                "times of the rows"
            )

    @property
    def hides(self) -> bool:
        """Whether a restore leaves expired rows out."""
        return self.visibility is TtlVisibility.NEVER_RETURN_EXPIRED

    def __str__(self) -> str:
        """Return how text shows it."""
        return f"{self.duration_ms} ms after {self.column}, {self.update}, {self.visibility}"


def expired(timestamp_ms: int, ttl_ms: int, now_ms: int) -> bool:
    """Return whether a row of that time is past its time to live; all in ms since 1970, 64 bits.

    ``TtlUtils.expired``: the end is the last millisecond of 64 bits where the sum would be later.
    """
    left = min(_LONG_MAX - timestamp_ms, ttl_ms) if timestamp_ms > 0 else ttl_ms
    return timestamp_ms + left <= now_ms


def check_time(now_ms: int) -> int:
    """Return the clock of a caller, ms since 1970; InvalidArgumentError unless a 64-bit integer."""
    if isinstance(now_ms, bool) or not isinstance(now_ms, int):
        raise InvalidArgumentError(f"now_ms is a number of milliseconds, not {now_ms!r}")
    if not _LONG_MIN <= now_ms <= _LONG_MAX:
        raise InvalidArgumentError(f"now_ms {now_ms} has more than 64 bits; give milliseconds")
    return now_ms
