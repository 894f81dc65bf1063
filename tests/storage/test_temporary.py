"""A temporary folder is deleted with its process, or by the next process that needs one."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from statestore.errors import StorageError
from statestore.storage import locks
from statestore.storage.locks import temporary_folder


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent folder of temporary folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


HOLDING = """
from statestore.storage.locks import temporary_folder
with temporary_folder("sort") as folder:
    (folder / "0.arrow").write_text("rows")
    print(folder, flush=True)
    input()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has a temporary folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(parent)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_folder_of_a_killed_process_is_deleted(parent: Path, how: int) -> None:
    killed, left = holder(parent)
    running, used = holder(parent)
    killed.send_signal(how)
    killed.communicate()
    assert (left / "0.arrow").exists()
    with temporary_folder("sort") as one, temporary_folder("rekey") as other:
        assert {*parent.iterdir()} == {used, one, other}
    assert [(path, path.read_text()) for path in parent.rglob("*.arrow")] == [
        (used / "0.arrow", "rows")
    ]
    running.communicate("\n")
    assert [*parent.iterdir()] == []


def test_a_folder_that_is_deleted_before_it_is_locked_is_created_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    deleted: list[Path] = []

    def late(folder: int, how: int) -> None:
        if not deleted:
            [path] = parent.iterdir()
            locks._delete_abandoned(parent, path.name)
            deleted.append(path)
            assert not path.exists()
        real(folder, how)

    def lock(folder: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        late(folder, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    with temporary_folder("sort") as folder:
        assert [folder] == [*parent.iterdir()] != deleted


def test_a_folder_that_another_process_is_deleting_is_not_used(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other process has locked the new folder first, and deletes it soon."""
    real = fcntl.flock
    deletions: list[Timer] = []

    def delete(path: Path, descriptor: int) -> None:
        shutil.rmtree(path)
        os.close(descriptor)

    def lock(folder: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        [path] = parent.iterdir()
        other = os.open(path, os.O_RDONLY)
        real(other, fcntl.LOCK_EX)
        deletions.append(Timer(0.1, delete, (path, other)))
        deletions[0].start()
        real(folder, how)

    monkeypatch.setattr(fcntl, "flock", lock)
    with temporary_folder("sort") as folder:
        deletions[0].join()
        assert [folder] == [*parent.iterdir()]


def test_without_locks_no_folder_is_considered_abandoned(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*given: Any) -> None:
        raise OSError(0, "no locks")

    monkeypatch.setattr(fcntl, "flock", unknown)
    with temporary_folder("sort") as one, temporary_folder("sort") as other:
        assert {*parent.iterdir()} == {one, other}
    assert [*parent.iterdir()] == []


def test_folders_of_other_hosts_and_links_are_kept(parent: Path, tmp_path: Path) -> None:
    with temporary_folder("sort") as folder:
        own = folder.name.rpartition("-")[0]
    elsewhere = tmp_path / "statestore-another.host-sort-1"
    elsewhere.mkdir()
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / f"{own}-link").symlink_to(kept)
    with temporary_folder("sort"):
        pass
    assert elsewhere.exists()
    assert kept.exists()


def test_a_folder_that_cannot_be_created_is_a_storage_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    with pytest.raises(StorageError, match="cannot make a temporary folder"), temporary_folder("x"):
        pass
