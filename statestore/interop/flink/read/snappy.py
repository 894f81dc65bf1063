"""Snappy's framing format, and the checksums of Flink's files.

Flink uses the format for savepoints if compression is enabled. A stream begins with the chunk
``ff 06 00 00 sNaPpY``. Each chunk is one byte for its type, three bytes of length, lowest first,
and the body. The body of a data chunk is the masked CRC-32C of its decompressed data, followed by a
Snappy block (type 0) or by the data itself (type 1). The checksum of each chunk is verified. A
block of RocksDB is followed by its CRC-32C or XXH3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import google_crc32c
import pyarrow as pa
import xxhash

from statestore.interop.flink.metadata.java_binary import Reader

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


SNAPPY_HEAD: Final = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE = 0, 1, 0x80
_CHUNK: Final = 1 << 16
_U32: Final = struct.Struct("<I")


def whole_chunks(data: bytes) -> int:
    """Return the total length of the complete chunks at the beginning of ``data``."""
    end = stop = 0
    while stop <= len(data):
        end = stop
        if end + _U32.size > len(data):
            break
        stop = end + _U32.size + (int(_U32.unpack_from(data, end)[0]) >> 8)
    return end


def chunks(reader: Reader) -> Iterator[tuple[int, bytes]]:
    """Yield the positions and contents of the unread chunks.

    Raises DamagedFileError if the stream is truncated, or a checksum does not match.
    """
    name, base = reader.name, reader.base
    while reader.remaining:
        begin = reader.position
        head = int(_U32.unpack(reader.take(4))[0])
        chunk_type, chunk = (
            head & 0xFF,
            Reader(reader.take(head >> 8), name, base=base + reader.position),
        )
        if chunk_type in (_COMPRESSED, _PLAIN):
            checksum = int(_U32.unpack(chunk.take(4))[0])
            body = chunk.take(chunk.remaining)
            part = (
                bytes(body) if chunk_type == _PLAIN else snappy_block(body, reader, begin, _CHUNK)
            )
            if masked_crc32c(part) != checksum:
                raise reader.error("the checksum of a Snappy chunk is wrong", position=begin)
            yield begin, part
        elif chunk_type < _FIRST_SKIPPABLE:
            raise reader.error(f"a Snappy chunk has the unknown kind {chunk_type}", position=begin)


def frame_pieces(pieces: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Encode the concatenation of ``pieces`` as one framed stream."""
    yield SNAPPY_HEAD
    rest = b""
    for piece in pieces:
        data = rest + piece
        stop = len(data) // _CHUNK * _CHUNK
        yield _compress(data[:stop])
        rest = data[stop:]
    yield _compress(rest)


def _compress(data: bytes) -> bytes:
    codec = pa.Codec("snappy")
    parts = []
    for start in range(0, len(data), _CHUNK):
        part = data[start : start + _CHUNK]
        block = codec.compress(part, asbytes=True)
        chunk_type, body = (_COMPRESSED, block) if len(block) < len(part) else (_PLAIN, part)
        head = _U32.pack((len(body) + 4) << 8 | chunk_type)
        parts += [head, _U32.pack(masked_crc32c(part)), body]
    return b"".join(parts)


def snappy_block(body: memoryview, reader: Reader, begin: int, most: int) -> bytes:
    """Return the content of a Snappy block, at most ``most`` bytes; the block states its length.

    Raises DamagedFileError for byte ``begin`` of ``reader``'s file if the block is invalid.
    """
    length = Reader(body, reader.name, base=reader.base + begin).varint()
    if length > min(100 * len(body) + 1000, most):  # Snappy cannot compress better than this
        raise reader.error("the length of a Snappy block is wrong", position=begin)
    try:
        return bytes(pa.Codec("snappy").decompress(body, length, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise reader.error(f"cannot decompress a Snappy block ({error})", position=begin) from error
