"""What keeps a checkpoint from being given up: a savepoint, by name and for good, or a pin, for a
while.

Both name a checkpoint by its id. Its manifest and the files that it names stay, whether or not it
has a tombstone.
"""

from __future__ import annotations

from dataclasses import dataclass

from statestore.errors import InvalidArgumentError
from statestore.model.document import document_bytes, parse_document
from statestore.model.paths import GREATEST_ID

__all__ = [
    "Held",
    "Pin",
    "Savepoint",
    "check_savepoint_name",
    "is_savepoint_name",
    "pin_from_json",
    "pin_to_json",
    "savepoint_from_json",
    "savepoint_to_json",
]

SAVEPOINT_FORMAT, PIN_FORMAT = "statestore-savepoint", "statestore-pin"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A checkpoint that is kept under a name until the savepoint is deleted."""

    name: str
    checkpoint_id: int
    created_at_ms: int


@dataclass(frozen=True, slots=True)
class Pin:
    """A checkpoint that somebody (``holder``, free text) reads until ``until_ms``, its lease."""

    token: str
    checkpoint_id: int
    holder: str
    until_ms: int


@dataclass(frozen=True, slots=True)
class Held:
    """A checkpoint that is kept, and what keeps it, in words."""

    checkpoint_id: int
    by: str


def is_savepoint_name(name: str) -> bool:
    """Return whether a savepoint may have this name, which must not mean a checkpoint by itself."""
    return name not in ("", "latest", "all") and not name.isdigit()


def check_savepoint_name(name: str) -> str:
    """Return the name; InvalidArgumentError for what would be taken for a checkpoint's id."""
    if not is_savepoint_name(name):
        raise InvalidArgumentError(
            f"a savepoint cannot be called {name!r}: give a name that is no number, and neither "
            "'latest' nor 'all'"
        )
    return name


def savepoint_to_json(savepoint: Savepoint) -> bytes:
    """Return the document of a savepoint."""
    return document_bytes(
        {
            "format": SAVEPOINT_FORMAT,
            "format_version": FORMAT_VERSION,
            "name": savepoint.name,
            "checkpoint_id": savepoint.checkpoint_id,
            "created_at_ms": savepoint.created_at_ms,
        }
    )


def savepoint_from_json(raw: bytes, *, name: str) -> Savepoint:
    """Return the savepoint of a document; ``name`` is what errors call it.

    Raises MalformedManifestError or FormatVersionError.
    """
    root = parse_document(raw, name=name, form=SAVEPOINT_FORMAT, newest=FORMAT_VERSION)
    return Savepoint(
        root.at("name").text(),
        root.at("checkpoint_id").number(GREATEST_ID),
        root.at("created_at_ms").time(),
    )


def pin_to_json(pin: Pin) -> bytes:
    """Return the document of a pin."""
    return document_bytes(
        {
            "format": PIN_FORMAT,
            "format_version": FORMAT_VERSION,
            "token": pin.token,
            "checkpoint_id": pin.checkpoint_id,
            "holder": pin.holder,
            "until_ms": pin.until_ms,
        }
    )


def pin_from_json(raw: bytes, *, name: str) -> Pin:
    """Return the pin of a document; errors as those of :func:`savepoint_from_json`."""
    root = parse_document(raw, name=name, form=PIN_FORMAT, newest=FORMAT_VERSION)
    return Pin(
        root.at("token").text(),
        root.at("checkpoint_id").number(GREATEST_ID),
        root.at("holder").text(),
        root.at("until_ms").number(),
    )
