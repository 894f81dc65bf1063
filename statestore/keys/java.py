"""``hashCode()`` of the Java objects that Flink uses as keys, computed for Python values.

The rules are Java's own for the types below. Tuples follow Flink 2.3's ``Tuple0..25``, and rows its
``Row.hashCode`` (``RowUtils.deepHashCode``). Results are signed 32-bit ints. Keys that Flink
refuses are refused here: arrays and enums have an identity hash, which differs in every JVM. Inside
a Row, arrays are hashed by content, as in Flink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import Enum
from numbers import Integral
from typing import Any, Final
from uuid import UUID

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.keys.java_scalars import MAX_TUPLE_ARITY, SCALAR_HASHES, U32, AnyType, signed
from statestore.keys.key_types import JavaType, java_type
from statestore.keys.values import (
    ROW_KINDS,
    Row,
    Typed,
    wrong_value,
)

__all__ = ["java_hash", "row_hash"]


_EXACT: Final = Context(prec=1000, traps=[Inexact, InvalidOperation])


def java_hash(value: object, key_type: AnyType = None) -> int:
    """Return the ``hashCode()`` of ``value`` as the Java type ``key_type``.

    None hashes to 0, as in a Tuple. Raises UnsupportedTypeError for a type without a stable hash,
    InvalidArgumentError for a value that its type cannot hold.
    """
    if key_type is None:
        plain = _PLAIN.get(type(value))
        if plain is not None:
            return plain(value)
    value, value_type = _resolve(value, key_type)
    if value is None:
        return 0
    name, parts = value_type.name, value_type.parts
    scalar = SCALAR_HASHES.get(name)
    if scalar is not None:
        return scalar(_set_scale(value, value_type))
    if name == "Tuple":
        return _tuple_hash(_elements("tuple", value), parts)
    if name == "List":
        element = parts[0] if parts else None
        return _polynomial(java_hash(item, element) for item in _elements("list", value))
    if name == "Map":
        of_key, of_value = parts or (None, None)
        return signed(sum(java_hash(k, of_key) ^ java_hash(v, of_value) for k, v in _pairs(value)))
    if name in ("Row", "NamedRow"):
        return row_hash(value if isinstance(value, Row) else Row(value), parts)  # type: ignore[arg-type]
    raise UnsupportedTypeError(
        f"a key of type {value_type} has an identity hash in Java, which differs in every JVM, and "
        "Flink rejects it as a key of a DataStream job: it has a stable key group only in a "
        "Row, or with the scheme pyflink or flink-sql"
    )


def row_hash(row: Row, types: Sequence[AnyType] | None = None) -> int:
    """Return ``Row.hashCode()`` of kind and fields; arrays and collections count by content."""
    kind_hash = 31 * ROW_KINDS[row.kind]
    kinds = types if types is not None else [None] * len(row.fields)
    if len(kinds) != len(row.fields):
        raise InvalidArgumentError(
            f"the row has {len(row.fields)} fields but {len(kinds)} types: pass one type for each"
        )
    if isinstance(row.fields, Mapping):
        fields = zip(row.fields.items(), kinds, strict=True)
        named = sum(
            _deep_hash(name, "string") ^ _deep_hash(field, field_value)
            for (name, field), field_value in fields
        )
        return signed(kind_hash + 1 + named)
    typed = zip(_elements("row", row.fields), kinds, strict=True)
    return signed(
        kind_hash + _polynomial(_deep_hash(field, field_value) for field, field_value in typed)
    )


def _deep_hash(value: object, key_type: AnyType = None) -> int:
    value, value_type = _resolve(value, key_type)
    if value is None:
        return 0
    name, parts = value_type.name, value_type.parts
    if name in ("List", "Array"):
        element = parts[0] if parts else None
        return _polynomial(_deep_hash(item, element) for item in _elements("list", value))
    if name == "Map":
        of_key, of_value = parts or (None, None)
        return signed(
            1 + sum(_deep_hash(k, of_key) ^ _deep_hash(v, of_value) for k, v in _pairs(value))
        )
    if name == "byte[]" and not isinstance(value, list | tuple):
        return signed(31 + _polynomial(byte - (byte >> 7 << 8) for byte in _bytes(value)))
    if value_type.primitive is not None:
        scalar = SCALAR_HASHES[value_type.primitive.name]
        return signed(31 + _polynomial(scalar(item) for item in _elements(name, value)))
    return signed(31 + java_hash(value, value_type))


def _set_scale(value: object, value_type: JavaType) -> object:
    """Return a decimal with the scale of its type; any other value unchanged."""
    if value_type.digits is None:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        return value
    precision, scale = value_type.digits
    try:
        wanted = value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except (Inexact, InvalidOperation) as error:
        raise InvalidArgumentError(f"{value} does not fit {value_type}: round it first") from error
    if len(wanted.as_tuple().digits) > precision:
        raise InvalidArgumentError(f"{value} has more than the {precision} digits of {value_type}")
    return wanted


def _resolve(value: object, key_type: AnyType) -> tuple[object, JavaType]:
    """Return the bare value and its type."""
    while isinstance(value, Typed):
        key_type, value = value.type, value.value
    if isinstance(value, Enum):
        raise UnsupportedTypeError(
            f"{value!r} is an enum, whose hash differs in every JVM: use its name or value as "
            "the key"
        )
    if key_type is None:
        return value, java_type("string" if value is None else _name_of(value))
    if isinstance(key_type, JavaType):
        return value, key_type
    if isinstance(key_type, str):
        return value, java_type(key_type)
    return value, _type_of_field(key_type)


def _type_of_field(key_type: AnyType) -> Any:
    """Return the type of a tuple's field; None if the type depends on the value."""
    if key_type is None or isinstance(key_type, JavaType):
        return key_type
    if isinstance(key_type, str):
        return java_type(key_type)
    if not isinstance(key_type, Sequence):
        raise InvalidArgumentError(
            f"a key type must be a name or a sequence of types, not {type(key_type).__name__}"
        )
    return JavaType("Tuple", tuple(map(_type_of_field, key_type)))


