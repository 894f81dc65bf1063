"""Holds, which keep a checkpoint from being deleted: savepoints until deleted, pins for a while.

Both name a checkpoint by its id. The checkpoint's manifest and data files stay, whether or not it
has a tombstone.

A table of another catalog that shows a checkpoint's own files keeps them by a savepoint with a
name of a fixed form (:class:`Publication`). Every release therefore understands this hold.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from statestore.errors import (
    InvalidArgumentError,
)
from statestore.format.documents import CheckpointId, Count, Moment, document_bytes, parse_document
from statestore.format.names import savepoint_path

__all__ = [
    "Held",
    "Pin",
    "Publication",
    "Savepoint",
    "check_savepoint_name",
    "holder_of",
    "is_savepoint_name",
    "pin_from_json",
    "pin_to_json",
    "publication_of",
    "savepoint_from_json",
    "savepoint_to_json",
]


SAVEPOINT_FORMAT, PIN_FORMAT = "statestore-savepoint", "statestore-pin"
HOLD_VERSION = 1
PUBLICATION = re.compile(r"iceberg:(.+):([0-9a-f]{32}):([0-9a-f]{16})", re.DOTALL)
_RESERVED = "iceberg:"


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
class Publication:
    """An Iceberg table's use of a checkpoint's files.

    ``table`` is the table's name after the catalog's, for people. ``table_id`` is the table's UUID
    as 32 hex digits, and ``attempt`` is new for each snapshot of the table.
    """

    table: str
    table_id: str
    attempt: str

    @property
    def savepoint_name(self) -> str:
        """The name of the savepoint that keeps the files; a long table name is cut."""
        table = self.table
        while True:
            name = f"{_RESERVED}{table}:{self.table_id}:{self.attempt}"
            try:
                savepoint_path(name)
            except InvalidArgumentError:  # too long for a path
                if len(table) == 1:
                    raise
                table = table[:-1]
            else:
                return name


def publication_of(name: str) -> Publication | None:
    """Return the publication that a savepoint's name denotes; None for any other savepoint."""
    match = PUBLICATION.fullmatch(name)
    return None if match is None else Publication(match[1], match[2], match[3])


def holder_of(savepoint: str) -> str:
    """Return how messages name the savepoint: by its own name, or by the table that needs it."""
    publication = publication_of(savepoint)
    if publication is None:
        return f"savepoint {savepoint!r}"
    return f"the Iceberg table {publication.table!r} (savepoint {savepoint!r})"


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
    """Return the document of a savepoint; InvalidArgumentError if no reader could read it."""
    return document_bytes(
        {"format": SAVEPOINT_FORMAT, "format_version": HOLD_VERSION, **asdict(savepoint)},
        lambda raw: savepoint_from_json(raw, name="the savepoint"),
    )


def savepoint_from_json(raw: bytes, *, name: str) -> Savepoint:
    """Parse a savepoint; ``name`` is the document's name in errors.

    Raises MalformedManifestError or FormatVersionError.
    """
    return parse_document(raw, Savepoint, name=name, form=SAVEPOINT_FORMAT, newest=HOLD_VERSION)


def pin_to_json(pin: Pin) -> bytes:
    """Return the document of a pin; InvalidArgumentError if no reader could read it."""
    return document_bytes(
        {"format": PIN_FORMAT, "format_version": HOLD_VERSION, **asdict(pin)},
        lambda raw: pin_from_json(raw, name="the pin"),
    )


def pin_from_json(raw: bytes, *, name: str) -> Pin:
    """Parse a pin; raises the errors of :func:`savepoint_from_json`."""
    return parse_document(raw, Pin, name=name, form=PIN_FORMAT, newest=HOLD_VERSION)
