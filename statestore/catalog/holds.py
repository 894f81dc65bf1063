"""Savepoints and pins of a store, which hold checkpoints that would otherwise be deleted (I9).

A savepoint holds until it is deleted, and a pin until its lease ends. Both name a checkpoint by its
id. The checkpoint's manifest and data files stay, whether or not it has a tombstone.

**Why a check after the put is enough.** A holder first puts the document, and then checks that the
checkpoint is still visible. A tombstone outlives its manifest. So if the checkpoint has no
tombstone now, it had none before. A garbage collection before the put found the checkpoint alive. A
garbage collection after the put finds the hold, because it reads the tombstones first and the holds
second.

**Why only visible checkpoints can be held.** Suppose an expired checkpoint could get a second hold
because a savepoint still holds it, while that savepoint is being deleted. A garbage collection
could list the new hold too early and the old one too late, and miss both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TypeVar

from statestore.errors import (
    CheckpointNotFoundError,
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
)
from statestore.format.documents import CheckpointId, Count, Moment, document_bytes, parse_document
from statestore.format.names import (
    PINS,
    SAVEPOINTS,
    fold_name,
    is_inside,
    is_pin,
    is_savepoint,
    is_savepoint_name,
    pin_path,
    savepoint_path,
    unescape,
)
from statestore.storage import Storage, put_once

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

    A savepoint with a name of a fixed form keeps the files, so every release understands this hold.

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
    """A held checkpoint, and its holders as text."""

    checkpoint_id: int
    by: str


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


H = TypeVar("H", Savepoint, Pin)

_TAKE_AWAY = (
    "find out which checkpoint it keeps, create a savepoint of that checkpoint, and remove the file"
)


class Holds:
    """The documents of savepoints and pins in one store."""

    def __init__(self, storage: Storage) -> None:
        """Wrap a storage; nothing is read yet."""
        self._storage = storage

    def savepoints(self) -> tuple[Savepoint, ...]:
        """Return the savepoints, sorted by name; MalformedManifestError for a damaged one."""
        names = filter(is_savepoint, self._storage.list(SAVEPOINTS))
        documents = [self._read(name, savepoint_from_json) for name in names]
        return tuple(savepoint for savepoint in documents if savepoint is not None)

    def readable(self) -> tuple[Savepoint, ...]:
        """Return the readable savepoints, for messages in which damaged ones do not matter."""
        documents = []
        for name in filter(is_savepoint, self._storage.list(SAVEPOINTS)):
            with suppress(MalformedManifestError, FormatVersionError):
                documents.append(self._read(name, savepoint_from_json))
        return tuple(savepoint for savepoint in documents if savepoint is not None)

    def savepoint(self, name: str) -> Savepoint:
        """Return a savepoint; CheckpointNotFoundError lists the existing savepoints."""
        document = self._read(savepoint_path(name), savepoint_from_json)
        if document is None:
            raise self._not_found_error(name)
        return document

    def put_savepoint(self, savepoint: Savepoint, *, visible: Callable[[], object]) -> None:
        """Keep a checkpoint under a name; ``visible`` raises if the checkpoint is no longer
        visible.

        If ``visible`` raises, the new savepoint is deleted again. If the name already holds the
        same checkpoint, nothing happens. Raises InvalidArgumentError if the name is invalid, if it
        holds another checkpoint, or if it differs from another savepoint's name only in case or
        Unicode normalization.
        """
        path = savepoint_path(check_savepoint_name(savepoint.name))
        self._refuse_folded(savepoint.name)
        # Checked first: a savepoint of the same moment has the same bytes, and this call must not
        # delete it.
        exists = self._read(path, savepoint_from_json) is not None
        if exists or not put_once(self._storage, path, savepoint_to_json(savepoint)):
            existing = self.savepoint(savepoint.name)
            if existing.checkpoint_id == savepoint.checkpoint_id:
                visible()  # the writer of it may not have checked yet
                return
            raise InvalidArgumentError(
                f"savepoint {savepoint.name!r} already keeps checkpoint "
                f"{existing.checkpoint_id}; choose another name, or delete that savepoint first"
            )
        self._check_still_visible(path, savepoint_to_json(savepoint), visible)

    def delete_savepoint(self, name: str) -> Savepoint | None:
        """Delete a savepoint and return it; None for a damaged one, which is deleted as well.

        CheckpointNotFoundError lists the existing savepoints.
        """
        try:
            document = self.savepoint(name)
        except MalformedManifestError:
            document = None
        self._delete(savepoint_path(name))
        return document

    def pins(self) -> tuple[Pin, ...]:
        """Return the pins, including those with an expired lease.

        MalformedManifestError for a damaged pin.
        """
        names = filter(is_pin, self._storage.list(PINS))
        documents = [self._read(name, pin_from_json) for name in names]
        return tuple(pin for pin in documents if pin is not None)

    def put_pin(self, pin: Pin, *, visible: Callable[[], object]) -> None:
        """Keep a checkpoint until the lease ends; ``visible`` raises if it has become invisible.

        If ``visible`` raises, the new pin is deleted again.
        """
        path = pin_path(pin.token)
        if not put_once(self._storage, path, pin_to_json(pin)):
            raise InvalidArgumentError(f"pin {pin.token!r} already exists; choose another token")
        self._check_still_visible(path, pin_to_json(pin), visible)

    def refuse_unknown_pin(self, token: str) -> None:
        """Raise CheckpointNotFoundError that lists the existing pins if a pin does not exist."""
        names = self._storage.list(PINS)
        if token and pin_path(token) in names:
            return
        tokens = [name.removeprefix(f"{PINS}/").removesuffix(".json") for name in names]
        near = get_close_matches(token, tokens, 1) or tokens
        listed = ", ".join(map(repr, near[:10])) if near else "none"
        raise CheckpointNotFoundError(
            f"no pin {token!r} in {self._storage.url}; existing pins: {listed} (an expired "
            "pin keeps nothing, and the next garbage collection deletes it)"
        )

    def delete_pin(self, token: str) -> None:
        """Delete a pin; do nothing if it does not exist."""
        path = pin_path(token)
        with suppress(MalformedManifestError):
            if self._read(path, pin_from_json) is None:
                return
        self._delete(path)

    def held(self, now_ms: int, listed: Iterable[str] = ()) -> dict[int, str]:
        """Return the ids of the checkpoints that are held now, each with its holders.

        ``listed`` has file names from an earlier listing of the store. Holds among them are read
        even if a listing omits them now. Raises the errors of :meth:`pins`.
        """
        holders: dict[int, list[str]] = {}
        names = set(listed)
        for name in sorted(filter(is_pin, names.union(self._storage.list(PINS)))):
            pin = self._read(name, pin_from_json)
            if pin is not None and pin.until_ms > now_ms:
                holders.setdefault(pin.checkpoint_id, []).append(f"a pin of {pin.holder}")
        for name in sorted(filter(is_savepoint, names.union(self._storage.list(SAVEPOINTS)))):
            savepoint = self._read(name, savepoint_from_json)
            if savepoint is not None:
                holders.setdefault(savepoint.checkpoint_id, []).append(holder_of(savepoint.name))
        return {number: ", ".join(sorted(words)) for number, words in sorted(holders.items())}

    def _delete(self, path: str) -> None:
        """Delete a document, so that it does not return after a power failure."""
        self._storage.delete(path)
        self._storage.sync([path[: path.rindex("/") + 1]])

    def _refuse_folded(self, name: str) -> None:
        for path in filter(is_savepoint, self._storage.list(SAVEPOINTS)):
            other = unescape(path.removeprefix(f"{SAVEPOINTS}/").removesuffix(".json"))
            if other != name and fold_name(other) == fold_name(name):
                raise InvalidArgumentError(
                    f"savepoint names {name!r} and {other!r} in {self._storage.url} differ "
                    "only in case or Unicode normalization: on a file system that ignores "
                    "case they would be the same file; choose another name"
                )

    def _check_still_visible(self, path: str, put: bytes, visible: Callable[[], object]) -> None:
        """Delete the document ``put`` if its checkpoint is gone and no other writer replaced it."""
        try:
            visible()
        except CheckpointNotFoundError:
            with suppress(FileNotFoundError):
                if self._storage.read(path) == put:
                    self._delete(path)
            raise

    def _read(self, path: str, parse: Callable[..., H]) -> H | None:
        """Return a hold; None if it does not exist, or if its name led to another hold's file.

        A file system that ignores case finds another hold's file under this name.

        A file that was put by hand can have a name that no hold can have. It is treated as damaged,
        because it is unknown what it holds.
        """
        where = f"{self._storage.url}/{_printable(path)}"
        if not is_inside(path):
            raise MalformedManifestError(f"{where} is not the name of a hold; {_TAKE_AWAY}")
        try:
            raw = self._storage.read(path)
        except FileNotFoundError:  # deleted after the listing
            return None
        document = parse(raw, name=where)
        own = _path_of(document)
        if own != path and fold_name(own) == fold_name(path):
            return None
        if own != path:
            raise MalformedManifestError(
                f"{where} contains the document of {own}, which belongs under another name; "
                f"{_TAKE_AWAY}"
            )
        return document

    def _not_found_error(self, name: str) -> CheckpointNotFoundError:
        names = [savepoint.name for savepoint in self.readable()]
        near = get_close_matches(name, names, 1) or names
        listed = ", ".join(map(repr, near[:10])) if names else "none"
        return CheckpointNotFoundError(
            f"no savepoint {name!r} in {self._storage.url}; existing savepoints: {listed}"
        )


def _path_of(hold: Savepoint | Pin) -> str:
    return savepoint_path(hold.name) if isinstance(hold, Savepoint) else pin_path(hold.token)


def _printable(path: str) -> str:
    """Return a file name as printable text, even if it is not valid UTF-8."""
    return path.encode(errors="backslashreplace").decode()
