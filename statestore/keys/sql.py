"""Flink SQL's key: the bytes of a ``BinaryRowData`` and their Murmur3 hash.

The contract is Flink 2.3's ``BinaryRowData``, ``BinaryRowWriter`` and ``MurmurHashUtils`` as the
planner's ``KeySelectorUtil`` uses them. A row has a header with the null bits, eight bytes per
column, then a variable part, all little-endian. Murmur3-x86-32 with seed 42 hashes it. A NULL
column is an ordinary key. Values must already have the declared precision and scale. A value that
would need rounding is refused, because rounding would silently merge keys.
"""

from __future__ import annotations

import re
import struct
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.keys.key_types import (
    checked_int,
    days_of,
    epoch_nanos,
    float_bits,
    nanos_of_day,
    wrong_value,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_U32: Final = 0xFFFFFFFF
_U64: Final = (1 << 64) - 1
_INTEGER_BYTES: Final = {"TINYINT": 1, "SMALLINT": 2, "INT": 4, "BIGINT": 8}
_TEXT: Final = frozenset({"CHAR", "VARCHAR", "STRING"})
_BINARY: Final = frozenset({"BINARY", "VARBINARY", "BYTES"})
_ALIASES: Final = {"INTEGER": "INT", "NUMERIC": "DECIMAL", "DEC": "DECIMAL"}
_DEFAULT_PRECISION: Final = {
    **dict.fromkeys([*_INTEGER_BYTES, "BOOLEAN", "FLOAT", "DOUBLE", "DATE"], 0),
    **dict.fromkeys(["STRING", "BYTES"], 2**31 - 1),
    **dict.fromkeys(["CHAR", "VARCHAR", "BINARY", "VARBINARY"], 1),
    **dict.fromkeys(["TIMESTAMP", "TIMESTAMP_LTZ"], 6),
    "TIME": 0,
    "DECIMAL": 10,
}
_SIZED: Final = ("CHAR", "VARCHAR", "BINARY", "VARBINARY", "TIME", "TIMESTAMP", "TIMESTAMP_LTZ")
_TYPE: Final = re.compile(r"([A-Z_]+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?(?:\s+(?:NOT )?NULL)?")


class SqlType(NamedTuple):
    """A parsed SQL type: its name, its precision (or length) and its scale."""

    name: str
    precision: int
    scale: int

    def __str__(self) -> str:
        """Return the type as it is recorded with a state."""
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision}, {self.scale})"
        sized = self.name in _SIZED
        return f"{self.name}({self.precision})" if sized else self.name

    @property
    def reserved(self) -> int:
        """The bytes of the variable part that even a NULL occupies: 16, 8 or 0."""
        if self.name == "DECIMAL" and self.precision > 18:
            return 16
        return 8 if self.name in ("TIMESTAMP", "TIMESTAMP_LTZ") and self.precision > 3 else 0


@lru_cache(maxsize=256)
def parse_sql_type(text: str) -> SqlType:
    """Parse a type such as ``"DECIMAL(10, 2)"``; UnsupportedTypeError if it cannot be a key."""
    match = _TYPE.fullmatch(text.strip().upper())
    name = _ALIASES.get(match[1], match[1]) if match else ""
    if match is None or name not in _DEFAULT_PRECISION:
        raise UnsupportedTypeError(
            f"SQL type {text!r} cannot be a key: use one of {', '.join(sorted(_DEFAULT_PRECISION))}"
        )
    precision = int(match[2]) if match[2] else _DEFAULT_PRECISION[name]
    scale = int(match[3]) if match[3] else 0
    if name == "DECIMAL" and not 0 <= scale <= precision <= 38:
        raise InvalidArgumentError(f"{text!r}: 0 <= scale <= precision <= 38 must hold")
    if name.startswith("TIME") and precision > 9:
        raise InvalidArgumentError(f"{text!r}: precision must be in 0..9")
    return SqlType(name, precision, scale)


def default_sql_type(value: object) -> str:
    """Return the default SQL type of a Python value.

    Raises InvalidArgumentError for NULL and Decimal, whose bytes depend on the declared type.
    """
    if value is None or isinstance(value, Decimal):
        raise InvalidArgumentError(
            f"the bytes of {value!r} depend on the declared SQL type: give key_type, "
            'for instance "DECIMAL(10, 2)"'
        )
    if isinstance(value, datetime):
        return "TIMESTAMP(6)" if value.utcoffset() is None else "TIMESTAMP_LTZ(6)"
    for python_type, name in _DEFAULTS:
        if isinstance(value, python_type):
            return name
    raise UnsupportedTypeError(
        f"a {type(value).__name__} has no SQL key type: use str, int, bool, float, bytes, date, "
        "time, datetime, or Decimal with key_type"
    )


_DEFAULTS: Final[tuple[tuple[type, str], ...]] = (
    (bool, "BOOLEAN"),
    (str, "STRING"),
    (int, "BIGINT"),
    (float, "DOUBLE"),
    (date, "DATE"),
    (time, "TIME(3)"),
    (bytes, "BYTES"),
)


