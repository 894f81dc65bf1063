"""What is said of a word that is none of those that there are."""

from __future__ import annotations

from enum import StrEnum

from statestore.errors import InvalidArgumentError

__all__ = ["unknown_choice"]


def unknown_choice(what: str, value: object, among: type[StrEnum]) -> InvalidArgumentError:
    """Return the error for a value that is no member of an enumeration; it names all of them."""
    known = ", ".join(repr(member.value) for member in among)
    return InvalidArgumentError(f"unknown {what} {value!r}: use one of {known}")
