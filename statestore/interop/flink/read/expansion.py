"""A limit for the decompressed size of a file.

Compression and shared key prefixes let a small file expand to any number of bytes. RocksDB files
with real state expand to less than a hundred times their length.
"""

from __future__ import annotations

from typing import Final

from statestore.errors import DamagedFileError

BLOCK_BYTES: Final = 1 << 30
"""The largest block that is decompressed: larger than the largest row of a store."""

_FREE_BYTES: Final = 256 << 20
_MAX_RATIO: Final = 256


class Expansion:
    """The number of bytes to which one pass over a file may still expand."""

    __slots__ = ("_limit", "_name", "_remaining")

    def __init__(self, name: str, stored: int) -> None:
        """Set the limit for a file of ``stored`` bytes; ``name`` is its name in messages."""
        self._name = name
        self._limit = self._remaining = _FREE_BYTES + _MAX_RATIO * stored

    def spend(self, count: int, position: int) -> None:
        """Use up ``count`` bytes, to which the data at byte ``position`` of the file expands.

        Raises:
            DamagedFileError: if the file expands to more than its limit.
        """
        self._remaining -= count
        if self._remaining < 0:
            raise DamagedFileError(
                f"{self._name} is damaged at byte {position}: the data up to there expands to more "
                f"than {self._limit} bytes, which is impossible for state of this length"
            )
