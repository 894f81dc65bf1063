"""Python UUIDs in keys that are hashed as UUIDs.

They are stored as the 16 bytes or the text that the column holds. Other columns do not accept them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from statestore.format.state import KeyedState

_NAME = "UUID"
Rows = Sequence[Mapping[str, Any]]


def is_uuid(key_type: str | None) -> bool:
    """Return whether a type name, from a caller or from a state, stands for Java's UUID."""
    return (key_type or "").lower().removeprefix("java.util.") == _NAME.lower()


def uuid_columns(state: KeyedState) -> dict[str, bool]:
    """Return the key columns that are hashed as UUIDs, each with whether it holds text."""
    return {
        name: state.schema.type_of(name) == "string"
        for name, key_type in zip(state.key, state.key_types, strict=True)
        if key_type == _NAME
    }


def with_uuids(rows: Rows, columns: Mapping[str, bool]) -> Rows:
    """Return dictionaries with the UUIDs of these columns in their stored form."""
    if not columns:
        return rows
    return [
        {
            name: uuid_as_stored(value, columns[name]) if name in columns else value
            for name, value in row.items()
        }
        for row in rows
    ]


def uuid_as_stored(value: Any, is_text: bool) -> Any:
    """Return a UUID as its text or bytes; any other value unchanged."""
    if not isinstance(value, UUID):
        return value
    return str(value) if is_text else value.bytes
