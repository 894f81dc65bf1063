"""The Java types that a key is hashed as, by the names that callers pass and states record.

A name is the name of the Java class: ``Long``, ``UUID``, ``BigDecimal(10,2)``, ``List<Integer>``,
``Tuple2<String, Long>``, ``Row<UUID, List<Long>>``, ``byte[]``. Case and the JDK's package names
are ignored. Short names (``int``, ``string``, ``sql_timestamp``) mean the same as in Python. The
parts of a composite without parts (``Row``) are inferred from the column or value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from statestore.errors import InvalidArgumentError

__all__ = [
    "COMPOSITES",
    "DECIMAL_TEXT",
    "NANOSECOND_TYPES",
    "JavaType",
    "fields_may_be_null",
    "java_type",
]


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
