"""Keyed state as RocksDB's own files: tables of sorted entries, and what they come to together.

A file (``BlockBasedTable``, format version 5 and before) ends with a footer, which says where the
index of its blocks lies and where that of what is not data: properties, and deletes of ranges. A
block has entries, which share the beginnings of their keys, is compressed by itself, and has its
checksum behind it, which is checked. A key ends with eight bytes: what it is, and its sequence
number, by which of several the newest one holds. Column families are states; keys and values are
canonical ones.
"""

from __future__ import annotations

import heapq
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import pyarrow as pa

from statestore.errors import FormatVersionError, UnsupportedTypeError
from statestore.interop.flink.checksums import BLOCK_CHECKSUMS
from statestore.interop.flink.reader import Reader
from statestore.interop.flink.snappy import snappy_block
from statestore.interop.flink.streams import ByteSource

__all__ = ["RocksTable", "live_entries", "open_table"]

_FOOTER: Final = 53
_MAGIC: Final = 0x88E241B785F4CFF7
_VERSIONS: Final = range(2, 6)
_TRAILER: Final = 5  # how a block is compressed, and its checksum
_TOGETHER: Final = 4 << 20  # bytes of blocks that are read at once
_DELETE, _VALUE, _MERGE, _SINGLE_DELETE = 0, 1, 2, 7
_LARGEST: Final = 1 << 30
_CODECS: Final = {4: "lz4_raw", 5: "lz4_raw", 7: "zstd"}
_GLOBAL_SEQUENCE: Final = b"rocksdb.external_sst_file.global_seqno"
_NO_INDEX_KIND: Final = b"\0\0\0\0"
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")

Entry = tuple[bytes, int, int, bytes]
"""A key, its sequence number negated so that the newest is first, what it is, and its value."""


@dataclass(frozen=True, slots=True)
class _Tombstone:
    first: bytes
    stop: bytes
    sequence: int


@dataclass(frozen=True, slots=True, eq=False)
class RocksTable:
    """A file: its column family, where its blocks of data lie, and the ranges that it deletes.

    ``checksum`` is the kind of checksum behind its blocks.
    """

    source: ByteSource
    column_family: str
    checksum: int
    blocks: tuple[tuple[int, int], ...]
    tombstones: tuple[_Tombstone, ...]

    def entries(self) -> Iterator[Entry]:
        """Yield its entries, sorted."""
        for blocks in _runs(self.blocks):
            first, stop = blocks[0][0], blocks[-1][0] + blocks[-1][1] + _TRAILER
            data = memoryview(self.source.read(first, stop))
            parts = [
                Reader(data[at - first : at - first + size + _TRAILER], self.source.name, base=at)
                for at, size in blocks
            ]
            _check_sums(parts, self.checksum)
            for part in parts:
                reader = _block(part)
                for key, value in _pairs(reader):
                    yield _entry(key, value, reader)


