"""RocksDB tables: every block compression, range deletes, merges, and unsupported features.

The goldens contain tables that RocksDB wrote. The tables here are generated, to cover features that
the goldens lack.
"""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DamagedFileError, FormatVersionError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import varint
from statestore.interop.flink.read.rocksdb import RocksTable, live_key_groups, open_table
from statestore.interop.flink.read.snappy import BLOCK_CHECKSUMS
from statestore.keys.groups import KeyGroupRange
from tests.interop.flink.goldens import FOLDER

DELETE, VALUE, MERGE, SINGLE_DELETE, RANGE_DELETE = 0, 1, 2, 7, 15
MAGIC = 0x88E241B785F4CFF7
Entry = tuple[bytes, int, int, bytes]


@dataclass(frozen=True)
class Source:
    name: str
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        assert 0 <= start <= stop <= len(self.data)
        return self.data[start:stop]


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-14)
    return varint(len(data)) + packer.compress(data) + packer.flush()


def packed(codec: str) -> Callable[[bytes], bytes]:
    def pack(data: bytes) -> bytes:
        head = b"" if codec == "snappy" else varint(len(data))
        return head + bytes(pa.Codec(codec).compress(data, asbytes=True))

    return pack


COMPRESSIONS: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: packed("snappy"),
    2: deflated,
    4: packed("lz4_raw"),
    7: packed("zstd"),
}


def internal(entry: Entry) -> tuple[bytes, bytes]:
    key, sequence, kind, value = entry
    return key + struct.pack("<Q", sequence << 8 | kind), value


def block(pairs: Sequence[tuple[bytes, bytes]], interval: int = 16) -> bytes:
    """Return a block whose keys share a prefix with the previous key, except at each interval."""
    parts: list[bytes] = []
    before, restarts = b"", []
    for number, (key, value) in enumerate(pairs):
        if number % interval == 0:
            restarts.append(len(b"".join(parts)))
            before = b""
        ends = (at for at in range(len(key) + 1) if key[:at] != before[:at])
        shared = min(next(ends, len(key) + 1) - 1, len(before))
        parts += [varint(shared), varint(len(key) - shared), varint(len(value)), key[shared:]]
        parts.append(value)
        before = key
    restarts = restarts or [0]
    return b"".join(parts) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(
    entries: Sequence[Entry],
    *,
    compression: int = 0,
    tombstones: Sequence[Entry] = (),
    more: Sequence[tuple[bytes, bytes]] = (),
    version: int = 5,
    checksum: int = 4,
    together: int = 2,
    interval: int = 16,
    indexed: int = 1,
) -> bytes:
    """Return a file with this many entries per block, and complete keys at every ``interval``.

    Its index lists each block ``indexed`` times.
    """
    data = b""

    def add(content: bytes, kind: int = 0) -> bytes:
        nonlocal data
        body = COMPRESSIONS[kind](content)
        handle = varint(len(data)) + varint(len(body))
        body += bytes([kind])
        data += body + struct.pack("<I", BLOCK_CHECKSUMS[checksum](memoryview(body)))
        return handle

    ordered = sorted(entries, key=lambda one: (one[0], -one[1]))
    index = []
    for at in range(0, len(ordered), together):
        pairs = [internal(one) for one in ordered[at : at + together]]
        index += [(pairs[-1][0], add(block(pairs, interval), compression))] * indexed
    properties = [(b"rocksdb.column.family.name", b"state"), *more]
    meta = [(b"rocksdb.properties", add(block(sorted(properties))))]
    if tombstones:
        meta.append(
            (b"rocksdb.range_del", add(block([internal(tombstone) for tombstone in tombstones])))
        )
    handles = add(block(sorted(meta)))
    handles += add(block(index))
    footer = bytes([checksum]) + handles.ljust(40, b"\0")
    return data + footer + struct.pack("<IQ", version, MAGIC)


def live(*files: bytes) -> list[tuple[bytes, bytes]]:
    return pairs(open_table(Source(f"{at}.sst", one)) for at, one in enumerate(files))


