"""Storage on disk: the conformance suite, and failures of a real file system."""

from __future__ import annotations

import errno
import os
import re
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
    """Run the conformance suite in a folder that does not exist yet."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(str(tmp_path / "store"))


@contextmanager
def small_files() -> Iterator[None]:
    """Limit files to 100 bytes, which looks like a full disk.

    This is not a fixture: pytest itself writes to a file between a test and its teardown.
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
    """I4: a commit there would not be atomic, so the store is not opened."""
    protocol = url.partition(":")[0]
    with pytest.raises(InvalidArgumentError, match=f"cannot use {protocol}://"):
        open_storage(url)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://b/x", "S3Storage"),
        ("s3a://b/x", "S3Storage"),
        ("az://c/x", "AzureStorage"),
        ("abfs://c@a.dfs.core.windows.net/x", "AzureStorage"),
        ("abfss://c@a.dfs.core.windows.net/x", "AzureStorage"),
        ("gs://b/x", "GoogleStorage"),
        ("gcs://b/x", "GoogleStorage"),
        ("hdfs://host/x", "HdfsStorage"),
    ],
)
def test_each_protocol_has_its_storage(url: str, name: str) -> None:
    # Without a token, the library asks a server for one that only Google's machines have.
    options = {"az": {"account_name": "a"}, "gs": {"token": "anon"}, "gcs": {"token": "anon"}}
    scheme = url.partition(":")[0]
    assert type(open_storage(url, options.get(scheme, {}))).__name__ == name


def test_a_url_and_a_path_are_equivalent(tmp_path: Path) -> None:
    """With and without protocol, with a slash at the end, and relative."""
    urls = [str(tmp_path), f"file://{tmp_path}", f"{tmp_path}/", os.path.relpath(tmp_path)]
    assert {open_storage(url).url for url in urls} == {str(tmp_path)}


def test_a_regular_file_as_a_parent_is_a_storage_error(tmp_path: Path) -> None:
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
        lambda: storage.sync(["a"]),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=str(tmp_path / "file")) as caught:
            call()
        assert isinstance(caught.value.__cause__, OSError)
    assert not storage.is_empty(), "a target of a copy must be a new or an empty folder"


def test_a_put_into_a_read_only_place_is_a_storage_error() -> None:
    """Even if the operating system reports a missing file, as /proc does."""
    storage = LocalStorage("/proc/store")
    with pytest.raises(StorageError, match="cannot write /proc/store/a"):
        storage.put_if_absent("a", b"x")
    with pytest.raises(StorageError, match="cannot write /proc/store/a"):
        storage.open_write("a")


