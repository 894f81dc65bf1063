"""Snappy's framing format, in which Flink compresses a savepoint if it is told to.

A stream is the chunk ``ff 06 00 00 sNaPpY`` and chunks of a byte that says what they are, three
bytes of length, lowest first, and that many bytes: of data the masked CRC-32C of what they come to,
and either snappy's block (0) or the bytes themselves (1). Each chunk's checksum is checked.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statestore.interop.flink.reader import Reader

__all__ = ["SNAPPY_HEAD", "chunks", "crc32c", "framed", "snappy_block", "unframed"]

SNAPPY_HEAD: Final = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE = 0, 1, 0x80
_CHUNK: Final = 1 << 16
_POLYNOMIAL: Final = 0x82F63B78
_LANE: Final = 64  # bytes that one step of the checksum takes from each of many places
_U32: Final = struct.Struct("<I")

_Sums = npt.NDArray[np.uint32]


def unframed(data: memoryview, name: str, base: int) -> bytes:
    """Return what a framed stream holds.

    ``name`` and ``base`` say whose bytes these are, and where in that file they begin.
    DamagedFileError when the stream is cut, or a chunk has another checksum than it says.
    """
    reader = Reader(data, name, base=base)
    if len(data) < len(SNAPPY_HEAD) or bytes(reader.take(len(SNAPPY_HEAD))) != SNAPPY_HEAD:
        raise reader.damaged("it does not begin as a stream of Snappy does", at=0)
    return chunks(reader)


def chunks(reader: Reader) -> bytes:
    """Return what the chunks hold that are left; errors as :func:`unframed`."""
    name, base = reader.name, reader.base
    parts = []
    while reader.left:
        begin = reader.at
        head = int(_U32.unpack(reader.take(4))[0])
        kind, chunk = head & 0xFF, Reader(reader.take(head >> 8), name, base=base + reader.at)
        if kind in (_COMPRESSED, _PLAIN):
            wanted = int(_U32.unpack(chunk.take(4))[0])
            body = chunk.take(chunk.left)
            part = bytes(body) if kind == _PLAIN else snappy_block(body, reader, begin)
            if _masked(crc32c(part)) != wanted:
                raise reader.damaged("a chunk of Snappy has another checksum", at=begin)
            parts.append(part)
        elif kind < _FIRST_SKIPPABLE:
            raise reader.damaged(f"a chunk of Snappy is of kind {kind}", at=begin)
    return b"".join(parts)


def framed(data: bytes) -> bytes:
    """Return a framed stream of some bytes."""
    codec = pa.Codec("snappy")
    parts = [SNAPPY_HEAD]
    for start in range(0, len(data), _CHUNK):
        part = data[start : start + _CHUNK]
        block = codec.compress(part, asbytes=True)
        kind, body = (_COMPRESSED, block) if len(block) < len(part) else (_PLAIN, part)
        head = _U32.pack((len(body) + 4) << 8 | kind)
        parts += [head, _U32.pack(_masked(crc32c(part))), body]
    return b"".join(parts)


def snappy_block(body: memoryview, reader: Reader, begin: int) -> bytes:
    """Return what a block of snappy holds; its length is the number before it.

    DamagedFileError, of ``reader``'s file at ``begin``, when it is no such block.
    """
    length = Reader(body, reader.name, base=reader.base + begin).varint()
    if length > 100 * len(body) + 1000:  # no block of snappy is that much smaller
        raise reader.damaged("a block of Snappy has no such length", at=begin)
    try:
        return bytes(pa.Codec("snappy").decompress(body, length, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise reader.damaged(f"a block of Snappy cannot be read ({error})", at=begin) from error


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of some bytes.

    Pieces of equal length are taken side by side, a byte of each at a time; then the sums of
    neighbours are joined, which is linear: that of the first goes on over as many zeros as the
    second is long.
    """
    values = np.frombuffer(data, np.uint8)
    whole = len(values) // _LANE
    lanes = 1 << whole.bit_length() - 1 if whole else 0
    crc, at = 0xFFFFFFFF, 0
    while lanes:
        block = values[at : at + lanes * _LANE].reshape(lanes, _LANE)
        crc = int(_over_zeros(np.array([crc], np.uint32), lanes * _LANE)[0]) ^ _joined(block)
        at += lanes * _LANE
        whole -= lanes
        lanes = 1 << whole.bit_length() - 1 if whole else 0
    table = _byte_table()
    for value in values[at:].tolist():
        crc = int(table[(crc ^ value) & 0xFF]) ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _joined(block: npt.NDArray[np.uint8]) -> int:
    table = _byte_table()
    sums: _Sums = np.zeros(len(block), np.uint32)
    for column in block.T:
        sums = table[(sums ^ column) & np.uint32(0xFF)] ^ sums >> np.uint32(8)
    length = block.shape[1]
    while len(sums) > 1:
        sums = _over_zeros(sums[::2], length) ^ sums[1::2]
        length *= 2
    return int(sums[0])


@cache
def _byte_table() -> _Sums:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> np.uint32(1) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table


def _over_zeros(sums: _Sums, length: int) -> _Sums:
    """Return the sums as they are after ``length`` more bytes, all 0; a power of two."""
    tables = _zero_tables(length)
    found: _Sums = np.zeros_like(sums)
    for number in range(4):
        found = found ^ tables[number][sums >> np.uint32(8 * number) & np.uint32(0xFF)]
    return found


@cache
def _zero_tables(length: int) -> tuple[_Sums, ...]:
    if length == 1:
        table = _byte_table()
        units = [np.arange(256, dtype=np.uint32) << np.uint32(8 * number) for number in range(4)]
        return tuple(table[one & np.uint32(0xFF)] ^ one >> np.uint32(8) for one in units)
    half = _zero_tables(length // 2)
    return tuple(_through(half, one) for one in half)


def _through(tables: tuple[_Sums, ...], sums: _Sums) -> _Sums:
    found: _Sums = np.zeros_like(sums)
    for number in range(4):
        found = found ^ tables[number][sums >> np.uint32(8 * number) & np.uint32(0xFF)]
    return found
