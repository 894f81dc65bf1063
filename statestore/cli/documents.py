"""The JSON documents that commands print, as types.

The types are a stable contract: members are only ever added. ``docs/JSON.md`` is generated from
them, so a class docstring explains what its members' names and types do not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, Self, dataclass_transform

import msgspec
from msgspec import Struct, field

from statestore.format.digest import digest_text

__all__ = [
    "AmountDocument",
    "CheckpointMetricsDocument",
    "Column",
    "Document",
    "ErrorDocument",
    "LeftOutDocument",
    "PinDocument",
    "StateMetricsDocument",
    "json_document",
    "members",
]


def json_document(value: Any) -> Any:
    """Return a result as the values that JSON has, without loss.

    A dataclass becomes an object with its :func:`members`. A digest becomes 16 hex digits, because
    many readers of JSON round integers above 2^53.
    """
    from statestore.restore.row_files import json_value

    if is_dataclass(value):
        document = {name: json_document(getattr(value, name)) for name in members(value.__class__)}
        if document.get("digest") is not None:
            document["digest"] = digest_text(document["digest"])
        return document
    match value:
        case str():
            return value.value if isinstance(value, Enum) else value
        case Mapping():
            return {name: json_document(item) for name, item in value.items()}
        case Sequence() if not isinstance(value, bytes):
            return [json_document(item) for item in value]
        case Enum():
            return value.value
        case PurePath():
            return str(value)
    return json_value(value)


@cache
def members(result: Any) -> tuple[str, ...]:
    """Return the names that a result's JSON has.

    These are its fields, except those that its ``repr`` omits, and then the properties that its
    class names in ``json_properties``.
    """
    shown = [field.name for field in fields(result) if field.repr]
    return (*shown, *getattr(result, "json_properties", ()))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Document(Struct, frozen=True, omit_defaults=True):
    """An object in JSON. A member with a default is absent if its value is the default."""

    @classmethod
    def of(cls, source: object) -> Self:
        """Return the document whose members are the attributes of ``source``.

        Raises msgspec.ValidationError if an attribute is missing or has another type.
        """
        return msgspec.convert(source, cls, from_attributes=True)

    @classmethod
    def each(cls, sources: Iterable[object]) -> list[Self]:
        """Return the documents of several values."""
        return [cls.of(source) for source in sources]


class LeftOutDocument(Document, kw_only=True):
    """State that a checkpoint lacks of its source, as in docs/FORMAT.md.

    Without ``state``, all state of the operator is missing. Without ``first`` and ``last``, all key
    groups are.
    """

    operator: str
    state: str | None = None
    reason: str
    command: str
    id: str | None = None
    name: str | None = None
    first: int | None = None
    last: int | None = None


class ErrorDocument(Document):
    """The reason why a checkpoint cannot be read."""

    kind: str
    message: str


class PinDocument(Document):
    """A pin. Its lease ends at ``until_ms``."""

    token: str
    checkpoint_id: int = field(name="id")
    holder: str
    until_ms: int


@dataclass(frozen=True)
class Column:
    """A column of a result."""

    name: str
    type: str


class AmountDocument(Document):
    """An amount of stored rows."""

    rows: int
    size_bytes: int
    files: int


class StateMetricsDocument(Document, kw_only=True):
    """What a checkpoint wrote of a state.

    ``base_rows`` is absent, and ``changed_share`` null, if the state has no base.
    """

    uid: str
    name: str
    write_ms: int
    rows: int
    size_bytes: int
    files: int
    base_rows: int | None = None
    changed_share: float | None


class CheckpointMetricsDocument(Document):
    """The measurements of a checkpoint, as in docs/FORMAT.md.

    ``written`` is the sum of all states. ``changed_share`` is null if no state has a base.
    """

    duration_ms: int
    phases: dict[str, int]
    states: list[StateMetricsDocument]
    compaction: AmountDocument
    written: AmountDocument
    changed_share: float | None
