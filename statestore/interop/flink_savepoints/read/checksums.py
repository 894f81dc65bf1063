"""Checksums of Flink's files: CRC-32C in Snappy frames, CRC-32C or XXH3 after RocksDB blocks.

Both are implemented with NumPy and process many bytes in parallel. XXH3 is the 64-bit variant of
``xxhash.h`` without a seed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK_CHECKSUMS", "crc32c", "masked", "xxh3"]

_Sums = npt.NDArray[np.uint32]
_Words = npt.NDArray[np.uint64]
_Pieces = Sequence[bytes | memoryview]

_POLYNOMIAL: Final = 0x82F63B78
_LANE: Final = 64  # the length in bytes of one lane of CRC-32C
_FEW: Final = 3000  # bytes
_WHOLE: Final = (1 << 64) - 1
_LOW: Final = (1 << 32) - 1


def crc32c(pieces: _Pieces) -> list[int]:
    """Return the CRC-32C (Castagnoli) of each piece.

    All pieces are cut into lanes of equal length, which are processed in parallel, one byte of each
    lane at a time. Then the sums of a piece's lanes are combined, because CRC is linear: the sum of
    each lane is extended with one zero byte for each byte that follows the lane, and the results
    are XORed. For a small input, a loop over the bytes is faster.
    """
    if sum(map(len, pieces)) < _FEW:
        return [_crc32c_of_few(one) for one in pieces]
    lengths = np.array([len(one) for one in pieces], np.int64)
    counts = np.maximum(-(-lengths // _LANE), 1)
    ends = np.cumsum(counts)
    block = np.zeros(int(counts.sum()) * _LANE, np.uint8)
    for piece, end in zip(pieces, (ends * _LANE).tolist(), strict=True):
        block[end - len(piece) : end] = np.frombuffer(
            piece, np.uint8
        )  # zeros before change nothing
    sums = _summed(block.reshape(-1, _LANE))
    behind = np.repeat(ends, counts) - 1 - np.arange(len(sums))
    parts = np.bitwise_xor.reduceat(_over(sums, behind, _LANE), ends - counts)
    begin = np.full(len(lengths), _LOW, np.uint32)
    found: list[int] = (parts ^ _over(begin, lengths, 1) ^ np.uint32(_LOW)).tolist()
    return found


def _crc32c_of_few(piece: bytes | memoryview) -> int:
    table, crc = _byte_list(), _LOW
    for value in piece:
        crc = table[(crc ^ value) & 0xFF] ^ crc >> 8
    return crc ^ _LOW


def masked(crc: int) -> int:
    """Return a CRC-32C in the masked form in which it is stored next to its data."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & _LOW


def _summed(block: npt.NDArray[np.uint8]) -> _Sums:
    table = _byte_table()
    sums: _Sums = np.zeros(len(block), np.uint32)
    for column in np.ascontiguousarray(block.T):
        sums = table[(sums ^ column) & np.uint32(0xFF)] ^ sums >> np.uint32(8)
    return sums


def _over(sums: _Sums, times: npt.NDArray[np.int64], length: int) -> _Sums:
    """Return each sum after ``times * length`` additional zero bytes."""
    found = sums.copy()
    for bit in range(int(times.max()).bit_length()):
        some = (times >> bit & 1).astype(np.bool_)
        found[some] = _through(_zero_tables(length << bit), found[some])
    return found


@cache
def _byte_list() -> list[int]:
    found: list[int] = _byte_table().tolist()
    return found


@cache
def _byte_table() -> _Sums:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table


