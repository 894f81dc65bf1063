"""``hashCode()`` of the Java objects that Flink keys by, for Python values.

The contract is Java's own for the types of ``javascalars``, Flink 2.3's ``Tuple0..25``, and
its ``Row.hashCode`` (``RowUtils.deepHashCode``) for rows; results are signed 32-bit ints. What
Flink refuses as a key is refused: arrays and enums have an identity hash, different in every JVM.
Inside a Row, arrays count by content, as in Flink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from numbers import Integral
from typing import Final
from uuid import UUID

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.model.javascalars import SCALAR_HASHES, signed, string_hash
from statestore.model.keyvalues import ROW_KINDS, KeyType, Row, Typed, wrong_value

__all__ = ["JAVA_TYPES", "MAX_TUPLE_ARITY", "java_hash", "row_hash", "string_hash"]

MAX_TUPLE_ARITY: Final = 25
_U32: Final = 0xFFFFFFFF


def java_hash(value: object, key_type: KeyType = None) -> int:
    """The ``hashCode()`` of ``value`` as the Java type ``key_type``; 0 for None, as in a Tuple.

    Raises UnsupportedTypeError for what has no stable hash, InvalidArgumentError for a value that
    its type cannot hold.
    """
    if key_type is None:
        plain = _PLAIN.get(type(value))
        if plain is not None:
            return plain(value)
    value, name, inner = _resolve(value, key_type)
    if value is None:
        return 0
    scalar = SCALAR_HASHES.get(name)
    if scalar is not None:
        return scalar(value)
    if name == "tuple":
        return _tuple_hash(_elements(name, value), inner)
    if name == "list":
        return _polynomial(java_hash(element) for element in _elements(name, value))
    if name == "map":
        return signed(sum(java_hash(k) ^ java_hash(v) for k, v in _pairs(value)))
    if name in ("row", "named_row"):
        return row_hash(value if isinstance(value, Row) else Row(value))  # type: ignore[arg-type]
    raise UnsupportedTypeError(
        f"a key of type {name} has an identity hash in Java and Flink refuses it: "
        "key by a string (for instance the hex digits) or by a tuple of the elements"
    )


def row_hash(row: Row) -> int:
    """``Row.hashCode()``: kind and fields, arrays and collections by content."""
    kind = 31 * ROW_KINDS[row.kind]
    if isinstance(row.fields, Mapping):
        named = sum(_deep(name, "string") ^ _deep(field) for name, field in row.fields.items())
        return signed(kind + 1 + named)
    return signed(kind + _polynomial(_deep(field) for field in _elements("row", row.fields)))


def _deep(value: object, key_type: KeyType = None) -> int:
    value, name, inner = _resolve(value, key_type)
    if value is None:
        return 0
    if name in ("list", "array"):
        return _polynomial(_deep(element) for element in _elements(name, value))
    if name == "map":
        return signed(1 + sum(_deep(k) ^ _deep(v) for k, v in _pairs(value)))
    if name == "bytes":
        return signed(31 + _polynomial(byte - (byte >> 7 << 8) for byte in _bytes(value)))
    if name == "int_array":
        return signed(
            31 + _polynomial(SCALAR_HASHES["int"](element) for element in _elements(name, value))
        )
    return signed(31 + java_hash(value, inner if name == "tuple" and inner else name))


def _resolve(value: object, key_type: KeyType) -> tuple[object, str, Sequence[KeyType]]:
    """The bare value, the name of its type, and the types of a tuple's fields where given."""
    while isinstance(value, Typed):
        key_type, value = value.type, value.value
    if isinstance(value, Enum):
        raise UnsupportedTypeError(
            f"{value!r} is an enum, whose hash differs in every JVM: key by its name or value"
        )
    if key_type is None:
        return value, "" if value is None else _name_of(value), ()
    if not isinstance(key_type, str):
        return value, "tuple", key_type
    if key_type not in JAVA_TYPES:
        raise InvalidArgumentError(
            f"key type {key_type!r} does not exist: use one of {', '.join(sorted(JAVA_TYPES))}"
        )
    return value, key_type, ()


def _name_of(value: object) -> str:
    for kind in type(value).__mro__:
        name = _BY_CLASS.get(kind)
        if name == "datetime" and isinstance(value, datetime):
            return "instant" if value.utcoffset() is not None else "datetime"
        if name is not None:
            return name
    if isinstance(value, Row):
        return "named_row" if isinstance(value.fields, Mapping) else "row"
    if isinstance(value, Integral):
        return "long"
    raise UnsupportedTypeError(
        f"a key cannot be a {type(value).__name__}: use str, int, float, bool, Decimal, date, "
        "time, datetime, timedelta, UUID, or a tuple of these"
    )


def _tuple_hash(fields: Sequence[object], types: Sequence[KeyType]) -> int:
    if types and len(types) != len(fields):
        raise InvalidArgumentError(f"the key has {len(fields)} fields but {len(types)} key types")
    if len(fields) > MAX_TUPLE_ARITY:
        raise UnsupportedTypeError(
            f"Flink has no tuple of {len(fields)} fields (at most {MAX_TUPLE_ARITY}): nest tuples"
        )
    h = 0  # not 1 as for a list: the first field counts bare
    for field, key_type in zip(fields, types or [None] * len(fields), strict=True):
        h = h * 31 + java_hash(field, key_type) & _U32
    return signed(h)


def _polynomial(hashes: Iterable[int]) -> int:
    h = 1
    for element in hashes:
        h = h * 31 + element & _U32
    return signed(h)


def _elements(name: str, value: object) -> Sequence[object]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return value
    raise wrong_value(name, value)


def _pairs(value: object) -> Iterable[tuple[object, object]]:
    """Entries of a dict, or of a list of pairs (Python cannot hash every key that Java can)."""
    if isinstance(value, Mapping):
        return value.items()
    pairs = [_elements("map", pair) for pair in _elements("map", value)]
    if any(len(pair) != 2 for pair in pairs):
        raise InvalidArgumentError(
            "a key of type map needs a dict or a sequence of (key, value) pairs"
        )
    return [(pair[0], pair[1]) for pair in pairs]


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise wrong_value("bytes", value)


_COMPOSITES: Final = ("tuple", "list", "map", "row", "named_row", "array", "int_array", "bytes")

JAVA_TYPES: Final = frozenset((*SCALAR_HASHES, *_COMPOSITES))
"""The type names that a key may be hashed as; arrays only inside a Row."""

_BY_CLASS: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "long",
    float: "double",
    Decimal: "decimal",
    datetime: "datetime",
    date: "date",
    time: "time",
    timedelta: "duration",
    UUID: "uuid",
    tuple: "tuple",
    list: "list",
    dict: "map",
    bytes: "bytes",
    bytearray: "bytes",
    memoryview: "bytes",
}

# The common keys skip the resolution of types.
_PLAIN: Final[dict[type, Callable[[object], int]]] = {
    kind: SCALAR_HASHES[_BY_CLASS[kind]] for kind in (str, int, bool, float, date)
}
