"""Bytes that were crafted to use much time or memory: a typed error names the file, soon and with
little memory.

Each case has a few kB, and declares more data than any machine holds.
"""

from __future__ import annotations

import os
import resource
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    DamagedFileError,
    StateStoreError,
    StorageError,
    UnsupportedTypeError,
)
from statestore.interop.flink import import_savepoint, show_savepoint
from statestore.interop.flink.metadata.handles import (
    FileHandle,
    IncrementalHandle,
    InlineHandle,
    OperatorHandles,
    SegmentHandle,
    Subtask,
)
from statestore.interop.flink.metadata.java_binary import (
    MAX_DEPTH,
    Reader,
    i8,
    i32,
    i64,
    utf,
    varint,
)
from statestore.interop.flink.metadata.logical_types import (
    LogicalType,
    key_logical_type,
    read_logical_type,
)
from statestore.interop.flink.metadata.metadata_file import MAGIC, read_metadata
from statestore.interop.flink.read.canonical import read_header
from statestore.interop.flink.read.rocksdb import open_table
from statestore.interop.flink.read.rocksdb_blocks import Expansion, decode_pairs
from statestore.interop.flink.read.savepoint import open_savepoint
from statestore.interop.flink.read.savepoint_files import SavepointFiles, open_source
from statestore.interop.flink.read.snappy import SNAPPY_HEAD, chunks
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.binary_rows import decode_rows, encode_rows
from statestore.interop.flink.types.byte_cursor import Cursor, Spans, list_offsets
from statestore.interop.flink.types.column_bytes import decode_values
from statestore.interop.flink.types.java_types import (
    ListType,
    NullableType,
    RowType,
    Scalar,
    TupleType,
)
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.interop.flink.types.serializer_snapshots import read_snapshot
from statestore.storage import open_storage
from tests.interop.flink.goldens import Golden
from tests.interop.flink.limits import in_time
from tests.interop.flink.read.test_rocksdb import (
    COMPRESSIONS,
    RANGE_DELETE,
    VALUE,
    Source,
    live,
    table,
)
from tests.interop.flink.test_damage import keyed, written


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    with in_time():
        yield


# Handles.

OPERATOR = i32(MAGIC) + i32(3) + i64(1) + i32(0) + i32(1) + bytes(16) + i32(1) + i32(128)
A_RANGE = i32(0) + i32(0)
CHANGELOG = i8(8) + A_RANGE + i64(1) + i32(1)


@pytest.mark.parametrize(
    "data",
    [
        OPERATOR + (i8(3) + A_RANGE) * 10_000,
        OPERATOR + i8(0) + i32(1) + i32(0) + i32(0) + i32(0) + CHANGELOG * 10_000,
    ],
    ids=["streams", "changelogs"],
)
def test_nested_handles_are_limited(data: bytes) -> None:
    said = f"m is damaged at byte .*: handles are nested more than {MAX_DEPTH} levels deep"
    with pytest.raises(DamagedFileError, match=said):
        read_metadata(data, "m")


def test_a_segment_is_not_longer_than_its_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(100))
    places = SavepointFiles(open_storage(str(tmp_path)))
    whole = SegmentHandle(60, 40, 0, str(tmp_path / "f"), "id")
    assert open_source(whole, places, "state").read(0, 40) == bytes(40)
    for start, size, left in ((60, 41, 40), (60, 1 << 60, 40), (1 << 62, 9, 0)):
        handle = replace(whole, start=start, size=size)
        said = f"f has {left} bytes from byte {start} on, but the savepoint says {size}"
        with pytest.raises(DamagedFileError, match=said):
            open_source(handle, places, "state")


def test_half_of_a_character_is_not_a_name() -> None:
    name = b"\0\3" + "\ud800".encode("utf-8", "surrogatepass")
    data = i32(MAGIC) + i32(5) + i64(1) + i32(0) + i32(1) + name + utf("uid") + bytes(40)
    with pytest.raises(DamagedFileError, match=r"m is damaged at byte 26: a text .*half a char"):
        read_metadata(data, "m")
    assert Reader(utf("🦊"), "m").utf() == "🦊"  # Java writes both halves


def test_a_pipe_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "_metadata")
    with pytest.raises(StorageError, match=r"_metadata is not a regular file but a FIFO"):
        open_savepoint(str(tmp_path))


def test_metadata_of_unlimited_size_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "_metadata").open("wb") as file:
        file.truncate(5 << 30)  # sparse, without blocks on the disk
    with pytest.raises(DamagedFileError, match="_metadata has 5368709120 bytes, but the limit"):
        open_savepoint(str(tmp_path))


def peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.long
@pytest.mark.parametrize(
    ("keeps", "size"),
    [
        pytest.param(True, 1 << 30, id="zeros after its bytes"),
        pytest.param(True, 5 << 30, id="more zeros after its bytes"),
        pytest.param(False, 5 << 30, id="zeros"),
    ],
)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["2.3_heap_native", "2.3_rocksdb_native"])
def test_a_large_state_file_is_not_read_as_a_whole(
    tmp_path: Path, name: str, keeps: bool, size: int
) -> None:
    """The savepoint declares more than it may use as memory, and its sparse file has this size."""
    folder = Golden(name).unpack(tmp_path / "savepoint")
    files = sorted(folder.iterdir(), key=lambda one: one.stat().st_size)
    file = next(one for one in reversed(files) if one.name != "_metadata")
    said = utf(file.name) + i64(file.stat().st_size)
    metadata = (folder / "_metadata").read_bytes()
    assert said in metadata
    (folder / "_metadata").write_bytes(metadata.replace(said, utf(file.name) + i64(size)))
    if not keeps:
        file.write_bytes(b"")
    os.truncate(file, size)
    before = peak_kilobytes()
    for read in (
        lambda: show_savepoint(str(folder)),
        lambda: import_savepoint(str(folder), StateStore.open(str(tmp_path / "store"))),
    ):
        with suppress(StateStoreError):  # some of its bytes may be unchanged
            read()
    assert peak_kilobytes() - before < 500_000


# Types.


def snapshot_of(kind: FlinkType) -> Reader:
    return Reader(i32(2) + kind.snapshot(), "header")


def test_nested_types_are_limited() -> None:
    kind: FlinkType = Scalar("Long")
    for _ in range(MAX_DEPTH - 1):
        kind = ListType(kind)
    assert read_snapshot(snapshot_of(kind)).flink_type == kind
    with pytest.raises(DamagedFileError, match="serializer snapshots are nested more than"):
        read_snapshot(snapshot_of(ListType(kind)))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ListType(RowType((), has_kind=False)), "a tuple or row has no fields"),
        (ListType(TupleType("org.acme.Own", ())), "a tuple or row has no fields"),
        (NullableType(Scalar("Long"), -5), "a null is followed by -5 bytes"),
        (NullableType(Scalar("Long"), 1 << 30), "a null is followed by 1073741824 bytes"),
    ],
)
def test_types_of_values_without_bytes_are_damage(kind: FlinkType, said: str) -> None:
    with pytest.raises(DamagedFileError, match=f"header is damaged at byte .*: {said}"):
        read_snapshot(snapshot_of(kind))


MAP_CLASS, FIRST = 0, 2  # numbers of Java's handles: the class, and the object in the stream


def reference(number: int) -> bytes:
    return b"q" + i32(0x7E0000 + number)


def java_maps(depth: int, last: Callable[[int], bytes]) -> bytes:
    """Return ``depth`` nested maps, whose keys and values have the same type.

    The key of the innermost map is ``last`` of its handle.
    """
    fields = b"L" + utf("typeRoot") + b"t" + utf("LRoot;")
    fields += b"".join(b"L" + utf(name) + reference(1) for name in ("keyType", "valueType"))
    own = b"r" + utf("MapType") + i64(0) + b"\2" + b"\0\3" + fields + b"xp"
    root = b"~r" + utf("Root") + i64(0) + b"\x12\0\0xp"
    first = root + b"t" + utf("MAP")
    handles = [FIRST, *range(6, 6 + depth)]
    data = b"\xac\xed\0\5"
    for level in range(depth):
        data += b"s" + (own if level == 0 else reference(MAP_CLASS))
        data += first if level == 0 else reference(4)
    data += last(handles[depth - 1])
    return data + b"".join(map(reference, reversed(handles[1:depth]))) + b"p"


def java_integer(_: int) -> bytes:
    """Return an ``INT``: an object of the maps' class, whose root is another constant."""
    return b"s" + reference(MAP_CLASS) + b"~" + reference(3) + b"t" + utf("INTEGER") + b"pp"


def shared_maps(depth: int) -> bytes:
    """Return maps whose innermost key is an ``INT``, and each value has the key's type."""
    data = java_maps(depth, java_integer)
    # The innermost value is the INT that follows the innermost map.
    ends = map(reference, reversed(range(6, 6 + depth)))
    return data[: -1 - 5 * (depth - 1)] + b"".join(ends)


