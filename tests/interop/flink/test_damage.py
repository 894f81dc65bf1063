"""Savepoints that were damaged, cut or are in part not there: a typed error, never another row."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    IncompatibleStateError,
    InvalidArgumentError,
    MissingFileError,
    StateNotFoundError,
    StateStoreError,
)
from statestore.flink.operators import operator_id
from statestore.interop.flink.canonical import header_bytes, read_header
from statestore.interop.flink.metadata import (
    FileHandle,
    IncrementalHandle,
    InlineHandle,
    KeyGroupsHandle,
    OperatorState,
    SavepointMetadata,
    Subtask,
    read_metadata,
)
from statestore.interop.flink.metadata_writer import metadata_v3
from statestore.interop.flink.reader import i8, i32, i64, string_value, utf
from statestore.interop.flink.savepoint import Savepoint, open_savepoint
from tests.interop.flink.entries import key_group_bytes
from tests.interop.flink.goldens import Golden

FOLDERS = ("2.3_heap_canonical", "2.3_heap_native", "2.3_heap_snappy", "2.3_rocksdb_native")


def read_all(savepoint: Savepoint) -> None:
    """Read what there is; what is wrong with one state hides no other."""
    for operator in savepoint.operators:
        with suppress(StateStoreError):
            assert all(map(len, operator.rows(as_bytes=("opaque",))))
        with suppress(StateStoreError):
            for elements in operator.operator_state():
                elements.values()


@pytest.mark.parametrize("name", FOLDERS)
def test_a_flipped_or_cut_file_is_other_bytes_or_a_typed_error(name: str, tmp_path: Path) -> None:
    folder = Golden(name).unpack(tmp_path)
    draw = random.Random(name)
    for path in draw.choices(sorted(folder.iterdir()), k=8):
        before = path.read_bytes()
        if not before:
            continue
        data = bytearray(before)
        data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
        path.write_bytes(data if draw.random() < 0.7 else data[: draw.randrange(len(data))])
        with suppress(StateStoreError):
            read_all(open_savepoint(str(folder)))
        path.write_bytes(before)


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    folder = Golden("2.3_rocksdb_canonical").unpack(tmp_path)
    path = max(folder.iterdir(), key=lambda one: one.stat().st_size if "_" not in one.name else 0)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=rf"{path.name} has \d+ bytes, and the savepoint"):
        open_savepoint(str(folder))


def test_a_file_that_is_gone_hides_its_operator_alone(tmp_path: Path) -> None:
    folder = Golden("2.3_rocksdb_canonical").unpack(tmp_path)
    whole = open_savepoint(str(folder))
    path = max(folder.iterdir(), key=lambda one: one.stat().st_size if "_" not in one.name else 0)
    path.unlink()
    found = open_savepoint(str(folder))
    (hidden,) = (one for one in found.operators if one.problem is not None)
    assert hidden.problem is not None
    assert f"{path.name} is not there" in hidden.problem
    assert len(found.operators) == len(whole.operators)
    with pytest.raises(IncompatibleStateError, match="is not there"):
        list(hidden.entries())


def test_absolute_paths_are_looked_for_where_they_were_moved(tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_incremental")
    place = str(golden.unpack(tmp_path))
    moved = {golden.about["written_at"]: str(tmp_path)}
    assert list(open_savepoint(place, moved=moved).operator("by_long").rows("last"))
    with pytest.raises(MissingFileError, match="say where they lie now"):
        list(open_savepoint(place).operator("by_long").rows("last"))


def test_a_place_without_metadata_is_no_savepoint(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="has no file '_metadata'"):
        open_savepoint(str(tmp_path))


def test_metadata_itself_can_be_named(tmp_path: Path) -> None:
    folder = Golden("2.3_heap_canonical").unpack(tmp_path)
    savepoint = open_savepoint(f"{folder}/_metadata")
    assert savepoint.operator("by_long") == savepoint.operator(operator_id("by_long"))
    with pytest.raises(StateNotFoundError, match="has no operator 'nobody'"):
        savepoint.operator("nobody")
    with pytest.raises(StateNotFoundError, match="has no keyed state 'nothing'; it has last"):
        list(savepoint.operator("by_long").rows("nothing"))


def written(folder: Path, change: Callable[[OperatorState], OperatorState]) -> Savepoint:
    """Write a savepoint of real Flink again, with one operator changed."""
    golden = Golden("2.3_heap_canonical").unpack(folder)
    found = read_metadata((golden / "_metadata").read_bytes(), "m")
    (one,) = (one for one in found.operators if one.uid == "by_long")
    data = metadata_v3(SavepointMetadata(3, 1, (change(one),)))
    (golden / "_metadata").write_bytes(data)
    return open_savepoint(str(golden))


def keyed(operator: OperatorState) -> KeyGroupsHandle:
    handle = operator.subtasks[0].keyed
    assert isinstance(handle, KeyGroupsHandle)
    return handle


def with_keyed(operator: OperatorState, handle: KeyGroupsHandle) -> OperatorState:
    return replace(operator, subtasks=(Subtask(0, keyed=handle),))


def test_a_key_in_another_key_group_than_its_hash_says_is_found(tmp_path: Path) -> None:
    def change(operator: OperatorState) -> OperatorState:
        handle = keyed(operator)
        assert isinstance(handle.stream, InlineHandle)
        data = handle.stream.data
        header = read_header(data, "h")
        entry = (b"\0\7" + i64(1) + b"\0", i64(5))
        names = [one.name for one in header.states]
        whole = header_bytes(header) + key_group_bytes([(names.index("last"), [entry])])
        stream = InlineHandle("s", whole)
        return with_keyed(operator, KeyGroupsHandle(7, (header.length,), stream))

    (operator,) = written(tmp_path, change).operators
    assert [one.key_group for one in operator.entries()] == [7]
    with pytest.raises(DamagedFileError, match=r"1 of 1 keys in key group 7 that belong elsewhere"):
        list(operator.rows("last"))


@pytest.mark.parametrize("offset", [1, 1 << 40])
def test_an_offset_outside_of_the_stream_is_damage(tmp_path: Path, offset: int) -> None:
    def change(operator: OperatorState) -> OperatorState:
        return with_keyed(operator, replace(keyed(operator), offsets=(offset,)))

    with pytest.raises(DamagedFileError):
        list(written(tmp_path, change).operators[0].rows())


def test_bytes_of_another_version_are_refused(tmp_path: Path) -> None:
    def change(operator: OperatorState) -> OperatorState:
        stream = InlineHandle("s", i32(5) + bytes(99))
        return with_keyed(operator, KeyGroupsHandle(0, (), stream))

    with pytest.raises(FormatVersionError, match="version 5 of keyed state"):
        written(tmp_path, change)


def test_a_table_that_is_none_of_rocksdb_is_damage(tmp_path: Path) -> None:
    def change(operator: OperatorState) -> OperatorState:
        stream = keyed(operator).stream
        assert isinstance(stream, InlineHandle)
        header = InlineHandle("h", stream.data[: read_header(stream.data, "h").length])
        files = (("000001.sst", InlineHandle("t", bytes(100))),)
        handle = IncrementalHandle(1, "b", 0, 300, header, files, ())
        return replace(operator, subtasks=(Subtask(0, keyed=handle),))

    with pytest.raises(DamagedFileError, match="does not end as a table of RocksDB does"):
        list(written(tmp_path, change).operators[0].rows("last"))


def one_operator(subtask: bytes) -> bytes:
    """Return ``_metadata`` of version 4 with an operator of one subtask."""
    head = i32(0x4960672D) + i32(4) + i64(1) + i32(0) + i32(1)
    return head + bytes(16) + i32(1) + i32(128) + i8(0) + i32(1) + i32(0) + subtask + JAVA


JAVA = b"\xac\xed\x00\x05sr"


def test_records_in_flight_are_refused_by_name(tmp_path: Path) -> None:
    channel = i32(0) * 3 + i32(0) + i64(9) + i8(16)
    subtask = i32(0) + i32(0) + i8(0) + i8(0) + i32(1) + channel + i32(0)
    (tmp_path / "_metadata").write_bytes(one_operator(subtask))
    (operator,) = open_savepoint(str(tmp_path)).operators
    assert operator.problem is not None
    assert "records in flight" in operator.problem


def test_a_changelog_is_refused_by_name(tmp_path: Path) -> None:
    changes = (
        i8(13) + i32(0) + i32(128) + i32(1) + i64(0) + i8(16) + bytes(16) + utf("a") + utf("b")
    )
    handle = i8(14) + i32(0) + i32(128) + i64(1) + i32(0) + i32(1) + changes + bytes(16) + utf("c")
    subtask = i32(0) + i32(0) + handle + i8(0) + i32(0) + i32(0)
    (tmp_path / "_metadata").write_bytes(one_operator(subtask))
    (operator,) = open_savepoint(str(tmp_path)).operators
    assert operator.problem is not None
    assert "changelog state backend" in operator.problem
    with pytest.raises(IncompatibleStateError, match="changelog"):
        metadata_v3(read_metadata(one_operator(subtask), "m"))


def test_a_file_of_another_place_is_read(tmp_path: Path) -> None:
    def change(operator: OperatorState) -> OperatorState:
        handle = keyed(operator)
        assert isinstance(handle.stream, InlineHandle)
        path = tmp_path / "other place" / "state"
        path.parent.mkdir()
        path.write_bytes(handle.stream.data)
        stream = FileHandle(f"file:{tmp_path}/other%20place/state", len(handle.stream.data))
        return with_keyed(operator, replace(handle, stream=stream))

    (operator,) = written(tmp_path, change).operators
    assert sum(map(len, operator.rows("last"))) > 0


def test_a_file_system_that_is_not_known_hides_its_operator_alone(tmp_path: Path) -> None:
    def change(operator: OperatorState) -> OperatorState:
        stream = FileHandle("hdfs://lake/flink/state", 9)
        return with_keyed(operator, replace(keyed(operator), stream=stream))

    (operator,) = written(tmp_path, change).operators
    assert operator.problem is not None
    assert "hdfs://" in operator.problem


def test_text_of_a_null_key_is_damage(tmp_path: Path) -> None:
    golden = Golden("2.3_heap_canonical").unpack(tmp_path)
    found = read_metadata((golden / "_metadata").read_bytes(), "m")
    (one,) = (one for one in found.operators if one.uid == "sums")
    handle = keyed(one)
    assert isinstance(handle.stream, InlineHandle)
    header = read_header(handle.stream.data, "h")
    place = [state.name for state in header.states].index("window-contents")
    key = i8(3) + string_value(None) + i64(0) + i64(60_000)
    whole = header_bytes(header) + key_group_bytes([(place, [(key, i64(5))])])
    changed = with_keyed(one, KeyGroupsHandle(3, (header.length,), InlineHandle("s", whole)))
    (golden / "_metadata").write_bytes(metadata_v3(SavepointMetadata(3, 1, (changed,))))
    with pytest.raises(DamagedFileError, match="has a key in key group 3 that can be none"):
        list(open_savepoint(str(golden)).operators[0].rows("window-contents"))
