"""What is synced, so that a power failure does not undo it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from statestore.storage.local import sync_if_supported, sync_parents, sync_path, sync_paths
from statestore.storage.locks import close_folder, open_folder


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that were synced."""
    found: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: found.append(Path(f"/proc/self/fd/{file}").readlink())
    )
    return found


def test_files_and_folders_are_synced(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "file").touch()
    sync_path(tmp_path)
    sync_path(tmp_path / "file")
    assert synced == [tmp_path, tmp_path / "file"]
    sync_paths([tmp_path / "file", tmp_path])
    assert sorted(synced[2:]) == [tmp_path, tmp_path / "file"]


def test_parents_are_synced_up_to_the_mount_point(tmp_path: Path, synced: list[Path]) -> None:
    sync_parents(tmp_path)
    device = tmp_path.stat().st_dev
    assert synced == [path for path in tmp_path.parents if path.stat().st_dev == device]


def test_only_errors_of_a_file_system_that_cannot_sync_are_ignored() -> None:
    for number in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
        with sync_if_supported():
            raise OSError(number, "cannot sync")
    with pytest.raises(OSError, match="full"), sync_if_supported():
        raise OSError(errno.ENOSPC, "full")


def test_closing_a_folder_deletes_no_other_file(tmp_path: Path) -> None:
    """Only on Windows a lock is a file."""
    (tmp_path / "folder").mkdir()
    (tmp_path / ".folder.lock").touch()
    close_folder(tmp_path / "folder", open_folder(tmp_path / "folder"))
    assert (tmp_path / ".folder.lock").exists()
