"""Snappy's framing format, which Flink uses for savepoints if compression is enabled.

A stream begins with the chunk ``ff 06 00 00 sNaPpY``. Each chunk is one byte for its type, three
bytes of length, lowest first, and the body. The body of a data chunk is the masked CRC-32C of its
decompressed data, followed by a Snappy block (type 0) or by the data itself (type 1). The checksum
of each chunk is verified.
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
    """Return the content of a framed stream.

    ``name`` is the file of the bytes, and ``base`` is the position where they begin in it. Raises
    DamagedFileError if the stream is truncated, or a checksum does not match.
    """
    return b"".join(part for _, part in framed_chunks(data, name, base))


def framed_chunks(data: memoryview, name: str, base: int) -> Iterator[tuple[int, bytes]]:
    """Yield the position in ``data`` and the content of each chunk; see :func:`unframed`."""
    reader = Reader(data, name, base=base)
    if len(data) < len(SNAPPY_HEAD) or bytes(reader.take(len(SNAPPY_HEAD))) != SNAPPY_HEAD:
        raise reader.damaged("it does not begin as a stream of Snappy does", at=0)
    yield from chunks(reader)


def chunks(reader: Reader) -> Iterator[tuple[int, bytes]]:
    """Yield the positions and contents of the unread chunks; errors as :func:`unframed`."""
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
    """Encode bytes as a framed stream."""
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
    """Return the content of a Snappy block, at most ``most`` bytes; the block states its length.

    Raises DamagedFileError for byte ``begin`` of ``reader``'s file if the block is invalid.
    """
    length = Reader(body, reader.name, base=reader.base + begin).varint()
    if length > min(100 * len(body) + 1000, most):  # Snappy cannot compress better than this
        raise reader.damaged("a block of Snappy has no such length", at=begin)
    try:
        return bytes(pa.Codec("snappy").decompress(body, length, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise reader.damaged(f"a block of Snappy cannot be read ({error})", at=begin) from error
