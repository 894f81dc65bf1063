"""The golden vectors: answers of the real Flink classes, and their tagged values as keys."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from statestore.keys.key_types import RawBits, Row, Typed

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "flink"

_DATE: Final = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)")
_TIME: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?")
_DURATION: Final = re.compile(r"PT(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?\d+)(?:\.(\d+))?S)?")
_SECOND: Final = 10**9
_MILLI: Final = 10**6


def cases(topic: str, op: str | None = None) -> list[dict[str, Any]]:
    """Return the cases of ``NAME.json``, optionally only the cases with this ``op``."""
    document = json.loads((GOLDEN / f"{topic}.json").read_text(encoding="utf-8"))
    return [case for case in document["cases"] if op in (None, case["in"]["op"])]


def key_cases() -> Iterator[tuple[Any, int, int, int]]:
    """Yield (tagged key, max parallelism, hash, key group) of every single-key vector."""
    for case in [*cases("hashcodes"), *cases("keygroups", "key")]:
        if "error" not in case:
            given, out = case["in"], case["out"]
            yield given["key"], given["max"], out["hash"], out["group"]


def key_of(tagged: dict[str, Any]) -> Any:
    """Return the key that a tagged value represents, exact to the last nanosecond and bit."""
    tag = tagged["t"]
    value: Any = tagged.get("v")
    if tag == "null":
        return None
    if tag == "row":
        return Row([key_of(field) for field in value], tagged.get("kind", "+I"))
    if tag == "named_row":
        fields = {name: key_of(field) for name, field in value.items()}
        return Row(fields, tagged.get("kind", "+I"))
    if tag == "map":
        return Typed("map", [(key_of(k), key_of(v)) for k, v in value])
    if tag in ("tuple", "list", "array"):
        return Typed(tag, [key_of(element) for element in value])
    return Typed(tag, scalar_of(tagged))


def scalar_of(tagged: dict[str, Any]) -> Any:
    """Return the value inside a tagged scalar; dates and times are exact ints."""
    tag = tagged["t"]
    value: Any = tagged.get("v")
    if "utf16" in tagged:
        return "".join(chr(unit) for unit in tagged["utf16"])
    if "bits" in tagged:
        return RawBits(int(tagged["bits"], 16))
    if tag == "decimal":
        return Decimal(value)
    if tag == "biginteger":
        return int(value)
    if tag == "uuid":
        return UUID(value)
    if tag == "bytes":
        return bytes.fromhex(value)
    if tag == "date":
        return days(value)
    if tag == "time":
        return nanos(value)
    if tag in ("datetime", "instant"):
        day, time = value.rstrip("Z").split("T")
        return days(day) * 86_400 * _SECOND + nanos(time)
    if tag == "sql_timestamp" and "nanos" in tagged:
        return value // 1000 * 1000 + tagged["nanos"] // _MILLI  # setNanos replaces the fraction
    if tag == "duration":
        return _duration(value)
    return value


def sql_value(sql_type: str, value: Any) -> Any:
    """Return the value of one field of an ``sqlkeys`` case."""
    if value is None:
        return None
    if sql_type in ("FLOAT", "DOUBLE"):
        return RawBits(int(value, 16))
    if sql_type.startswith("DECIMAL"):
        return Decimal(value)
    if sql_type.startswith("TIMESTAMP"):
        return value[0] * _MILLI + value[1]
    if sql_type.startswith("TIME"):
        return value * _MILLI
    if sql_type == "BYTES":
        return bytes.fromhex(value)
    return value


def days(text: str) -> int:
    """Return days since 1970-01-01 of an ISO date of any year."""
    match = _DATE.fullmatch(text)
    assert match is not None, text
    year, month, day = (int(part) for part in match.groups())
    # If the year starts in March, the leap day is last; 719468 days are before 1970-01-01.
    year, month = (year, month - 3) if month > 2 else (year - 1, month + 9)
    leaps = year // 4 - year // 100 + year // 400
    return year * 365 + leaps + (153 * month + 2) // 5 + day - 1 - 719_468


def nanos(text: str) -> int:
    """Return nanoseconds since midnight of an ISO time."""
    match = _TIME.fullmatch(text)
    assert match is not None, text
    hour, minute, second, fraction = match.groups()
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    return seconds * _SECOND + int((fraction or "").ljust(9, "0"))


def _duration(text: str) -> int:
    match = _DURATION.fullmatch(text)
    assert match is not None, text
    hours, minutes, seconds, fraction = match.groups()
    assert fraction is None or not seconds.startswith("-"), text
    whole = int(hours or 0) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return whole * _SECOND + int((fraction or "").ljust(9, "0"))
