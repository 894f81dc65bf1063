"""The nodes of a compiled plan, and their column types.

A node is an operator, with its properties in the plan and its input rows. Flink writes a type as
SQL text, or as a JSON object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from statestore.errors import CorruptionError, InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import SQL_ROOTS, LogicalType, key_logical_type

_ROW = re.compile(r"ROW<(.*)>(?: NOT NULL)?", re.DOTALL)
_NOT_NULL = " NOT NULL"
_LOCAL = re.compile(r"TIMESTAMP(\(\d\)) WITH LOCAL TIME ZONE")
_BRACKETS = {"<": 1, "(": 1, ">": -1, ")": -1}
_QUOTES = "`'"
_TIMESTAMPS = ("TIMESTAMP_WITHOUT_TIME_ZONE", "TIMESTAMP_WITH_LOCAL_TIME_ZONE")

T = TypeVar("T")


@dataclass(frozen=True)
class PlanField:
    """A field of a row: its name, and its type in SQL's notation.

    ``type`` is None for a type whose values cannot be columns of a table. A field that is a
    ``PROCTIME`` attribute is null in each stored row, because Flink computes it when it is used.
    """

    name: str
    text: str
    type: LogicalType | None
    is_proctime: bool = False


def parse_row_type(row_type: Any, where: str) -> tuple[PlanField, ...]:
    """Return the fields of a row type in a plan.

    Args:
        row_type: the type, as it is in the JSON.
        where: the place in the plan, for messages.

    Returns:
        The fields, in their order.

    Raises:
        CorruptionError: if it is not a row type.
    """
    match row_type:
        case str():
            row = _ROW.fullmatch(row_type.strip())
            if row is not None:
                return tuple(_parse_field(text, where) for text in _split(row[1], where))
        case {"type": "ROW", "fields": list(fields)}:
            return tuple(_parse_object(field, where) for field in fields)
    raise CorruptionError(f"{where} has {row_type!r:.100} instead of a row type")


def _split(text: str, where: str) -> Iterator[str]:
    """Yield the parts of a text between commas; commas in brackets or quotes do not count."""
    depth, start, quote = 0, 0, ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
        else:
            depth += _BRACKETS.get(character, 0)
    if depth or quote:
        raise CorruptionError(f"{where} has a row type without its end: {text!r:.100}")
    if text[start:].strip():
        yield text[start:].strip()


def _parse_field(text: str, where: str) -> PlanField:
    """Parse a field such as ```` `user` BIGINT NOT NULL ````; a backtick in a name is doubled."""
    name = re.match(r"`((?:[^`]|``)*)`\s+", text)
    if name is None:
        raise CorruptionError(f"{where} has a row type with the invalid field {text!r:.100}")
    return _parse_text(name[1].replace("``", "`"), text[name.end() :])


def _parse_text(name: str, text: str) -> PlanField:
    # A comment on a field follows its type.
    text = re.sub(r"\s+'(?:[^']|'')*'$", "", text).strip()
    return PlanField(name, text, _parse_type(text))


def _parse_type(text: str) -> LogicalType | None:
    is_nullable = not text.endswith(_NOT_NULL)
    plain = text.removesuffix(_NOT_NULL)
    local = _LOCAL.fullmatch(plain)
    if local is not None:
        plain = f"TIMESTAMP_LTZ{local[1]}"
    try:
        return key_logical_type(plain, is_nullable=is_nullable)
    except (InvalidArgumentError, UnsupportedTypeError):
        return None


def _parse_object(field: Any, where: str) -> PlanField:
    match field:
        case {"name": str(name), "fieldType": str(text)}:
            return _parse_text(name, text)
        case {"name": str(name), "fieldType": {"type": str(root)} as field_type}:
            return _parse_object_type(name, root, field_type)
    raise CorruptionError(f"{where} has a row type with the invalid field {field!r:.100}")


def _parse_object_type(name: str, root: str, field_type: Mapping[str, Any]) -> PlanField:
    is_nullable = field_type.get("nullable", True) is not False
    suffix = "" if is_nullable else _NOT_NULL
    precision = field_type.get("precision")
    if root not in _TIMESTAMPS or not isinstance(precision, int):
        return PlanField(name, f"{root}{suffix}", None)
    text = f"{SQL_ROOTS[root].text}({precision})"
    is_proctime = field_type.get("kind") == "PROCTIME"
    return PlanField(name, f"{text}{suffix}", _parse_type(f"{text}{suffix}"), is_proctime)


@dataclass(frozen=True)
class PlanNode:
    """A node of a compiled plan: an operator, an input, or a part of one.

    ``name`` is the type without its version, such as ``stream-exec-join``. ``inputs`` are the
    rows of each input. ``is_single`` is true if all rows of an input go to one subtask. ``where``
    is the place in the plan, for messages.
    """

    id: int
    name: str
    version: str
    data: Mapping[str, Any]
    inputs: tuple[tuple[PlanField, ...], ...]
    is_single: bool
    where: str

    def value(self, name: str, value_type: type[T]) -> T:
        """Return a member of the node; CorruptionError if it is missing or of another type."""
        value = self.data.get(name)
        if not isinstance(value, value_type) or (value_type is int and isinstance(value, bool)):
            raise self.error(f"has no valid {name!r}: {value!r:.100}")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean member; False if it is missing."""
        return self.data.get(name) is not None and self.value(name, bool)

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a member that is a list of whole numbers."""
        return self._check_numbers(self.value(name, list), name)

    def number_lists(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return a member that is a list of lists of whole numbers, empty if it is missing."""
        if self.data.get(name) is None:
            return ()
        return tuple(self._check_numbers(part, name) for part in self.value(name, list))

    def flags(self, name: str) -> tuple[bool, ...]:
        """Return a member that is a list of booleans."""
        values = self.value(name, list)
        if not all(isinstance(value, bool) for value in values):
            raise self.error(f"has no valid {name!r}: {values!r:.100}")
        return tuple(values)

    def row(self, name: str) -> tuple[PlanField, ...]:
        """Return the fields of a member that is a row type."""
        return parse_row_type(self.data.get(name), f"{name!r} of {self.where}")

    def member(self, name: str) -> PlanNode:
        """Return an object within the node, with its members."""
        data = self.value(name, dict)
        where = f"{name!r} of {self.where}"
        return PlanNode(self.id, self.name, self.version, data, self.inputs, self.is_single, where)

    def members(self, name: str) -> tuple[PlanNode, ...]:
        """Return the objects of a list within the node."""
        return tuple(
            PlanNode(
                self.id,
                self.name,
                self.version,
                {name: item},
                self.inputs,
                self.is_single,
                self.where,
            ).member(name)
            for item in self.value(name, list)
        )

    def input(self, number: int = 0) -> tuple[PlanField, ...]:
        """Return the fields of an input."""
        if number >= len(self.inputs):
            raise self.error(f"has {len(self.inputs)} inputs, but needs {number + 1}")
        return self.inputs[number]

    def select(self, fields: Sequence[T], indexes: Sequence[int], name: str) -> tuple[T, ...]:
        """Return fields by their indexes, which the member ``name`` has."""
        if any(not 0 <= index < len(fields) for index in indexes):
            raise self.error(f"has {name!r} with an index that its input does not have: {indexes}")
        return tuple(fields[index] for index in indexes)

    def error(self, text: str) -> CorruptionError:
        """Return an error about the node."""
        return CorruptionError(f"{self.where} {text}")

    def _check_numbers(self, values: Any, name: str) -> tuple[int, ...]:
        if not isinstance(values, list) or not all(type(value) is int for value in values):
            raise self.error(f"has no valid {name!r}: {values!r:.100}")
        return tuple(values)


def field_types(fields: Sequence[PlanField]) -> tuple[LogicalType, ...]:
    """Return the types of fields.

    Raises UnsupportedTypeError, which names all fields that cannot be columns of a table.
    """
    unknown = [f"{field.name} {field.text}" for field in fields if field.type is None]
    if unknown:
        raise UnsupportedTypeError(
            f"no column of a table has the type of {', '.join(unknown)}: only numbers, text, "
            "bytes, booleans, dates, times and timestamps can be columns"
        )
    return tuple(field.type for field in fields if field.type is not None)
