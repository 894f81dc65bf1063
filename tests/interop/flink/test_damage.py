"""Damaged, truncated and incomplete savepoints: a typed error, and never a wrong row."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.errors import (
    DamagedFileError,
    InvalidArgumentError,
    MissingFileError,
    StateNotFoundError,
    StateStoreError,
    StorageError,
)
from statestore.interop.flink import import_savepoint, repack_savepoint, show_savepoint
from statestore.interop.flink.metadata.handles import (
    FileHandle,
    IncrementalHandle,
    InlineHandle,
    KeyGroupsHandle,
    OperatorHandles,
    RelativeHandle,
    SavepointMetadata,
    StreamHandle,
    Subtask,
)
from statestore.interop.flink.metadata.java_binary import i8, i32, i64, string_value
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.read.canonical import (
    KeyedHeader,
    StateInfo,
    header_bytes,
    read_header,
)
from statestore.interop.flink.read.savepoint import FlinkSavepoint, open_savepoint
from statestore.interop.flink.types.base import FlinkType
from statestore.interop.flink.types.internal_types import TimerType
from statestore.interop.flink.types.java_types import ListType, Scalar
from statestore.interop.flink.types.serializer_snapshots import SerializerSnapshot
from statestore.jobgraph.operators import operator_id
from statestore.keys.hashing import key_group_of
from tests.interop.flink.entries import key_group_bytes
from tests.interop.flink.goldens import Golden
from tests.interop.flink.read.test_rocksdb import table

FOLDERS = ("2.3_heap_canonical", "2.3_heap_native", "2.3_heap_snappy", "2.3_rocksdb_native")


def read_all(savepoint: FlinkSavepoint) -> None:
    """Read all readable state. An error in one state hides no other state."""
    for operator in savepoint.operators:
        with suppress(StateStoreError):
            assert all(map(len, operator.rows(as_bytes=("opaque",))))
        with suppress(StateStoreError):
            for elements in operator.operator_state():
                elements.values()


@pytest.mark.long_cases("2.3_heap_native-2", "2.3_heap_snappy-2", "2.3_rocksdb_native-2")
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, pytest.param(16, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_flipped_or_truncated_file_gives_other_bytes_or_a_typed_error(
    name: str, count: int, tmp_path: Path
) -> None:
    folder = Golden(name).unpack(tmp_path)
    draw = random.Random(name)
    for path in draw.choices(sorted(folder.iterdir()), k=count):
        before = path.read_bytes()
        if not before:
            continue
        data = bytearray(before)
        data[draw.randrange(len(data))] ^= draw.randrange(1, 256)
        path.write_bytes(data if draw.random() < 0.7 else data[: draw.randrange(len(data))])
        with suppress(StateStoreError):
            read_all(open_savepoint(str(folder)))
        path.write_bytes(before)


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    folder = Golden("2.3_rocksdb_canonical").unpack(tmp_path)
    path = max(folder.iterdir(), key=lambda one: one.stat().st_size if "_" not in one.name else 0)
    path.write_bytes(path.read_bytes()[:-1])
    problem = problem_of(open_savepoint(str(folder)), is_damaged=True)
    assert re.search(rf"{path.name} has \d+ bytes, but the savepoint", problem)
    with pytest.raises(DamagedFileError, match="To import the other operators, name each of them"):
        import_savepoint(str(folder), StateStore.open(str(tmp_path / "store")))
    assert not (tmp_path / "store").exists()


def problem_of(savepoint: FlinkSavepoint, *, is_damaged: bool) -> str:
    """Return the problem of the only operator that has one."""
    (operator,) = (one for one in savepoint.operators if one.problem is not None)
    assert operator.is_damaged == is_damaged
    assert operator.problem is not None
    return operator.problem


def test_a_missing_file_hides_only_its_operator(tmp_path: Path) -> None:
    folder = Golden("2.3_rocksdb_canonical").unpack(tmp_path)
    whole = open_savepoint(str(folder))
    path = max(folder.iterdir(), key=lambda one: one.stat().st_size if "_" not in one.name else 0)
    path.unlink()
    found = open_savepoint(str(folder))
    (hidden,) = (operator for operator in found.operators if operator.problem is not None)
    assert hidden.problem is not None
    assert f"{path.name}, which the savepoint references, does not exist" in hidden.problem
    assert len(found.operators) == len(whole.operators)
    with pytest.raises(MissingFileError, match="does not exist"):
        list(hidden.entries())


@pytest.mark.long
@pytest.mark.slow
def test_a_missing_file_of_any_kind_has_one_outcome(tmp_path: Path) -> None:
    """Headers, RocksDB files and operator state are looked for before anything is written."""
    folder = Golden("2.3_rocksdb_native").unpack(tmp_path / "from")
    store = StateStore.open(str(tmp_path / "store"))
    whole = open_savepoint(str(folder))
    names = {uid: file_names(whole.operator(uid).metadata) for uid in ("by_long", "parts")}
    assert {uid: len(files) for uid, files in names.items()} == {"by_long": 22, "parts": 2}
    for uid, name in ((uid, name) for uid, files in names.items() for name in files):
        (folder / name).rename(tmp_path / "gone")
        said = rf"{name}, which the savepoint references, does not exist; .*OLD=NEW.*name each of"
        with pytest.raises(MissingFileError, match=said):
            import_savepoint(str(folder), store, operators=[uid])
        (tmp_path / "gone").rename(folder / name)
    (folder / names["by_long"][-1]).unlink()
    with pytest.raises(MissingFileError, match="--allow OLD=NEW"):
        import_savepoint(str(folder), store)
    with pytest.raises(MissingFileError, match="--allow OLD=NEW"):
        repack_savepoint(str(folder), str(tmp_path / "to"), max_parallelism=64)
    assert not (tmp_path / "store").exists()
    for path in folder.iterdir():
        if path.name not in ("_metadata", *names["parts"]):
            path.unlink()
    done = import_savepoint(str(folder), store, operators=["parts"])
    assert {state.operator for state in done.record.states} == {"parts"}
    readable = {
        one.operator_id for one in show_savepoint(str(folder)).operators if not one.is_damaged
    }
    assert readable == {operator_id("parts"), operator_id("events")}


def file_names(operator: OperatorHandles) -> list[str]:
    streams: list[StreamHandle] = []
    for subtask in operator.subtasks:
        if subtask.operator is not None:
            streams.append(subtask.operator.stream)
        if isinstance(subtask.keyed, IncrementalHandle):
            files = (*subtask.keyed.shared, *subtask.keyed.private)
            streams += [subtask.keyed.meta, *(file for _, file in files)]
    return [stream.path for stream in streams if isinstance(stream, RelativeHandle)]


@pytest.mark.long
@pytest.mark.slow
def test_absolute_paths_are_read_from_their_new_location(tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_incremental")
    place = str(golden.unpack(tmp_path))
    moved = {golden.about["written_at"]: str(tmp_path)}
    assert list(
        open_savepoint(place, access=SavepointAccess(moved=moved)).operator("by_long").rows("last")
    )
    written_at = re.escape(golden.about["written_at"])
    problem = open_savepoint(place).operator("by_long").problem
    assert problem is not None
    assert re.search(f"references {written_at}.*--allow URL.*--allow OLD=NEW", problem)


def test_a_folder_without_metadata_is_not_a_savepoint(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="has no file '_metadata'"):
        open_savepoint(str(tmp_path))


def test_the_metadata_file_can_be_named(tmp_path: Path) -> None:
    folder = Golden("2.3_heap_canonical").unpack(tmp_path)
    savepoint = open_savepoint(f"{folder}/_metadata")
    assert savepoint.operator("by_long") == savepoint.operator(operator_id("by_long"))
    with pytest.raises(StateNotFoundError, match="has no operator 'nobody'"):
        savepoint.operator("nobody")
    with pytest.raises(StateNotFoundError, match="has no keyed state 'nothing'; it has last"):
        list(savepoint.operator("by_long").rows("nothing"))


def written(
    folder: Path, change: Callable[[OperatorHandles], OperatorHandles], allow: Collection[str] = ()
) -> FlinkSavepoint:
    """Write a savepoint of real Flink again, with one operator changed."""
    golden = Golden("2.3_heap_canonical").unpack(folder)
    found = read_metadata((golden / "_metadata").read_bytes(), "m")
    (one,) = (operator for operator in found.operators if operator.uid == "by_long")
    data = metadata_v3(SavepointMetadata(3, 1, (change(one),)))
    (golden / "_metadata").write_bytes(data)
    return open_savepoint(str(golden), access=SavepointAccess(allow=allow))


def keyed(operator: OperatorHandles) -> KeyGroupsHandle:
    handle = operator.subtasks[0].keyed
    assert isinstance(handle, KeyGroupsHandle)
    return handle


def with_keyed(operator: OperatorHandles, handle: KeyGroupsHandle) -> OperatorHandles:
    return replace(operator, subtasks=(Subtask(0, keyed=handle),))


def in_one_group(
    operator: OperatorHandles, group: int, offset: int, stream: StreamHandle
) -> OperatorHandles:
    """Return an operator with one subtask, whose state is in one key group."""
    offsets = [0] * operator.max_parallelism
    offsets[group] = offset
    handle = KeyGroupsHandle(0, tuple(offsets), stream)
    return replace(with_keyed(operator, handle), parallelism=1)


def test_a_key_in_the_wrong_key_group_is_found(tmp_path: Path) -> None:
    def change(operator: OperatorHandles) -> OperatorHandles:
        handle = keyed(operator)
        assert isinstance(handle.stream, InlineHandle)
        data = handle.stream.data
        header = read_header(data, "h")
        entry = (b"\0\7" + i64(1) + b"\0", i64(5))
        names = [state.name for state in header.states]
        whole = header_bytes(header) + key_group_bytes([(names.index("last"), [entry])])
        stream = InlineHandle("s", whole)
        return in_one_group(operator, 7, header.length, stream)

    (operator,) = written(tmp_path, change).operators
    assert [one.key_group for one in operator.entries()] == [7]
    with pytest.raises(DamagedFileError, match=r"1 of 1 keys in key group 7 that belong elsewhere"):
        list(operator.rows("last"))


@pytest.mark.parametrize("offset", [1, 1 << 40])
def test_an_offset_outside_the_stream_is_damage(tmp_path: Path, offset: int) -> None:
    def change(operator: OperatorHandles) -> OperatorHandles:
        return in_one_group(operator, 7, offset, keyed(operator).stream)

    with pytest.raises(DamagedFileError):
        list(written(tmp_path, change).operators[0].rows())


def test_bytes_after_a_header_are_found(tmp_path: Path) -> None:
    def change(operator: OperatorHandles) -> OperatorHandles:
        stream = keyed(operator).stream
        assert isinstance(stream, InlineHandle)
        length = read_header(stream.data, "h").length
        return in_one_group(operator, 7, length + 5, stream)

    problem = problem_of(written(tmp_path, change), is_damaged=True)
    assert "5 unexpected bytes follow the header" in problem


def test_key_groups_of_another_subtask_are_found(tmp_path: Path) -> None:
    def change(operator: OperatorHandles) -> OperatorHandles:
        return with_keyed(operator, replace(keyed(operator), first=1))

    said = r"subtask 0 of 2 has 150 key groups from 1 on \(of 300\), which it does not own"
    assert re.search(said, problem_of(written(tmp_path, change), is_damaged=True))


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (3, r"keyed state of version 3, which Flink 1\.3 wrote.*a Flink of 1\.8 to 1\.16"),
        (5, r"keyed state of version 5, which Flink 1\.6 wrote.*a Flink of 1\.8 to 1\.16"),
        (7, r"keyed state of version 7, which Flink 1\.3 to 2\.3 do not write"),
    ],
)
def test_bytes_of_another_version_are_refused(tmp_path: Path, version: int, said: str) -> None:
    def change(operator: OperatorHandles) -> OperatorHandles:
        stream = InlineHandle("s", i32(version) + bytes(99))
        return in_one_group(operator, 0, 0, stream)

    assert re.search(said, problem_of(written(tmp_path, change), is_damaged=False))


def with_files(operator: OperatorHandles, **files: bytes) -> OperatorHandles:
    """Return an operator with one subtask, whose state is RocksDB files."""
    stream = keyed(operator).stream
    assert isinstance(stream, InlineHandle)
    header = InlineHandle("h", stream.data[: read_header(stream.data, "h").length])
    shared = tuple((name.replace("_", "."), InlineHandle(name, one)) for name, one in files.items())
    handle = IncrementalHandle(1, "b", 0, operator.max_parallelism, header, shared, ())
    return replace(operator, parallelism=1, subtasks=(Subtask(0, keyed=handle),))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"1_sst": bytes(100)}, "does not end like a RocksDB table"),
        ({"1_sss": table([])}, "a file '1.sss', which is not a name of a RocksDB file"),
        ({"1_sst": table([])}, "entries of the state 'state', which the header of the keyed state"),
    ],
)
def test_files_that_are_not_from_rocksdb_are_damage(
    tmp_path: Path, files: dict[str, bytes], said: str
) -> None:
    (operator,) = written(tmp_path, lambda found: with_files(found, **files)).operators
    with pytest.raises(DamagedFileError, match=said):
        list(operator.rows("last"))


def test_an_entry_that_spans_others_is_damage(tmp_path: Path) -> None:
    """A length was flipped. Show and repack count and copy entries, and must detect it."""
    key, more = Scalar("Long"), Scalar("VoidNamespace")
    timers = StateInfo("t", "timers", {}, {"VALUE_SERIALIZER": snapshot(TimerType(key, more))})
    header = KeyedHeader(False, snapshot(key), (timers,))
    entry = i8(3) + i64(1) + i64(key_of(3)) + b"\0"
    whole = header_bytes(header) + key_group_bytes([(0, [(entry, b"swallowed")])])

    def change(operator: OperatorHandles) -> OperatorHandles:
        made = replace(operator, max_parallelism=128)
        return in_one_group(made, 3, len(header_bytes(header)), InlineHandle("s", whole))

    place = written(tmp_path, change).url
    (shown,) = show_savepoint(place).operators
    assert shown.is_damaged
    assert shown.problem is not None
    assert "a timer cannot have a value" in shown.problem
    assert "in state 't', key group 3" in shown.problem
    with pytest.raises(DamagedFileError, match="a timer cannot have a value"):
        repack_savepoint(place, str(tmp_path / "to"), max_parallelism=720)
    assert not (tmp_path / "to" / "_metadata").exists()


def key_of(group: int) -> int:
    """Return a Long in a key group, out of 128."""
    return next(one for one in range(10_000) if key_group_of(one, max_parallelism=128) == group)


def snapshot(kind: FlinkType) -> SerializerSnapshot:
    return SerializerSnapshot(kind, kind.snapshot())


def test_a_list_without_elements_is_damage(tmp_path: Path) -> None:
    lists = {"NAMESPACE_SERIALIZER": snapshot(Scalar("VoidNamespace"))}
    lists["VALUE_SERIALIZER"] = snapshot(ListType(Scalar("Long")))
    state = StateInfo("l", "keyed", {"KEYED_STATE_TYPE": "LIST"}, lists)
    header = KeyedHeader(False, snapshot(Scalar("Long")), (state,))
    entry = i8(3) + i64(key_of(3)) + b"\0"
    whole = header_bytes(header) + key_group_bytes([(0, [(entry, b"")])])

    def change(operator: OperatorHandles) -> OperatorHandles:
        made = replace(operator, max_parallelism=128)
        return in_one_group(made, 3, len(header_bytes(header)), InlineHandle("s", whole))

    (operator,) = written(tmp_path, change).operators
    with pytest.raises(DamagedFileError, match="a list has no elements, although"):
        list(operator.rows("l"))


def test_a_file_at_another_location_is_read(tmp_path: Path) -> None:
    def change(operator: OperatorHandles) -> OperatorHandles:
        handle = keyed(operator)
        assert isinstance(handle.stream, InlineHandle)
        path = tmp_path / "other place" / "state"
        path.parent.mkdir()
        path.write_bytes(handle.stream.data)
        stream = FileHandle(f"file:{tmp_path}/other%20place/state", len(handle.stream.data))
        return with_keyed(operator, replace(handle, stream=stream))

    (operator,) = written(tmp_path, change, [f"{tmp_path}/other place"]).operators
    assert sum(map(len, operator.rows("last"))) > 0


def test_an_unknown_file_system_hides_only_its_operator(tmp_path: Path) -> None:
    def change(operator: OperatorHandles) -> OperatorHandles:
        stream = FileHandle("viewfs://lake/flink/state", 9)
        return with_keyed(operator, replace(keyed(operator), stream=stream))

    (operator,) = written(tmp_path, change, ["viewfs://lake/flink"]).operators
    assert operator.problem is not None
    assert "viewfs://" in operator.problem


@pytest.mark.long
@pytest.mark.slow
def test_a_file_system_that_does_not_respond_is_named(tmp_path: Path) -> None:
    """The error also explains how to use files that were copied from there."""

    def change(operator: OperatorHandles) -> OperatorHandles:
        stream = FileHandle("hdfs://127.0.0.1/flink/state", 9)
        return with_keyed(operator, replace(keyed(operator), stream=stream))

    with pytest.raises(StorageError, match="cannot read hdfs:") as caught:
        written(tmp_path, change, ["hdfs://127.0.0.1/flink/"])
    assert "pass the new path" in " ".join(caught.value.__notes__)


def test_a_text_for_a_null_key_is_damage(tmp_path: Path) -> None:
    golden = Golden("2.3_heap_canonical").unpack(tmp_path)
    found = read_metadata((golden / "_metadata").read_bytes(), "m")
    (one,) = (operator for operator in found.operators if operator.uid == "sums")
    handle = keyed(one)
    assert isinstance(handle.stream, InlineHandle)
    header = read_header(handle.stream.data, "h")
    place = [state.name for state in header.states].index("window-contents")
    key = i8(3) + string_value(None) + i64(0) + i64(60_000)
    whole = header_bytes(header) + key_group_bytes([(place, [(key, i64(5))])])
    changed = in_one_group(one, 3, header.length, InlineHandle("s", whole))
    (golden / "_metadata").write_bytes(metadata_v3(SavepointMetadata(3, 1, (changed,))))
    with pytest.raises(DamagedFileError, match="has a key in key group 3 that cannot be a key"):
        list(open_savepoint(str(golden)).operators[0].rows("window-contents"))