def _name_of(value: object) -> str:
    for ancestor in type(value).__mro__:
        name = _BY_CLASS.get(ancestor)
        if name == "datetime" and isinstance(value, datetime):
            return "instant" if value.utcoffset() is not None else "datetime"
        if name is not None:
            return name
    if isinstance(value, Row):
        return "named_row" if isinstance(value.fields, Mapping) else "row"
    if isinstance(value, Integral):
        return "long"
    raise UnsupportedTypeError(
        f"a key cannot be of type {type(value).__name__}: use str, int, float, bool, Decimal, "
        "date, time, datetime, timedelta, UUID, or a tuple of these"
    )


def _tuple_hash(fields: Sequence[object], types: Sequence[AnyType] | None) -> int:
    if types is not None and len(types) != len(fields):
        raise InvalidArgumentError(f"the key has {len(fields)} fields but {len(types)} key types")
    if len(fields) > MAX_TUPLE_ARITY:
        raise UnsupportedTypeError(
            f"Flink has no tuple of {len(fields)} fields (at most {MAX_TUPLE_ARITY}): use "
            "nested tuples"
        )
    h = 0  # a list starts with 1, a tuple with 0
    for field, key_type in zip(fields, types or [None] * len(fields), strict=True):
        h = h * 31 + java_hash(field, key_type) & U32
    return signed(h)


def _polynomial(hashes: Iterable[int]) -> int:
    h = 1
    for element in hashes:
        h = h * 31 + element & U32
    return signed(h)


def _elements(name: str, value: object) -> Sequence[object]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return value
    raise wrong_value(name, value)


def _pairs(value: object) -> Iterable[tuple[object, object]]:
    """Return the entries of a dict or of a list of pairs, for keys that Python cannot hash."""
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

# The common key types skip the type resolution.
_PLAIN: Final[dict[type, Callable[[object], int]]] = {
    python_type: SCALAR_HASHES[java_type(_BY_CLASS[python_type]).name]
    for python_type in (str, int, bool, float, date)
}
