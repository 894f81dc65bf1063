"""Random types, and random values of each, with a preference for edge cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from tests.fuzz.kinds import BITS, SCALARS, Kind, canonical, fits, is_ordered, name_of
from tests.support.strategies import with_one_zero

__all__ = ["draw_key_kind", "draw_kind", "draw_ordered_kind", "draw_value"]

JAVA_KEYS: tuple[Kind, ...] = tuple(kind for kind in SCALARS if kind != "binary")
TEXTS = (
    "",
    "a",
    "A",
    "é",
    "e\u0301",
    "日本",
    "😀",
    "\0",
    "a\0b",
    " ",
    "null",
    "NaN",
    "0",
    "%_",
    "'\"",
)
DATES = (date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31), date(1582, 10, 4))
TIMES = (
    datetime(1970, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2021, 3, 28, 2, 30),  # a gap of daylight-saving time in much of Europe
    datetime(2021, 10, 31, 2, 30, 0, 1),
    datetime(1600, 2, 29, 12),
    datetime(1883, 11, 18, 12, 3, 58),
    datetime(9999, 12, 30, 1, 2, 3, 4),
    datetime(2, 1, 1),
    datetime(2024, 2, 29, 0, 0, 0, 1000),
)
FLOATS = (0.0, -0.0, 1.0, -1.5, float("nan"), float("inf"), float("-inf"), 2.0**-149, 2.0**127)
DOUBLES = (*FLOATS, 5e-324, 1.7976931348623157e308, 0.1, 2.0**53, 1e22)


def draw_kind(draw: Random, levels: int = 3) -> Kind:
    """Return a type of a value with at most this many levels."""
    if levels == 0 or draw.random() < 0.45:
        return draw.choice(SCALARS)
    match draw.randrange(3):
        case 0:
            return ("array", draw_kind(draw, levels - 1))
        case 1:
            key = draw.choice(SCALARS) if draw.random() < 0.8 else draw_ordered_kind(draw, 1)
            return ("map", key, draw_kind(draw, levels - 1))
    return _struct(draw, lambda: draw_kind(draw, levels - 1))


def draw_ordered_kind(draw: Random, levels: int = 3) -> Kind:
    """Return a type that can identify rows: a scalar, or structs and arrays of scalars."""
    if levels == 0 or draw.random() < 0.6:
        return draw.choice(SCALARS)
    return _nested(draw, lambda: draw_ordered_kind(draw, levels - 1))


def draw_key_kind(draw: Random, scheme: str, levels: int = 3) -> Kind:
    """Return a type of a key column in a hash scheme."""
    if scheme == "flink-sql":
        return draw.choice(SCALARS)
    if levels == 0 or draw.random() < 0.65:
        return draw.choice(JAVA_KEYS)
    return _nested(draw, lambda: draw_key_kind(draw, scheme, levels - 1))


def _nested(draw: Random, part: Callable[[], Kind]) -> Kind:
    return ("array", part()) if draw.random() < 0.5 else _struct(draw, part)


def _struct(draw: Random, part: Callable[[], Kind]) -> Kind:
    return ("struct", tuple((f"f{i}", part()) for i in range(draw.randint(1, 3))))


def draw_value(draw: Random, kind: Kind, nulls: float = 0.15) -> Any:
    """Return a value of a type. Each level is null with this probability."""
    if draw.random() < nulls:
        return None
    match name_of(kind):
        case "array":
            return [draw_value(draw, kind[1], nulls) for _ in range(draw.choice((0, 1, 1, 2, 3)))]
        case "map":
            return _pairs(draw, kind, nulls)
        case "struct":
            return {name: draw_value(draw, part, nulls) for name, part in kind[1]}
    return _scalar(draw, kind)


def _pairs(draw: Random, kind: Kind, nulls: float) -> list[tuple[Any, Any]]:
    pairs: dict[str, tuple[Any, Any]] = {}
    for _ in range(draw.choice((0, 1, 2, 3))):
        key, item = draw_value(draw, kind[1], 0), draw_value(draw, kind[2], nulls)
        pairs[repr(canonical(with_one_zero(key), kind[1]))] = key, item
    return list(pairs.values())


def _scalar(draw: Random, kind: Kind) -> Any:
    match name_of(kind):
        case "string":
            return _text(draw)
        case "binary":
            return draw.choice((b"", b"\0", b"a", b"\xff\xfe", draw.randbytes(draw.randrange(9))))
        case "boolean":
            return draw.random() < 0.5
        case "byte" | "short" | "integer" | "long" as name:
            return _integer(draw, BITS[name])
        case "float":
            return draw.choice(FLOATS)
        case "double":
            return draw.choice((*DOUBLES, draw.uniform(-1e6, 1e6)))
        case "date":
            return draw.choice((*DATES, date(2024, 1, 1) + timedelta(draw.randrange(400))))
        case "timestamp" | "timestamp_ntz":
            return _time(draw, kind)
        case _:
            return _decimal(draw, kind[1], kind[2])


def _text(draw: Random) -> str:
    if draw.random() < 0.8:
        return draw.choice(TEXTS)
    return "".join(chr(draw.choice((97, 233, 0x65E5, 0x1F600))) for _ in range(draw.randrange(20)))


def _integer(draw: Random, bits: int) -> int:
    top = 1 << bits - 1
    return draw.choice((0, 1, -1, 2, 7, top - 1, -top, draw.randrange(-top, top)))


def _time(draw: Random, kind: Kind) -> datetime:
    some = datetime(2024, 1, 1) + timedelta(microseconds=draw.randrange(10**12))
    value = draw.choice((*TIMES, some))
    return value.replace(tzinfo=UTC) if kind == "timestamp" else value


def _decimal(draw: Random, precision: int, scale: int) -> Decimal:
    top = 10**precision - 1
    unscaled = draw.choice((0, 1, -1, top, -top, draw.randint(-top, top)))
    sign, digits = int(unscaled < 0), tuple(map(int, str(abs(unscaled))))
    value = Decimal((sign, digits, -scale))
    assert fits(value, ("decimal", precision, scale))
    return value


def draw_pool(draw: Random, kind: Kind, *, nulls: float, most: int = 5) -> Sequence[Any]:
    """Return a few values for an identity column, so that rows share values."""
    assert is_ordered(kind)
    return [draw_value(draw, kind, nulls) for _ in range(draw.randint(1, most))]
