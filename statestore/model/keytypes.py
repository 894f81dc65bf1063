"""The Java types that a key is hashed as, by name: as callers say them and as a state records them.

A name is that of the Java class: ``Long``, ``UUID``, ``BigDecimal(10,2)``, ``List<Integer>``,
``Tuple2<String, Long>``, ``Row<UUID, List<Long>>``, ``byte[]``. Case and the packages of the JDK
play no part, and the short names of Python's side (``int``, ``string``, ``sql_timestamp``) mean
the same. A composite without its parts (``Row``) takes them as column or value say.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from statestore.errors import InvalidArgumentError

__all__ = ["COMPOSITES", "NANOSECOND_TYPES", "JavaType", "fields_may_be_null", "java_type"]

_SCALARS: Final = (
    "String", "Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "Character",
    "BigDecimal", "BigInteger", "LocalDate", "LocalTime", "LocalDateTime", "Instant", "Duration",
    "UUID", "java.sql.Timestamp", "java.sql.Date", "java.sql.Time",
)  # fmt: skip
COMPOSITES: Final = ("Tuple", "List", "Map", "Row", "NamedRow", "Array")
NANOSECOND_TYPES: Final = ("LocalTime", "LocalDateTime", "Instant", "Duration")
"""As whole numbers these are nanoseconds: of the day, since 1970, or in all."""

_SHORT: Final = {
    "int": "Integer", "char": "Character", "decimal": "BigDecimal", "date": "LocalDate",
    "time": "LocalTime", "datetime": "LocalDateTime", "sql_timestamp": "java.sql.Timestamp",
    "sql_date": "java.sql.Date", "sql_time": "java.sql.Time", "named_row": "NamedRow",
    "bytes": "byte[]", "int_array": "int[]",
}  # fmt: skip
_NAMES: Final = {name.lower(): name for name in (*_SCALARS, *COMPOSITES)} | _SHORT
_PRIMITIVES: Final = ("boolean", "byte", "short", "int", "long", "float", "double", "char")
_JDK: Final = re.compile(r"java\.(lang|util|math|time)\.")
_TOKEN: Final = re.compile(r"\s*([A-Za-z_][\w.]*|-?\d+|\[\]|[<>(),])")


@dataclass(frozen=True, slots=True)
class JavaType:
    """A type: its name, the types in it (None: not said), and digits and scale of a decimal.

    An array of objects is an ``Array`` of one part; one of primitives (``int[]``) has none.
    """

    name: str
    parts: tuple[JavaType, ...] | None = None
    digits: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return the name as states record it."""
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
        """What an array of primitives holds, boxed; None for anything else."""
        element = self.name.removesuffix("[]")
        return JavaType(_NAMES[element]) if element != self.name else None


@lru_cache(maxsize=256)
def java_type(text: str) -> JavaType:
    """Return the type of a name; InvalidArgumentError listing the names when there is none."""
    tokens, at = [], 0
    while match := _TOKEN.match(text, at):
        tokens.append(match[1])
        at = match.end()
    tokens.reverse()
    if text[at:].strip() or not tokens:
        raise _unknown(text)
    try:
        found = _type(tokens)
    except (IndexError, KeyError, ValueError) as error:
        raise _unknown(text) from error
    if tokens:
        raise _unknown(text)
    return found


def fields_may_be_null(name: str) -> bool:
    """Return whether null fields are part of a key of this recorded type, as they are in a Row."""
    return java_type(name).name in ("Row", "NamedRow")


def _unknown(text: str) -> InvalidArgumentError:
    names = ", ".join((*_SCALARS, "byte[]", "TupleN<…>", "List<…>", "Map<…>", "Row<…>"))
    return InvalidArgumentError(f"key type {text!r} does not exist: use one of {names}")


def _type(tokens: list[str]) -> JavaType:
    """Take a type from the end of reversed tokens."""
    word = tokens.pop()
    folded = _JDK.sub("", word.lower())
    arity = None
    if tuple_of := re.fullmatch(r"tuple(\d+)", folded):
        folded, arity = "tuple", int(tuple_of[1])
    is_array = bool(tokens) and tokens[-1] == "[]"
    if is_array and word in _PRIMITIVES:
        tokens.pop()
        return JavaType(f"{word}[]")
    found = JavaType(_NAMES[folded]) if folded != "object" or not is_array else JavaType("Array")
    if folded == "object":
        tokens.pop()
        return found
    if tokens and tokens[-1] == "(":
        found = JavaType(found.name, digits=_digits(tokens))
    if tokens and tokens[-1] == "<":
        found = JavaType(found.name, parts=_parts(tokens))
    elif arity == 0:
        found = JavaType("Tuple", parts=())
    if arity is not None and found.parts is not None and len(found.parts) != arity:
        raise ValueError(word)
    count = {"List": 1, "Map": 2, "Tuple": None, "Row": None, "NamedRow": None, "Array": 1}
    if found.parts is not None and count[found.name] not in (None, len(found.parts)):
        raise ValueError(word)
    while tokens and tokens[-1] == "[]":
        tokens.pop()
        found = JavaType("Array", parts=(found,))
    return found


def _digits(tokens: list[str]) -> tuple[int, int]:
    opened, precision, comma, scale, closed = (tokens.pop() for _ in range(5))
    if (opened, comma, closed) != ("(", ",", ")"):
        raise ValueError("digits")
    return int(precision), int(scale)


def _parts(tokens: list[str]) -> tuple[JavaType, ...]:
    tokens.pop()
    parts = [_type(tokens)]
    while tokens[-1] == ",":
        tokens.pop()
        parts.append(_type(tokens))
    if tokens.pop() != ">":
        raise ValueError("parts")
    return tuple(parts)
