"""Checksums equal published values; real savepoints in the golden tests have both kinds."""

from __future__ import annotations

from statestore.interop.flink.read.snappy import BLOCK_CHECKSUMS, masked_crc32c


def test_crc32c_is_castagnoli_and_masked() -> None:
    unmasked = [(masked_crc32c(data) - 0xA282EAD8) % 2**32 for data in (b"123456789", bytes(32))]
    assert [(crc << 15 | crc >> 17) % 2**32 for crc in unmasked] == [0xE3069283, 0x8A9136AA]


def test_a_block_checksum_mixes_the_compression_byte_into_xxh3() -> None:
    assert BLOCK_CHECKSUMS[4](memoryview(b"\0")) == 0x2D06800538D394C2 % 2**32  # XXH3 of nothing
    assert BLOCK_CHECKSUMS[4](memoryview(b"\1")) == 0x38D394C2 ^ 0x6B9083D9