def pairs(tables: Iterable[RocksTable]) -> list[tuple[bytes, bytes]]:
    """Return the live entries. The first byte of a key is its key group."""
    found: list[tuple[bytes, bytes]] = []
    for key_group, keys, values in live_key_groups(tables, 1, KeyGroupRange(0, 255)):
        found += zip(keys.to_pylist(), values.to_pylist(), strict=True)
        assert all(key[0] == key_group for key in keys.to_pylist())
    return found


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_blocks_are_read_with_every_compression(compression: int) -> None:
    entries = [(b"key-%03d" % at, at, VALUE, b"value" * at) for at in range(50)]
    found = live(table(entries, compression=compression))
    assert found == [(key, value) for key, _, _, value in entries]
    assert open_table(Source("1.sst", table(entries))).column_family == "state"


texts = st.binary(min_size=1, max_size=6) | st.binary(min_size=120, max_size=200)


@given(
    st.dictionaries(texts, st.binary(max_size=3) | st.binary(min_size=126, max_size=300)),
    st.integers(1, 40),
    st.integers(1, 5),
    st.sampled_from(sorted(COMPRESSIONS)),
)
def test_blocks_are_read_with_every_restart_interval(
    rows: dict[bytes, bytes], together: int, interval: int, compression: int
) -> None:
    entries = [(key, 1, VALUE, value) for key, value in rows.items()]
    whole = table(entries, compression=compression, together=together, interval=interval)
    assert live(whole) == sorted(rows.items())


