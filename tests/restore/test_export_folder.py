"""The target folder of an export: files of other programs are never deleted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from statestore import StateStore
from statestore.catalog.catalog import Catalog
from statestore.errors import InvalidArgumentError, StorageError
from statestore.restore import export as command
from statestore.restore.row_files import publish_folder, write_rows
from statestore.storage import LocalStorage
from tests.support.stores import file_bytes


class Ended(BaseException):
    """Stands for the end of a process."""


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        for uid in ("u", "v"):
            rows = [{"k": i, "n": i} for i in range(9)]
            checkpoint.write_keyed(uid, "s", rows, key="k", max_parallelism=2)
    return store


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Callable[[StateStore, Path, int], None]:
    """Make an export die after it has moved some of its folders; it does nothing after that."""

    def run(store: StateStore, to: Path, moved: int) -> None:
        real, seen = os.rename, [0]

        def dead(*given: Any, **named: Any) -> None:
            raise Ended

        def rename(*given: Any) -> None:
            if seen[0] == moved:
                for name in ("unlink", "rmdir"):
                    patch.setattr(os, name, dead)
                raise Ended
            seen[0] += 1
            real(*given)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename)
            with pytest.raises(Ended):
                store.restore().export(to)

    return run


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_the_output_of_a_killed_run_is_replaced(
    store: StateStore, tmp_path: Path, killed: Any, moved: int
) -> None:
    store.restore().export(tmp_path / "right")
    to = tmp_path / "to"
    killed(store, to, min(moved, 1))
    if moved == 2:  # this run was killed while it removed the output of the first
        (to / "u" / "s" / "subtask=00000" / "part-0.parquet").unlink()
    assert (to / ".incomplete").exists()
    store.restore().export(to)
    assert file_bytes(to) == file_bytes(tmp_path / "right")


@pytest.mark.parametrize("name", ["notes.txt", "u/mine.txt", "v/mine.txt", "u/s/x/y", "empty/"])
def test_a_folder_with_other_files_is_left_unchanged(
    store: StateStore, tmp_path: Path, killed: Any, name: str
) -> None:
    to = tmp_path / "to"
    killed(store, to, 1)
    (to / name).parent.mkdir(parents=True, exist_ok=True)
    (to / name).mkdir() if name.endswith("/") else (to / name).write_text("mine")
    before = file_bytes(to)
    with pytest.raises(
        InvalidArgumentError, match=r"is not empty: .* not from an interrupted restore"
    ):
        store.restore().export(to)
    assert file_bytes(to) == before
    assert (to / name).exists()


def test_a_modified_file_is_not_replaced(store: StateStore, tmp_path: Path, killed: Any) -> None:
    to = tmp_path / "to"
    killed(store, to, 1)
    path = to / "u" / "s" / "subtask=00000" / "part-0.parquet"
    path.write_bytes(path.read_bytes() + b"?")
    before = file_bytes(to)
    with pytest.raises(InvalidArgumentError, match="part-0"):
        store.restore().export(to)
    assert file_bytes(to) == before


@pytest.mark.parametrize("name", ["film.mp4", ".statestore", "u/s/part-0.parquet"])
def test_a_foreign_folder_with_the_temporary_name_is_kept(
    store: StateStore, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "to" / ".incomplete" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(InvalidArgumentError, match="is not empty"):
        store.restore().export(tmp_path / "to")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["u", "u/mine.txt", "v/mine.txt"])
def test_files_created_during_the_export_are_kept(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The export raises a typed error, and leaves none of its own files."""
    real, path = write_rows, tmp_path / "to" / name

    def meanwhile(*given: Any, **named: Any) -> Any:
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text("mine")
        return real(*given, **named)

    monkeypatch.setattr(command, "write_rows", meanwhile)
    with pytest.raises(StorageError, match="another process created it"):
        store.restore().export(tmp_path / "to")
    assert file_bytes(tmp_path / "to") == {name: b"mine"}


def test_an_error_of_the_file_system_is_typed(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"cannot write .*to: .*No such file"),
        publish_folder(tmp_path / "to") as folder,
    ):
        (folder / "none").rename(folder / "other")
    assert list((tmp_path / "to").iterdir()) == []


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_an_export_works_on_a_disk_without_hard_links(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A store needs hard links, but exported files do not."""
    store.restore().export(tmp_path / "right", format=form)

    def refused(*given: Any, **named: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    store.restore().export(tmp_path / "to", format=form)
    assert file_bytes(tmp_path / "to") == file_bytes(tmp_path / "right")
    with pytest.raises(StorageError, match="does not support hard links"):
        Catalog.open(LocalStorage(str(tmp_path / "new")), create=True)
