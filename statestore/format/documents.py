"""JSON documents with a checksum, and errors that name the place in the document.

A document's last member is the SHA-256 of all bytes before it, at a fixed distance from the end of
the file. So any flipped byte is found before the document is parsed. Errors in the content name the
place: ``$.operators[0].keyed[1].rows``. Classes declare the members of a document with types and
bounds. Small functions check rules that involve several members.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from threading import Lock
from typing import Annotated, Any, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import Decoder

from statestore.errors import (
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
    StateStoreError,
)
from statestore.format.names import GREATEST_ID

__all__ = [
    "SEAL_BYTES",
    "CheckpointId",
    "Claim",
    "Count",
    "Header",
    "Held",
    "Moment",
    "Pin",
    "Savepoint",
    "as_declared",
    "check_savepoint_name",
    "claim_from_json",
    "claim_to_json",
    "converted",
    "document_bytes",
    "healed",
    "is_savepoint_name",
    "parse_document",
    "pin_from_json",
    "pin_to_json",
    "placed",
    "savepoint_from_json",
    "savepoint_to_json",
    "sealed",
    "unfit",
    "within",
]

_SEAL, _END = b',"sha256":"', b'"}\n'
SEAL_BYTES = len(_SEAL) + 64 + len(_END)


Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A count that fits into a 64-bit column."""

Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since 1970, before the year 10000."""

CheckpointId = Annotated[int, Meta(ge=0, le=GREATEST_ID)]

T = TypeVar("T")
_known: dict[Any, Decoder[Any]] = {}
_learning = Lock()
_AT = " - at `$"  # how msgspec's messages end, followed by the place and another `


class Header(Struct, frozen=True):
    """The format and version that every document starts with.

    The class of a long document extends it, so that the document is parsed once.
    """

    format: str
    format_version: Count


def converted(value: Any, kind: type[T], name: str, place: str = "") -> T:
    """Convert a JSON value, or an object made from one, to ``kind``, which declares its members.

    ``value`` is at ``place`` (``.operators[0]``) of the document ``name``. Members that are not
    declared are ignored. Raises MalformedManifestError with the place of the invalid value.
    """
    with placed(name, place):
        return as_declared(value, kind)


def as_declared(value: Any, kind: type[T]) -> T:
    """Convert a value, or the attributes of an object, to ``kind``; thread-safe.

    Raises msgspec's ValidationError.
    """
    _decoder(kind)
    return convert(value, kind, from_attributes=True)


def _decoder(kind: type[T]) -> Decoder[T]:
    """Return the cached decoder of a type."""
    known = _known.get(kind)
    if known is None:
        # msgspec inspects a class on first use, and marks it as known before it knows its members'
        # types. If a second thread used the class meanwhile, the process would crash.
        with _learning:
            known = _known[kind] = Decoder(kind)
    return known


@contextmanager
def placed(name: str, place: str = "") -> Iterator[None]:
    """Convert each error of a block that reads at ``place`` to a MalformedManifestError."""
    try:
        with within(place):
            yield
    except ValidationError as error:
        what, _, found = str(error).partition(_AT)
        raise MalformedManifestError(f"{name} at ${found[:-1]}: {what}") from error


@contextmanager
def within(place: str) -> Iterator[None]:
    """Prefix the place in each error of a block with ``place``."""
    try:
        yield
    except (StateStoreError, ValidationError, RecursionError, TypeError, ValueError) as error:
        what, _, found = str(error).partition(_AT)
        raise ValidationError(f"{what}{_AT}{place}{found or '`'}") from error


def unfit(member: str, what: str) -> ValidationError:
    """Return the error for a member (``.rows``) of the value being read."""
    return ValidationError(f"{what}{_AT}{member}`")


def document_bytes(document: dict[str, Any]) -> bytes:
    """Return a document as bytes: compact JSON in UTF-8, with its own SHA-256 as last member."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return sealed(text.encode().removesuffix(b"}"))


def sealed(body: bytes) -> bytes:
    """Complete a document without its closing brace by its SHA-256."""
    return body + _seal(hashlib.sha256(body).hexdigest())