def test_a_type_with_shared_parts_is_read() -> None:
    found = read_logical_type(Reader(shared_maps(3), "java"))
    assert (
        found.text == "MAP<" * 3 + "INT, INT>, MAP<INT, INT>>, MAP<MAP<INT, INT>, MAP<INT, INT>>>"
    )


def test_a_type_of_few_bytes_contains_few_types() -> None:
    data = shared_maps(40)  # 2 ** 40 types
    assert len(data) < 1_000
    with pytest.raises(
        DamagedFileError, match="java is damaged at byte 0: a type contains more types"
    ):
        read_logical_type(Reader(data, "java"))


def test_a_type_that_contains_itself_is_damage() -> None:
    with pytest.raises(DamagedFileError, match="Flink SQL types are nested more than"):
        read_logical_type(Reader(java_maps(1, reference), "java"))


def test_a_list_of_fields_that_contains_itself_is_damage() -> None:
    fields = b"".join(b"L" + utf(name) + b"t" + utf("LX;") for name in ("typeRoot", "fields"))
    row = b"sr" + utf("RowType") + i64(0) + b"\2\0\2" + fields + b"xp"
    root = b"~r" + utf("Root") + i64(0) + b"\x12\0\0xpt" + utf("ROW")
    wrapper = b"sr" + utf("Wrapper") + i64(0) + b"\2\0\1L" + utf("list") + b"t" + utf("LX;") + b"xp"
    itself = 3 + 1 + 3 + 2  # after the row's class, two signatures and itself; the root; a class …
    data = b"\xac\xed\0\5" + row + root + wrapper + reference(itself)
    with pytest.raises(DamagedFileError, match="the field list of a row contains itself"):
        read_logical_type(Reader(data, "java"))


# Values.


def spans(*values: bytes) -> Spans:
    return Spans.from_values(list(values), "values")


def test_nulls_with_very_many_fields_are_not_columns() -> None:
    fields = tuple(PojoField(f"f{at}", "Pojo", Scalar("Long")) for at in range(2_000))
    many = i32(100_000) + bytes([1]) * 100_000  # a list of nulls, one byte each
    with pytest.raises(DamagedFileError, match="100000 values of 2001 columns each do not fit in"):
        decode_values(ListType(PojoType("Pojo", fields)), spans(many))
    few = decode_values(ListType(PojoType("Pojo", fields)), spans(i32(3) + bytes([1]) * 3))
    assert few.values.null_count == 3


def test_elements_of_arrays_share_no_bytes() -> None:
    """Each of 100 arrays contains the next 100. Without a limit this gives 100 ** 4 numbers."""
    inner = LogicalType("BIGINT", b"", "BIGINT")
    for _ in range(4):
        inner = LogicalType("ARRAY", b"", "ARRAY", children=(inner,))
    count, head = 100, 4 + 16
    size = head + 8 * count
    array = b""
    for level in range(3):
        words = (size << 32 | (3 - level) * size).to_bytes(8, "little")  # the next array
        array += count.to_bytes(4, "little") + bytes(16) + words * count
    array += count.to_bytes(4, "little") + bytes(16) + bytes(8 * count)
    row = bytes(8) + (16 << 32 | len(array)).to_bytes(8, "little") + array
    data = spans(i32(len(row)) + row)
    with pytest.raises(DamagedFileError, match="two values of a row or array overlap"):
        decode_rows((inner,), Cursor(data, data.starts, data.ends))


def test_columns_of_a_row_share_no_bytes() -> None:
    text = key_logical_type("STRING")
    rows = pa.array([{"kind": 0, "f0": "a" * 40, "f1": "b" * 40}])
    (row,) = encode_rows((text, text), rows).to_pylist()
    shared = row[:16] + row[8:16] + row[24:]
    for data, is_whole in ((row, True), (shared[:64], False)):
        found = spans(i32(len(data)) + data)
        cursor = Cursor(found, found.starts, found.ends)
        if is_whole:
            assert decode_rows((text, text), cursor).field("f1").to_pylist() == ["b" * 40]
            continue
        with pytest.raises(DamagedFileError, match="two values of a row or array overlap"):
            decode_rows((text, text), cursor)


def test_more_elements_than_a_column_has_are_refused() -> None:
    with pytest.raises(UnsupportedTypeError, match="4294967296 list elements"):
        list_offsets(np.full(4, 1 << 30))


# Blocks of RocksDB.


