"""Let tables of test cases name all arguments of a write flat, also those in its frozen values."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from statestore import Changes

__all__ = ["changes_in", "grouped"]


def grouped(given: dict[str, Any], **values: type[Any]) -> dict[str, Any]:
    """Return arguments in which frozen values have their fields; they may already be there."""
    for argument, value in values.items():
        names = {field.name for field in fields(value)} & given.keys()
        if names:
            moved = {name: given.pop(name) for name in names}
            given = {**given, argument: replace(given.get(argument, value()), **moved)}
    return given


def changes_in(given: dict[str, Any]) -> Changes:
    """Remove the parts of changes from arguments, and return the changes."""
    names = {field.name for field in fields(Changes)} & given.keys()
    return Changes(**{name: given.pop(name) for name in names})
