"""Canonical keyed state survives a round trip, also with Snappy, and damage is an error."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DamagedFileError, FormatVersionError, UnsupportedTypeError
from statestore.interop.flink.metadata.java_binary import i32
from statestore.interop.flink.read import savepoint_files
from statestore.interop.flink.read.canonical import (
    Entries,
    KeyedHeader,
    StateInfo,
    canonical_states,
    header_bytes,
    read_entries,
    read_header,
)
from statestore.interop.flink.read.keyed_states import keyed_state
from statestore.interop.flink.read.savepoint_files import BLOCK_BYTES, GroupBytes, Window
from statestore.interop.flink.read.snappy import frame_pieces
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.java_types import ListType, MapType, Scalar
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot
from tests.interop.flink.entries import key_group_bytes


def snapshot(kind: FlinkType) -> SerializerSnapshot:
    return SerializerSnapshot(kind, kind.snapshot())


def made_header(*, is_compressed: bool = False, states: int = 3) -> KeyedHeader:
    infos = tuple(
        StateInfo(
            f"state-{at}",
            "keyed",
            {"KEYED_STATE_TYPE": "VALUE"},
            {
                "NAMESPACE_SERIALIZER": snapshot(Scalar("VoidNamespace")),
                "VALUE_SERIALIZER": snapshot(Scalar("Long")),
            },
        )
        for at in range(states)
    )
    return KeyedHeader(is_compressed, snapshot(Scalar("String")), infos)


def test_a_header_survives_a_round_trip() -> None:
    header = made_header(is_compressed=True)
    data = header_bytes(header)
    found = read_header(data + b"more", "f")
    assert found.length == len(data)
    assert (found.states, found.key, found.is_compressed) == (header.states, header.key, True)
    for cut in range(len(data)):
        with pytest.raises(DamagedFileError):
            read_header(data[:cut], "f")


@pytest.mark.parametrize(
    ("kind", "stored", "described"),
    [
        ("VALUE", {"VALUE_SERIALIZER": Scalar("Long")}, Scalar("Long")),
        ("LIST", {"VALUE_SERIALIZER": Scalar("Long")}, ListType(Scalar("Long"))),
        (
            "MAP",
            {"VALUE_SERIALIZER": Scalar("Long"), "USER_KEY_SERIALIZER": Scalar("String")},
            MapType(Scalar("String"), Scalar("Long")),
        ),
        ("MAP", {"VALUE_SERIALIZER": Scalar("Long")}, None),
    ],
)
def test_a_state_of_forst_is_described_as_one_of_rocksdb(
    kind: str, stored: dict[str, FlinkType], described: FlinkType | None
) -> None:
    """Its header has the types of elements, or of a map's keys and values (from Flink 2.1 on)."""
    namespace = {"NAMESPACE_SERIALIZER": snapshot(Scalar("VoidNamespace"))}
    serializers = {name: snapshot(each) for name, each in stored.items()}
    info = StateInfo("s", "asynchronous", {"KEYED_STATE_TYPE": kind}, namespace | serializers)
    header = KeyedHeader(False, snapshot(Scalar("String")), (info,))
    (found,) = read_header(header_bytes(header), "f").states
    if described is None:
        assert found == info
    else:
        value = {"VALUE_SERIALIZER": snapshot(described)}
        assert found == replace(info, kind="keyed", serializers=namespace | value)


def test_a_state_without_a_kind_is_refused() -> None:
    """Flink always writes the kind; a list would be read as a value without it."""
    (info,) = made_header(states=1).states
    with pytest.raises(UnsupportedTypeError, match="'state-0' of the unsupported kind keyed"):
        keyed_state(replace(info, options={}), Scalar("String"), "f")


def test_another_version_is_refused() -> None:
    with pytest.raises(FormatVersionError, match="keyed state of version 5"):
        read_header(i32(5) + bytes(100), "f")


entries = st.lists(
    st.tuples(st.binary(max_size=9).map(lambda tail: b"\x05" + tail), st.binary(max_size=20)),
    min_size=1,
    max_size=8,
)
groups = st.lists(entries, max_size=3).map(lambda found: list(enumerate(found)))
Groups = list[tuple[int, list[tuple[bytes, bytes]]]]


