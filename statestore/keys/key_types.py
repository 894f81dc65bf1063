"""The Java types that a key is hashed as, their names, and the Python values of a key.

Callers pass the names, and states record them. A name is the name of the Java class: ``Long``,
``UUID``, ``BigDecimal(10,2)``, ``List<Integer>``, ``Tuple2<String, Long>``, ``byte[]``,
``Row<UUID, List<Long>>``. Case and the JDK's package names are ignored. Short names (``int``,
``string``, ``sql_timestamp``) mean the same as in Python. The parts of a composite without parts
(``Row``) are inferred from the column or value.

A plain Python value implies the Java or SQL type it stands for. If it cannot, it is wrapped:
:class:`Typed` names the type at any depth, :class:`Row` is Flink's ``Row`` with its kind,
:class:`RawBits` is a float given by its bits. Python's dates and times are limited to microseconds
and the years 1..9999. An int in their place covers Java's full range, in days or nanoseconds as the
functions say.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Final, Literal, SupportsIndex, TypeAlias

from statestore.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KeyType: TypeAlias = "str | Sequence[KeyType] | None"
"""A type name; None to infer the type from the Python value; a sequence of these for a tuple."""

HASH_SCHEMES: Final = ("java", "flink-sql", "pyflink")
"""Every scheme name, as recorded with a state; ``hashing.py`` describes the schemes."""

DEFAULT_HASH_SCHEME: Final = "java"
NANOS_PER_SECOND: Final = 10**9
NANOS_PER_DAY: Final = 86_400 * NANOS_PER_SECOND
ROW_KINDS: Final = {"+I": 0, "-U": 1, "+U": 2, "-D": 3}

_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_EPOCH_LOCAL: Final = datetime(1970, 1, 1)
_EPOCH_INSTANT: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check_hash_scheme(name: str) -> str:
    """Return ``name`` if it is a scheme; InvalidArgumentError listing the schemes otherwise."""
    if name not in HASH_SCHEMES:
        raise InvalidArgumentError(
            f"hash scheme {name!r} does not exist: use one of {', '.join(HASH_SCHEMES)}"
        )
    return name


@dataclass(frozen=True, slots=True)
class Typed:
    """A value to be hashed as ``type``, at any depth: ``Typed("int", -1)`` in a tuple or row."""

    type: KeyType
    value: object


@dataclass(frozen=True, slots=True)
class Row:
    """Flink's ``Row``: its kind, and its fields as a sequence by position or a mapping by name.

    Raises InvalidArgumentError unless ``kind`` is +I, -U, +U or -D.
    """

    fields: Sequence[object] | Mapping[str, object]
    kind: str = "+I"

    def __post_init__(self) -> None:
        if self.kind not in ROW_KINDS:
            raise InvalidArgumentError(
                f"row kind {self.kind!r} does not exist: use one of {', '.join(ROW_KINDS)}"
            )


@dataclass(frozen=True, slots=True)
class RawBits:
    """A float or double given by its IEEE bits, for a NaN whose payload matters."""

    bits: int


def wrong_value(name: str, value: object) -> InvalidArgumentError:
    """Return the error for a Python value that the type ``name`` cannot hold."""
    return InvalidArgumentError(f"a key of type {name} cannot be {type(value).__name__} {value!r}")


def checked_int(name: str, value: object, low: int, high: int) -> int:
    """Return ``value`` as an int in ``low`` .. ``high``; InvalidArgumentError otherwise."""
    # SupportsIndex accepts numpy's integers. A bool is not accepted as a number.
    if isinstance(value, bool) or not isinstance(value, int | SupportsIndex):
        raise wrong_value(name, value)
    number = index(value)
    if not low <= number <= high:
        raise InvalidArgumentError(f"{number} is out of range for type {name}: {low}..{high}")
    return number


def float_bits(name: str, value: object, code: Literal["f", "d"]) -> int:
    """Return the IEEE bits of a number as a float (``f``) or a double (``d``)."""
    if isinstance(value, RawBits):
        return checked_int(name, value.bits, 0, (1 << 8 * struct.calcsize(code)) - 1)
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise wrong_value(name, value)
    try:
        return int.from_bytes(struct.pack(f">{code}", value), "big")
    except OverflowError as error:
        raise InvalidArgumentError(f"{value!r} is out of range for a key of type {name}") from error


def days_of(name: str, value: object) -> int:
    """Return the days since 1970-01-01 of a date or int (LocalDate's range, years ±999999999)."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value.toordinal() - _EPOCH_DAY
    return checked_int(name, value, -365_243_219_162, 365_241_780_471)


def nanos_of_day(name: str, value: object) -> int:
    """Return the nanoseconds since midnight of a time without a time zone, or the int itself."""
    if isinstance(value, time):
        if value.tzinfo is not None:
            raise InvalidArgumentError(f"a key of type {name} has no time zone: {value!r} has one")
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * NANOS_PER_SECOND + value.microsecond * 1000
    return checked_int(name, value, 0, NANOS_PER_DAY - 1)


def epoch_nanos(name: str, value: object, *, zoned: bool) -> int:
    """Return the nanoseconds since 1970-01-01T00:00 of a datetime, or the int itself.

    If ``zoned`` is true, the type is an instant and the datetime must have a time zone. Otherwise
    the type is a local time and the datetime must not have one. A mismatch raises
    InvalidArgumentError, because guessing a time zone would move keys.
    """
    if not isinstance(value, datetime):
        limit = NANOS_PER_SECOND << 63
        return checked_int(name, value, -limit, limit - 1)
    if (value.utcoffset() is not None) != zoned:
        have, need = ("no", "an aware") if zoned else ("a", "a naive")
        raise InvalidArgumentError(
            f"{value!r} has {have} time zone: a key of type {name} needs {need} datetime"
        )
    return duration_nanos(name, value - (_EPOCH_INSTANT if zoned else _EPOCH_LOCAL))


def duration_nanos(name: str, value: object) -> int:
    """Return the nanoseconds of a timedelta, or the int itself."""
    if isinstance(value, timedelta):
        seconds = value.days * 86_400 + value.seconds
        # pandas' subclass of timedelta also has nanoseconds.
        below = int(getattr(value, "nanoseconds", 0))
        return seconds * NANOS_PER_SECOND + value.microseconds * 1000 + below
    limit = NANOS_PER_SECOND << 63
    return checked_int(name, value, -limit, limit - 1)


_SCALARS: Final = (
    "String", "Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "Character",
    "BigDecimal", "BigInteger", "LocalDate", "LocalTime", "LocalDateTime", "Instant", "Duration",
    "UUID", "java.sql.Timestamp", "java.sql.Date", "java.sql.Time",
)  # fmt: skip
COMPOSITES: Final = ("Tuple", "List", "Map", "Row", "NamedRow", "Array")
NANOSECOND_TYPES: Final = ("LocalTime", "LocalDateTime", "Instant", "Duration")
"""As integers these are nanoseconds: of the day, since 1970, or in total."""

_SHORT: Final = {
    "int": "Integer", "char": "Character", "decimal": "BigDecimal", "date": "LocalDate",
    "time": "LocalTime", "datetime": "LocalDateTime", "sql_timestamp": "java.sql.Timestamp",
    "sql_date": "java.sql.Date", "sql_time": "java.sql.Time", "named_row": "NamedRow",
    "bytes": "byte[]", "int_array": "int[]",
}  # fmt: skip
_NAMES: Final = {name.lower(): name for name in (*_SCALARS, *COMPOSITES)} | _SHORT
DECIMAL_TEXT: Final = (
    "^(-?[1-9][0-9]*|-?[1-9][0-9]*[.][0-9]+|-?0[.]0{0,5}[1-9][0-9]*|0([.]0{1,6})?"
    "|(-?[1-9]([.][0-9]+)?|0)E(-([7-9]|[1-9][0-9]{1,9})|[+][1-9][0-9]{0,9}))$"
)
"""Matches the text that ``BigDecimal.toString`` writes, and no other text of the same number and
scale except one with ``E+`` and a scale that is not negative. Java, Python, RE2 and Spark agree."""

_PRIMITIVES: Final = ("boolean", "byte", "short", "int", "long", "float", "double", "char")
_JDK: Final = re.compile(r"java\.(lang|util|math|time)\.")
_TOKEN: Final = re.compile(r"\s*([A-Za-z_][\w.]*|-?\d+|\[\]|[<>(),])")


@dataclass(frozen=True, slots=True)
class JavaType:
    """A type: its name, its parts (None: unspecified), and the precision and scale of a decimal.

    An array of objects is an ``Array`` of one part. An array of primitives (``int[]``) has no
    parts.
    """

    name: str
    parts: tuple[JavaType, ...] | None = None
    digits: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return the name as it is recorded with a state."""
        if self.digits is not None:
            return f"{self.name}({self.digits[0]},{self.digits[1]})"
        if self.name == "Array":
            return f"{self.parts[0] if self.parts else 'Object'}[]"
        if self.parts is None:
            return self.name
        name = f"Tuple{len(self.parts)}" if self.name == "Tuple" else self.name
        return f"{name}<{', '.join(map(str, self.parts))}>" if self.parts else name

    @property
    def primitive(self) -> JavaType | None:
        """The boxed element type of an array of primitives; None for any other type."""
        element = self.name.removesuffix("[]")
        return JavaType(_NAMES[element]) if element != self.name else None


@lru_cache(maxsize=256)
def java_type(text: str) -> JavaType:
    """Parse the name of a type; InvalidArgumentError listing the names if it does not exist."""
    tokens, offset = [], 0
    while match := _TOKEN.match(text, offset):
        tokens.append(match[1])
        offset = match.end()
    tokens.reverse()
    if text[offset:].strip() or not tokens:
        raise _unknown_type_error(text)
    try:
        parsed = _parse_type(tokens)
    except (IndexError, KeyError, ValueError) as error:
        raise _unknown_type_error(text) from error
    if tokens:
        raise _unknown_type_error(text)
    return parsed


def fields_may_be_null(name: str) -> bool:
    """Return whether a key of this recorded type may have null fields, as a Row may."""
    return java_type(name).name in ("Row", "NamedRow")


def _unknown_type_error(text: str) -> InvalidArgumentError:
    names = ", ".join((*_SCALARS, "byte[]", "TupleN<…>", "List<…>", "Map<…>", "Row<…>"))
    return InvalidArgumentError(f"key type {text!r} does not exist: use one of {names}")


def _parse_type(tokens: list[str]) -> JavaType:
    """Parse one type from the end of reversed tokens."""
    word = tokens.pop()
    folded = _JDK.sub("", word.lower())
    arity = None
    if tuple_of := re.fullmatch(r"tuple(\d+)", folded):
        folded, arity = "tuple", int(tuple_of[1])
    is_array = bool(tokens) and tokens[-1] == "[]"
    if is_array and word in _PRIMITIVES:
        tokens.pop()
        return JavaType(f"{word}[]")
    parsed = JavaType(_NAMES[folded]) if folded != "object" or not is_array else JavaType("Array")
    if folded == "object":
        tokens.pop()
        return parsed
    if tokens and tokens[-1] == "(":
        parsed = JavaType(parsed.name, digits=_parse_digits(tokens))
    if tokens and tokens[-1] == "<":
        parsed = JavaType(parsed.name, parts=_parse_parts(tokens))
    elif arity == 0:
        parsed = JavaType("Tuple", parts=())
    if arity is not None and parsed.parts is not None and len(parsed.parts) != arity:
        raise ValueError(word)
    count = {"List": 1, "Map": 2, "Tuple": None, "Row": None, "NamedRow": None, "Array": 1}
    if parsed.parts is not None and count[parsed.name] not in (None, len(parsed.parts)):
        raise ValueError(word)
    while tokens and tokens[-1] == "[]":
        tokens.pop()
        parsed = JavaType("Array", parts=(parsed,))
    return parsed


def _parse_digits(tokens: list[str]) -> tuple[int, int]:
    opened, precision, comma, scale, closed = (tokens.pop() for _ in range(5))
    if (opened, comma, closed) != ("(", ",", ")"):
        raise ValueError("digits")
    return int(precision), int(scale)


def _parse_parts(tokens: list[str]) -> tuple[JavaType, ...]:
    tokens.pop()
    parts = [_parse_type(tokens)]
    while tokens[-1] == ",":
        tokens.pop()
        parts.append(_parse_type(tokens))
    if tokens.pop() != ">":
        raise ValueError("parts")
    return tuple(parts)