def test_a_folder_that_cannot_be_listed_is_an_error(
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
    """Another process may delete it; this is not an error."""
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


def test_a_put_that_exceeds_the_space_leaves_nothing(tmp_path: Path) -> None:
    """I4: not even a temporary file is left, and the name is still free."""
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/a"), small_files():
        storage.put_if_absent("a", bytes(101))
    assert list(tmp_path.iterdir()) == []
    with small_files():
        assert storage.put_if_absent("a", bytes(100))


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/full behaves like one."""
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: _write_to_full_disk(data))
    with pytest.raises(StorageError, match=r"/a: the disk is full"):
        LocalStorage(str(tmp_path)).put_if_absent("a", b"x")


def test_a_file_is_written_once(tmp_path: Path) -> None:
    """A second writer of the same name is refused, and the file does not change."""
    storage = LocalStorage(str(tmp_path))
    with storage.open_write("a") as file:
        file.write(b"first")
    with pytest.raises(StorageError, match=f"cannot write {tmp_path}/a"):
        storage.open_write("a")
    assert storage.read("a") == b"first"


def test_hidden_files_are_not_listed_and_the_folder_counts_as_empty(tmp_path: Path) -> None:
    """For example, temporary files of a crash and the hidden files of a desktop or a fresh disk."""
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
    with pytest.raises(
        StorageError, match="this file system does not support hard links, which commits require"
    ):
        Catalog.open(storage, create=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_whose_links_overwrite_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: this is tested before a store is created, and no file is left."""
    monkeypatch.setattr(os, "link", lambda source, target: Path(source).replace(target))
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(
        StorageError, match=r"cannot hold a store: its file system lets a hard link replace"
    ):
        Catalog.open(storage, create=True)
    assert list(tmp_path.iterdir()) == []


def test_the_probe_leaves_no_files(tmp_path: Path) -> None:
    Catalog.open(LocalStorage(str(tmp_path)), create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["statestore.json"]


@pytest.mark.parametrize("url", ["", "file://", "local://"])
def test_an_empty_path_is_not_the_current_folder(url: str) -> None:
    """An unset variable of a shell is an empty path."""
    with pytest.raises(InvalidArgumentError, match=r"is empty; '\.' is the current folder"):
        open_storage(url)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("s3:/bucket/prod", "s3://bucket/prod"),
        ("S3:/bucket/prod", "s3://bucket/prod"),
        ("s3:bucket/prod", "s3://bucket/prod"),
        ("s3a:/bucket/prod", "s3a://bucket/prod"),
        ("gs:/b/x", "gs://b/x"),
        ("abfss:/c@a.dfs.core.windows.net/x", "abfss://c@a.dfs.core.windows.net/x"),
        ("hdfs:/namenode/x", "hdfs://namenode/x"),
        ("dbfs:/mnt/prod", "/dbfs/mnt/prod"),
        ("memory:/x", "memory://x"),
        ("file://data/x", "file:///data/x"),
        ("file://host", "file:///host"),
    ],
)
def test_a_mistyped_url_is_refused_with_a_suggestion(
    url: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local folder with that name would be created silently."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=re.escape(meant)):
        open_storage(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["file:///d/x", "file:/d/x", "file://localhost/d/x", "/d/x"])
def test_a_file_url_of_this_host_is_a_path(url: str) -> None:
    assert open_storage(url).url == "/d/x"


@pytest.mark.parametrize("name", ["./s3:/bucket/prod", "run:1", "2026-01-31T10:00"])
def test_a_path_can_contain_a_colon(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage(name).url == str(tmp_path / name.removeprefix("./"))


CALLS: dict[str, Callable[[Storage], object]] = {
    "read": lambda storage: storage.read("link/a"),
    "read_range": lambda storage: storage.read_range("link/a", 0, 1),
    "put_if_absent": lambda storage: storage.put_if_absent("link/new", b"x"),
    "list": lambda storage: storage.list(""),
    "list what is linked": lambda storage: storage.list("link"),
    "listed": lambda storage: storage.listed(""),
    "delete": lambda storage: storage.delete("link/a"),
    "delete a link to a file": lambda storage: storage.delete("file"),
    "size": lambda storage: storage.size("link/a"),
    "renew": lambda storage: storage.renew("link/a", "b"),
    "renew to": lambda storage: storage.renew("own", "link/b"),
    "open_write": lambda storage: storage.open_write("link/new").abandon(),
    "open_read": lambda storage: storage.open_read("link/a").close(),
    "sync": lambda storage: storage.sync(["link/a"]),
    "native_path": lambda storage: storage.native_path("link/a"),
    "spark_url": lambda storage: storage.spark_url("link"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_symbolic_link_is_not_followed(call: str, tmp_path: Path) -> None:
    """The error names the link. Links are followed if the caller allows them."""
    outside, root = tmp_path / "outside", tmp_path / "store"
    outside.mkdir()
    root.mkdir()
    (outside / "a").write_bytes(b"precious")
    (root / "own").write_bytes(b"x")
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "a")
    with pytest.raises(StorageError, match=r"(link|file) is a symbolic link to .*follow_links"):
        CALLS[call](open_storage(str(root), of_store=True))
    assert [path.name for path in outside.iterdir()] == ["a"]
    assert (outside / "a").read_bytes() == b"precious"
    CALLS[call](open_storage(str(root), {"follow_links": True}, of_store=True))
    with pytest.raises(InvalidArgumentError, match="follow_links must be True or False"):
        open_storage(str(root), {"follow_links": "yes"}, of_store=True)


def test_the_folder_itself_can_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    storage = open_storage(str(tmp_path / "link"), of_store=True)
    assert storage.put_if_absent("folder/a", b"x")
    assert storage.list("") == ("folder/a",)
    assert (tmp_path / "real/folder/a").read_bytes() == b"x"


def test_reading_a_special_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    storage = LocalStorage(str(tmp_path))
    for read in (storage.read, storage.open_read, lambda name: storage.read_range(name, 0, 1)):
        with pytest.raises(StorageError, match="not a regular file but a FIFO"):
            read("fifo")


def test_a_document_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(40 * 2**30)
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(StorageError, match="42,949,672,960 bytes"):
        storage.read("large")
    assert storage.read_range("large", 2**33, 2**33 + 2) == b"\0\0"


def test_a_parent_folder_is_found_by_its_real_path(tmp_path: Path) -> None:
    (tmp_path / "outer/in/between").mkdir(parents=True)
    (tmp_path / "outer/mark.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "outer/in")
    for inner in ("outer/in/between", "outer/not/there/yet", "link/between", "link"):
        above = LocalStorage(str(tmp_path / inner)).folder_above("mark.json")
        assert above == str((tmp_path / "outer").resolve())
    assert LocalStorage(str(tmp_path / "outer")).folder_above("mark.json") is None
