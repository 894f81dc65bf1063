"""Read RocksDB's table files, and merge those of a state: the live keys and their values.

A file (``BlockBasedTable``, format version 5 and before) ends with a footer. The footer has the
positions of the index of data blocks, and of the index of other blocks: properties and range
deletes. With ``state.backend.rocksdb.memory.partitioned-index-filters`` in Flink, the index of data
blocks has several parts, which have an index of their own.

A block has entries (:mod:`statestore.interop.flink.read.rocksdb_blocks`). It is compressed
separately, and its checksum follows it and is verified. Each state is a column family; keys and
values are in canonical format.

The newest version of a key is valid, according to its sequence number (``MergingIterator``,
``DBIter``). Merge operands are joined with commas, which is the format of Flink's lists. One key
group is in memory at a time.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statestore.errors import DamagedFileError, FormatVersionError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import Reader
from statestore.interop.flink.read.rocksdb_blocks import (
    BLOCK_BYTES,
    DELETE,
    ENTRY_BYTES,
    SINGLE_DELETE,
    VALUE,
    Expansion,
    Versions,
    decode_pairs,
    decode_versions,
    entries_end,
)
from statestore.interop.flink.read.savepoint_files import ByteSource
from statestore.interop.flink.read.snappy import BLOCK_CHECKSUMS, snappy_block
from statestore.interop.flink.types.byte_cursor import BYTES, Cursor, Spans
from statestore.keys.groups import KeyGroupRange

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


_COMMA = pa.scalar(b",", BYTES)
_Rows = npt.NDArray[np.bool_]


def live_key_groups(
    tables: Iterable[RocksTable], prefix: int, key_groups: KeyGroupRange
) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """Yield each key group with its sorted keys and their values, merged from all files of a state.

    Args:
        tables: the files.
        prefix: how many bytes of a key are its key group.
        key_groups: the key groups to read. After a rescale a file can contain others too.

    Yields:
        A key group that has keys, its keys and its values.

    Raises:
        DamagedFileError or UnsupportedTypeError: as ``RocksTable.versions``.
    """
    files = tuple(tables)
    tombstones = _make_disjoint([tombstone for table in files for tombstone in table.tombstones])
    sources = [_group_versions(table, prefix, key_groups) for table in files]
    heads = [next(source, None) for source in sources]
    for key_group in key_groups:
        parts = []
        for index, head in enumerate(heads):
            if head is not None and head[0] == key_group:
                parts.append(head[1])
                heads[index] = next(sources[index], None)
        if not parts:
            continue
        versions = Versions.concat(parts)
        keys, values = _find_live(
            versions, len(parts) > 1, _select_tombstones(tombstones, key_group, prefix)
        )
        if len(keys):
            yield key_group, keys, values


def _make_disjoint(tombstones: Sequence[Tombstone]) -> list[Tombstone]:
    """Return equivalent range deletes that are sorted and do not overlap.

    Then a key is in at most one range, regardless of the number of range deletes.
    """
    waiting = sorted(tombstones, key=lambda tombstone: tombstone.first, reverse=True)
    edges = sorted({edge for tombstone in tombstones for edge in (tombstone.first, tombstone.stop)})
    newest: list[tuple[int, bytes]] = []  # a heap by negative sequence number
    disjoint = []
    for first, stop in pairwise(edges):
        while waiting and waiting[-1].first <= first:
            tombstone = waiting.pop()
            heappush(newest, (-tombstone.sequence, tombstone.stop))
        while newest and newest[0][1] <= first:
            heappop(newest)
        if newest:
            disjoint.append(Tombstone(first, stop, -newest[0][0]))
    return disjoint


def _select_tombstones(tombstones: list[Tombstone], key_group: int, prefix: int) -> list[Tombstone]:
    """Return the disjoint range deletes that can affect keys of a key group."""
    begin, after = key_group.to_bytes(prefix, "big"), key_group + 1
    first = bisect_right(tombstones, begin, key=lambda tombstone: tombstone.stop)
    if after >= 1 << 8 * prefix:
        return tombstones[first:]
    end = after.to_bytes(prefix, "big")
    return tombstones[first : bisect_left(tombstones, end, key=lambda tombstone: tombstone.first)]


def _group_versions(
    table: RocksTable, prefix: int, key_groups: KeyGroupRange
) -> Iterator[tuple[int, Versions]]:
    """Yield the entries of a file, grouped by key group, for the given key groups."""
    first, after = key_groups.first.to_bytes(prefix, "big"), key_groups.last + 1
    stop = after.to_bytes(prefix, "big") if after < 1 << 8 * prefix else None
    last, pending = -1, list[Versions]()
    for versions in table.versions(first, stop):
        numbers = _read_key_groups(versions, prefix, table.source.name)
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in pairwise(edges):
            if start == end:
                continue
            number = int(numbers[start])
            if number < last:
                raise DamagedFileError(
                    f"{table.source.name} is damaged: keys of key group {number} follow keys "
                    f"of {last}"
                )
            if number != last:
                if pending and last in key_groups:
                    yield last, Versions.concat(pending)
                last, pending = number, []
            pending.append(versions.slice(start, end))
    if pending and last in key_groups:
        yield last, Versions.concat(pending)


def _read_key_groups(versions: Versions, prefix: int, name: str) -> npt.NDArray[np.int64]:
    keys = Spans.from_array(versions.keys, name)
    dtype = ">u1" if prefix == 1 else ">u2"
    return Cursor(keys, keys.starts, keys.ends).numbers(dtype).astype(np.int64)


def _find_live(
    versions: Versions, is_mixed: bool, tombstones: Sequence[Tombstone]
) -> tuple[pa.Array, pa.Array]:
    """Return the live keys of a key group, and their merged values."""
    if is_mixed:
        columns = {"key": versions.keys, "packed": versions.packed}
        order = [("key", "ascending"), ("packed", "descending")]
        rows = pc.sort_indices(pa.table(columns), sort_keys=order)
        versions = versions.take(rows.to_numpy().astype(np.int64))
    keys, kinds = versions.keys, versions.kinds
    begins = np.ones(len(keys), np.bool_)
    begins[1:] = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(False)
    is_gone = (kinds == DELETE) | (kinds == SINGLE_DELETE) | _find_deleted(versions, tombstones)
    # Versions older than a put or a delete of the same key have no effect.
    ends = is_gone | (kinds == VALUE)
    before = np.cumsum(ends) - ends
    counts = ~is_gone & (before == np.repeat(before[begins], _run_lengths(begins)))
    used = np.flatnonzero(counts)
    first = np.ones(len(used), np.bool_)
    number = np.cumsum(begins)[used]
    first[1:] = number[1:] != number[:-1]
    if bool(first.all()):
        if len(used) == len(keys):
            return keys, versions.values
        live = versions.take(used)
        return live.keys, live.values
    return keys.take(pa.array(used[first])), _merge_operands(versions.values, used, first)


def _run_lengths(begins: _Rows) -> npt.NDArray[np.int64]:
    places = np.flatnonzero(begins)
    return np.diff(np.append(places, len(begins)))


def _merge_operands(values: pa.Array, used: npt.NDArray[np.int64], first: _Rows) -> pa.Array:
    """Join the values of each key from the oldest to the newest; the input is newest first."""
    lengths = _run_lengths(first)
    ends = np.cumsum(lengths)
    backwards = np.repeat(2 * ends - lengths - 1, lengths) - np.arange(len(used))
    offsets = pa.array(np.append(0, ends), pa.int64())
    operands = values.take(pa.array(used[backwards]))
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, operands), _COMMA)


def _find_deleted(versions: Versions, tombstones: Sequence[Tombstone]) -> _Rows:
    """Return which entries, sorted by key, are older than a range delete that covers their key.

    The range deletes are disjoint.
    """
    is_deleted, keys, sequences = (
        np.zeros(len(versions), np.bool_),
        versions.keys,
        versions.sequences,
    )
    rows = range(len(keys))
    for tombstone in tombstones:
        first = bisect_left(rows, tombstone.first, key=lambda row: keys[row].as_py())
        stop = bisect_left(rows, tombstone.stop, lo=first, key=lambda row: keys[row].as_py())
        is_deleted[first:stop] = sequences[first:stop] < tombstone.sequence
    return is_deleted
