"""Converts one Python value to a stored type: exactly, or not at all.

Values are equal if Python says so, and NaN equals NaN. Therefore ``2.0`` and ``Decimal("2.00")``
fit an integer type, and ``2.5`` does not. A boolean does not fit a number, a date does not fit a
timestamp, and text does not fit bytes. A datetime with a zone only fits ``timestamp``, one without
a zone only ``timestamp_ntz``. Fields that a dictionary lacks are null in a struct. Python has no
32-bit float: its floats are rounded to the nearest one, which is only infinite or 0 if the value
was.

Scalars of numpy and pandas count as the values that they hold; NaT and NA are null.

Dates and times have a text, also those that Python's types lack. In the years 1 to 9999 it is ISO
8601. Other years have DuckDB's format, such as ``290309-12-22 (BC) 00:00:00``, and its greatest
dates and timestamps are ``infinity``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from struct import pack, unpack
from typing import Any

import numpy as np
import pyarrow as pa

from statestore.keys.arrow_types import arrow_type_text

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


Convert = Callable[[Any], Any]

_EPOCH, _INSTANT = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_MICRO = timedelta(microseconds=1)
_MOST_EXPONENT = 400
"""No column type has numbers with more digits than this."""
_MOST_SHOWN_DIGITS = 30
_MOST_SHOWN = 200


class UnfitError(Exception):
    """A value that a type cannot hold; ``path`` is its position within the column's value."""

    def __init__(self, value: Any, type_text: str, reason: str, path: str = "") -> None:
        """Keep the value, the type that cannot hold it, and the reason."""
        super().__init__(reason)
        self.value, self.type_text, self.reason, self.path = value, type_text, reason, path

    def within(self, step: str) -> UnfitError:
        """Return the error with a path that starts one level further out."""
        return UnfitError(self.value, self.type_text, self.reason, step + self.path)


def is_missing(value: Any) -> bool:
    """Return whether a value is null in Python, numpy or pandas."""
    if value is None:
        return True
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    # Compare names to avoid an import: pandas is already loaded if the value is from pandas.
    return type(value).__name__ in ("NaTType", "NAType")


def exact_converter(data_type: pa.DataType) -> Convert:
    """Return a function that converts a value to one that Arrow accepts for the type unchanged.

    The function raises UnfitError if that is not possible.
    """
    inner = _converter_of(data_type)

    def convert(value: Any) -> Any:
        if is_missing(value):
            return None
        return inner(unwrap_numpy(value))

    return convert


def _converter_of(data_type: pa.DataType) -> Convert:
    types = pa.types
    if types.is_struct(data_type):
        return _struct(
            {field.name: exact_converter(field.type) for field in data_type},
            arrow_type_text(data_type),
        )
    if types.is_map(data_type):
        return _map(
            exact_converter(data_type.key_type),
            exact_converter(data_type.item_type),
            arrow_type_text(data_type),
        )
    if types.is_list(data_type):
        return _list(exact_converter(data_type.value_type), arrow_type_text(data_type))
    if types.is_decimal(data_type):
        return lambda value: _decimal(value, data_type)
    if types.is_timestamp(data_type):
        return _zoned_timestamp if data_type.tz else _local_timestamp
    if types.is_integer(data_type):
        return lambda value: _integer(value, data_type)
    if types.is_time(data_type):
        return _time
    return _EXACT.get(data_type, lambda value: value)


def unwrap_numpy(value: Any) -> Any:
    """Return a numpy scalar as a Python value, if Python has one; other values unchanged."""
    if isinstance(value, np.datetime64):
        micros = value.astype("datetime64[us]")
        days = np.datetime_data(value)[0] in ("D", "W", "M", "Y")
        scalar = (value.astype("datetime64[D]") if days else micros).item()
        is_whole = days or micros.astype(value.dtype) == value
        return scalar if is_whole and isinstance(scalar, date) else value
    return value.item() if isinstance(value, np.generic) else value


def brief_text(value: Any, most: int = 80) -> str:
    """Return a value for a message, truncated to ``most`` characters."""
    try:
        return f"{value!r:.{most}}"
    except ValueError:  # Python does not format integers of more than 4,300 digits
        return "an integer of more than 4,300 digits"
    except RecursionError:
        return "a value that is nested too deeply to be shown"