@pytest.mark.slow
def test_keys_with_shared_bytes_are_limited_in_total() -> None:
    first = varint(0) + varint(60_010) + varint(1) + b"k" * 60_000 + bytes(10) + b"v"
    other = varint(60_009) + varint(1) + varint(1) + b"xv"
    for number in (100, 5_000):
        block = first + other * number + i32(0) + (1).to_bytes(4, "little")
        found, expansion = Spans.from_values([block], "0.sst"), Expansion("0.sst", len(block))
        if number == 100:
            keys, values = decode_pairs(found, expansion)
            assert (len(keys), values.to_pylist()) == (101, [b"v"] * 101)
            continue
        with pytest.raises(DamagedFileError, match=r"0\.sst is damaged at byte .*: the data up to"):
            decode_pairs(found, expansion)


def test_many_keys_with_shared_bytes_are_read() -> None:
    entries = [
        (b"\1key" + at.to_bytes(4, "big"), at, VALUE, str(at).encode()) for at in range(5_000)
    ]
    expected = [(key, value) for key, _, _, value in entries]
    assert live(table(entries, together=5_000, interval=10_000)) == expected
    assert live(table(entries, together=700, interval=100, compression=7)) == expected


@pytest.mark.parametrize(
    ("compression", "length", "plain", "said"),
    [
        (2, 0, 64 << 20, "the length of a block is wrong"),
        (2, 10, 64 << 20, "the length of a block is wrong"),
        (7, 300 << 20, 300, "the data up to there expands to more than"),
        (4, 300 << 20, 300, "the data up to there expands to more than"),
    ],
)
def test_the_uncompressed_size_in_a_block_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, compression: int, length: int, plain: int, said: str
) -> None:
    def pack(data: bytes) -> bytes:
        packer = zlib.compressobj(wbits=-14)
        if compression == 2:
            return varint(length) + packer.compress(bytes(plain)) + packer.flush()
        codec = pa.Codec({4: "lz4_raw", 7: "zstd"}[compression])
        return varint(length) + bytes(codec.compress(bytes(plain), asbytes=True))

    monkeypatch.setitem(COMPRESSIONS, compression, pack)
    data = table([(b"\1k", 1, VALUE, b"v")], compression=compression)
    assert len(data) < 100_000
    with pytest.raises(DamagedFileError, match=rf"0\.sst is damaged at byte 0: {said}"):
        live(data)


@pytest.mark.slow
def test_range_deletes_are_limited_to_those_present() -> None:
    keys = [b"\1" + at.to_bytes(3, "big") for at in range(3_000)]
    entries = [(key, 10, VALUE, b"v") for key in keys]
    deletes = [(key, 20, RANGE_DELETE, b"\2") for key in keys[5:]]
    assert [key for key, _ in live(table(entries, together=16, tombstones=deletes))] == keys[:5]


def test_blocks_share_no_bytes() -> None:
    entries = [(b"\1" + bytes([at]), at, VALUE, b"v") for at in range(50)]
    with pytest.raises(DamagedFileError, match=r"0\.sst is damaged: its index has a block of"):
        open_table(Source("0.sst", table(entries, indexed=2)))


def test_a_file_belongs_to_one_subtask_once(tmp_path: Path) -> None:
    data = table([(b"\1k", 1, VALUE, b"v")])
    (tmp_path / "a.sst").write_bytes(data)
    file = FileHandle(str(tmp_path / "a.sst"), len(data))
    place = [str(tmp_path / "a.sst")]

    def change(operator: OperatorHandles) -> OperatorHandles:
        stream = keyed(operator).stream
        assert isinstance(stream, InlineHandle)
        header = InlineHandle("h", stream.data[: read_header(stream.data, "h").length])
        files = (("1.sst", file), ("2.sst", file))
        handle = IncrementalHandle(1, "b", 0, operator.max_parallelism, header, files, ())
        return replace(operator, parallelism=1, subtasks=(Subtask(0, keyed=handle),))

    (operator,) = written(tmp_path, change, place).operators
    with pytest.raises(DamagedFileError, match="the same bytes as two RocksDB files"):
        list(operator.entries())


def test_a_snappy_chunk_is_limited_to_the_size_of_a_chunk() -> None:
    block = bytes(pa.Codec("snappy").compress(bytes(70_000), asbytes=True))
    chunk = bytes([0]) + (len(block) + 4).to_bytes(3, "little") + bytes(4) + block
    with pytest.raises(DamagedFileError, match="the length of a Snappy block is wrong"):
        list(chunks(Reader(SNAPPY_HEAD + chunk, "f")))
