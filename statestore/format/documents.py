"""JSON documents that tell when a byte of them changed, and where a broken one is broken.

A document's last member is the SHA-256 of all bytes before it, at a place counted from the end of
the file, so a flipped byte anywhere is found before the document is read. Errors of content name
the place: ``$.operators[0].keyed[1].rows``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from statestore.errors import FormatVersionError, InvalidArgumentError, MalformedManifestError
from statestore.format.names import GREATEST_ID

__all__ = [
    "SEAL_BYTES",
    "Claim",
    "Held",
    "Node",
    "Pin",
    "Savepoint",
    "check_savepoint_name",
    "claim_from_json",
    "claim_to_json",
    "document_bytes",
    "healed",
    "is_savepoint_name",
    "parse_document",
    "pin_from_json",
    "pin_to_json",
    "savepoint_from_json",
    "savepoint_to_json",
    "sealed",
]

# The greatest number that fits into a column, and the last millisecond of the year 9999.
_GREATEST, _LAST_MS = 2**63 - 1, 253_402_300_799_999
_SEAL, _END = b',"sha256":"', b'"}\n'
SEAL_BYTES = len(_SEAL) + 64 + len(_END)


class Node:
    """A value inside a JSON document, with its path; every getter checks the type it promises."""

    def __init__(self, value: Any, path: str, name: str) -> None:
        """Wrap ``value``, found at ``path`` of the document called ``name``."""
        self.value, self.path, self.name = value, path, name

    def fail(self, what: str) -> MalformedManifestError:
        """Return the error for this place; the caller raises it."""
        return MalformedManifestError(f"{self.name} at {self.path}: {what}")

    def at(self, key: str) -> Node:
        """Return a member; MalformedManifestError when it is missing."""
        if not isinstance(self.value, dict):
            raise self.fail(f"expected an object, found {type(self.value).__name__}")
        if key not in self.value:
            raise self.fail(f"{key!r} is missing")
        return Node(self.value[key], f"{self.path}.{key}", self.name)

    def maybe(self, key: str) -> Node | None:
        """Return a member, None when it is missing or null."""
        found = isinstance(self.value, dict) and self.value.get(key) is not None
        return self.at(key) if found else None

    def items(self) -> Iterator[Node]:
        """Yield the elements of an array."""
        for index, value in enumerate(self._as(list)):
            yield Node(value, f"{self.path}[{index}]", self.name)

    def object(self) -> dict[str, Any]:
        """Return the value, an object."""
        value: dict[str, Any] = self._as(dict)
        return value

    def text(self) -> str:
        """Return the value, a string."""
        value: str = self._as(str)
        return value

    def number(self, greatest: int = _GREATEST) -> int:
        """Return the value, an integer that is not negative, at most 2**63 - 1 or as said."""
        value: int = self._as(int)
        if isinstance(value, bool) or not 0 <= value <= greatest:
            raise self.fail(f"expected a number in 0..{greatest}, found {value}")
        return value

    def time(self) -> int:
        """Return the value, milliseconds since 1970."""
        return self.number(_LAST_MS)

    def texts(self) -> tuple[str, ...]:
        """Return the value, an array of strings."""
        return self._array(str)

    def numbers(self) -> tuple[int, ...]:
        """Return the value, an array of integers that are not negative."""
        values: tuple[int, ...] = self._array(int)
        for value in (min(values), max(values)) if values else ():
            if not 0 <= value <= _GREATEST:
                raise self.fail(f"expected numbers in 0..{_GREATEST}, found {value}")
        return values

    def _array(self, kind: type) -> tuple[Any, ...]:
        values = self._as(list)
        if set(map(type, values)) - {kind}:
            raise self.fail(f"expected an array of {kind.__name__}")
        return tuple(values)

    def _as(self, kind: type) -> Any:
        if not isinstance(self.value, kind):
            raise self.fail(f"expected {kind.__name__}, found {type(self.value).__name__}")
        return self.value


def document_bytes(document: dict[str, Any]) -> bytes:
    """Return a document as bytes: compact JSON, UTF-8, and as last member its own SHA-256."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return sealed(text.encode().removesuffix(b"}"))


def sealed(body: bytes) -> bytes:
    """Return a document that lacks its closing brace, ended with its SHA-256."""
    return body + _seal(body)


def _seal(body: bytes | memoryview) -> bytes:
    return _SEAL + hashlib.sha256(body).hexdigest().encode() + _END


def parse_document(
    raw: bytes, *, name: str, form: str, newest: int, mend: str = "bring it back from a copy"
) -> Node:
    """Return the root of a document of the given form; ``mend`` is what to do about a damaged one.

    Raises MalformedManifestError when a byte differs from those that were written or the bytes are
    no such document, and FormatVersionError when its ``format_version`` is greater than ``newest``,
    the newest that this release reads.
    """
    # Not through sealed(): a manifest may have 100 MB, and each copy of it would count.
    if raw[-SEAL_BYTES:] != _seal(memoryview(raw)[:-SEAL_BYTES]):
        raise MalformedManifestError(
            f"{name} is damaged: its bytes are not those that were written (SHA-256); {mend}"
        )
    try:
        root = Node(json.loads(raw), "$", name)
    except (ValueError, RecursionError) as error:
        raise MalformedManifestError(f"{name} is not valid JSON: {error}") from error
    if root.at("format").text() != form:
        raise root.at("format").fail(f"expected {form!r}, found {root.at('format').text()!r}")
    version = root.at("format_version").number()
    if version > newest:
        raise FormatVersionError(
            f"{name} has format version {version}; this release reads up to {newest}. "
            "Upgrade: pip install --upgrade statestore"
        )
    return root