def binary_row(values: Sequence[object], types: Sequence[str]) -> bytes:
    """Return the ``BinaryRowData`` bytes of one key: eight zero bytes for a key without columns.

    In addition to plain Python values, DATE accepts days since 1970-01-01, TIME nanoseconds of the
    day, TIMESTAMP and TIMESTAMP_LTZ nanoseconds since 1970-01-01T00:00, FLOAT and DOUBLE
    :class:`RawBits`.
    """
    if len(values) != len(types):
        raise InvalidArgumentError(
            f"the key has {len(values)} columns but {len(types)} key types; pass one type for each "
            "column"
        )
    count = len(values)
    header = 8 * ((count + 71) // 64)
    row = bytearray(header)
    variable = bytearray()
    for index, (value, text) in enumerate(zip(values, types, strict=True)):
        sql_type = parse_sql_type(text)
        offset = header + 8 * count + len(variable)
        if value is None:
            row[(index + 8) // 8] |= 1 << (index + 8) % 8
            slot, tail = (offset << 32 if sql_type.reserved else 0), bytes(sql_type.reserved)
        else:
            slot, tail = _encode(sql_type, value, offset)
        row += slot.to_bytes(8, "little")
        variable += tail
    return bytes(row + variable)


def sql_row_hash(row: bytes) -> int:
    """Return ``BinaryRowData.hashCode()``: Murmur3-x86-32 with seed 42, of whole words."""
    h = 42
    for (word,) in struct.iter_unpack("<I", row):
        k = word * 0xCC9E2D51 & _U32
        h ^= (k << 15 | k >> 17) * 0x1B873593 & _U32
        h = (h << 13 & _U32 | h >> 19) * 5 + 0xE6546B64 & _U32
    h ^= len(row)
    h = (h ^ h >> 16) * 0x85EBCA6B & _U32
    h = (h ^ h >> 13) * 0xC2B2AE35 & _U32
    h ^= h >> 16
    return h - (h >> 31 << 32)


def _encode(sql_type: SqlType, value: object, offset: int) -> tuple[int, bytes]:
    """Return the eight fixed bytes as a little-endian number, and the variable part."""
    name = sql_type.name
    if name in _INTEGER_BYTES:
        bits = 8 * _INTEGER_BYTES[name]
        number = checked_int(name, value, -1 << bits - 1, (1 << bits - 1) - 1)
        return number & (1 << bits) - 1, b""
    if name == "BOOLEAN":
        if not isinstance(value, bool):
            raise wrong_value(name, value)
        return int(value), b""
    if name in ("FLOAT", "DOUBLE"):
        return float_bits(name, value, "f" if name == "FLOAT" else "d"), b""
    if name == "DATE":
        return checked_int(name, days_of(name, value), -1 << 31, (1 << 31) - 1) & _U32, b""
    if name == "TIME":
        # A TIME is stored in milliseconds, regardless of its declared precision.
        return _exact_integer(
            sql_type, nanos_of_day(name, value), min(sql_type.precision, 3)
        ) // 10**6, b""
    if name == "DECIMAL":
        return _decimal(sql_type, value, offset)
    if name in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return _timestamp(sql_type, value, offset)
    return _inline_or_variable(_raw_bytes(sql_type, value), offset)


def _exact_integer(sql_type: SqlType, nanos: int, digits: int) -> int:
    if nanos % 10 ** (9 - digits):
        raise InvalidArgumentError(
            f"{sql_type.name}({sql_type.precision}) keeps {digits} digits of the second: "
            "round the value first"
        )
    return nanos


def _timestamp(sql_type: SqlType, value: object, offset: int) -> tuple[int, bytes]:
    nanos = epoch_nanos(sql_type.name, value, zoned=sql_type.name == "TIMESTAMP_LTZ")
    millis, nano = divmod(_exact_integer(sql_type, nanos, sql_type.precision), 10**6)
    checked_int(sql_type.name, millis, -1 << 63, (1 << 63) - 1)
    if not sql_type.reserved:
        return millis & _U64, b""
    return offset << 32 | nano, (millis & _U64).to_bytes(8, "little")


def _decimal(sql_type: SqlType, value: object, offset: int) -> tuple[int, bytes]:
    unscaled = _unscaled(sql_type, value)
    if not sql_type.reserved:
        return unscaled & _U64, b""
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return offset << 32 | size, unscaled.to_bytes(size, "big", signed=True).ljust(16, b"\0")


def _unscaled(sql_type: SqlType, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        value = Decimal(value)
    if not isinstance(value, Decimal) or not value.is_finite():
        raise wrong_value("DECIMAL", value)
    sign, digits, exponent = value.as_tuple()
    shift = sql_type.scale + int(exponent)
    number, rest = int("".join(map(str, digits))), 0
    # Check the bound before computing the power: 1E+999999 must not exhaust the memory.
    if number and (shift > 38 or shift < -len(digits)):
        number, rest = 1 << 128, 1
    elif number:
        number, rest = (number * 10**shift, 0) if shift >= 0 else divmod(number, 10**-shift)
    if rest or number >= 10**sql_type.precision:
        raise InvalidArgumentError(
            f"{value} does not fit DECIMAL({sql_type.precision}, {sql_type.scale}): round it first"
        )
    return -number if sign else number


def _raw_bytes(sql_type: SqlType, value: object) -> bytes:
    if sql_type.name in _BINARY and isinstance(value, bytes | bytearray | memoryview):
        raw, length = bytes(value), len(value)
    elif sql_type.name in _TEXT and isinstance(value, str):
        try:
            raw, length = value.encode(), len(value)
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(
                f"{value!r} has an unpaired surrogate, so it is not valid UTF-8"
            ) from error
    else:
        raise wrong_value(sql_type.name, value)
    if length > sql_type.precision:
        raise InvalidArgumentError(
            f"a value of length {length} does not fit {sql_type.name}({sql_type.precision})"
        )
    return raw


def _inline_or_variable(raw: bytes, offset: int) -> tuple[int, bytes]:
    size = len(raw)
    if size <= 7:
        return int.from_bytes(raw, "little") | (0x80 | size) << 56, b""
    return offset << 32 | size, raw.ljust((size + 7) // 8 * 8, b"\0")
