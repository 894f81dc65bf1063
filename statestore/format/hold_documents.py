"""Holds, which keep a checkpoint from being deleted: savepoints until deleted, pins for a while.

Both name a checkpoint by its id. The checkpoint's manifest and data files stay, whether or not it
has a tombstone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from statestore.errors import (
    InvalidArgumentError,
)
from statestore.format.documents import CheckpointId, Count, Moment, document_bytes, parse_document

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
HOLD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A checkpoint that is kept under a name until the savepoint is deleted."""

    name: str
    checkpoint_id: CheckpointId
    created_at_ms: Moment


@dataclass(frozen=True, slots=True)
class Pin:
    """A checkpoint that ``holder`` (free text) reads until ``until_ms``, the end of its lease."""

    token: str
    checkpoint_id: CheckpointId
    holder: str
    until_ms: Count


@dataclass(frozen=True, slots=True)
class Held:
    """A held checkpoint, and the text that says by whom."""

    checkpoint_id: int
    by: str


def is_savepoint_name(name: str) -> bool:
    """Return whether a savepoint may have this name, which must not be a checkpoint's reference."""
    return name not in ("", "latest", "all") and not name.isdigit()


def check_savepoint_name(name: str) -> str:
    """Return the name; InvalidArgumentError for a name that looks like a checkpoint's reference."""
    if not is_savepoint_name(name):
        raise InvalidArgumentError(
            f"invalid savepoint name {name!r}: a name must not be a number, 'latest' or 'all'"
        )
    return name


def savepoint_to_json(savepoint: Savepoint) -> bytes:
    """Return the document of a savepoint."""
    return document_bytes(
        {"format": SAVEPOINT_FORMAT, "format_version": HOLD_VERSION, **asdict(savepoint)}
    )


def savepoint_from_json(raw: bytes, *, name: str) -> Savepoint:
    """Parse a savepoint; ``name`` is the document's name in errors.

    Raises MalformedManifestError or FormatVersionError.
    """
    return parse_document(raw, Savepoint, name=name, form=SAVEPOINT_FORMAT, newest=HOLD_VERSION)


def pin_to_json(pin: Pin) -> bytes:
    """Return the document of a pin."""
    return document_bytes({"format": PIN_FORMAT, "format_version": HOLD_VERSION, **asdict(pin)})


def pin_from_json(raw: bytes, *, name: str) -> Pin:
    """Parse a pin; raises the errors of :func:`savepoint_from_json`."""
    return parse_document(raw, Pin, name=name, form=PIN_FORMAT, newest=HOLD_VERSION)
