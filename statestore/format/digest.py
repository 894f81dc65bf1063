"""An order-independent digest of rows, and the proof that a rescale changed no row.

The digests of equal states are equal, at any parallelism and file layout. The digest of a set of
rows is the sum, modulo 2^64, of a 64-bit hash of each row. So the digest of a key group, a subtask
or a whole state is the sum of its parts' digests (I7). This module defines it in plain Python.
``rows/digests.py`` computes the same on Arrow columns, and docs/FORMAT.md describes it. The digest
detects accidents. It does not protect against forged rows.

The proof (:class:`RescaleProof`) follows from the sums. If the subtasks' rows and digests sum to
the stored ones, every stored row went to exactly one subtask, and no other row was added (I7). With
union and broadcast state, each subtask gets a copy that must equal the stored rows.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

U64 = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, as in SplitMix64
NULL = 0x5354415445  # any constant that is unlikely to equal a length or a word
NAN_BITS = 0x7FF8000000000000


def mix(x: int) -> int:
    """Return SplitMix64's finalizer of a 64-bit integer: a bijection that mixes every bit."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & U64
    return x ^ x >> 31


def hash_sequence(words: Iterable[int], length: int) -> int:
    """Return the hash of 64-bit words in order; ``length`` separates sequences of equal words."""
    total = (length * STEP) & U64
    for index, word in enumerate(words):
        total += mix((word + (index + 1) * STEP) & U64)
    return mix(total & U64)


def hash_value(value: Any) -> int:
    """Return the hash of one value.

    The types are ``int`` (also booleans, days, microseconds), ``float``, ``str``, ``bytes``,
    :class:`UnscaledDecimal` for a decimal, ``list`` for an array, ``dict`` for a struct (fields by
    name), and :class:`MapEntries` for a map. None is null.
    """
    match value:
        case None:
            return mix(NULL)
        case int():
            return mix((value + STEP) & U64)
        case float():
            bits = NAN_BITS if value != value else struct.unpack("<Q", struct.pack("<d", value))[0]
            return mix((bits + STEP) & U64)
        case str():
            return _hash_bytes(value.encode())
        case bytes():
            return _hash_bytes(value)
        case UnscaledDecimal():
            raw = value.unscaled & ((1 << 128) - 1)
            return hash_sequence([raw & U64, raw >> 64], value.scale)
        case MapEntries():
            pairs = sum(mix((hash_value(k) + mix(hash_value(v))) & U64) for k, v in value.entries)
            return mix((len(value.entries) * STEP + pairs) & U64)
        case dict():
            return hash_row(value)
        case list() | tuple():
            return hash_sequence([hash_value(element) for element in value], len(value))
    raise TypeError(f"no digest is defined for {type(value).__name__}")


def hash_row(row: Mapping[str, Any]) -> int:
    """Return the hash of a row or struct; columns are identified by name, not by position."""
    total = sum(mix((hash_value(value) + column_seed(name)) & U64) for name, value in row.items())
    return mix(total & U64)


def combine(digests: Iterable[int]) -> int:
    """Return the digest of the union of disjoint sets of rows, from their digests."""
    return sum(digests) & U64


def column_seed(name: str) -> int:
    """Return the 64-bit seed of a column name: the first 8 bytes of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def digest_text(digest: int) -> str:
    """Return a digest as 16 hex digits, its form in manifests and reports."""
    return f"{digest:016x}"


class UnscaledDecimal:
    """A decimal as its unscaled integer and its column's scale."""

    def __init__(self, unscaled: int, scale: int) -> None:
        """Keep both parts."""
        self.unscaled, self.scale = unscaled, scale


class MapEntries:
    """A map as its entries, whose order is ignored."""

    def __init__(self, entries: Sequence[tuple[Any, Any]]) -> None:
        """Keep the entries."""
        self.entries = entries


def _hash_bytes(raw: bytes) -> int:
    padded = raw.ljust((len(raw) + 7) // 8 * 8, b"\0")
    words = [
        int.from_bytes(padded[start : start + 8], "little") for start in range(0, len(padded), 8)
    ]
    return hash_sequence(words, len(raw))


@dataclass(frozen=True)
class RowSet:
    """A multiset of rows, represented by their number and their order-independent digest."""

    rows: int
    digest: int


@dataclass(frozen=True)
class RescaleProof:
    """The stored rows and each subtask's rows; with ``copies`` each subtask should get all rows."""

    stored: RowSet
    subtasks: tuple[RowSet, ...]
    copies: bool = False

    @property
    def together(self) -> RowSet:
        """The rows of all subtasks; with copies, the first one that differs from ``stored``."""
        if self.copies:
            return next(
                (subtask for subtask in self.subtasks if subtask != self.stored), self.stored
            )
        return RowSet(
            sum(subtask.rows for subtask in self.subtasks),
            combine(subtask.digest for subtask in self.subtasks),
        )

    @property
    def holds(self) -> bool:
        """True if the rows are the stored ones: none lost, none duplicated, none changed."""
        return self.together == self.stored
