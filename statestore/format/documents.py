"""JSON documents with a checksum, errors that name the place, and the repair of a changed byte.

A document's last member is the SHA-256 of all bytes before it, at a fixed distance from the end of
the file. So any flipped byte is found before the document is parsed. Errors in the content name the
place: ``$.operators[0].keyed[1].rows``. Classes declare the members of a document with types and
bounds. Small functions check rules that involve several members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Annotated, Any, TypeVar

from msgspec import DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import Decoder, encode

from statestore.errors import (
    FormatVersionError,
    InvalidArgumentError,
    MalformedManifestError,
    StateStoreError,
)
from statestore.format.names import GREATEST_ID

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
_UNREADABLE = (StateStoreError, ValidationError, RecursionError, TypeError, ValueError)
_AT = " - at `$"  # how msgspec's messages end, followed by the place and another `


class Header(Struct, frozen=True):
    """The format and version that every document starts with.

    The class of a long document extends it, so that the document is parsed once.
    """

    format: str
    format_version: Count


def convert_json(value: Any, model: type[T], name: str, place: str = "") -> T:
    """Convert a JSON value, or an object made from one, to ``model``, which declares its members.

    ``value`` is at ``place`` (``.operators[0]``) of the document ``name``. Members that are not
    declared are ignored. Raises MalformedManifestError with the place of the invalid value.
    """
    with report_place(name, place):
        return convert_value(value, model)


def convert_value(value: Any, model: type[T]) -> T:
    """Convert a value, or the attributes of an object, to ``model``; thread-safe.

    Raises msgspec's ValidationError.
    """
    _decoder(model)
    return convert(value, model, from_attributes=True)


def _decoder(model: type[T]) -> Decoder[T]:
    """Return the cached decoder of a type."""
    known = _known.get(model)
    if known is None:
        # msgspec inspects a class on first use, and marks it as known before it knows its members'
        # types. If a second thread used the class meanwhile, the process would crash.
        with _learning:
            known = _known[model] = Decoder(model)
    return known


@contextmanager
def report_place(name: str, place: str = "") -> Iterator[None]:
    """Convert each error of a block that reads at ``place`` to a MalformedManifestError."""
    try:
        yield
    except _UNREADABLE as error:
        message, _, path = str(error).partition(_AT)
        raise MalformedManifestError(f"{name} at ${place}{path[:-1]}: {message}") from error


@contextmanager
def prefix_place(place: str) -> Iterator[None]:
    """Prefix the place in each error of a block with ``place``."""
    try:
        yield
    except _UNREADABLE as error:
        message, _, path = str(error).partition(_AT)
        raise ValidationError(f"{message}{_AT}{place}{path or '`'}") from error


def member_error(member: str, message: str) -> ValidationError:
    """Return the error for a member (``.rows``) of the value being read."""
    return ValidationError(f"{message}{_AT}{member}`")


def document_bytes(
    document: dict[str, Any], read: Callable[[bytes], object] | None = None
) -> bytes:
    """Return a document as bytes: compact JSON in UTF-8, with its own SHA-256 as last member.

    ``read`` is the reader of such documents: nothing is stored that it refuses (I19). Raises
    InvalidArgumentError for a document that ``read`` refuses, and for text that is not Unicode.
    """
    try:
        raw = seal_document(encode(document).removesuffix(b"}"))
        if read is not None:
            read(raw)
    except (StateStoreError, RecursionError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"a document cannot be stored, because it could not be read back: {error}"
        ) from error
    return raw


def seal_document(body: bytes) -> bytes:
    """Complete a document without its closing brace by its SHA-256."""
    return body + _seal(hashlib.sha256(body).hexdigest())


def _seal(sha256: str) -> bytes:
    return _SEAL + sha256.encode() + _END


def parse_document(
    raw: bytes,
    model: type[T],
    *,
    name: str,
    form: str,
    newest: int,
    remedy: str = "recover it from a backup",
    known: tuple[int, str] | None = None,
) -> T:
    """Parse a document of the given form.

    ``remedy`` says in the error what to do about a damaged document. ``known`` is the length and
    SHA-256 of all its bytes, if another document records them.

    Raises MalformedManifestError if a byte has changed or the bytes are not such a document, and
    FormatVersionError if its ``format_version`` is greater than ``newest``, the newest version that
    this release reads.
    """
    # This does not use sealed(), because copying a manifest of up to 100 MB would take long. The
    # bytes are also hashed only once: the checksum of the whole continues from the body's.
    seal, digest = raw[-SEAL_BYTES:], hashlib.sha256(memoryview(raw)[:-SEAL_BYTES])
    own = seal == _seal(digest.hexdigest())
    digest.update(seal)
    if not own or known not in (None, (len(raw), digest.hexdigest())):
        raise MalformedManifestError(
            f"{name} is damaged: its SHA-256 does not match its content; {remedy}"
        )
    try:
        document = _decode_document(raw, model, name)
    except MalformedManifestError:  # expected if the form or version differs, so check these first
        _check_header(_decode_document(raw, Header, name), name, form, newest)
        raise
    header = document if isinstance(document, Header) else _decode_document(raw, Header, name)
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


def _decode_document(raw: bytes, model: type[T], name: str) -> T:
    """Decode the bytes of a document directly to ``model``, without intermediate Python objects."""
    with report_place(name):
        try:
            return _decoder(model).decode(raw)
        except ValidationError:
            raise
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedManifestError(f"{name} is not valid JSON: {error}") from error


# All values are tried at each position, which takes 0.1 s for a document of the usual 300 bytes.
_MOST_BYTES = 1024


def repair_byte(raw: bytes) -> bytes | None:
    """Repair a document with one damaged byte.

    The document's own SHA-256 proves that the result is the original. The result is None if more
    bytes are damaged, or if the document is too long to try all bytes.
    """
    body, seal = raw[:-SEAL_BYTES], raw[-SEAL_BYTES:]
    if not body or len(raw) > _MOST_BYTES:
        return None
    whole = seal_document(body)
    if sum(a != b for a, b in zip(whole[-SEAL_BYTES:], seal, strict=True)) == 1:
        return whole
    for position in range(len(body)):
        before, behind = hashlib.sha256(body[:position]), body[position + 1 :]
        for byte in range(256):
            tried = before.copy()
            tried.update(bytes([byte]) + behind)
            if tried.hexdigest().encode() in seal:
                document = seal_document(body[:position] + bytes([byte]) + behind)
                return document if document[-SEAL_BYTES:] == seal else None
    return None
