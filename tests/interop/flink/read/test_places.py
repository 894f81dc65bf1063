"""A savepoint's files are read only from its own folder and from allowed locations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import IncompatibleStateError, InvalidArgumentError, StorageError
from statestore.interop.flink import import_savepoint, repack_savepoint, show_savepoint
from statestore.interop.flink.metadata.handles import (
    FileHandle,
    IncrementalHandle,
    KeyGroupsHandle,
    RelativeHandle,
    SavepointMetadata,
    StreamHandle,
    Subtask,
)
from statestore.interop.flink.metadata.metadata_file import metadata_v3, read_metadata
from statestore.interop.flink.options import SavepointAccess
from statestore.interop.flink.read.savepoint import FlinkSavepoint, open_savepoint
from statestore.interop.flink.read.savepoint_files import SavepointFiles
from statestore.interop.flink.types.java_types import Scalar
from statestore.storage import open_storage
from tests.interop.flink.goldens import Golden
from tests.interop.flink.written import written_savepoint

KEYS = pa.array(range(8), pa.int64())


def savepoint(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return written_savepoint(folder, Scalar("Long"), KEYS, list(range(8)))


def named(place: Path, name: str, size: int | None = None) -> None:
    """Change a savepoint so that it names the state of its first subtask by an absolute path."""
    metadata = read_metadata((place / "_metadata").read_bytes(), "m")
    (operator,) = metadata.operators
    first, *others = operator.subtasks
    handle = first.keyed
    assert isinstance(handle, KeyGroupsHandle)
    assert isinstance(handle.stream, RelativeHandle)
    stream: StreamHandle = FileHandle(name, handle.stream.size if size is None else size)
    made = replace(first, keyed=replace(handle, stream=stream))
    changed = replace(operator, subtasks=(made, *others))
    data = metadata_v3(SavepointMetadata(3, metadata.checkpoint_id, (changed,)))
    (place / "_metadata").write_bytes(data)


def rows(found: FlinkSavepoint) -> int:
    return sum(len(row) for operator in found.operators for row in operator.rows())


def test_a_file_elsewhere_is_read_only_with_permission(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "savepoint")
    (tmp_path / "else").mkdir()
    (place / "state-0").rename(tmp_path / "else" / "state-0")
    named(place, f"{tmp_path}/else/state-0")
    (operator,) = open_savepoint(str(place)).operators
    assert operator.problem is not None
    assert f"references {tmp_path}/else/state-0, which is outside of its folder" in operator.problem
    assert "--allow" in operator.problem
    for allowed in (f"{tmp_path}/else", f"{tmp_path}/else/state-0", f"file:{tmp_path}/else/"):
        assert rows(open_savepoint(str(place), access=SavepointAccess(allow=[allowed]))) == 8
    for allowed in (f"{tmp_path}/els", f"{tmp_path}/else/state", f"{tmp_path}/savepoint"):
        assert (
            open_savepoint(str(place), access=SavepointAccess(allow=[allowed])).operators[0].problem
            is not None
        )


def test_commands_accept_allowed_locations(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "savepoint")
    (place / "state-0").rename(tmp_path / "state-0")
    named(place, f"{tmp_path}/state-0")
    allow = [f"{tmp_path}/state-0"]
    store = StateStore.open(str(tmp_path / "store"))
    assert import_savepoint(str(place), store).not_read
    with pytest.raises(IncompatibleStateError, match="--allow"):
        repack_savepoint(str(place), str(tmp_path / "to"), max_parallelism=9)
    repack_savepoint(
        str(place), str(tmp_path / "to"), max_parallelism=9, access=SavepointAccess(allow=allow)
    )
    assert (
        show_savepoint(str(place), access=SavepointAccess(allow=allow)).operators[0].problem is None
    )
    other = StateStore.open(str(tmp_path / "other"))
    assert not import_savepoint(str(place), other, access=SavepointAccess(allow=allow)).not_read


def test_a_link_counts_as_its_target(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "savepoint")
    (place / "state-0").rename(tmp_path / "secret")
    (place / "state-0").symlink_to(tmp_path / "secret")
    problem = open_savepoint(str(place)).operators[0].problem
    assert problem is not None
    assert f"state-0, a link to {tmp_path}/secret, which is outside" in problem
    assert (
        rows(open_savepoint(str(place), access=SavepointAccess(allow=[str(tmp_path / "secret")])))
        == 8
    )
    (place / "state-0").unlink()
    (tmp_path / "secret").rename(place / "other")
    (place / "state-0").symlink_to("other")  # a link that stays within the folder
    assert rows(open_savepoint(str(place))) == 8


def test_the_folder_itself_can_be_a_link(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "savepoint")
    named(place, f"{place}/state-0")
    (tmp_path / "link").symlink_to(place)
    assert rows(open_savepoint(str(tmp_path / "link"))) == 8


@pytest.mark.parametrize("folder", ["shared", "taskowned"])
def test_a_checkpoint_has_files_in_sibling_folders(tmp_path: Path, folder: str) -> None:
    job = tmp_path / "0a1b"
    place = savepoint(job / "chk-7")
    beside = job / folder / "task"
    beside.mkdir(parents=True)
    (place / "state-0").rename(beside / "state-0")
    named(place, f"{beside}/state-0")
    assert rows(open_savepoint(str(place))) == 8
    place.rename(job / "savepoint-7")  # a savepoint shares no files
    assert open_savepoint(str(job / "savepoint-7")).operators[0].problem is not None


def test_a_shared_folder_that_is_a_link_is_not_a_sibling(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "job" / "chk-7")
    (tmp_path / "else").mkdir()
    (place / "state-0").rename(tmp_path / "else" / "state-0")
    (tmp_path / "job" / "shared").symlink_to(tmp_path / "else")
    named(place, f"{tmp_path}/job/shared/state-0")
    assert open_savepoint(str(place)).operators[0].problem is not None
    assert (
        rows(open_savepoint(str(place), access=SavepointAccess(allow=[f"{tmp_path}/job/shared"])))
        == 8
    )


def test_a_path_with_dots_counts_as_its_target(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "savepoint")
    (place / "state-0").rename(tmp_path / "secret")
    named(place, f"{place}/../secret")
    assert open_savepoint(str(place)).operators[0].problem is not None


def test_a_bucket_elsewhere_is_never_contacted(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "savepoint")
    named(place, "s3://somebody-else/secret")
    problem = open_savepoint(str(place)).operators[0].problem
    assert problem is not None
    assert "references s3://somebody-else/secret, which is outside" in problem


@pytest.mark.parametrize(
    ("url", "is_read"),
    [
        ("s3://bucket/job/chk-3/a", True),
        ("s3a://bucket/job/chk-3/a", True),
        ("s3p://bucket/job/shared/a", True),
        ("s3://bucket/job/taskowned/a/b", True),
        ("s3://bucket/job/chk-2/a", False),
        ("s3://bucket/job/chk-33", False),
        ("s3://bucket/job/chk-3/../chk-2/a", False),
        ("s3://other/job/chk-3/a", False),
        ("/job/chk-3/a", False),
        ("hdfs://bucket/job/chk-3/a", False),
        ("s3://allowed/x/a", True),
        ("s3a://allowed/x", True),
        ("s3://allowed/xy", False),
        ("s3://moved/here/a", True),
    ],
)
def test_urls_are_compared_by_their_parts(url: str, is_read: bool) -> None:
    storage = open_storage("s3://bucket/job/chk-3")
    places = SavepointFiles(storage, None, {"/flink": "s3://moved/here"}, ("s3a://allowed/x/",))
    if is_read:
        places.refuse_outside(url)
        return
    with pytest.raises(InvalidArgumentError, match="outside of its folder"):
        places.refuse_outside(url)


@pytest.mark.slow
def test_an_incremental_checkpoint_at_its_original_location_needs_no_option(tmp_path: Path) -> None:
    golden = Golden("2.3_rocksdb_incremental")
    place = golden.unpack(tmp_path)
    written_at = str(golden.about["written_at"])
    before = read_metadata((place / "_metadata").read_bytes(), "m")
    operators = [operator for operator in before.operators if operator.uid == "by_long"]

    def here(handle: StreamHandle) -> StreamHandle:
        if not isinstance(handle, FileHandle):
            return handle
        return replace(handle, path=handle.path.replace(written_at, str(tmp_path)))

    def subtask_here(subtask: Subtask) -> Subtask:
        keyed = subtask.keyed
        assert isinstance(keyed, IncrementalHandle)
        shared = tuple((name, here(one)) for name, one in keyed.shared)
        assert any("/shared/" in one.path for _, one in shared if isinstance(one, FileHandle))
        private = tuple((name, here(one)) for name, one in keyed.private)
        made = replace(keyed, meta=here(keyed.meta), shared=shared, private=private)
        return Subtask(subtask.index, keyed=made)

    made = tuple(
        replace(operator, subtasks=tuple(map(subtask_here, operator.subtasks)))
        for operator in operators
    )
    (place / "_metadata").write_bytes(metadata_v3(SavepointMetadata(3, 1, made)))
    assert rows(open_savepoint(str(place))) > 0


def test_an_invalid_file_name_is_a_typed_error(tmp_path: Path) -> None:
    place = savepoint(tmp_path / "savepoint")
    named(place, f"{place}/{'x' * 300}")
    with pytest.raises(StorageError, match="cannot read"):
        open_savepoint(str(place))
