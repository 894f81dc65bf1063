"""JSON documents that tell when a byte of them changed, and where a broken one is broken.

A document's last member is the SHA-256 of all bytes before it, at a place counted from the end of
the file, so a flipped byte anywhere is found before the document is read. Errors of content name
the place: ``$.operators[0].keyed[1].rows``. What a document holds is declared, by classes whose
members have types and bounds; small functions say what members must be together.
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
"""A number that fits into a column."""

Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Milliseconds since 1970, before the year 10000."""

CheckpointId = Annotated[int, Meta(ge=0, le=GREATEST_ID)]

T = TypeVar("T")
_known: dict[Any, Decoder[Any]] = {}
_learning = Lock()
_AT = " - at `$"  # how msgspec ends what it says, with the place and another `


class Header(Struct, frozen=True):
    """What every document says of itself. A long one is declared with it, and so read once."""

    format: str
    format_version: Count


def converted(value: Any, kind: type[T], name: str, place: str = "") -> T:
    """Return a JSON value, or what was made of one, as ``kind``, which declares what it takes.

    ``value`` stands at ``place`` (``.operators[0]``) of the document called ``name``. Members that
    are not declared are passed over. Raises MalformedManifestError with the place of what does not
    fit.
    """
    with placed(name, place):
        return as_declared(value, kind)


def as_declared(value: Any, kind: type[T]) -> T:
    """Return a value, or what it has as attributes, as ``kind``; any number of threads may.

    Raises msgspec's ValidationError.
    """
    _decoder(kind)
    return convert(value, kind, from_attributes=True)


def _decoder(kind: type[T]) -> Decoder[T]:
    """Return what reads a kind of document."""
    known = _known.get(kind)
    if known is None:
        # It looks at a class when it first needs it, and the process dies where a second thread
        # needs it meanwhile: msgspec marks a class as known before it knows the members' types.
        with _learning:
            known = _known[kind] = Decoder(kind)
    return known


@contextmanager
def placed(name: str, place: str = "") -> Iterator[None]:
    """Make each error of a block that reads what is at ``place`` a MalformedManifestError."""
    try:
        with within(place):
            yield
    except ValidationError as error:
        what, _, found = str(error).partition(_AT)
        raise MalformedManifestError(f"{name} at ${found[:-1]}: {what}") from error


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put ``place`` before the place in each error of a block that reads what is there."""
    try:
        yield
    except (StateStoreError, ValidationError, RecursionError, TypeError, ValueError) as error:
        what, _, found = str(error).partition(_AT)
        raise ValidationError(f"{what}{_AT}{place}{found or '`'}") from error


def unfit(member: str, what: str) -> ValidationError:
    """Return the error for a member (``.rows``) of what is being read."""
    return ValidationError(f"{what}{_AT}{member}`")


def document_bytes(document: dict[str, Any]) -> bytes:
    """Return a document as bytes: compact JSON, UTF-8, and as last member its own SHA-256."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return sealed(text.encode().removesuffix(b"}"))


def sealed(body: bytes) -> bytes:
    """Return a document that lacks its closing brace, ended with its SHA-256."""
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
    mend: str = "bring it back from a copy",
    known: tuple[int, str] | None = None,
) -> T:
    """Return a document of the given form; ``mend`` is what to do about a damaged one, ``known``
    the length and the SHA-256 of all its bytes, if another document has them.

    Raises MalformedManifestError when a byte differs from those that were written or the bytes are
    no such document, and FormatVersionError when its ``format_version`` is greater than ``newest``,
    the newest that this release reads.
    """
    # Not through sealed(): a manifest may have 100 MB, and each copy of it would count. Nor is it
    # read twice: the checksum of all bytes goes on where that of the body ends.
    seal, seen = raw[-SEAL_BYTES:], hashlib.sha256(memoryview(raw)[:-SEAL_BYTES])
    own = seal == _seal(seen.hexdigest())
    seen.update(seal)
    if not own or known not in (None, (len(raw), seen.hexdigest())):
        raise MalformedManifestError(
            f"{name} is damaged: its bytes are not those that were written (SHA-256); {mend}"
        )
    try:
        document = _decoded(raw, kind, name)
    except MalformedManifestError:  # which is no wonder of another form, or of a newer one
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
            f"{name} has format version {header.format_version}; this release reads up to "
            f"{newest}. Upgrade statestore: the section Install of its README says how"
        )


def _decoded(raw: bytes, kind: type[T], name: str) -> T:
    """Return what the bytes of a document say, never as objects that Python would have first."""
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
CLAIM_MEND = "'statestore repair' claims the store anew"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Who took the store over, and when.

    ``announced_id`` is the greatest checkpoint id that this writer, or one before it, has said it
    will use although smaller ids are free; 0 when none has.
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
    """Return the claim of a document; ``name`` is what errors call it.

    Raises MalformedManifestError, also when it is not the claim of ``generation``, or
    FormatVersionError.
    """
    claim = parse_document(
        raw, Claim, name=name, form=CLAIM_FORMAT, newest=CLAIM_VERSION, mend=CLAIM_MEND
    )
    if claim.generation != generation:
        raise MalformedManifestError(
            f"{name} at $.generation: it is the claim of generation {claim.generation}, under "
            "another name"
        )
    return claim


# What keeps a checkpoint from expiring: a savepoint, by name and for good, or a pin, for a
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
    checkpoint_id: CheckpointId
    created_at_ms: Moment


@dataclass(frozen=True, slots=True)
class Pin:
    """A checkpoint that somebody (``holder``, free text) reads until ``until_ms``, its lease."""

    token: str
    checkpoint_id: CheckpointId
    holder: str
    until_ms: Count


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
        {"format": SAVEPOINT_FORMAT, "format_version": HOLD_VERSION, **asdict(savepoint)}
    )


def savepoint_from_json(raw: bytes, *, name: str) -> Savepoint:
    """Return the savepoint of a document; ``name`` is what errors call it.

    Raises MalformedManifestError or FormatVersionError.
    """
    return parse_document(raw, Savepoint, name=name, form=SAVEPOINT_FORMAT, newest=HOLD_VERSION)


def pin_to_json(pin: Pin) -> bytes:
    """Return the document of a pin."""
    return document_bytes({"format": PIN_FORMAT, "format_version": HOLD_VERSION, **asdict(pin)})


def pin_from_json(raw: bytes, *, name: str) -> Pin:
    """Return the pin of a document; errors as those of :func:`savepoint_from_json`."""
    return parse_document(raw, Pin, name=name, form=PIN_FORMAT, newest=HOLD_VERSION)


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