# A writer's claim to a store: one small document per generation, each newer than all before (I6).
#
# A claim is put once and never changed. docs/FORMAT.md describes the document.


CLAIM_FORMAT = "statestore-writer"
CLAIM_VERSION = 1
CLAIM_MEND = "'statestore repair' claims the store anew"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Who took the store over, and when.

    ``announced_id`` is the greatest checkpoint id that this writer, or one before it, has said it
    will use although smaller ids are free; 0 when none has.
    """

    generation: int
    name: str
    token: str
    release: str
    claimed_at_ms: int
    announced_id: int

    def __str__(self) -> str:
        """Return ``writer host:pid (statestore 1.0, generation 3, since 2026-01-31 …)``."""
        since = datetime.fromtimestamp(self.claimed_at_ms / 1000, UTC)
        return (
            f"writer {self.name} (statestore {self.release}, generation {self.generation}, "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC)"
        )


def claim_to_json(claim: Claim) -> bytes:
    """Return the document of a claim, UTF-8."""
    return document_bytes(
        {"format": CLAIM_FORMAT, "format_version": CLAIM_VERSION, **asdict(claim)}
    )


def claim_from_json(raw: bytes, *, name: str, generation: int) -> Claim:
    """Return the claim of a document; ``name`` is what errors call it.

    Raises MalformedManifestError, also when it is not the claim of ``generation``, or
    FormatVersionError.
    """
    root = parse_document(raw, name=name, form=CLAIM_FORMAT, newest=CLAIM_VERSION, mend=CLAIM_MEND)
    claim = Claim(
        generation=root.at("generation").number(),
        name=root.at("name").text(),
        token=root.at("token").text(),
        release=root.at("release").text(),
        claimed_at_ms=root.at("claimed_at_ms").time(),
        announced_id=root.at("announced_id").number(GREATEST_ID),
    )
    if claim.generation != generation:
        raise MalformedManifestError(
            f"{name} at $.generation: it is the claim of generation {claim.generation}, under "
            "another name"
        )
    return claim


# What keeps a checkpoint from being given up: a savepoint, by name and for good, or a pin, for a
# while.
#
# Both name a checkpoint by its id. Its manifest and the files that it names stay, whether or not it
# has a tombstone.


SAVEPOINT_FORMAT, PIN_FORMAT = "statestore-savepoint", "statestore-pin"
HOLD_VERSION = 1


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
            "format_version": HOLD_VERSION,
            "name": savepoint.name,
            "checkpoint_id": savepoint.checkpoint_id,
            "created_at_ms": savepoint.created_at_ms,
        }
    )


def savepoint_from_json(raw: bytes, *, name: str) -> Savepoint:
    """Return the savepoint of a document; ``name`` is what errors call it.

    Raises MalformedManifestError or FormatVersionError.
    """
    root = parse_document(raw, name=name, form=SAVEPOINT_FORMAT, newest=HOLD_VERSION)
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
            "format_version": HOLD_VERSION,
            "token": pin.token,
            "checkpoint_id": pin.checkpoint_id,
            "holder": pin.holder,
            "until_ms": pin.until_ms,
        }
    )


def pin_from_json(raw: bytes, *, name: str) -> Pin:
    """Return the pin of a document; errors as those of :func:`savepoint_from_json`."""
    root = parse_document(raw, name=name, form=PIN_FORMAT, newest=HOLD_VERSION)
    return Pin(
        root.at("token").text(),
        root.at("checkpoint_id").number(GREATEST_ID),
        root.at("holder").text(),
        root.at("until_ms").number(),
    )


# A document of which one byte changed, as it was: its own SHA-256 proves it.


# Each byte is tried at each place: a tenth of a second for documents of the usual 300 bytes.
_MOST_BYTES = 1024


def healed(raw: bytes) -> bytes | None:
    """Return the sealed document from which ``raw`` differs in one byte, None when there is none
    to be found: more is damaged, or it is too long to try.
    """
    body, seal = raw[:-SEAL_BYTES], raw[-SEAL_BYTES:]
    if not body or len(raw) > _MOST_BYTES:
        return None
    whole = sealed(body)
    if sum(a != b for a, b in zip(whole[-SEAL_BYTES:], seal, strict=True)) == 1:
        return whole
    for at in range(len(body)):
        before, behind = hashlib.sha256(body[:at]), body[at + 1 :]
        for byte in range(256):
            tried = before.copy()
            tried.update(bytes([byte]) + behind)
            if tried.hexdigest().encode() in seal:
                found = sealed(body[:at] + bytes([byte]) + behind)
                return found if found[-SEAL_BYTES:] == seal else None
    return None
