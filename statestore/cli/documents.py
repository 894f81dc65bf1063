"""The JSON documents that commands print, as types.

The types are a stable contract: members are only ever added. ``docs/JSON.md`` is generated from
them, so a class docstring explains what its members' names and types do not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

from statestore.errors import StateStoreError
from statestore.format.digest import digest_text

__all__ = ["Column", "ReadError", "json_document", "members"]


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


@dataclass(frozen=True)
class ReadError:
    """The reason why a checkpoint cannot be read."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: StateStoreError) -> ReadError:
        """Return the reason that an error gives."""
        return cls(error.kind, str(error))


@dataclass(frozen=True)
class Column:
    """A column of a result."""

    name: str
    type: str
