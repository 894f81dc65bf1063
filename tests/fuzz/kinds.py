"""Column types as plain values, the values of each, and when two values are equal.

This module does not use the store. A kind is a name (``"long"``) or a tuple: ``("decimal", 10,
2)``, ``("array", kind)``, ``("map", key, value)``, ``("struct", (("a", kind), …))``. Values are
Python values: an array is a list, a map is a list of pairs, and a struct is a dictionary. A history
of such values can be printed and run again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

__all__ = [
    "SCALARS",
    "Kind",
    "canonical",
    "depth",
    "fits",
    "fitted",
    "is_ordered",
    "kind_text",
    "plain",
    "wider",
]

Kind = Any
"""A name, or a tuple as described in the module's docstring."""

BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
SCALARS: tuple[Kind, ...] = (
    *("string", "binary", "boolean", *BITS, "float", "double", "date", "timestamp"),
    *("timestamp_ntz", ("decimal", 10, 2), ("decimal", 38, 18), ("decimal", 5, 0)),
    *(("decimal", 38, 38), ("decimal", 18, 18)),
)
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_EXACT = Context(prec=100)


def name_of(kind: Kind) -> str:
    return kind if isinstance(kind, str) else str(kind[0])


def children(kind: Kind) -> tuple[Kind, ...]:
    match name_of(kind):
        case "array":
            return (kind[1],)
        case "map":
            return (kind[1], kind[2])
        case "struct":
            return tuple(inner for _, inner in kind[1])
    return ()


def depth(kind: Kind) -> int:
    """Return 0 for a scalar, and one more for each enclosing level."""
    inner = children(kind)
    return 1 + max(map(depth, inner)) if inner else 0


def is_ordered(kind: Kind) -> bool:
    """Return whether the type can identify rows, which requires that it contains no map."""
    return name_of(kind) != "map" and all(map(is_ordered, children(kind)))


def kind_text(kind: Kind) -> str:
    """Return a type in SQL notation."""
    match name_of(kind):
        case "decimal":
            return f"decimal({kind[1]},{kind[2]})"
        case "struct":
            return f"struct<{', '.join(f'`{name}`: {kind_text(part)}' for name, part in kind[1])}>"
        case "array" | "map" as outer:
            return f"{outer}<{', '.join(map(kind_text, kind[1:]))}>"
    names = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
    return names.get(kind, str(kind))


def fits(value: Any, kind: Kind) -> bool:
    """Return whether a value has exactly this type."""
    if value is None:
        return True
    match name_of(kind):
        case "array":
            return isinstance(value, list) and all(fits(part, kind[1]) for part in value)
        case "map":
            return isinstance(value, list) and all(
                fits(key, kind[1]) and fits(item, kind[2]) for key, item in value
            )
        case "struct":
            known = dict(kind[1])
            return isinstance(value, dict) and all(
                name in known and fits(part, known[name]) for name, part in value.items()
            )
    return _scalar_fits(value, kind)


def _scalar_fits(value: Any, kind: Kind) -> bool:
    match name_of(kind), value:
        case "boolean", bool():
            return True
        case ("byte" | "short" | "integer" | "long") as name, int() if type(value) is int:
            return -(1 << BITS[name] - 1) <= value < 1 << BITS[name] - 1
        case "double", float():
            return True
        case "float", float():
            return value != value or _as_float(value) == value
        case ("string", str()) | ("binary", bytes()):
            return True
        case "timestamp", datetime():
            return value.tzinfo is not None
        case "timestamp_ntz", datetime():
            return value.tzinfo is None
        case "date", date():
            return not isinstance(value, datetime)
        case "decimal", Decimal():
            scaled = value.scaleb(kind[2], _EXACT)
            return scaled == int(scaled) and abs(int(scaled)) < 10 ** kind[1]
    return False