@cache
def _zero_tables(length: int) -> tuple[_Sums, ...]:
    """Return tables that extend each byte of a sum by ``length`` zeros, a power of two."""
    if length == 1:
        table = _byte_table()
        units = [np.arange(256, dtype=np.uint32) << np.uint32(8 * number) for number in range(4)]
        return tuple(table[unit & np.uint32(0xFF)] ^ unit >> np.uint32(8) for unit in units)
    half = _zero_tables(length // 2)
    return tuple(_through(half, one) for one in half)


def _through(tables: tuple[_Sums, ...], sums: _Sums) -> _Sums:
    found: _Sums = np.zeros_like(sums)
    for number in range(4):
        found = found ^ tables[number][sums >> np.uint32(8 * number) & np.uint32(0xFF)]
    return found


_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578"
    "825ad07dccff7221b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea3"
    "71644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931"
    "c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_STRIPE, _STRIPES = 64, 16
_BLOCK = _STRIPE * _STRIPES
_LAST_OF_SECRET = len(_SECRET) - _STRIPE
_LONGEST_MIDDLE = 240
_SWAPPED = [1, 0, 3, 2, 5, 4, 7, 6]


def xxh3(pieces: _Pieces) -> list[int]:
    """Return the 64-bit XXH3 of each piece."""
    long = iter(_long([piece for piece in pieces if len(piece) > _LONGEST_MIDDLE]))
    return [next(long) if len(piece) > _LONGEST_MIDDLE else _short(piece) for piece in pieces]


def _short(data: bytes | memoryview) -> int:
    length = len(data)
    if length > 16:
        return _middle(data)
    if length > 8:
        low = _u64(data, 0) ^ _secret(24) ^ _secret(32)
        high = _u64(data, length - 8) ^ _secret(40) ^ _secret(48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(length + swapped + high + _folded(low, high))
    if length > 3:
        first, last = (int(_U32.unpack_from(data, at)[0]) for at in (0, length - 4))
        found = (last + (first << 32)) ^ _secret(8) ^ _secret(16)
        found ^= _turned(found, 49) ^ _turned(found, 24)
        found = found * 0x9FB21C651E98DF25 & _WHOLE
        found = (found ^ (found >> 35) + length) * 0x9FB21C651E98DF25 & _WHOLE
        return found ^ found >> 28
    if length:
        both = data[0] << 16 | data[length >> 1] << 24 | data[length - 1] | length << 8
        return _avalanche_64(both ^ (_secret(0) & _LOW) ^ _secret(0) >> 32)
    return _avalanche_64(_secret(56) ^ _secret(64))


def _middle(data: bytes | memoryview) -> int:
    length = len(data)
    found = length * _P64_1
    if length <= 128:
        for number in range((length - 1) // 32 + 1):
            found += _mixed(data, 16 * number, 32 * number)
            found += _mixed(data, length - 16 * (number + 1), 32 * number + 16)
        return _avalanche(found)
    for number in range(8):
        found += _mixed(data, 16 * number, 16 * number)
    found = _avalanche(found)
    for number in range(8, length // 16):
        found += _mixed(data, 16 * number, 16 * (number - 8) + 3)
    return _avalanche(found + _mixed(data, length - 16, 136 - 17))


def _long(pieces: _Pieces) -> list[int]:
    """Return the sums of pieces of more than 240 bytes, for all pieces in parallel.

    A piece has blocks of 16 stripes of 8 words, and a last stripe.
    """
    if not pieces:
        return []
    data = np.frombuffer(b"".join(pieces), np.uint8)
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    ends = np.cumsum(lengths)
    blocks = (lengths - 1) // _BLOCK
    begins = ends - lengths + blocks * _BLOCK
    stripes = (ends - 1 - begins) // _STRIPE
    first = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    sums = np.tile(np.array(first, np.uint64), (len(pieces), 1))
    keys, scramble = _keys()
    for number in range(int(blocks.max())):
        some = blocks > number
        words = _words(data, (ends - lengths)[some] + number * _BLOCK, _STRIPES)
        found = sums[some] + _added(words, keys)
        sums[some] = (found ^ found >> np.uint64(47) ^ scramble) * np.uint64(_P32_1)
    for number in range(int(stripes.max())):
        some = stripes > number
        words = _words(data, begins[some] + number * _STRIPE, 1)
        sums[some] += _added(words, keys[number : number + 1])
    sums += _added(_words(data, ends - _STRIPE, 1), _secrets(_LAST_OF_SECRET - 7)[np.newaxis])
    return [_merged(*one) for one in zip(lengths.tolist(), sums.tolist(), strict=True)]


def _merged(length: int, sums: list[int]) -> int:
    found = length * _P64_1
    for number in range(4):
        low, high = sums[2 * number : 2 * number + 2]
        at = 11 + 16 * number
        found += _folded(low ^ _secret(at), high ^ _secret(at + 8))
    return _avalanche(found)


def _added(words: _Words, keys: _Words) -> _Words:
    """Return what the stripes of each block add to its sums."""
    keyed = words ^ keys
    products = (keyed & np.uint64(_LOW)) * (keyed >> np.uint64(32))
    added: _Words = products.sum(axis=1) + words.sum(axis=1)[:, _SWAPPED]
    return added


def _words(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stripes: int) -> _Words:
    """Return ``stripes`` stripes from each start on."""
    windows = np.lib.stride_tricks.sliding_window_view(data, stripes * _STRIPE)
    return windows[starts].view("<u8").reshape(len(starts), stripes, 8)


def _secrets(at: int) -> _Words:
    return np.frombuffer(_SECRET, "<u8", 8, at)


@cache
def _keys() -> tuple[_Words, _Words]:
    """Return the keys of a block's stripes, and the key for the end of the block."""
    return np.stack([_secrets(8 * one) for one in range(_STRIPES)]), _secrets(_LAST_OF_SECRET)


_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


def _u64(data: bytes | memoryview, at: int) -> int:
    return int(_U64.unpack_from(data, at)[0])


@cache
def _secret(at: int) -> int:
    return _u64(_SECRET, at)


def _mixed(data: bytes | memoryview, at: int, secret: int) -> int:
    return _folded(_u64(data, at) ^ _secret(secret), _u64(data, at + 8) ^ _secret(secret + 8))


def _folded(one: int, other: int) -> int:
    product = one * other
    return product & _WHOLE ^ product >> 64


def _turned(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _WHOLE


def _avalanche(value: int) -> int:
    value &= _WHOLE
    value = (value ^ value >> 37) * 0x165667919E3779F9 & _WHOLE
    return value ^ value >> 32


def _avalanche_64(value: int) -> int:
    value = (value ^ value >> 33) * _P64_2 & _WHOLE
    value = (value ^ value >> 29) * _P64_3 & _WHOLE
    return value ^ value >> 32


_LAST_BYTE: Final = 0x6B9083D9


def _none(blocks: _Pieces) -> list[int]:
    return [0] * len(blocks)


def _crc32c_of_blocks(blocks: _Pieces) -> list[int]:
    return [masked(one) for one in crc32c(blocks)]


def _xxh3_of_blocks(blocks: _Pieces) -> list[int]:
    sums = xxh3([block[:-1] for block in blocks])
    return [(found ^ one[-1] * _LAST_BYTE) & _LOW for found, one in zip(sums, blocks, strict=True)]


BLOCK_CHECKSUMS: Final[dict[int, Callable[[_Pieces], list[int]]]] = {
    0: _none,
    1: _crc32c_of_blocks,
    4: _xxh3_of_blocks,
}
"""Checksum functions of RocksDB blocks by the checksum type in the footer. The input is a block
with its compression byte (``ComputeBuiltinChecksumWithLastByte``).
"""