@dataclass(frozen=True)
class Source:
    data: bytes
    name: str = "f"

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, start: int, stop: int) -> bytes:
        return self.data[start:stop]


def pairs(found: Entries) -> list[tuple[bytes, bytes]]:
    columns = (found.keys.arrow().to_pylist(), found.values.arrow().to_pylist())
    return list(zip(*columns, strict=True))


def read(data: bytes, *, is_compressed: bool = False, block: int = BLOCK_BYTES) -> Groups:
    """Read a key group, and each of its states separately, in blocks of this many bytes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(savepoint_files, "BLOCK_BYTES", block)
        source = Source(bytes(100) + data)
        group = GroupBytes(source, 5, 100, 100 + len(data), [] if is_compressed else None)
        window = group.window()
        found, places = [], []
        for state in canonical_states(window, 3, 5):
            begin = window.place
            found.append((state, entries_of(window, state)))
            places.append((begin, window.place))
        for (begin, end), (state, entries) in zip(places, found, strict=True):
            again = group.window(begin, end)
            assert entries_of(again, state) == entries
            again.require(1).end("a state")
    return found


def entries_of(window: Window, state: int) -> list[tuple[bytes, bytes]]:
    return [pair for entry in read_entries(window, state, 5, 1) for pair in pairs(entry)]


@given(groups, st.booleans(), st.integers(1, 40) | st.just(BLOCK_BYTES))
def test_a_key_group_survives_a_round_trip(group: Groups, is_compressed: bool, block: int) -> None:
    data = key_group_bytes(group, is_compressed=is_compressed)
    assert read(data, is_compressed=is_compressed, block=block) == group


@given(groups, st.booleans(), st.integers(1, 40) | st.just(BLOCK_BYTES), st.data())
def test_a_truncated_key_group_is_damaged(
    group: Groups, is_compressed: bool, block: int, data: st.DataObject
) -> None:
    whole = key_group_bytes(group, is_compressed=is_compressed)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedFileError):
        read(whole[:cut], is_compressed=is_compressed, block=block)


@given(groups, st.data())
def test_a_flipped_byte_gives_other_bytes_or_a_typed_error(
    group: Groups, data: st.DataObject
) -> None:
    whole = bytearray(key_group_bytes(group))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        found = read(bytes(whole))
    except DamagedFileError:
        return
    assert found != group


@given(groups, st.data())
def test_with_snappy_every_flipped_byte_is_detected(group: Groups, data: st.DataObject) -> None:
    whole = bytearray(key_group_bytes(group, is_compressed=True))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        found = read(bytes(whole), is_compressed=True)
    except DamagedFileError:
        return
    assert found == group  # a Snappy block can be encoded in several ways


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(DamagedFileError, match="3 unexpected bytes follow key group 5"):
        read(key_group_bytes([(0, [(b"\x05a", b"b")])]) + b"abc")


def test_a_key_of_another_key_group_is_refused() -> None:
    with pytest.raises(
        DamagedFileError, match="has the prefix of key group 6 but is stored in key group 5"
    ):
        read(key_group_bytes([(0, [(b"\x05a", b"b"), (b"\x06a", b"b")])]))


def test_a_state_that_the_header_lacks_is_refused() -> None:
    with pytest.raises(DamagedFileError, match="key group 5 has state 7, but the header lists 3"):
        read(key_group_bytes([(7, [(b"\x05a", b"b")])]))


def test_streams_of_several_chunks_are_joined() -> None:
    data = b"".join(zlib.crc32(bytes([at])).to_bytes(4, "big") for at in range(200)) * 400
    for size in (1, 70_000, len(data)):
        pieces = [data[at : at + size] for at in range(0, len(data), size)] if size > 1 else [b""]
        stored = b"".join(frame_pieces(pieces))
        window = GroupBytes(Source(stored), 5, 0, len(stored), []).window()
        assert window.load_all().data == b"".join(pieces)
