"""The values that a key can consist of, and the Java types that they are hashed as.

A plain Python value implies the Java or SQL type it stands for. If it cannot, it is wrapped:
:class:`Typed` names the type at any depth, :class:`Row` is Flink's ``Row`` with its kind,
:class:`RawBits` is a float given by its bits. Python's dates and times are limited to
microseconds and the years 1..9999. An int in their place covers Java's full range, in days or
nanoseconds as the functions say.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from operator import index
from typing import TYPE_CHECKING, Final, SupportsIndex, TypeAlias

from statestore.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "NANOS_PER_DAY",
    "NANOS_PER_SECOND",
    "ROW_KINDS",
    "KeyType",
    "RawBits",
    "Row",
    "Typed",
    "checked_int",
    "days_of",
    "duration_nanos",
    "epoch_nanos",
    "nanos_of_day",
    "wrong_value",
]


KeyType: TypeAlias = "str | Sequence[KeyType] | None"
"""A type name; None to infer the type from the Python value; a sequence of these for a tuple."""

NANOS_PER_SECOND: Final = 10**9
NANOS_PER_DAY: Final = 86_400 * NANOS_PER_SECOND
ROW_KINDS: Final = {"+I": 0, "-U": 1, "+U": 2, "-D": 3}

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH_LOCAL: Final = datetime(1970, 1, 1)
_EPOCH_INSTANT: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Typed:
    """A value to be hashed as ``type``, at any depth: ``Typed("int", -1)`` in a tuple or row."""

    type: KeyType
    value: object


@dataclass(frozen=True, slots=True)
class Row:
    """Flink's ``Row``: its kind, and its fields as a sequence by position or a mapping by name.

    Raises InvalidArgumentError unless ``kind`` is +I, -U, +U or -D.
    """

    fields: Sequence[object] | Mapping[str, object]
    kind: str = "+I"

    def __post_init__(self) -> None:
        if self.kind not in ROW_KINDS:
            raise InvalidArgumentError(
                f"row kind {self.kind!r} does not exist: use one of {', '.join(ROW_KINDS)}"
            )


@dataclass(frozen=True, slots=True)
class RawBits:
    """A float or double given by its IEEE bits, for a NaN whose payload matters."""

    bits: int


def wrong_value(name: str, value: object) -> InvalidArgumentError:
    """Return the error for a Python value that the type ``name`` cannot hold."""
    return InvalidArgumentError(f"a key of type {name} cannot be {type(value).__name__} {value!r}")


def checked_int(name: str, value: object, low: int, high: int) -> int:
    """Return ``value`` as an int in ``low`` .. ``high``; InvalidArgumentError otherwise."""
    # SupportsIndex accepts numpy's integers. A bool is not accepted as a number.
    if isinstance(value, bool) or not isinstance(value, int | SupportsIndex):
        raise wrong_value(name, value)
    number = index(value)
    if not low <= number <= high:
        raise InvalidArgumentError(f"{number} is out of range for type {name}: {low}..{high}")
    return number


def days_of(name: str, value: object) -> int:
    """Return the days since 1970-01-01 of a date or int (LocalDate's range, years ±999999999)."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - _EPOCH_DAY
    return checked_int(name, value, -365_243_219_162, 365_241_780_471)


def nanos_of_day(name: str, value: object) -> int:
    """Return the nanoseconds since midnight of a time without a time zone, or the int itself."""
    if isinstance(value, time):
        if value.tzinfo is not None:
            raise InvalidArgumentError(f"a key of type {name} has no time zone: {value!r} has one")
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * NANOS_PER_SECOND + value.microsecond * 1000
    return checked_int(name, value, 0, NANOS_PER_DAY - 1)


def epoch_nanos(name: str, value: object, *, zoned: bool) -> int:
    """Return the nanoseconds since 1970-01-01T00:00 of a datetime, or the int itself.

    If ``zoned`` is true, the type is an instant and the datetime must have a time zone. Otherwise
    the type is a local time and the datetime must not have one. A mismatch raises
    InvalidArgumentError, because guessing a time zone would move keys.
    """
    if not isinstance(value, datetime):
        limit = NANOS_PER_SECOND << 63
        return checked_int(name, value, -limit, limit - 1)
    if (value.utcoffset() is not None) != zoned:
        have, need = ("no", "an aware") if zoned else ("a", "a naive")
        raise InvalidArgumentError(
            f"{value!r} has {have} time zone: a key of type {name} needs {need} datetime"
        )
    return duration_nanos(name, value - (_EPOCH_INSTANT if zoned else _EPOCH_LOCAL))


def duration_nanos(name: str, value: object) -> int:
    """Return the nanoseconds of a timedelta, or the int itself."""
    if isinstance(value, timedelta):
        seconds = value.days * 86_400 + value.seconds
        # pandas' subclass of timedelta also has nanoseconds.
        below = int(getattr(value, "nanoseconds", 0))
        return seconds * NANOS_PER_SECOND + value.microseconds * 1000 + below
    limit = NANOS_PER_SECOND << 63
    return checked_int(name, value, -limit, limit - 1)
