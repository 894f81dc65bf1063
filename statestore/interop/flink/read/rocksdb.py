"""Read RocksDB's table files: the positions of a file's blocks, and their content.

A file (``BlockBasedTable``, format version 5 and before) ends with a footer. The footer has the
positions of the index of data blocks, and of the index of other blocks: properties and range
deletes. With ``state.backend.rocksdb.memory.partitioned-index-filters`` in Flink, the index of data
blocks has several parts, which have an index of their own.

A block has entries (:mod:`statestore.interop.flink.read.rocksdb_blocks`). It is
compressed separately, and its checksum follows it and is verified. Each state is a column family;
keys and values are in canonical format.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from statestore.errors import DamagedFileError, FormatVersionError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.checksums import BLOCK_CHECKSUMS
from statestore.interop.flink.read.rocksdb_blocks import (
    BLOCK_BYTES,
    ENTRY_BYTES,
    Expansion,
    Versions,
    decode_pairs,
    decode_versions,
    entries_end,
)
from statestore.interop.flink.read.savepoint_files import ByteSource
from statestore.interop.flink.read.snappy import snappy_block
from statestore.interop.flink.types.byte_slices import Spans

_FOOTER: Final = 53
_MAGIC: Final = 0x88E241B785F4CFF7
_VERSIONS: Final = range(2, 6)
_TRAILER: Final = 5  # the compression type of a block, and its checksum
_REQUEST_BYTES: Final = 1 << 20  # stored bytes of blocks that one request reads
_YIELD_BYTES: Final = 8 << 20  # decompressed bytes that are collected before they are yielded
_CODECS: Final = {4: "lz4_raw", 5: "lz4_raw", 7: "zstd"}
_INDEX_KIND: Final = b"rocksdb.block.based.table.index.type"
_GLOBAL_SEQUENCE: Final = b"rocksdb.external_sst_file.global_seqno"
_TWO_LEVELS: Final = 2
_WITH_FIRST_KEYS: Final = 3
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A range delete of the keys from ``first`` up to but not including ``stop``."""

    first: bytes
    stop: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class _Block:
    """A block's position; ``last`` is at or after its last key, and before the next block."""

    offset: int
    size: int
    last: bytes


@dataclass(frozen=True, slots=True, eq=False)
class RocksTable:
    """A table file: its column family, the positions of its data blocks, and its range deletes.

    ``checksum`` is the checksum type of its blocks.
    """

    source: ByteSource
    column_family: str
    checksum: int
    blocks: tuple[_Block, ...]
    tombstones: tuple[Tombstone, ...]

    def versions(self, first: bytes, stop: bytes | None) -> Iterator[Versions]:
        """Yield the entries with keys from ``first`` to ``stop`` (exclusive), sorted, in chunks.

        Blocks are read as a whole, so the result can contain neighboring entries too.
        """
        expansion = Expansion(self.source.name, self.source.size)
        for run in _group_runs(self._blocks_between(first, stop)):
            for blocks in _read_blocks(self.source, run, self.checksum, expansion):
                yield decode_versions(blocks, expansion)

    def _blocks_between(self, first: bytes, stop: bytes | None) -> Iterator[_Block]:
        for block in self.blocks:
            if block.last >= first:
                yield block
            if stop is not None and block.last >= stop:
                return


def _tombstones_of(block: Spans, expansion: Expansion) -> tuple[Tombstone, ...]:
    deletes = decode_versions(block, expansion)
    columns = (deletes.keys.to_pylist(), deletes.values.to_pylist(), deletes.sequences.tolist())
    return tuple(map(Tombstone, *columns))