def open_table(source: ByteSource) -> RocksTable:
    """Return what a file says of itself.

    Raises:
        FormatVersionError: for a version of the format that is not known.
        UnsupportedTypeError: for an index of several levels, a file that RocksDB did not write, or
            checksums that Flink's RocksDB does not write.
        DamagedFileError: when it is not such a file, or a block has another checksum than it says.
    """
    name, size = source.name, source.size
    footer = Reader(source.read(max(size - _FOOTER, 0), size), name, base=max(size - _FOOTER, 0))
    if footer.left < _FOOTER or _U64.unpack(footer.data[-8:])[0] != _MAGIC:
        raise footer.damaged("it does not end as a table of RocksDB does")
    version = int(_U32.unpack(footer.data[-12:-8])[0])
    if version not in _VERSIONS:
        raise FormatVersionError(
            f"{name} is a table of RocksDB of version {version}: versions {_VERSIONS[0]} to "
            f"{_VERSIONS[-1]} are known"
        )
    checksum = footer.u8()
    if checksum not in BLOCK_CHECKSUMS:
        raise UnsupportedTypeError(
            f"{name} has checksums of kind {checksum}, which are not known: take a canonical "
            "savepoint"
        )
    meta, index = _handle(footer), _handle(footer)
    named = dict(_pairs(_read_block(source, meta, checksum)))
    at = {
        key: _handle(Reader(value, name))
        for key, value in named.items()
        if key in (b"rocksdb.properties", b"rocksdb.range_del")
    }
    if b"rocksdb.properties" not in at:
        raise footer.damaged("it has no properties, which say of what state it is")
    properties = dict(_pairs(_read_block(source, at[b"rocksdb.properties"], checksum)))
    kind = properties.get(b"rocksdb.block.based.table.index.type", _NO_INDEX_KIND)
    if kind != _NO_INDEX_KIND:
        raise UnsupportedTypeError(
            f"{name} has an index of several levels, which is not read: take a canonical savepoint"
        )
    if any(properties.get(_GLOBAL_SEQUENCE, b"")):
        raise UnsupportedTypeError(
            f"{name} was made elsewhere and taken into RocksDB, so that its entries do not say how "
            "new they are: take a canonical savepoint"
        )
    is_delta = properties.get(b"rocksdb.index.value.is.delta.encoded", b"\0") not in (b"\0", b"")
    tombstones: tuple[_Tombstone, ...] = ()
    if b"rocksdb.range_del" in at:
        block = _read_block(source, at[b"rocksdb.range_del"], checksum)
        entries = (_entry(key, value, block) for key, value in _pairs(block))
        tombstones = tuple(_Tombstone(key, stop, -order) for key, order, _, stop in entries)
    family = properties.get(b"rocksdb.column.family.name", b"").decode(errors="replace")
    blocks = tuple(_index(_read_block(source, index, checksum), is_delta))
    return RocksTable(source, family, checksum, blocks, tombstones)


