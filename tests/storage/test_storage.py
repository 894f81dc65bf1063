"""Storage on disk: the conformance suite, and what goes wrong on a real file system."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from statestore.catalog.catalog import Catalog
from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage import LocalStorage, Storage, open_storage
from statestore.testing.suites import StorageSuite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class TestLocalStorage(StorageSuite):
    """The suite, on a folder that does not exist yet."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(str(tmp_path / "store"))


@contextmanager
def small_files() -> Iterator[None]:
    """A system that lets no file grow beyond 100 bytes: what a full disk looks like.

    No fixture: pytest itself writes to a file between a test and its teardown.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "url",
    [
        "memory://x",
        "http://host/x",
        "https://host/x",
        "oss://b/x",
        "simplecache::s3://b",
    ],
)
def test_a_file_system_without_put_if_absent_is_refused(url: str) -> None:
    """I4: a commit there would not be atomic, so nothing is opened."""
    protocol = url.partition(":")[0]
    with pytest.raises(InvalidArgumentError, match=f"cannot lie on {protocol}://"):
        open_storage(url)


def test_a_url_and_a_path_are_one_place(tmp_path: Path) -> None:
    """With and without protocol, with a slash at the end, and relative."""
    urls = [str(tmp_path), f"file://{tmp_path}", f"{tmp_path}/", os.path.relpath(tmp_path)]
    assert {open_storage(url).url for url in urls} == {str(tmp_path)}


def test_below_a_regular_file_every_call_is_a_storage_error(tmp_path: Path) -> None:
    """The error names the path and keeps its cause."""
    (tmp_path / "file").write_text("x")
    storage = LocalStorage(str(tmp_path / "file"))
    calls: list[Callable[[], object]] = [
        lambda: storage.read("a"),
        lambda: storage.size("a"),
        lambda: storage.put_if_absent("a", b"x"),
        lambda: storage.open_write("a"),
        lambda: storage.open_read("a"),
        lambda: storage.delete("a"),
        lambda: storage.list("a/b"),
        lambda: storage.is_empty(),
        lambda: storage.sync(["a"]),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=str(tmp_path / "file")) as caught:
            call()
        assert isinstance(caught.value.__cause__, OSError)


def test_where_nothing_can_be_created_a_put_is_a_storage_error() -> None:
    """Also where the operating system says that something is missing, as /proc does."""
    storage = LocalStorage("/proc/store")
    with pytest.raises(StorageError, match="cannot write /proc/store/a"):
        storage.put_if_absent("a", b"x")
    with pytest.raises(StorageError, match="cannot write /proc/store/a"):
        storage.open_write("a")


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: nothing is concluded from an incomplete listing."""
    storage = LocalStorage(str(tmp_path))
    for name in ("a/b/1", "a/c/2"):
        storage.put_if_absent(name, b"x")
    scan = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(StorageError, match="permission denied"):
        storage.list("a")


def test_a_folder_that_vanishes_during_a_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's clean-up is no error."""
    storage = LocalStorage(str(tmp_path))
    for name in ("a/b/1", "a/c/2"):
        storage.put_if_absent(name, b"x")
    scan = os.scandir

    def vanishing(path: str) -> object:
        if str(path).endswith("/b"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert storage.list("a") == ("a/c/2",)


def test_a_put_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    """I4: not even a temporary file; the name is still free."""
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/a"), small_files():
        storage.put_if_absent("a", bytes(101))
    assert list(tmp_path.iterdir()) == []
    with small_files():
        assert storage.put_if_absent("a", bytes(100))


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full is one."""
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: _write_to_full_disk(data))
    with pytest.raises(StorageError, match=r"/a: the disk is full"):
        LocalStorage(str(tmp_path)).put_if_absent("a", b"x")


def test_a_file_is_written_once(tmp_path: Path) -> None:
    """A second writer of the same name is refused, and the file stays as it is."""
    storage = LocalStorage(str(tmp_path))
    with storage.open_write("a") as file:
        file.write(b"first")
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/a"):
        storage.open_write("a")
    assert storage.read("a") == b"first"


def test_hidden_files_are_not_listed_and_do_not_fill_a_folder(tmp_path: Path) -> None:
    """A temporary file that a crash left behind, what a desktop or a fresh disk puts there."""
    storage = LocalStorage(str(tmp_path))
    (tmp_path / ".statestore.json.0123").write_text("x")
    (tmp_path / ".DS_Store").write_text("x")
    (tmp_path / "lost+found").mkdir()
    assert storage.is_empty()
    assert storage.list("") == ()


def _write_to_full_disk(data: bytes) -> int:
    with Path("/dev/full").open("wb", buffering=0) as full:
        return full.write(data)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def link(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(target))

    monkeypatch.setattr(os, "link", link)
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(StorageError, match="this file system has no hard links, and a commit is"):
        Catalog.open(storage, create=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_whose_links_overwrite_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: tried before a store is made, and nothing is left."""
    monkeypatch.setattr(os, "link", lambda source, target: Path(source).replace(target))
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(StorageError, match=r"cannot hold a store: a hard link replaces a file"):
        Catalog.open(storage, create=True)
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_made_without_a_trace_of_the_probe(tmp_path: Path) -> None:
    Catalog.open(LocalStorage(str(tmp_path)), create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["statestore.json"]