def _seal(sha256: str) -> bytes:
    return _SEAL + sha256.encode() + _END


def parse_document(
    raw: bytes,
    kind: type[T],
    *,
    name: str,
    form: str,
    newest: int,
    mend: str = "recover it from a backup",
    known: tuple[int, str] | None = None,
) -> T:
    """Parse a document of the given form.

    ``mend`` says in the error what to do about a damaged document. ``known`` is the length and
    SHA-256 of all its bytes, if another document records them.

    Raises MalformedManifestError if a byte has changed or the bytes are not such a document, and
    FormatVersionError if its ``format_version`` is greater than ``newest``, the newest version that
    this release reads.
    """
    # This does not use sealed(), because copying a manifest of up to 100 MB would take long. The
    # bytes are also hashed only once: the checksum of the whole continues from the body's.
    seal, seen = raw[-SEAL_BYTES:], hashlib.sha256(memoryview(raw)[:-SEAL_BYTES])
    own = seal == _seal(seen.hexdigest())
    seen.update(seal)
    if not own or known not in (None, (len(raw), seen.hexdigest())):
        raise MalformedManifestError(
            f"{name} is damaged: its SHA-256 does not match its content; {mend}"
        )
    try:
        document = _decoded(raw, kind, name)
    except MalformedManifestError:  # expected if the form or version differs, so check these first
        _check_header(_decoded(raw, Header, name), name, form, newest)
        raise
    header = document if isinstance(document, Header) else _decoded(raw, Header, name)
    _check_header(header, name, form, newest)
    return document


def _check_header(header: Header, name: str, form: str, newest: int) -> None:
    if header.format != form:
        raise MalformedManifestError(
            f"{name} at $.format: expected {form!r}, found {header.format!r}"
        )
    if header.format_version > newest:
        raise FormatVersionError(
            f"{name} has format version {header.format_version}, but this release supports at most "
            f"{newest}. Upgrade statestore as described in the section Install of its README"
        )


def _decoded(raw: bytes, kind: type[T], name: str) -> T:
    """Decode the bytes of a document directly to ``kind``, without intermediate Python objects."""
    with placed(name):
        try:
            return _decoder(kind).decode(raw)
        except ValidationError:
            raise
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedManifestError(f"{name} is not valid JSON: {error}") from error


# A writer's claim to a store: one small document per generation, each newer than all before (I6).
#
# A claim is put once and never changed. docs/FORMAT.md describes the document.


CLAIM_FORMAT = "statestore-writer"
CLAIM_VERSION = 1
CLAIM_MEND = "'statestore repair' writes a new claim"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A writer's claim to a store: its generation (the fencing token), the writer and the time.

    ``announced_id`` is the greatest checkpoint id that this writer or an earlier one announced
    although smaller ids are free; 0 without an announcement.
    """

    generation: Count
    name: str
    token: str
    release: str
    claimed_at_ms: Moment
    announced_id: CheckpointId

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
    """Parse a claim; ``name`` is the document's name in errors.

    Raises MalformedManifestError, also if it is not the claim of ``generation``, or
    FormatVersionError.
    """
    claim = parse_document(
        raw, Claim, name=name, form=CLAIM_FORMAT, newest=CLAIM_VERSION, mend=CLAIM_MEND
    )
    if claim.generation != generation:
        raise MalformedManifestError(
            f"{name} at $.generation: the file contains the claim of generation "
            f"{claim.generation}, which belongs under another name"
        )
    return claim


# Holds, which keep a checkpoint from being deleted: a savepoint until it is deleted, a pin for a
# while.
#
# Both name a checkpoint by its id. The checkpoint's manifest and data files stay, whether or not it
# has a tombstone.


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


# Repair a document with one changed byte: its own SHA-256 proves the result.


# All values are tried at each position, which takes 0.1 s for a document of the usual 300 bytes.
_MOST_BYTES = 1024


def healed(raw: bytes) -> bytes | None:
    """Return the sealed document from which ``raw`` differs in one byte.

    None if it was not found: more bytes are damaged, or it is too long to try.
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
