"""Dates and times as text, and back, also those that Python's types lack.

In the years 1 to 9999 the text is ISO 8601. Other years have DuckDB's format, such as
``290309-12-22 (BC) 00:00:00``, and its greatest dates and timestamps are ``infinity``.
"""

from __future__ import annotations

import re

import pyarrow as pa

_FAR = re.compile(
    r"(?P<year>\d{4,7})-(?P<month>\d\d)-(?P<day>\d\d)(?P<bc> \(BC\))?"
    r"(?:[ T](?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d)"
    r"(?::(?P<second>[0-5]\d)(?:\.(?P<fraction>\d{1,6})0*)?)?"
    r"(?P<zone>Z|[+-]\d\d(?::?[0-5]\d)?)?)?"
)
_INFINITIES = {"infinity": 1, "+infinity": 1, "-infinity": -1}


class FarTime(str):
    """The text of a date or timestamp that Python lacks, with the number that Arrow stores."""

    number: int
    data_type: pa.DataType

    def __new__(cls, number: int, data_type: pa.DataType, text: str) -> FarTime:
        """Return the text with its number and type."""
        self = super().__new__(cls, text)
        self.number, self.data_type = number, data_type
        return self


def far_time(text: str, data_type: pa.DataType) -> FarTime | None:
    """Parse the text of a date or of a timestamp in microseconds; see :func:`time_text`.

    Returns:
        None if the text has another form, or names a day that does not exist. A timestamp with a
        zone needs ``Z`` or an offset, and other types must not have one.

    Raises:
        ValueError: The type cannot represent the time.
    """
    most = 2 ** (data_type.bit_width - 1) - 1
    sign = _INFINITIES.get(text)
    if sign is not None:
        return FarTime(sign * most, data_type, text)
    match = _FAR.fullmatch(text)
    if match is None or (match["hour"] is None) is not pa.types.is_date(data_type):
        return None
    year = 1 - int(match["year"]) if match["bc"] else int(match["year"])
    number = _days_of(year, int(match["month"]), int(match["day"]))
    if _date_text(number)[0] != text[: match.end("bc") if match["bc"] else match.end("day")]:
        return None
    if pa.types.is_timestamp(data_type):
        if (match["zone"] is None) is not (data_type.tz is None):
            return None
        hour, minute, second = (int(match[part] or 0) for part in ("hour", "minute", "second"))
        seconds = number * 86_400 + hour * 3600 + minute * 60 + second - _offset(match["zone"])
        number = seconds * 10**6 + int((match["fraction"] or "").ljust(6, "0"))
    if not -most - 1 <= number <= most:
        raise ValueError(f"{text!r} is outside of what the type can represent")
    return FarTime(number, data_type, text)


def _offset(zone: str | None) -> int:
    """Return the seconds of an offset such as ``+01:30``."""
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if zone[0] == "-" else seconds


def _days_of(year: int, month: int, day: int) -> int:
    """Return the days from 1970-01-01 to a date; see :func:`_date_text`."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def time_text(number: int, data_type: pa.DataType) -> str:
    """Return a date, timestamp or time of day as text; ``number`` is what Arrow stores."""
    if pa.types.is_date32(data_type):
        return _date_text(number)[0]
    unit = _UNITS[data_type.unit]
    if pa.types.is_time(data_type):
        return _clock_text(number, unit)
    days, rest = divmod(number, 86_400 * unit)
    day, is_iso = _date_text(days)
    if is_iso:
        clock, _, fraction = _clock_text(rest, unit).partition(".")
        fraction = f".{fraction:0<6}" if fraction else ""  # like datetime.isoformat()
        return f"{day}T{clock}{fraction}{'Z' if data_type.tz else ''}"
    return f"{day} {_clock_text(rest, unit)}{'+00' if data_type.tz else ''}"


def _date_text(days: int) -> tuple[str, bool]:
    """Return the date ``days`` after 1970-01-01 as text, and whether ISO 8601 can represent it.

    This uses the proleptic Gregorian calendar's eras of 400 years, each from a March 1.
    """
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += era * 400 + (month >= 10)
    month = month + 3 if month < 10 else month - 9
    text = f"-{month:02}-{day + 1:02}"
    if year < 1:
        return f"{1 - year:04}{text} (BC)", False
    return f"{year:04}{text}", year <= 9999


def _clock_text(number: int, unit: int) -> str:
    seconds, fraction = divmod(number, unit)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02}:{minutes % 60:02}:{second:02}"
    digits = f"{unit + fraction}"[1:].rstrip("0")
    return f"{text}.{digits}" if digits else text
