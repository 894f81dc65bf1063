"""``hashCode()`` of the Java objects that Flink uses as keys, computed for Python values.

The rules are Java's own for String, the boxed numbers, BigInteger, BigDecimal, java.time, java.sql
and UUID. Tuples follow Flink 2.3's ``Tuple0..25``, and rows its ``Row.hashCode``
(``RowUtils.deepHashCode``). Results are signed 32-bit ints. Keys that Flink refuses are refused
here: arrays and enums have an identity hash, which differs in every JVM. Inside a Row, arrays are
hashed by content, as in Flink.

``str`` and ``int`` refuse integers of more than 4,300 digits, because they take quadratic time.
:func:`digits_of` and :func:`integer_of` split a number in halves and join the halves by fast
multiplication: Decimal's to write digits, Python's own to read them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import (
    MAX_EMAX,
    MAX_PREC,
    MIN_EMIN,
    Context,
    Decimal,
    Inexact,
    InvalidOperation,
    localcontext,
)
from enum import Enum
from numbers import Integral
from typing import Any, Final, TypeAlias
from uuid import UUID

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.keys.key_types import (
    DECIMAL_TEXT,
    NANOS_PER_DAY,
    NANOS_PER_SECOND,
    ROW_KINDS,
    JavaType,
    KeyType,
    Row,
    Typed,
    checked_int,
    days_of,
    duration_nanos,
    epoch_nanos,
    float_bits,
    java_type,
    nanos_of_day,
    wrong_value,
)

_DIGITS: Final = 4_000
_BITS: Final = 1_024
_EVERY_DIGIT: Final = Context(MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Inexact])


def digits_of(number: int) -> str:
    """Return an integer in decimal digits, with a minus sign if it is negative."""
    if abs(number) < 10**_DIGITS:
        return str(number)
    powers: dict[int, Decimal] = {}

    def power(bits: int) -> Decimal:
        result = powers.get(bits)
        if result is None:
            half = bits // 2
            result = Decimal(1 << bits) if bits <= _BITS else power(half) * power(bits - half)
            powers[bits] = result
        return result

    def decimal(part: int, bits: int) -> Decimal:
        if bits <= _BITS:
            return Decimal(part)
        low = bits // 2
        high = decimal(part >> low, bits - low)
        return high * power(low) + decimal(part & (1 << low) - 1, low)

    with localcontext(_EVERY_DIGIT):
        digits = str(decimal(abs(number), number.bit_length()))
    return f"-{digits}" if number < 0 else digits


def integer_of(text: str) -> int:
    """Return the integer that a text of decimal digits represents, with or without a sign.

    Raises ValueError for any other text.
    """
    if len(text) <= _DIGITS:
        return int(text)
    digits = text[1:] if text[0] in "+-" else text
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text[:20]}… is not a whole number")

    def integer(start: int, stop: int) -> int:
        if stop - start <= _DIGITS:
            return int(digits[start:stop])
        middle = (start + stop) // 2
        behind = stop - middle
        power: int = 5**behind
        return (integer(start, middle) * power << behind) + integer(middle, stop)

    number = integer(0, len(digits))
    return -number if text[0] == "-" else number


# Each value has exactly one accepted text: another spelling would be another key of the same group.
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WHOLE: Final = re.compile("0|-?[1-9][0-9]*", re.ASCII)
_DECIMAL: Final = re.compile(DECIMAL_TEXT)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAYS_PER_ERA: Final = 146_097  # 400 years, after which the calendar repeats


def signed(value: int) -> int:
    """Return ``value`` wrapped to 32 bits, as Java's int arithmetic does."""
    value &= U32
    return value - (value >> 31 << 32)


def string_hash(text: str) -> int:
    """Return ``String.hashCode()`` over UTF-16 code units; a lone surrogate is one code unit."""
    h = 0
    for unit in _code_units(text):
        h = h * 31 + unit & U32
    return h - (h >> 31 << 32)


def _code_units(text: str) -> Iterable[int]:
    if text.isascii():
        return text.encode("ascii")
    data = text.encode("utf-16-le", "surrogatepass")
    return struct.unpack(f"<{len(data) // 2}H", data)


def _long(value: int) -> int:
    return signed(value ^ value >> 32)


def _integer(name: str, bits: int) -> Callable[[object], int]:
    low, high = -1 << bits - 1, (1 << bits - 1) - 1

    def check(value: object) -> int:
        return checked_int(name, value, low, high)

    return check


_INT: Final = _integer("int", 32)
_LONG: Final = _integer("long", 64)


def _string(value: object) -> int:
    if isinstance(value, str):
        return string_hash(value)
    raise wrong_value("string", value)


