"""The column types in a compiled plan: Flink writes a type as SQL text, or as a JSON object."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from statestore.errors import CorruptionError, InvalidArgumentError, UnsupportedTypeError
from statestore.interop.flink.metadata.logical_types import LogicalType, key_logical_type

_ROW = re.compile(r"ROW<(.*)>(?: NOT NULL)?", re.DOTALL)
_NOT_NULL = " NOT NULL"
_LOCAL = re.compile(r"TIMESTAMP(\(\d\)) WITH LOCAL TIME ZONE")
_BRACKETS = {"<": 1, "(": 1, ">": -1, ")": -1}
_QUOTES = "`'"
_TIMESTAMPS = {
    "TIMESTAMP_WITHOUT_TIME_ZONE": "TIMESTAMP", "TIMESTAMP_WITH_LOCAL_TIME_ZONE": "TIMESTAMP_LTZ",
}  # fmt: skip


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
        raise CorruptionError(f"{where} has a row type with the field {text!r:.100}")
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
    raise CorruptionError(f"{where} has a row type with the field {field!r:.100}")


def _parse_object_type(name: str, root: str, field_type: Mapping[str, Any]) -> PlanField:
    is_nullable = field_type.get("nullable", True) is not False
    suffix = "" if is_nullable else _NOT_NULL
    precision = field_type.get("precision")
    if root not in _TIMESTAMPS or not isinstance(precision, int):
        return PlanField(name, f"{root}{suffix}", None)
    text = f"{_TIMESTAMPS[root]}({precision})"
    is_proctime = field_type.get("kind") == "PROCTIME"
    return PlanField(name, f"{text}{suffix}", _parse_type(f"{text}{suffix}"), is_proctime)
