"""Snappy's framing format, in which Flink compresses a savepoint if it is told to.

A stream is the chunk ``ff 06 00 00 sNaPpY`` and chunks of a byte that says what they are, three
bytes of length, lowest first, and that many bytes: of data the masked CRC-32C of what they come to,
and either snappy's block (0) or the bytes themselves (1). Each chunk's checksum is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from statestore.interop.flink.checksums import crc32c, masked
from statestore.interop.flink.reader import Reader

__all__ = ["SNAPPY_HEAD", "chunks", "framed", "framed_chunks", "snappy_block", "unframed"]

SNAPPY_HEAD: Final = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE = 0, 1, 0x80
_CHUNK: Final = 1 << 16
_U32: Final = struct.Struct("<I")


def unframed(data: memoryview, name: str, base: int) -> bytes:
    """Return what a framed stream holds.

    ``name`` and ``base`` say whose bytes these are, and where in that file they begin.
    DamagedFileError when the stream is cut, or a chunk has another checksum than it says.
    """
    return b"".join(part for _, part in framed_chunks(data, name, base))


def framed_chunks(data: memoryview, name: str, base: int) -> Iterator[tuple[int, bytes]]:
    """Yield where in ``data`` each chunk begins, and what it holds; as :func:`unframed`."""
    reader = Reader(data, name, base=base)
    if len(data) < len(SNAPPY_HEAD) or bytes(reader.take(len(SNAPPY_HEAD))) != SNAPPY_HEAD:
        raise reader.damaged("it does not begin as a stream of Snappy does", at=0)
    yield from chunks(reader)


def chunks(reader: Reader) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks that are left, with where each begins; errors as :func:`unframed`."""
    name, base = reader.name, reader.base
    while reader.left:
        begin = reader.at
        head = int(_U32.unpack(reader.take(4))[0])
        kind, chunk = head & 0xFF, Reader(reader.take(head >> 8), name, base=base + reader.at)
        if kind in (_COMPRESSED, _PLAIN):
            wanted = int(_U32.unpack(chunk.take(4))[0])
            body = chunk.take(chunk.left)
            part = bytes(body) if kind == _PLAIN else snappy_block(body, reader, begin, _CHUNK)
            if masked(crc32c([part])[0]) != wanted:
                raise reader.damaged("a chunk of Snappy has another checksum", at=begin)
            yield begin, part
        elif kind < _FIRST_SKIPPABLE:
            raise reader.damaged(f"a chunk of Snappy is of kind {kind}", at=begin)


def framed(data: bytes) -> bytes:
    """Return a framed stream of some bytes."""
    codec = pa.Codec("snappy")
    pieces = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    parts = [SNAPPY_HEAD]
    for part, crc in zip(pieces, crc32c(pieces), strict=True):
        block = codec.compress(part, asbytes=True)
        kind, body = (_COMPRESSED, block) if len(block) < len(part) else (_PLAIN, part)
        head = _U32.pack((len(body) + 4) << 8 | kind)
        parts += [head, _U32.pack(masked(crc)), body]
    return b"".join(parts)


def snappy_block(body: memoryview, reader: Reader, begin: int, most: int) -> bytes:
    """Return what a block of snappy holds, ``most`` bytes; its length is the number before it.

    DamagedFileError, of ``reader``'s file at ``begin``, when it is no such block.
    """
    length = Reader(body, reader.name, base=reader.base + begin).varint()
    if length > min(100 * len(body) + 1000, most):  # no block of snappy is that much smaller
        raise reader.damaged("a block of Snappy has no such length", at=begin)
    try:
        return bytes(pa.Codec("snappy").decompress(body, length, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise reader.damaged(f"a block of Snappy cannot be read ({error})", at=begin) from error
