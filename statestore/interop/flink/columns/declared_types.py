"""Types of a job as its user declares them, in Java's notation: ``Map<String, com.acme.Item>``.

The names of the JDK's and Flink's own classes may have their packages. A ``Row`` may name its
fields: ``Row<id Long, name String>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from statestore.errors import InvalidArgumentError

_TOKEN = re.compile(r"\s*([A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*|[<>,]|\[\s*\])")
_PACKAGE = re.compile(
    r"java\.lang\.|java\.math\.|java\.time\.|java\.util\.(?=(?:List|Set|Map)$)"
    r"|org\.apache\.flink\.types\.(?=Row$)|org\.apache\.flink\.api\.java\.tuple\.(?=Tuple)"
)
_TUPLE = re.compile(r"Tuple(\d*)")
_COUNTS = {"List": 1, "Set": 1, "Map": 2}
_MOST_BRACKETS = 100

BOXES = {
    "boolean": "Boolean", "byte": "Byte", "short": "Short", "int": "Integer", "long": "Long",
    "float": "Float", "double": "Double", "char": "Character",
}  # fmt: skip
"""The classes of primitive types."""

SIMPLE_TYPES = {
    **{name: name for name in ("String", "BigDecimal", "BigInteger", "Instant")},
    **{name: name for name in ("LocalDate", "LocalTime", "LocalDateTime")},
    **{box: box for box in BOXES.values()},
    "java.util.Date": "Date", "java.sql.Date": "SqlDate", "java.sql.Time": "SqlTime",
    "java.sql.Timestamp": "SqlTimestamp",
}  # fmt: skip
"""The classes without parameters that have a serializer in Flink, and our short names of these."""


@dataclass(frozen=True, slots=True)
class DeclaredType:
    """A type: its name, the types between its brackets, and the names of a row's fields.

    An array has the name ``[]`` and the type of its elements. A ``Tuple``, ``Row``, ``List``,
    ``Set`` or ``Map`` without parts gets its parts from the column.
    """

    name: str
    parts: tuple[DeclaredType, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def is_composite(self) -> bool:
        """Whether each of its fields can be a column: a tuple, a row, or a class of the job."""
        return self.name in ("Tuple", "Row") or self.is_class

    @property
    def is_class(self) -> bool:
        """Whether Flink does not know the type, which makes it a class of the job."""
        return self.name not in (*SIMPLE_TYPES, *BOXES, *_COUNTS, "Tuple", "Row", "[]")

    def __str__(self) -> str:
        """Return the type as in Java."""
        if self.name == "[]":
            return f"{self.parts[0]}[]"
        if not self.parts:
            return self.name
        inner = [
            f"{name} {part}" if name else str(part)
            for name, part in zip(self.names or [""] * len(self.parts), self.parts, strict=True)
        ]
        count = len(self.parts) if self.name == "Tuple" else ""
        return f"{self.name}{count}<{', '.join(inner)}>"


def parse_declared_type(text: str, where: str) -> DeclaredType:
    """Parse a type.

    Args:
        text: the type, as in Java.
        where: the owner of the type, for messages.

    Returns:
        The type; a name that Flink does not know is a class of the job.

    Raises:
        InvalidArgumentError: if the text is not a type.
    """
    try:
        if text.count("<") + text.count("[") > _MOST_BRACKETS:
            raise ValueError(text)
        tokens = iter([*_tokenize(text), ""])
        parsed, last = _parse_type(tokens, next(tokens))
        if last:
            raise ValueError(last)
    except (ValueError, StopIteration):
        raise InvalidArgumentError(
            f"{where}: {text!r} is not a type: write it as in Java, such as Long, "
            "Tuple2<String, Long>, Row<id Long, name String>, List<String>, long[], or "
            "com.acme.Account for a class of the job"
        ) from None
    return parsed


def _tokenize(text: str) -> Iterator[str]:
    position = 0
    while text[position:].strip():
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError(text)
        yield "[]" if found[1].startswith("[") else found[1]
        position = found.end()


def _parse_type(tokens: Iterator[str], word: str) -> tuple[DeclaredType, str]:
    """Return the type that begins with ``word``, and the token after it."""
    name = _PACKAGE.sub("", word)
    if not name or not (name[0].isalpha() or name[0] in "_$"):
        raise ValueError(word)
    tuple_name = _TUPLE.fullmatch(name)
    parts: list[DeclaredType] = []
    names: list[str] = []
    last = next(tokens)
    if last == "<":
        parts, names = _parse_parts(tokens)
        last = next(tokens)
    if tuple_name is not None:
        name = "Tuple"
        if tuple_name[1] and int(tuple_name[1]) != len(parts):
            raise ValueError(word)
    elif parts and name != "Row" and _COUNTS.get(name) != len(parts):
        raise ValueError(word)
    if names and (name != "Row" or len({*names}) != len(parts)):
        raise ValueError(word)
    parsed = DeclaredType(name, tuple(parts), tuple(names))
    while last == "[]":
        parsed, last = DeclaredType("[]", (parsed,)), next(tokens)
    return parsed, last


def _parse_parts(tokens: Iterator[str]) -> tuple[list[DeclaredType], list[str]]:
    """Return the types up to a closing bracket, and the names of the parts that have one."""
    parts, names = [], []
    last = ","
    while last == ",":
        part, last = _parse_type(tokens, next(tokens))
        if last not in (",", ">", ""):  # a name before its type
            if part.parts or "." in part.name:
                raise ValueError(last)
            names.append(part.name)
            part, last = _parse_type(tokens, last)
        parts.append(part)
    if last != ">" or (names and len(names) != len(parts)):
        raise ValueError(last)
    return parts, names