def shorten(text: str) -> str:
    """Return text for a message, cut off if it is long."""
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def is_list(value: Any) -> bool:
    """Return whether a value is a list of values; text and bytes do not count."""
    is_text = isinstance(value, str | bytes | bytearray | memoryview)
    return isinstance(value, Sequence | np.ndarray) and not is_text


def _integer(value: Any, data_type: pa.DataType) -> int:
    _refuse_other_types(value, data_type)
    _refuse_infinite(value, data_type)
    most = 1 << (data_type.bit_width - 1)
    if not _is_small(value) or not -most - 1 < value < most:
        raise UnfitError(
            value, arrow_type_text(data_type), f"the type's range is {-most}..{most - 1}"
        )
    number = int(value)
    if number != value:
        reason = f"it would become {number}; store fractions as double or decimal"
        raise UnfitError(value, arrow_type_text(data_type), reason)
    return number


def _double(value: Any, data_type: pa.DataType) -> float:
    _refuse_other_types(value, data_type)
    if isinstance(value, Decimal) and value.is_nan():
        raise UnfitError(
            value,
            arrow_type_text(data_type),
            "a Decimal that is NaN is not converted; pass float('nan')",
        )
    try:
        number = float(value)
        if data_type == pa.float32():
            (number,) = unpack("<f", pack("<f", number))
    except OverflowError:
        raise UnfitError(
            value, arrow_type_text(data_type), "it is larger than the type's largest value"
        ) from None
    is_near = (
        isinstance(value, float) and data_type == pa.float32() and (number != 0) is (value != 0)
    )
    if number != value and value == value and not is_near:  # NaN comes out as NaN
        reason = f"it would become {_exact_text(number)}"
        if isinstance(value, Decimal):
            reason += f"; to store the nearest value, pass the float {number!r}"
        raise UnfitError(value, arrow_type_text(data_type), reason)
    return number


def _decimal(value: Any, data_type: pa.DataType) -> Decimal:
    _refuse_other_types(value, data_type)
    _refuse_infinite(value, data_type)
    try:
        return _exact_decimal(value, data_type)
    except UnfitError as error:
        if isinstance(value, float) and _fits_decimal(Decimal(repr(value)), data_type):
            text = repr(value)
            reason = (
                f"as a float it is exactly {_exact_text(value)}, and not {text}; pass "
                f"Decimal({text!r})"
            )
            raise UnfitError(value, error.type_text, reason) from None
        raise


def _fits_decimal(value: Decimal, data_type: pa.DataType) -> bool:
    try:
        _exact_decimal(value, data_type)
    except UnfitError:
        return False
    return True


def _exact_text(value: float) -> str:
    """Return all digits of a float, or the first ones of many."""
    text = str(Decimal(value))
    return text if len(text) <= _MOST_SHOWN_DIGITS else f"{text[:_MOST_SHOWN_DIGITS]}…"


