"""Checksums equal their definition, and the results of the library xxhash."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statestore.interop.flink_savepoints.read.checksums import crc32c, xxh3

XXHASH = {
    0: 0x2D06800538D394C2,
    1: 0xE12EF9D2EB86CEEB,
    2: 0xA33E1C7FC1A42992,
    3: 0xB7391E018153D37A,
    4: 0x43DE45B7450A6563,
    7: 0xFB8FF72EAE9E7AD3,
    8: 0xBCB3564EA273195D,
    9: 0x388F1DAB6E174F79,
    15: 0x6169CD0961ED52E2,
    16: 0x9A9A7C8AF11CB0D1,
    17: 0x6331A7347274566F,
    32: 0x26F5ECF3B5E3795F,
    33: 0xF25ACB195A053BDD,
    64: 0x9D685FA1AFB700BE,
    65: 0xCFF8083B10FF071A,
    96: 0x87523B80595E1721,
    97: 0x397D4B2A1FE57423,
    128: 0xD87ECCBA9F4B0254,
    129: 0xD89EB03C50A5F1CD,
    143: 0xC25ABE00BD6149C2,
    144: 0xD29A1113040C050A,
    200: 0x509714B14F8BFA28,
    240: 0xA0DDE1C32ED45AB1,
    241: 0xE267F69427B7CFFF,
    512: 0xBB9670149C246B66,
    1024: 0x5FBC6E91C9AB8171,
    1025: 0x244EF548F1248808,
    1088: 0x5AA1427C6EBEC108,
    1089: 0x656FDCC66D0ED696,
    2049: 0x475B38BB6EFCCD85,
    4097: 0xAD2B9B213089153A,
    65537: 0xC25D1A6B05FBDD46,
}
"""The result of ``xxhash.xxh3_64_intdigest`` for :func:`made`, by length."""


def made(length: int) -> bytes:
    return bytes((at * at * 31 + at * 7 + (at >> 5) + length) & 255 for at in range(length))


@pytest.mark.parametrize("length", XXHASH)
def test_xxh3_equals_the_library(length: int) -> None:
    assert xxh3([made(length)]) == [XXHASH[length]]
    assert xxh3([memoryview(b"x" + made(length))[1:]]) == [XXHASH[length]]


def test_xxh3_of_several_pieces_equals_that_of_each() -> None:
    lengths = [*XXHASH, *reversed(XXHASH)]
    assert xxh3([made(length) for length in lengths]) == [XXHASH[length] for length in lengths]
    assert xxh3([]) == []


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=600), max_size=4))
def test_crc32c_is_castagnoli(pieces: list[bytes]) -> None:
    def slowly(data: bytes) -> int:
        crc = 0xFFFFFFFF
        for value in data:
            crc ^= value
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        return crc ^ 0xFFFFFFFF

    assert crc32c(pieces) == [slowly(piece) for piece in pieces]
    many = [*pieces, bytes(4000)]
    assert crc32c(many) == [slowly(one) for one in many]


def test_crc32c_of_known_values() -> None:
    assert crc32c([b"123456789", bytes(32)]) == [0xE3069283, 0x8A9136AA]
