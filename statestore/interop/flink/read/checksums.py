"""Checksums of Flink's files: CRC-32C in Snappy frames, CRC-32C or XXH3 after RocksDB blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import google_crc32c
import xxhash

_LOW: Final = (1 << 32) - 1
_LAST_BYTE: Final = 0x6B9083D9


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C (Castagnoli) in the masked form in which it is stored next to its data."""
    crc: int = google_crc32c.value(bytes(data))  # it takes no memoryview
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _LOW


def _no_checksum(block: memoryview) -> int:
    return 0


def _xxh3(block: memoryview) -> int:
    return (xxhash.xxh3_64_intdigest(block[:-1]) ^ block[-1] * _LAST_BYTE) & _LOW


BLOCK_CHECKSUMS: Final[dict[int, Callable[[memoryview], int]]] = {
    0: _no_checksum,
    1: masked_crc32c,
    4: _xxh3,
}
"""Checksum functions of RocksDB blocks by the checksum type in the footer. The input is a block
with its compression byte (``ComputeBuiltinChecksumWithLastByte``).
"""
