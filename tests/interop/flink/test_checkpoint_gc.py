"""Only old files that no metadata names are deleted, and all others stay with their reason."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore.cli.main import cli
from statestore.errors import (
    DamagedFileError,
    FormatVersionError,
    InvalidArgumentError,
    StateStoreError,
    StorageError,
)
from statestore.interop.flink import show_savepoint
from statestore.interop.flink.checkpoint_gc import (
    CollectedFlinkFiles,
    FilesByAge,
    _look,
    collect_flink_files,
)
from statestore.interop.flink.metadata.handles import (
    FileHandle,
    OperatorHandle,
    OperatorHandles,
    OperatorPart,
    SavepointMetadata,
    Subtask,
)
from statestore.interop.flink.metadata.java_binary import i8, i32, i64, utf
from statestore.interop.flink.metadata.metadata_file import MAGIC, metadata_v3, read_metadata
from statestore.interop.flink.options import SavepointAccess
from statestore.storage import Listed
from statestore.storage.local import LocalStorage
from tests.interop.flink.goldens import Golden

JOB, OTHER = "76a684aca000d4fd095a54efc188b785", "0" * 31 + "1"
GOLDEN = Golden("2.3_rocksdb_incremental")


def put(file: Path, days: float, data: bytes = b"state") -> None:
    """Write a file of some age."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    age(file, days)


