"""Durations in calls, options and settings: a ``timedelta``, or text such as ``36h``.

Instants stay numbers of milliseconds since 1970.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Final

from statestore.errors import InvalidArgumentError

Duration = timedelta | str

_DAY: Final = 86_400_000
_UNITS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": _DAY,
    "w": 7 * _DAY,
}
_TEXT: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_UNITS)})")
_MOST_MS: Final = 2**63 - 1
_MOST_CHARACTERS: Final = 40


def milliseconds_of(duration: Duration) -> int:
    """Return a duration in milliseconds.

    Raises InvalidArgumentError for text in another form, for a negative duration, and for one that
    is not a whole number of milliseconds or has more than 2**63 - 1 of them.
    """
    if isinstance(duration, timedelta):
        exact = Fraction(duration // timedelta(microseconds=1), 1000)
    else:
        exact = _parsed(duration)
    if exact < 0:
        raise InvalidArgumentError(f"the duration {duration} is negative; pass a positive one")
    if exact > _MOST_MS:
        raise _too_long(str(duration))
    if exact.denominator != 1:
        raise InvalidArgumentError(
            f"the duration {duration!r} is not a whole number of milliseconds; round it"
        )
    return int(exact)


def _parsed(text: str) -> Fraction:
    if text == "0":
        return Fraction(0)
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(
            f"{text[:_MOST_CHARACTERS]!r} is not a duration; write it as 500ms, 90s, 15m, 36h, 7d "
            "or 0"
        )
    if len(text) > _MOST_CHARACTERS:
        raise _too_long(text)
    return Fraction(match[1]) * _UNITS[match[2]]


def _too_long(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the duration {text[:_MOST_CHARACTERS]!r} is too long: the longest is {_MOST_MS}ms"
    )


def duration_text(milliseconds: int) -> str:
    """Return a duration as text in the largest unit that represents it exactly."""
    unit = next(name for name in ("d", "h", "m", "s", "ms") if milliseconds % _UNITS[name] == 0)
    return f"{milliseconds // _UNITS[unit]}{unit}"