@pytest.mark.parametrize("interval", [1, 8])
@pytest.mark.parametrize(
    "kind", ["BinarySearch", "BinarySearchWithFirstKey", "HashSearch", "TwoLevelIndexSearch"]
)
def test_real_tables_are_read_with_every_index(kind: str, interval: int) -> None:
    archive = lzma.decompress((FOLDER / "2.3_indexes.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        file = tar.extractfile(f"k{kind}-{interval}.sst")
        assert file is not None
        whole = open_table(Source(f"{kind}.sst", file.read()))
    assert len(whole.blocks) > 50
    wanted = [(bytes([n // 10]) + b"%04d" % n, b"value-%d" % n) for n in range(600)]
    assert pairs([whole]) == wanted
    (found,) = live_key_groups([whole], 1, KeyGroupRange(31, 31))
    assert found[1].to_pylist() == [key for key, _ in wanted[310:320]]


def test_only_blocks_of_the_requested_key_groups_are_read() -> None:
    entries = [(bytes([group, at]), 1, VALUE, b"v") for group in range(50) for at in range(4)]
    whole = table(entries)
    asked: list[tuple[int, int]] = []

    @dataclass(frozen=True)
    class Counted(Source):
        def read(self, start: int, stop: int) -> bytes:
            asked.append((start, stop))
            return super().read(start, stop)

    opened = open_table(Counted("t", whole))
    asked.clear()
    found = list(live_key_groups([opened], 1, KeyGroupRange(20, 21)))
    assert [(group, len(keys)) for group, keys, _ in found] == [(20, 4), (21, 4)]
    assert sum(stop - start for start, stop in asked) < len(whole) // 10


def test_keys_that_are_not_sorted_are_damage() -> None:
    pairs_of_block = [internal((key, 1, VALUE, b"v")) for key in (b"b", b"a")]
    whole = table([(b"a", 1, VALUE, b"v"), (b"b", 1, VALUE, b"v")])
    swapped = block(pairs_of_block)
    body = swapped + b"\0"
    data = body + struct.pack("<I", BLOCK_CHECKSUMS[4](memoryview(body))) + whole[len(body) + 4 :]
    with pytest.raises(DamagedFileError, match="keys of key group 97 follow keys of 98"):
        live(data)


def test_the_newest_of_several_files_wins() -> None:
    old = table([(b"a", 1, VALUE, b"old"), (b"b", 2, VALUE, b"gone"), (b"c", 3, VALUE, b"x")])
    new = table([(b"a", 9, VALUE, b"new"), (b"b", 8, DELETE, b""), (b"c", 7, SINGLE_DELETE, b"")])
    assert live(old, new) == live(new, old) == [(b"a", b"new")]


def test_merge_operands_are_joined_oldest_first() -> None:
    old = table([(b"a", 1, VALUE, b"1"), (b"b", 2, DELETE, b""), (b"c", 1, MERGE, b"x")])
    new = table([(b"a", 5, MERGE, b"2"), (b"a", 6, MERGE, b"3"), (b"b", 7, MERGE, b"y")])
    assert live(old, new) == [(b"a", b"1,2,3"), (b"b", b"y"), (b"c", b"x")]


def test_a_range_delete_removes_earlier_entries() -> None:
    old = table([(bytes([one]), 5, VALUE, b"old") for one in b"abcd"])
    new = table(
        [(b"c", 9, VALUE, b"new"), (b"b", 8, MERGE, b"m")],
        tombstones=[(b"b", 7, RANGE_DELETE, b"d")],
    )
    assert live(old, new) == [(b"a", b"old"), (b"b", b"m"), (b"c", b"new"), (b"d", b"old")]


keys = st.sampled_from([b"a", b"ab", b"b", b"c"])
kinds = st.sampled_from([DELETE, VALUE, MERGE])


@given(st.lists(st.tuples(keys, kinds, st.integers(0, 2)), max_size=12))
def test_any_files_give_the_written_entries(steps: list[tuple[bytes, int, int]]) -> None:
    files: list[list[Entry]] = [[], [], []]
    wanted: dict[bytes, bytes] = {}
    for sequence, (key, kind, file) in enumerate(steps, 1):
        value = b"" if kind == DELETE else b"%d" % sequence
        files[file].append((key, sequence, kind, value))
        if kind == DELETE:
            wanted.pop(key, None)
        elif kind == MERGE and key in wanted:
            wanted[key] += b"," + value
        else:
            wanted[key] = value
    assert live(*(table(one) for one in files)) == sorted(wanted.items())


@given(st.data())
def test_a_flipped_byte_is_found(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(COMPRESSIONS)))
    entries = [(b"k%d" % at, at, VALUE, b"v" * 9) for at in range(9)]
    checksum = data.draw(st.sampled_from([1, 4]))
    whole = bytearray(table(entries, compression=kind, checksum=checksum))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))

    @dataclass(frozen=True)
    class Checked(Source):
        def read(self, start: int, stop: int) -> bytes:
            if not 0 <= start <= stop <= len(self.data):
                raise DamagedFileError("outside")
            return self.data[start:stop]

    try:
        found = pairs([open_table(Checked("t", bytes(whole)))])
    except (DamagedFileError, FormatVersionError, UnsupportedTypeError):
        return
    assert found == [(key, value) for key, _, _, value in entries]  # bytes that are not read


def test_a_table_without_checksums_is_read() -> None:
    assert live(table([(b"a", 1, VALUE, b"v")], checksum=0)) == [(b"a", b"v")]


def test_the_checksum_error_names_the_position_of_the_block() -> None:
    whole = bytearray(table([(b"k%d" % at, at, VALUE, b"v" * 9) for at in range(9)]))
    at = whole.index(b"k2")
    whole[at] ^= 1
    with pytest.raises(
        DamagedFileError, match=r"0.sst is damaged at byte \d+: the checksum of a block is"
    ):
        live(bytes(whole))


def test_unknown_checksum_types_are_refused() -> None:
    whole = bytearray(table([(b"a", 1, VALUE, b"v")]))
    whole[-53] = 2
    with pytest.raises(UnsupportedTypeError, match="checksums of the unsupported kind 2"):
        live(bytes(whole))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((b"rocksdb.block.based.table.index.type", b"\4\0\0\0"), "index of the unknown kind 4"),
        (
            (b"rocksdb.external_sst_file.global_seqno", b"\5" + bytes(7)),
            "was ingested into RocksDB",
        ),
    ],
)
def test_unknown_features_are_refused(more: tuple[bytes, bytes], said: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=said):
        live(table([(b"a", 1, VALUE, b"v")], more=[more]))


def test_values_in_separate_files_are_refused() -> None:
    with pytest.raises(UnsupportedTypeError, match="kind 17"):
        live(table([(b"a", 1, 17, b"v")]))


def test_a_later_version_is_refused() -> None:
    with pytest.raises(FormatVersionError, match="of version 6"):
        live(table([], version=6))