def open_table(source: ByteSource) -> RocksTable:
    """Read the index, the properties and the range deletes of a table file.

    Raises:
        FormatVersionError: for an unsupported version of the format.
        UnsupportedTypeError: for an unknown kind of index, a file that was ingested, or a checksum
            type that Flink's RocksDB does not use.
        DamagedFileError: if it is not a table file, or the checksum of a block does not match.
    """
    name, size = source.name, source.size
    footer = Reader(source.read(max(size - _FOOTER, 0), size), name, base=max(size - _FOOTER, 0))
    if footer.remaining < _FOOTER or _U64.unpack(footer.data[-8:])[0] != _MAGIC:
        raise footer.error("it does not end like a RocksDB table")
    version = int(_U32.unpack(footer.data[-12:-8])[0])
    if version not in _VERSIONS:
        raise FormatVersionError(
            f"{name} is a RocksDB table of version {version}, but only versions "
            f"{_VERSIONS[0]} to {_VERSIONS[-1]} are supported; take a canonical savepoint"
        )
    checksum = footer.u8()
    if checksum not in BLOCK_CHECKSUMS:
        raise UnsupportedTypeError(
            f"{name} has checksums of the unsupported kind {checksum}; take a canonical savepoint"
        )
    meta, index = _read_handle(footer), _read_handle(footer)
    expansion = Expansion(name, size)
    meta_entries = _read_pairs(source, meta, checksum, expansion)
    handles = {
        key: _read_handle(Reader(value, name))
        for key, value in meta_entries.items()
        if key in (b"rocksdb.properties", b"rocksdb.range_del")
    }
    if b"rocksdb.properties" not in handles:
        raise footer.error("it has no properties, which would name its state")
    properties = _read_pairs(source, handles[b"rocksdb.properties"], checksum, expansion)
    kind = int.from_bytes(properties.get(_INDEX_KIND, b""), "little")
    if kind > _WITH_FIRST_KEYS:
        raise UnsupportedTypeError(
            f"{name} has an index of the unknown kind {kind}; take a canonical savepoint"
        )
    if any(properties.get(_GLOBAL_SEQUENCE, b"")):
        raise UnsupportedTypeError(
            f"{name} was ingested into RocksDB, so the age of its entries is unknown; take a "
            "canonical savepoint"
        )
    tombstones: tuple[Tombstone, ...] = ()
    if b"rocksdb.range_del" in handles:
        deletes = _read_block(source, handles[b"rocksdb.range_del"], checksum, expansion)
        tombstones = _tombstones_of(deletes, expansion)
    family = properties.get(b"rocksdb.column.family.name", b"").decode(errors="replace")
    is_delta = properties.get(b"rocksdb.index.value.is.delta.encoded", b"\0") not in (b"\0", b"")
    blocks = [_Block(*index, b"")]
    for _ in range(2 if kind == _TWO_LEVELS else 1):
        parts = _read_parts(source, blocks, checksum, expansion)
        entries = (_read_index(part, is_delta, kind, expansion) for part in parts)
        blocks = list(_check_order(chain.from_iterable(entries), source))
    return RocksTable(source, family, checksum, tuple(blocks), tombstones)


def _read_parts(
    source: ByteSource, blocks: Iterable[_Block], checksum: int, expansion: Expansion
) -> Iterator[Spans]:
    """Yield the decompressed content of each block."""
    for run in _group_runs(iter(blocks)):
        for content in _read_blocks(source, run, checksum, expansion):
            for number in range(len(content)):
                yield content.part(number, number + 1)


def check_blocks(source: ByteSource) -> None:
    """Verify the checksum of each data block of a table file, which is read once.

    Raises the errors of :func:`open_table`.
    """
    table = open_table(source)
    for run in _group_runs(iter(table.blocks)):
        _read_run(source, run, table.checksum)


def _read_pairs(
    source: ByteSource, handle: tuple[int, int], checksum: int, expansion: Expansion
) -> dict[bytes, bytes]:
    keys, values = decode_pairs(_read_block(source, handle, checksum, expansion), expansion)
    return dict(zip(keys.to_pylist(), values.to_pylist(), strict=True))


def _check_order(blocks: Iterable[_Block], source: ByteSource) -> Iterator[_Block]:
    """Yield blocks after checking that they are in order and within the file.

    Raises DamagedFileError for a block that overlaps another block, or goes past the end.
    """
    end = 0
    for block in blocks:
        if block.offset < end or block.offset + block.size + _TRAILER > source.size:
            raise DamagedFileError(
                f"{source.name} is damaged: its index has a block of {block.size} bytes at "
                f"byte {block.offset}, but the previous block ends at {end} and the file at "
                f"{source.size}"
            )
        end = block.offset + block.size + _TRAILER
        yield block


def _read_index(block: Spans, is_delta: bool, kind: int, expansion: Expansion) -> Iterator[_Block]:
    """Yield the entries of an index, or of one of its parts.

    From version 4 on, most store only the difference of the sizes. A block's first key is not used.
    """
    if not is_delta:
        keys, values = decode_pairs(block, expansion)
        for last, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
            yield _Block(*_read_handle(Reader(value, block.name)), last)
        return
    content = block.data[int(block.starts[0]) : entries_end(block, 0)].data
    reader = Reader(content, block.name, base=block.base)
    offset, size, last = 0, 0, b""
    while reader.remaining:
        begin, shared, more = reader.position, reader.varint(), reader.varint()
        expansion.spend(shared + ENTRY_BYTES, reader.base + begin)
        last = last[:shared] + reader.bytes(more)
        if shared == 0:
            offset, size = _read_handle(reader)
        else:
            offset += size + _TRAILER
            coded = _read_varint(reader)
            size += coded >> 1 ^ -(coded & 1)
        if kind == _WITH_FIRST_KEYS:
            reader.take(reader.varint())
        if size < 0:
            raise reader.error("a block has a negative length")
        yield _Block(offset, size, last)