def age(file: Path, days: float) -> None:
    written = time.time() - days * 86_400
    os.utime(file, (written, written))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recorded checkpoint of Flink 2.3, one day old, with files that are 30 days old."""
    folder = tmp_path / "checkpoints"
    metadata = GOLDEN.unpack(folder) / "_metadata"
    for file in folder.rglob("*"):
        age(file, 30)
    age(metadata, 1)
    return folder


def metadata_of(*paths: str, part: str = "list") -> bytes:
    """Return metadata that names some files as operator state."""
    streams = (
        OperatorHandle((OperatorPart(part, "split", (0,)),), FileHandle(p, 5)) for p in paths
    )
    subtasks = tuple(Subtask(at, operator=handle) for at, handle in enumerate(streams))
    operator = OperatorHandles("0" * 32, max(len(paths), 1), 128, subtasks)
    return metadata_v3(SavepointMetadata(3, 1, (operator,)))


def collect(folder: Path, **options: object) -> CollectedFlinkFiles:
    options = {"dry_run": False, **options}
    return collect_flink_files(str(folder), **options)  # type: ignore[arg-type]


def kept(collected: CollectedFlinkFiles) -> dict[tuple[str, str], str]:
    return {
        (group.job or "", group.kind): group.kept
        for group in collected.groups
        if group.kept not in (None, "named")
    }


def test_old_files_of_each_kind_are_deleted_and_the_checkpoint_stays_readable(folder: Path) -> None:
    before = {file for file in folder.rglob("*") if file.is_file()}
    strays = [folder / JOB / kind / "stray" for kind in ("shared", "taskowned", "dstl", "chk-2")]
    for number, stray in enumerate(strays):
        put(stray, 40 + 100 * number)
    dry = collect(folder, dry_run=True)
    assert all(stray.exists() for stray in strays)
    done = collect(folder)
    assert (dry.names, dry.groups, dry.by_age) == (done.names, done.groups, done.by_age)
    assert sorted(done.names) == sorted(str(stray.relative_to(folder)) for stray in strays)
    assert (done.removed.files, done.removed.size_bytes, done.checkpoints) == (4, 20, 1)
    assert done.by_age == (
        FilesByAge(days=30, files=1, size_bytes=5),
        FilesByAge(days=90, files=3, size_bytes=15),
    )
    assert {file for file in folder.rglob("*") if file.is_file()} == before
    access = SavepointAccess(moved={str(GOLDEN.about["written_at"]): str(folder)})
    shown = show_savepoint(str(folder / JOB / "chk-3"), access=access)
    assert not any(operator.is_damaged for operator in shown.operators)


@pytest.mark.parametrize(
    ("name", "days", "reason"),
    [
        (f"{JOB}/shared/young", 6, "young"),
        (f"{JOB}/dstl/unconfirmed", 7.5, "young"),  # less than 7 days before the checkpoint
        (f"{JOB}/shared/0a_0_2_/merged", 400, "may be open"),
        (f"{JOB}/op_1_attempt_0/db/000012.sst", 400, "may be open"),
        (f"{JOB}/chk-2/._metadata.inprogress", 400, "unknown file"),
        (f"{JOB}/note", 400, "unknown file"),
        (f"{OTHER}/shared/file", 400, "no checkpoint"),
        ("savepoint-76a684-1/file", 400, "unknown file"),
        (f"{JOB[:-1]}/shared/file", 400, "unknown file"),
    ],
)
def test_a_file_that_may_be_needed_stays(name: str, days: float, reason: str, folder: Path) -> None:
    put(folder / name, days)
    done = collect(folder)
    assert (done.removed.files, [*kept(done).values()]) == (0, [reason])
    assert (folder / name).exists()


@pytest.mark.parametrize("name", ["shared/file", "shared/0a_0_2_/merged", "op_1_a/db/1.sst"])
def test_a_job_that_ended_needs_no_checkpoint(name: str, folder: Path) -> None:
    put(folder / OTHER / name, 8)
    put(folder / OTHER / "shared/young", 6)
    put(folder / OTHER / "jobgraph", 400)
    assert collect(folder, ended=[OTHER]).names == (f"{OTHER}/{name}",)


@pytest.mark.parametrize("url", ["s3p://b/x", "file:/x", "hdfs:///x"])
def test_files_that_another_place_names_stay(url: str, folder: Path, tmp_path: Path) -> None:
    """The place can be a savepoint of this folder, or a folder elsewhere."""
    put(folder / JOB / "shared/used", 400)
    elsewhere = tmp_path / "elsewhere" / "savepoint-1"
    put(elsewhere / "_metadata", 0, metadata_of(f"{url}/{JOB}/shared/used"))
    assert collect(folder, dry_run=True).names == (f"{JOB}/shared/used",)
    for place in (elsewhere.parent, elsewhere, elsewhere / "_metadata", f"{elsewhere}/_metadata/"):
        assert collect(folder, also_keep=[str(place)]).names == ()
    shutil.move(elsewhere, folder)
    assert collect(folder).names == ()


def test_changelogs_in_a_folder_of_their_own(folder: Path, tmp_path: Path) -> None:
    """Their checkpoints are elsewhere, and tell which files are old enough."""
    changelogs = tmp_path / "changelogs"
    for name, days in (("stray", 9), ("unconfirmed", 7.5), ("used", 9)):
        put(changelogs / JOB / "dstl" / name, days)
    assert collect(changelogs).names == ()
    put(folder / JOB / "chk-2/_metadata", 1, metadata_of(f"file:/{JOB}/dstl/used"))
    assert collect(changelogs, also_keep=[str(folder)]).names == (f"{JOB}/dstl/stray",)


def test_files_of_write_ahead_logs_stay(folder: Path) -> None:
    """Their names are in the content of operator state, which only the sink can read."""
    put(folder / JOB / "taskowned/log", 400)
    put(folder / JOB / "shared/file", 400)
    put(folder / OTHER / "chk-1/_metadata", 0, metadata_of("state", part="pending-checkpoints"))
    done = collect(folder)
    assert done.names == (f"{JOB}/shared/file",)
    assert kept(done) == {(JOB, "taskowned"): "write-ahead log"}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", DamagedFileError),
        (metadata_of("file")[:-1], DamagedFileError),
        (i32(MAGIC) + i32(99), FormatVersionError),
    ],
)
def test_metadata_that_cannot_be_read_refuses_everything(
    data: bytes, error: type[StateStoreError], folder: Path
) -> None:
    put(folder / JOB / "shared/stray", 400)
    put(folder / OTHER / "chk-9/_metadata", 400, data)
    for options in ({}, {"dry_run": True}, {"ended": [OTHER]}):
        with pytest.raises(error, match=f"^nothing was deleted: .*{OTHER}/chk-9/_metadata"):
            collect(folder, **options)
    assert (folder / JOB / "shared/stray").exists()


def test_a_file_of_empty_in_flight_records_is_named() -> None:
    """Flink opens it in a restore. Subtask, gate, channel, one offset, the size of no records."""
    channel = i32(1) + i32(0) * 3 + i32(1) + i64(0) + i64(4) + i8(2) + i64(4) + utf("file:/c/empty")
    metadata = read_metadata(metadata_of("file:/c/list")[:-8] + channel + i32(0), "f")
    assert metadata.paths == {"file:/c/list", "file:/c/empty"}
    assert metadata.operators[0].subtasks[0].channels == ()


class Busy(LocalStorage):
    """A folder whose job completes a checkpoint during each of the first listings."""

    def __init__(self, folder: Path, checkpoints: int) -> None:
        super().__init__(str(folder))
        self._job, self._left, self._id = folder / JOB, checkpoints, 3

    def listed(self, folder: str) -> tuple[Listed, ...]:
        found = super().listed(folder)
        if self._left > 0:
            self._left, self._id = self._left - 1, self._id + 1
            name = f"new-{self._id}"
            put(self._job / "shared" / name, 0)
            put(self._job / f"chk-{self._id}" / "_metadata", 0, metadata_of(f"file:/{name}"))
            shutil.rmtree(self._job / f"chk-{self._id - 1}", ignore_errors=True)
        return found


def test_checkpoints_that_come_and_go_are_read_again(folder: Path) -> None:
    files, named = _look(Busy(folder, 3), [])
    assert "new-6" in named.names
    assert {f"{JOB}/shared/{name}" for name in ("new-4", "new-5")} <= {item.name for item in files}
    with pytest.raises(StorageError, match="come and go before they can be read; run the command"):
        _look(Busy(folder, 100), [])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda folder: {"minimum_age": "0"}, "the minimum age must not be 0"),
        (lambda folder: {"folder": folder / JOB}, "is the folder of one job"),
        (lambda folder: {"folder": folder / "none"}, "has no folder of a job"),
        (lambda folder: {"ended": [OTHER]}, f"no folder of the job {OTHER}"),
        (lambda folder: {"also_keep": [str(folder.parent / "none")]}, "no checkpoint or savepoint"),
    ],
)
def test_arguments_are_checked(
    change: Callable[[Path], dict[str, object]], problem: str, folder: Path
) -> None:
    options = {"folder": folder, **change(folder)}
    with pytest.raises(InvalidArgumentError, match=problem):
        collect(**options)  # type: ignore[arg-type]


def test_no_path_is_taken_for_the_current_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unset variable of a shell is an empty path. Without its last slash, ``/`` is one, too."""
    monkeypatch.chdir(folder)
    put(folder / JOB / "shared/stray", 400)
    for options in ({"folder": ""}, {"also_keep": [""]}):
        with pytest.raises(InvalidArgumentError, match=r"is empty; '\.' is the current folder"):
            collect(**{"folder": folder, **options})  # type: ignore[arg-type]
    opened: list[str] = []

    def listed(self: LocalStorage, _: str) -> tuple[Listed, ...]:
        opened.append(self.url)
        return (Listed(f"{JOB}/chk-1/file", 5, 0),) if self.url == str(folder) else ()

    monkeypatch.setattr(LocalStorage, "listed", listed)
    for place in ("/", "file:///", "/_metadata", "file:///_metadata"):
        with pytest.raises(InvalidArgumentError, match=r"^/ has no checkpoint"):
            collect(folder, also_keep=[place])
    with pytest.raises(InvalidArgumentError, match=r"^/ has no folder of a job"):
        collect(Path("/"))
    assert set(opened) == {str(folder), "/"}
    assert (folder / JOB / "shared/stray").exists()


def test_the_command_deletes_only_with_yes(folder: Path) -> None:
    put(folder / JOB / "shared/stray", 400)

    def run(*options: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["flink", "gc", str(folder), *options])
        return done.exit_code, done.output

    assert run() == run("--dry-run", "--yes")
    assert run()[0] == 2
    status, text = run("--dry-run", "--min-age", "30d")
    assert (status, text.splitlines()[0]) == (0, f"would delete 5 B in 1 file of {folder}")
    assert (folder / JOB / "shared/stray").exists()
    status, text = run("--yes", "--output", "json")
    said = json.loads(text)
    assert (status, said["names"], said["dry_run"]) == (0, [f"{JOB}/shared/stray"], False)
    assert said["by_age"] == [{"days": 365, "files": 1, "size_bytes": 5}]
    assert not (folder / JOB / "shared/stray").exists()
