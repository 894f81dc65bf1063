"""Let tables of test cases name all arguments of a write flat, also those in its frozen values."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from statestore import Changes, KeyedOptions

__all__ = ["changes_in", "keyed_arguments"]


def keyed_arguments(**given: Any) -> dict[str, Any]:
    """Return the arguments of a call that writes a keyed state."""
    names = {field.name for field in fields(KeyedOptions)} & given.keys()
    if not names:
        return given
    moved = {name: given.pop(name) for name in names}
    return {**given, "options": replace(given.get("options", KeyedOptions()), **moved)}


def changes_in(given: dict[str, Any]) -> Changes:
    """Remove the parts of changes from arguments, and return the changes."""
    names = {field.name for field in fields(Changes)} & given.keys()
    return Changes(**{name: given.pop(name) for name in names})
