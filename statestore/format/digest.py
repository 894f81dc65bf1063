"""An order-free digest of rows: equal for equal states, whatever the files, order or parallelism.

The digest of a set of rows is the sum, modulo 2^64, of a 64-bit hash of each row; so the digest of
a key group, a subtask, or a whole state is the sum of its parts' (I7). This module is the
definition in plain Python; ``files/digest.py`` computes the same on Arrow columns. docs/FORMAT.md
states the rule in words. It finds accidents; it is not a defence against somebody who forges rows.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "RescaleProof",
    "RowSet",
    "combine",
    "digest_text",
    "hash_row",
    "hash_value",
]

U64 = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, as in SplitMix64
NULL = 0x5354415445  # any constant that no length or word is likely to equal
NAN_BITS = 0x7FF8000000000000


def mix(x: int) -> int:
    """Return SplitMix64's finaliser of a 64-bit integer: a bijection in which every bit counts."""
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & U64
    return x ^ x >> 31


def hash_sequence(words: Iterable[int], length: int) -> int:
    """Return the hash of 64-bit words in order; ``length`` tells sequences of equal words apart."""
    total = (length * STEP) & U64
    for index, word in enumerate(words):
        total += mix((word + (index + 1) * STEP) & U64)
    return mix(total & U64)


def hash_value(value: Any) -> int:
    """Return the hash of one value.

    ``int`` (also booleans, days, microseconds), ``float``, ``str``, ``bytes``, ``(unscaled,
    scale)`` for a decimal as :class:`UnscaledDecimal`, ``list`` for an array, ``dict`` for a struct
    (fields by name), and a list of pairs as :class:`MapEntries` for a map; None is null.
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
    """Return the hash of a row or struct; columns count by name, not by position."""
    total = sum(mix((hash_value(value) + column_seed(name)) & U64) for name, value in row.items())
    return mix(total & U64)


def combine(digests: Iterable[int]) -> int:
    """Return the digest of several disjoint sets of rows from theirs."""
    return sum(digests) & U64


def column_seed(name: str) -> int:
    """Return the 64-bit number that stands for a column name: the first 8 bytes of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def digest_text(digest: int) -> str:
    """Return a digest as 16 hex digits, as manifests and reports show it."""
    return f"{digest:016x}"


class UnscaledDecimal:
    """A decimal as its unscaled integer and its column's scale."""

    def __init__(self, unscaled: int, scale: int) -> None:
        """Keep both parts."""
        self.unscaled, self.scale = unscaled, scale


class MapEntries:
    """A map as its entries; their order does not count."""

    def __init__(self, entries: Sequence[tuple[Any, Any]]) -> None:
        """Keep the entries."""
        self.entries = entries


def _hash_bytes(raw: bytes) -> int:
    padded = raw.ljust((len(raw) + 7) // 8 * 8, b"\0")
    words = [int.from_bytes(padded[at : at + 8], "little") for at in range(0, len(padded), 8)]
    return hash_sequence(words, len(raw))


# The proof that a rescale changed nothing: each subtask's rows, against those that are stored.
#
# A digest of a set of rows does not depend on their order, and those of disjoint sets add up. So if
# the subtasks' rows and digests sum to the stored ones, every stored row went to one subtask, and
# no other did (I7). Of union and broadcast state each subtask gets a copy, equal to what is stored.


@dataclass(frozen=True)
class RowSet:
    """A multiset of rows, by their number and their order-free digest."""

    rows: int
    digest: int


@dataclass(frozen=True)
class RescaleProof:
    """What is stored, and what each subtask got of it; with ``copies`` each should get all."""

    stored: RowSet
    subtasks: tuple[RowSet, ...]
    copies: bool = False

    @property
    def together(self) -> RowSet:
        """All subtasks' rows; of copies, one that is not what is stored, if there is such a one."""
        if self.copies:
            return next((found for found in self.subtasks if found != self.stored), self.stored)
        return RowSet(
            sum(found.rows for found in self.subtasks),
            combine(found.digest for found in self.subtasks),
        )

    @property
    def holds(self) -> bool:
        """Whether the rows are the stored ones: none lost, none twice, none changed."""
        return self.together == self.stored