def _group_runs(blocks: Iterator[_Block]) -> Iterator[list[_Block]]:
    """Yield lists of adjacent blocks; one request reads each list."""
    run: list[_Block] = []
    for block in blocks:
        if run and block.offset - run[0].offset > _REQUEST_BYTES:
            yield run
            run = []
        run.append(block)
    if run:
        yield run


def _read_handle(reader: Reader) -> tuple[int, int]:
    return _read_varint(reader), _read_varint(reader)


def _read_varint(reader: Reader) -> int:
    value = 0
    for number in range(10):
        byte = reader.u8()
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value
    raise reader.error("a variable-length number does not end")


def _read_block(
    source: ByteSource, handle: tuple[int, int], checksum: int, expansion: Expansion
) -> Spans:
    (content,) = _read_blocks(source, [_Block(*handle, b"")], checksum, expansion)
    return content


def _read_run(source: ByteSource, run: list[_Block], checksum: int) -> bytes:
    """Return the stored bytes of adjacent blocks, whose checksums match."""
    first = run[0].offset
    data = source.read(first, run[-1].offset + run[-1].size + _TRAILER)
    view = memoryview(data)
    for block in run:
        end = block.offset - first + block.size
        checksum_of_block = BLOCK_CHECKSUMS[checksum](view[block.offset - first : end + 1])
        if checksum_of_block != _U32.unpack(view[end + 1 : end + _TRAILER])[0]:
            raise Reader(b"", source.name, base=block.offset).error(
                "the checksum of a block is wrong"
            )
    return data


def _read_blocks(
    source: ByteSource, run: list[_Block], checksum: int, expansion: Expansion
) -> Iterator[Spans]:
    """Yield the decompressed content of adjacent blocks.

    Only a few blocks are decompressed at a time, because each can expand to very many bytes.
    """
    first, data = run[0].offset, _read_run(source, run, checksum)
    starts = np.array([block.offset - first for block in run], np.int64)
    ends = starts + np.array([block.size for block in run], np.int64)
    view, raw = memoryview(data), np.frombuffer(data, np.uint8)
    places = list(zip(starts.tolist(), ends.tolist(), strict=True))
    if not bool(raw[ends].any()):
        yield Spans(raw, starts, ends, source.name, first)
        return
    title = f"{source.name} (blocks from byte {{}} on, decompressed)"
    parts, size, begin = list[bytes](), 0, first
    for start, end in places:
        if size > _YIELD_BYTES:
            yield Spans.from_values(parts, title.format(begin))
            parts, size, begin = [], 0, first + start
        reader = Reader(view[start:end], source.name, base=first + start)
        parts.append(_decompress(reader, data[end], expansion))
        size += len(parts[-1])
    yield Spans.from_values(parts, title.format(begin))


def _decompress(reader: Reader, compression: int, expansion: Expansion) -> bytes:
    """Return the decompressed content of the reader's block."""
    if compression == 0:
        return reader.bytes(reader.remaining)
    if compression != 1 and compression != 2 and compression not in _CODECS:
        raise reader.error(f"a block has the unknown compression {compression}")
    body = reader.data
    length = reader.varint()
    if length > BLOCK_BYTES:
        raise reader.error(f"a block of {length} bytes is too large")
    expansion.spend(length, reader.base)
    if compression == 1:
        return snappy_block(body, reader, 0, BLOCK_BYTES)
    packed = body[reader.position :]
    try:
        if compression == 2:  # + 1, because zlib treats a maximum length of 0 as no maximum
            plain = zlib.decompressobj(-14).decompress(packed, length + 1)
        else:
            plain = pa.Codec(_CODECS[compression]).decompress(packed, length, asbytes=True)
    except (OSError, zlib.error, pa.ArrowException) as error:
        raise reader.error(f"a block cannot be decompressed ({error})", position=0) from error
    if len(plain) != length:
        raise reader.error("the length of a block is wrong", position=0)
    return bytes(plain)