def _exact_decimal(value: float | Decimal, data_type: pa.DataType) -> Decimal:
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    unscaled = int(Decimal((0, digits, 0)))  # Python does not parse text with this many digits
    shift = exponent + data_type.scale
    if unscaled and abs(shift) > _MOST_EXPONENT + len(digits):
        raise UnfitError(value, arrow_type_text(data_type), "it has more digits than the type")
    if unscaled and shift >= 0:
        unscaled *= 10**shift
    elif unscaled:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            raise UnfitError(
                value, arrow_type_text(data_type), "it has more decimal places than the type"
            )
    if unscaled >= 10**data_type.precision:
        raise UnfitError(value, arrow_type_text(data_type), "it has more digits than the type")
    return Decimal((sign if unscaled else 0, tuple(map(int, str(unscaled))), -data_type.scale))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_type_error(value, pa.string())
    text = str.__str__(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnfitError(
            value, "string", "it contains an unpaired surrogate, which is not valid text"
        ) from None
    return text


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _wrong_type_error(value, pa.binary())
    return bytes(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong_type_error(value, pa.bool_())
    return value


def _date(value: Any) -> date | int:
    if isinstance(value, FarTime) and value.data_type == pa.date32():
        return value.number
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _wrong_type_error(value, pa.date32())
    return value


def _zoned_timestamp(value: Any) -> int:
    """Return the microseconds since 1970 of a datetime with a zone."""
    data_type = pa.timestamp("us", "UTC")
    if isinstance(value, FarTime) and value.data_type == data_type:
        return value.number
    if not isinstance(value, datetime):
        raise _wrong_type_error(value, data_type)
    value = _to_micros(value, data_type)
    if value.utcoffset() is None:
        raise UnfitError(value, arrow_type_text(data_type), "it has no time zone; add one")
    try:
        since: timedelta = value.astimezone(UTC) - _INSTANT
    except (OverflowError, ValueError):
        reason = "in UTC it is outside the years 1 to 9999"
        raise UnfitError(value, arrow_type_text(data_type), reason) from None
    return since // _MICRO


def _local_timestamp(value: Any) -> int:
    """Return the microseconds since 1970 of a datetime without a zone."""
    data_type = pa.timestamp("us")
    if isinstance(value, FarTime) and value.data_type == data_type:
        return value.number
    if not isinstance(value, datetime):
        raise _wrong_type_error(value, data_type)
    if value.utcoffset() is not None:
        reason = "it has a time zone; convert it to the local time of one zone and remove the zone"
        raise UnfitError(value, arrow_type_text(data_type), reason)
    return (_to_micros(value, data_type).replace(tzinfo=None) - _EPOCH) // _MICRO


def _to_micros(value: Any, data_type: pa.DataType) -> datetime:
    """Return a Python datetime; refuse a pandas timestamp with nanoseconds."""
    if nanos := getattr(value, "nanosecond", 0):
        reason = f"microseconds cannot represent its {nanos} ns; round it"
        raise UnfitError(value, arrow_type_text(data_type), reason)
    own: datetime = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    return own


def _time(value: Any) -> time:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise UnfitError(value, "time", "the column needs a time of day without a time zone")
    return value


def _struct(fields: Mapping[str, Convert], text: str) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise UnfitError(value, text, "pass a dictionary")
        for name in value:
            if name not in fields:
                reason = f"the struct has no field {name!r}, so this value would be lost"
                raise UnfitError(value[name], text, reason, f".{name}")
        converted = {}
        for name, inner in fields.items():
            try:
                converted[name] = inner(value.get(name))
            except UnfitError as error:
                raise error.within(f".{name}") from None
        return converted

    return convert


def _list(element: Convert, text: str) -> Convert:
    def convert(value: Any) -> list[Any]:
        if not is_list(value):
            raise UnfitError(value, text, "pass a list")
        items = []
        for index, item in enumerate(value):
            try:
                items.append(element(item))
            except UnfitError as error:
                raise error.within(f"[{index}]") from None
        return items

    return convert


def _map(key: Convert, item: Convert, text: str) -> Convert:
    def convert(value: Any) -> list[tuple[Any, Any]]:
        entries = []
        for pair in _pairs(value, text):
            try:
                entry = (key(pair[0]), item(pair[1]))
            except UnfitError as error:
                raise error.within(f"[{brief_text(pair[0], 40)}]") from None
            if entry[0] is None:
                raise UnfitError(value, text, "the key of a map entry must not be null")
            entries.append(entry)
        return entries

    return convert


def _pairs(value: Any, text: str) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple) and all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in value
    ):
        return value
    raise UnfitError(value, text, "pass a dictionary or a list of pairs")


def _refuse_other_types(value: Any, data_type: pa.DataType) -> None:
    """Refuse any value except a number; a boolean does not count as one."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise _wrong_type_error(value, data_type)


def _refuse_infinite(value: float | Decimal, data_type: pa.DataType) -> None:
    if not _is_finite(value):
        text = arrow_type_text(data_type)
        raise UnfitError(value, text, "the type has neither NaN nor infinity; pass None for null")


def _is_finite(value: float | Decimal) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) or isfinite(value)  # isfinite() fails for a huge integer


def _is_small(value: float | Decimal) -> bool:
    """Return whether a number can fit in 64 bits.

    This is checked before ``int(number)``, which would fill the memory for ``1E+999999``.
    """
    return not isinstance(value, Decimal) or value.adjusted() < _MOST_EXPONENT


def _wrong_type_error(value: Any, data_type: pa.DataType) -> UnfitError:
    text = arrow_type_text(data_type)
    return UnfitError(value, text, f"a value of Python type {type(value).__name__} does not fit")


_EXACT: Mapping[pa.DataType, Convert] = {
    pa.string(): _string,
    pa.binary(): _binary,
    pa.bool_(): _boolean,
    pa.date32(): _date,
    pa.float32(): lambda value: _double(value, pa.float32()),
    pa.float64(): lambda value: _double(value, pa.float64()),
}
