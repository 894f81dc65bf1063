"""``_metadata``: version 3 survives a round trip, and damage is always detected."""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.errors import DamagedFileError, FormatVersionError, IncompatibleStateError
from statestore.interop.flink.metadata.handles import (
    ChannelHandle,
    EmptyHandle,
    FileHandle,
    IncrementalHandle,
    InlineHandle,
    KeyGroupsHandle,
    KeyGroupsStream,
    MasterState,
    MergedFolders,
    OperatorHandle,
    OperatorHandles,
    OperatorPart,
    RelativeHandle,
    SavepointMetadata,
    SegmentHandle,
    Subtask,
)
from statestore.interop.flink.metadata.java_binary import i8, i32, i64, utf
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata

names = st.text(max_size=20)
paths = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)
sizes = st.integers(0, 2**63 - 1)
offsets = st.lists(sizes, max_size=6).map(tuple)
streams = st.one_of(
    st.none(),
    st.builds(InlineHandle, names, st.binary(max_size=30)),
    st.builds(FileHandle, paths, sizes),
    st.builds(RelativeHandle, paths, sizes),
    st.builds(SegmentHandle, sizes, sizes, st.integers(0, 1), paths, names),
    st.just(EmptyHandle()),
)
delegates = st.one_of(streams, st.builds(KeyGroupsStream, st.integers(0, 9), offsets, streams))
files = st.lists(st.tuples(names, streams), max_size=3).map(tuple)
plain = st.builds(KeyGroupsHandle, st.integers(0, 9), offsets, delegates, st.booleans())
keyed = st.one_of(
    st.none(),
    plain,
    st.builds(replace, plain, is_savepoint=st.just(False), handle_id=names),
    st.builds(
        IncrementalHandle, sizes, names, st.integers(0, 9), st.integers(0, 9), streams, files, files
    ),
    st.builds(
        IncrementalHandle,
        *(sizes, names, st.integers(0, 9), st.integers(0, 9), streams, files, files, sizes, names),
    ),
)
operator = st.builds(
    OperatorHandle,
    st.lists(
        st.builds(OperatorPart, names, st.sampled_from(["split", "union", "broadcast"]), offsets),
        max_size=3,
    ).map(tuple),
    streams,
    st.none() | st.builds(MergedFolders, names, names, st.booleans()),
)
optional = st.none() | operator


@st.composite
def operators(draw: st.DrawFn) -> OperatorHandles:
    parallelism = draw(st.integers(1, 5))
    indices = draw(st.sets(st.integers(0, parallelism - 1)))
    finished = st.builds(Subtask, st.just(0), st.just(True))
    running = st.builds(Subtask, st.just(0), st.just(False), optional, optional, keyed, keyed)
    subtasks = [replace(draw(finished | running), index=index) for index in sorted(indices)]
    is_finished = draw(st.booleans())
    return OperatorHandles(
        draw(st.binary(min_size=16, max_size=16)).hex(),
        parallelism,
        draw(st.integers(parallelism, 128)),
        () if is_finished else tuple(subtasks),
        draw(st.none() | st.builds(InlineHandle, names, st.binary(max_size=20))),
        is_finished=is_finished,
    )


savepoints = st.builds(
    SavepointMetadata,
    st.just(3),
    sizes,
    st.lists(operators(), max_size=3).map(tuple),
    st.lists(
        st.builds(MasterState, names, st.integers(0, 9), st.binary(max_size=9)), max_size=2
    ).map(tuple),
)


@given(savepoints)
def test_metadata_survives_a_round_trip(metadata: SavepointMetadata) -> None:
    data = metadata_v3(metadata)
    assert read_metadata(data, "m") == metadata
    assert metadata_v3(read_metadata(data, "m")) == data


@given(savepoints, st.data())
def test_a_truncated_file_is_damaged(metadata: SavepointMetadata, data: st.DataObject) -> None:
    whole = metadata_v3(metadata)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DamagedFileError, match="m is damaged at byte"):
        read_metadata(whole[:cut], "m")


@given(savepoints, st.data())
def test_a_flipped_byte_gives_another_value_or_a_typed_error(
    metadata: SavepointMetadata, data: st.DataObject
) -> None:
    whole = bytearray(metadata_v3(metadata))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with suppress(DamagedFileError, FormatVersionError):
        read_metadata(bytes(whole), "m")


def test_bytes_after_the_last_operator_are_refused() -> None:
    data = metadata_v3(SavepointMetadata(3, 1, ()))
    with pytest.raises(DamagedFileError, match="1 unexpected bytes follow the last operator"):
        read_metadata(data + b"\0", "m")


@pytest.mark.parametrize("version", [0, 1, 7])
def test_another_version_is_refused(version: int) -> None:
    data = bytearray(metadata_v3(SavepointMetadata(3, 1, ())))
    data[4:8] = struct.pack(">i", version)
    with pytest.raises(FormatVersionError, match=f"has version {version}"):
        read_metadata(bytes(data), "m")


def test_version_2_has_no_coordinator_and_a_duration() -> None:
    data = b"".join(
        (
            *(i32(0x4960672D), i32(2), i64(5), i32(0), i32(1)),
            *(bytes(range(16)), i32(1), i32(128), i32(1), i32(1)),
            *(i32(0), i64(-1), i32(0), i32(0), i32(0), i8(0), i8(0)),
        )
    )
    (found,) = read_metadata(data, "m").operators
    assert found == OperatorHandles(bytes(range(16)).hex(), 1, 128, (Subtask(0),))


@pytest.mark.parametrize("version", [4, 5, 6])
def test_later_versions_have_names_and_properties(version: int) -> None:
    properties = b"\xac\xed\x00\x05sr"
    named = (utf("map"), utf("")) if version >= 5 else ()
    kind = i8(1) if version == 6 else b""
    channel = kind + i32(0) * 3 + i32(1) + i64(7) + i64(99) + i8(16)
    data = b"".join(
        (
            *(i32(0x4960672D), i32(version), i64(5), i32(0), i32(1), *named),
            *(bytes(16), i32(2), i32(128), i8(0), i32(2), i32(-1), i32(1)),
            *(i32(0), i32(0), i8(0), i8(0), i32(1), channel, i32(0), properties),
        )
    )
    found = read_metadata(data, "m")
    (one,) = found.operators
    assert (one.name, one.uid) == ("map" if version >= 5 else None, None)
    assert one.subtasks == (
        Subtask(0, is_finished=True),
        Subtask(1, channels=(ChannelHandle("input", 99),)),
    )
    assert found.properties == properties
    with pytest.raises(IncompatibleStateError, match="in-flight records"):
        metadata_v3(found)
    with pytest.raises(DamagedFileError, match="properties"):
        read_metadata(data[: -len(properties)] + b"12", "m")
