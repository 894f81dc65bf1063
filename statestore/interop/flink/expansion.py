"""A bound on what the bytes of a compressed file may come to.

Compression and shared prefixes of keys let a small file stand for any number of bytes. RocksDB's
files of real state come to less than a hundred times their length.
"""

from __future__ import annotations

from typing import Final

from statestore.errors import DamagedFileError

__all__ = ["BLOCK_BYTES", "Expansion"]

BLOCK_BYTES: Final = 1 << 30
"""The largest block that is decompressed: more than the largest row that a store takes."""

_FREE: Final = 256 << 20
_TIMES: Final = 256


class Expansion:
    """The number of bytes that one pass over a file may still make of it."""

    __slots__ = ("_left", "_most", "_name")

    def __init__(self, name: str, stored: int) -> None:
        """Allow for a file of ``stored`` bytes, which messages call ``name``."""
        self._name = name
        self._most = self._left = _FREE + _TIMES * stored

    def spend(self, count: int, at: int) -> None:
        """Take ``count`` bytes, which the bytes at ``at`` of the file come to.

        Raises:
            DamagedFileError: if the file comes to more than it may.
        """
        self._left -= count
        if self._left < 0:
            raise DamagedFileError(
                f"{self._name} is damaged at byte {at}: up to there it comes to more than "
                f"{self._most} bytes once it is decompressed, which no state of its length does"
            )
