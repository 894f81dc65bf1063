"""JSON documents that tell when a byte of them changed, and where a broken one is broken.

A document's last member is the SHA-256 of all bytes before it, at a place counted from the end of
the file, so a flipped byte anywhere is found before the document is read. Errors of content name
the place: ``$.operators[0].keyed[1].rows``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from statestore.errors import FormatVersionError, MalformedManifestError

__all__ = ["SEAL_BYTES", "Node", "document_bytes", "parse_document", "sealed"]

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
