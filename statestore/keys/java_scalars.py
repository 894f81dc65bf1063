"""``hashCode()`` of the Java types that contain no other value.

The rules are Java's own for String, the boxed numbers, BigInteger, BigDecimal, java.time,
java.sql and UUID. Every function takes the Python value, raises InvalidArgumentError if the type
cannot hold it, and returns a signed 32-bit int.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

from statestore.errors import InvalidArgumentError
from statestore.keys.key_types import DECIMAL_TEXT, JavaType
from statestore.keys.values import (
    NANOS_PER_DAY,
    NANOS_PER_SECOND,
    KeyType,
    RawBits,
    checked_int,
    days_of,
    duration_nanos,
    epoch_nanos,
    nanos_of_day,
    wrong_value,
)

__all__ = ["MAX_TUPLE_ARITY", "SCALAR_HASHES", "U32", "AnyType", "signed", "string_hash"]


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


def _float_bits(name: str, value: object, code: str, size: int) -> int:
    if isinstance(value, RawBits):
        return checked_int(name, value.bits, 0, (1 << 8 * size) - 1)
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise wrong_value(name, value)
    try:
        return int.from_bytes(struct.pack(code, value), "big")
    except OverflowError as error:
        raise InvalidArgumentError(f"{value!r} is out of range for a key of type {name}") from error


def _float(value: object) -> int:
    bits = _float_bits("float", value, ">f", 4)
    return signed(0x7FC00000 if bits & 0x7FFFFFFF > 0x7F800000 else bits)  # all NaNs are equal


def _double(value: object) -> int:
    bits = _float_bits("double", value, ">d", 8)
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