def _as_float(value: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("nan")


def fitted(value: Any, kind: Kind) -> Any:
    """Return a value converted to the type, from the same or a narrower type, or None if that is
    impossible.

    A struct gets its missing fields as nulls.
    """
    if value is None:
        return None
    match name_of(kind), value:
        case "array", list():
            return [fitted(part, kind[1]) for part in value]
        case "map", list():
            pairs = ((fitted(key, kind[1]), fitted(item, kind[2])) for key, item in value)
            return [pair for pair in pairs if pair[0] is not None]
        case "struct", dict():
            return {name: fitted(value.get(name), part) for name, part in kind[1]}
        case "double", int() if type(value) is int and abs(value) < 2**53:
            return float(value)
        case "decimal", int() if type(value) is int:
            return fitted(Decimal(value), kind)
        case "timestamp_ntz", date() if not isinstance(value, datetime):
            return datetime(value.year, value.month, value.day)
    return value if _scalar_fits(value, kind) else None


def wider(kind: Kind, choice: int) -> Kind:
    """Return a type that contains every value of ``kind`` and more, according to Delta's type
    widening, or ``kind`` itself if there is none.
    """
    match name_of(kind):
        case "byte" | "short" | "integer" as name:
            after = [*BITS][[*BITS].index(name) + 1 :]
            return [*after, "double", ("decimal", 12, 2)][choice % (len(after) + 2)]
        case "long":
            return ("decimal", 20 + choice % 5, choice % 5)
        case "float":
            return "double"
        case "date":
            return "timestamp_ntz"
        case "decimal":
            more = min(choice % 4, 38 - kind[1])
            return ("decimal", kind[1] + more, kind[2] + choice % (more + 1))
        case "array":
            return ("array", wider(kind[1], choice))
        case "map":
            return ("map", kind[1], wider(kind[2], choice))
        case "struct":
            fields = tuple((name, wider(part, choice)) for name, part in kind[1])
            new = f"more{len(fields)}"
            return ("struct", (*fields, (new, "string")) if choice % 2 else fields)
    return kind


def canonical(value: Any, kind: Kind) -> Any:
    """Return a hashable form of a value, which is equal exactly for equal values.

    NaN equals NaN, 0.0 differs from -0.0, and a struct of nulls differs from null.
    """
    if value is None:
        return None
    match name_of(kind):
        case "array":
            return ("array", *(canonical(part, kind[1]) for part in value))
        case "map":
            pairs = [(canonical(key, kind[1]), canonical(item, kind[2])) for key, item in value]
            return ("map", *sorted(pairs, key=repr))
        case "struct":
            return ("struct", *(canonical(value.get(name), part) for name, part in kind[1]))
        case "float" | "double":
            return "nan" if value != value else struct.pack("<d", value)
        case "decimal":
            return int(value.scaleb(kind[2], _EXACT))
        case "timestamp":
            return (value.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // _MICROSECOND
        case "timestamp_ntz":
            return (value - _EPOCH) // _MICROSECOND
        case "date":
            return value.toordinal()
    return value


def plain(value: Any, kind: Kind) -> Any:
    """Return a reader's value as a test value; raise AssertionError if it has another type.

    Readers return a map as a dictionary, pairs, or structs of key and value. They return a struct
    as a row with named fields, and bytes as views.
    """
    if value is None:
        return None
    match name_of(kind):
        case "array":
            return [plain(part, kind[1]) for part in value]
        case "map":
            return [(plain(key, kind[1]), plain(item, kind[2])) for key, item in _pairs(value)]
        case "struct":
            known = value if isinstance(value, Mapping) else value.asDict()
            assert set(known) == {name for name, _ in kind[1]}, f"fields {known} of {kind}"
            return {name: plain(known[name], part) for name, part in kind[1]}
        case "binary":
            value = bytes(value)
        case "timestamp":
            value = value.astimezone(UTC)
    assert fits(value, kind), f"{value!r} is no {kind_text(kind)}"
    return value


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return list(value.items())
    return [(p["key"], p["value"]) if isinstance(p, Mapping) else (p[0], p[1]) for p in value]