def live_entries(tables: Iterable[RocksTable]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys that there are, sorted, with their values, out of all files of a state.

    Values that were merged are joined by a comma, as Flink's lists are.
    """
    found = tuple(tables)
    tombstones = [one for table in found for one in table.tombstones]
    merged = heapq.merge(*(table.entries() for table in found))
    for key, versions in groupby(merged, key=lambda entry: entry[0]):
        deleted = max(
            (one.sequence for one in tombstones if one.first <= key < one.stop), default=-1
        )
        value = _value(versions, deleted)
        if value is not None:
            yield key, value


def _value(versions: Iterable[Entry], deleted: int) -> bytes | None:
    """Return what the versions of a key come to, newest first; None when it is deleted."""
    operands: list[bytes] = []
    for _, order, kind, value in versions:
        if -order < deleted or kind in (_DELETE, _SINGLE_DELETE):
            break
        operands.append(value)
        if kind == _VALUE:
            break
    return b",".join(reversed(operands)) if operands else None


def _entry(key: bytes, value: bytes, reader: Reader) -> Entry:
    if len(key) < 8:
        raise reader.damaged("a key of RocksDB is shorter than its sequence number", at=0)
    packed = int(_U64.unpack(key[-8:])[0])
    kind = packed & 0xFF
    if kind not in (_DELETE, _VALUE, _MERGE, _SINGLE_DELETE, 15):
        raise UnsupportedTypeError(
            f"{reader.name} has an entry of kind {kind}, which is not read (values in files of "
            "their own are 17): take a canonical savepoint"
        )
    return key[:-8], -(packed >> 8), kind, value


def _runs(blocks: tuple[tuple[int, int], ...]) -> Iterator[list[tuple[int, int]]]:
    """Yield blocks that follow each other, as many as are read at once."""
    run: list[tuple[int, int]] = []
    for offset, size in blocks:
        if run and (offset != run[-1][0] + run[-1][1] + _TRAILER or offset - run[0][0] > _TOGETHER):
            yield run
            run = []
        run.append((offset, size))
    if run:
        yield run


def _handle(reader: Reader) -> tuple[int, int]:
    return _varint(reader), _varint(reader)


def _varint(reader: Reader) -> int:
    value = 0
    for number in range(10):
        byte = reader.u8()
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value
    raise reader.damaged("a number has no end")


def _read_block(source: ByteSource, handle: tuple[int, int], checksum: int) -> Reader:
    offset, size = handle
    part = Reader(source.read(offset, offset + size + _TRAILER), source.name, base=offset)
    _check_sums([part], checksum)
    return _block(part)


def _check_sums(parts: Sequence[Reader], checksum: int) -> None:
    """Refuse a block that is not as it was when its checksum was put behind it."""
    sums = BLOCK_CHECKSUMS[checksum]([one.data[:-4] for one in parts])
    for part, found in zip(parts, sums, strict=True):
        if found != _U32.unpack(part.data[-4:])[0]:
            raise part.damaged("a block has another checksum", at=0)


def _block(reader: Reader) -> Reader:
    """Return a reader of a block as it is once it is decompressed."""
    data, name, offset = reader.data, reader.name, reader.base
    body, compression = data[:-_TRAILER], data[-_TRAILER]
    if compression == 0:
        return Reader(body, name, base=offset)
    shown = f"{name} (block at byte {offset}, decompressed)"
    if compression == 1:
        return Reader(snappy_block(body, reader, 0), shown)
    if compression != 2 and compression not in _CODECS:
        raise reader.damaged(f"a block is compressed in way {compression}, which is not known")
    length = reader.varint()
    if length > _LARGEST:
        raise reader.damaged(f"a block of {length} bytes is too large")
    packed = body[reader.at :]
    try:
        if compression == 2:
            plain = zlib.decompressobj(-14).decompress(packed, length)
        else:
            plain = pa.Codec(_CODECS[compression]).decompress(packed, length, asbytes=True)
    except (OSError, zlib.error, pa.ArrowException) as error:
        raise reader.damaged(f"a block cannot be decompressed ({error})", at=0) from error
    if len(plain) != length:
        raise reader.damaged("a block is of another length than it says", at=0)
    return Reader(plain, shown)


def _ends_at(reader: Reader) -> int:
    """Return where the entries of a block end, before the places where keys begin anew."""
    if reader.left < 4:
        raise reader.damaged("a block is cut")
    count = int(_U32.unpack(reader.data[-4:])[0])
    end = len(reader.data) - 4 - 4 * count
    if count >> 31 or end < 0:
        raise reader.damaged("a block has an index of its own, or is cut")
    return end


def _pairs(reader: Reader) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block; each key has a number of bytes of the one before."""
    end, key = _ends_at(reader), b""
    while reader.at < end:
        shared, more, length = reader.varint(), reader.varint(), reader.varint()
        if shared > len(key):
            raise reader.damaged("a key shares more than the one before has")
        key = key[:shared] + reader.bytes(more)
        yield key, reader.bytes(length)
    if reader.at != end:
        raise reader.damaged("the last entry of a block goes past its end")


def _index(reader: Reader, is_delta: bool) -> Iterator[tuple[int, int]]:
    """Yield where blocks lie; from version 4 on most say only how much longer they are."""
    if not is_delta:
        for _, value in _pairs(reader):
            yield _handle(Reader(value, reader.name))
        return
    end, offset, size = _ends_at(reader), 0, 0
    while reader.at < end:
        shared, more = reader.varint(), reader.varint()
        reader.take(more)
        if shared == 0:
            offset, size = _handle(reader)
        else:
            offset += size + _TRAILER
            coded = _varint(reader)
            size += coded >> 1 ^ -(coded & 1)
        if size < 0:
            raise reader.damaged("a block has a negative length")
        yield offset, size