def _boolean(value: object) -> int:
    if isinstance(value, bool):
        return 1231 if value else 1237
    raise wrong_value("boolean", value)


def _char(value: object) -> int:
    if isinstance(value, str) and len(value) == 1:
        value = ord(value)
    return checked_int("char", value, 0, 0xFFFF)


def _float(value: object) -> int:
    bits = float_bits("float", value, "f")
    return signed(0x7FC00000 if bits & 0x7FFFFFFF > 0x7F800000 else bits)  # all NaNs are equal


def _double(value: object) -> int:
    bits = float_bits("double", value, "d")
    return _long(0x7FF8 << 48 if bits & (1 << 63) - 1 > 0x7FF << 52 else bits)  # all NaNs are equal


def _biginteger(value: object) -> int:
    is_whole = isinstance(value, Decimal) and value.is_finite() and value % 1 == 0
    if is_whole or (isinstance(value, str) and _WHOLE.fullmatch(value)):
        value = int(value)  # type: ignore[call-overload]
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_value("biginteger", value)
    magnitude, h = abs(value), 0
    for shift in range(magnitude.bit_length() // 32 * 32, -1, -32):
        h = h * 31 + (magnitude >> shift & U32)
    return signed(h if value >= 0 else -h)


def _decimal(value: object) -> int:
    if isinstance(value, str) and _DECIMAL.search(value) and str(Decimal(value)) == value:
        value = Decimal(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        raise InvalidArgumentError(
            f"a key of type decimal must be a finite Decimal, not {type(value).__name__} {value!r}"
        )
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits)))
    return signed(31 * _biginteger(-unscaled if sign else unscaled) - int(exponent))


def _date_of(days: int) -> int:
    era, day = divmod(days + _EPOCH_DAY - 1, _DAYS_PER_ERA)
    civil = date.fromordinal(day + 1)
    year = civil.year + 400 * era
    return signed((year & 0xFFFFF800) ^ (year << 11) + (civil.month << 6) + civil.day)


def _datetime(value: object) -> int:
    days, nanos = divmod(epoch_nanos("datetime", value, zoned=False), NANOS_PER_DAY)
    return signed(_date_of(days) ^ _long(nanos))


def _second_and_nano(nanos: int) -> int:
    second, nano = divmod(nanos, NANOS_PER_SECOND)
    return signed(_long(second) + 51 * nano)


def _sql_timestamp(value: object) -> int:
    if isinstance(value, datetime):
        return _long(epoch_nanos("sql_timestamp", value, zoned=True) // 1_000_000)
    return _sql_millis("sql_timestamp")(value)


def _sql_millis(name: str) -> Callable[[object], int]:
    return lambda value: _long(checked_int(name, value, -1 << 63, (1 << 63) - 1))


def _uuid(value: object) -> int:
    if isinstance(value, bytes | bytearray | memoryview) and len(value) == 16:
        value = UUID(bytes=bytes(value))
    elif isinstance(value, str) and _UUID.fullmatch(value):
        value = UUID(value)
    if not isinstance(value, UUID):
        raise wrong_value("uuid", value)
    return _long(value.int >> 64 ^ value.int & (1 << 64) - 1)


# Each function takes the Python value and returns a signed 32-bit int. It raises
# InvalidArgumentError if the type cannot hold the value.
SCALAR_HASHES: Final[dict[str, Callable[[object], int]]] = {
    "String": _string,
    "Boolean": _boolean,
    "Byte": _integer("byte", 8),
    "Short": _integer("short", 16),
    "Integer": _INT,
    "Long": lambda value: _long(_LONG(value)),
    "Float": _float,
    "Double": _double,
    "Character": _char,
    "BigDecimal": _decimal,
    "BigInteger": _biginteger,
    "LocalDate": lambda value: _date_of(days_of("date", value)),
    "LocalTime": lambda value: _long(nanos_of_day("time", value)),
    "LocalDateTime": _datetime,
    "Instant": lambda value: _second_and_nano(epoch_nanos("instant", value, zoned=True)),
    "Duration": lambda value: _second_and_nano(duration_nanos("duration", value)),
    # Epoch milliseconds. A java.sql.Date uses the JVM's local midnight, so only ints are exact.
    "java.sql.Timestamp": _sql_timestamp,
    "java.sql.Date": _sql_millis("sql_date"),
    "java.sql.Time": _sql_millis("sql_time"),
    "UUID": _uuid,
}

MAX_TUPLE_ARITY: Final = 25
U32: Final = 0xFFFFFFFF
AnyType: TypeAlias = "KeyType | JavaType | Sequence[AnyType]"


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
