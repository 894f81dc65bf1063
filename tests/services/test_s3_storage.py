"""S3Storage on a real server: tests specific to S3 and to s3fs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fsspec.asyn import sync

from statestore.errors import StorageError
from statestore.storage.s3 import S3Storage
from tests.servers.s3 import S3Server

pytestmark = [pytest.mark.services, pytest.mark.slow]

MIB = 2**20


@pytest.fixture
def requests(storage: S3Storage, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The requests to the server, recorded as method and byte range."""
    asked: list[tuple[str, Any]] = []
    filesystem = storage._fs
    call = type(filesystem)._call_s3

    async def recorded(self: Any, method: str, *given: Any, **arguments: Any) -> Any:
        asked.append((method, arguments.get("Range")))
        return await call(self, method, *given, **arguments)

    monkeypatch.setattr(type(filesystem), "_call_s3", recorded)
    monkeypatch.setattr(
        type(filesystem), "call_s3", lambda self, *a, **k: _wait(self, recorded, *a, **k)
    )
    return asked


def _wait(filesystem: Any, call: Callable[..., Any], *given: Any, **arguments: Any) -> Any:
    return sync(filesystem.loop, call, filesystem, *given, **arguments)


def test_a_large_file_is_written_in_parts_and_read_by_ranges(
    storage: S3Storage, requests: list[tuple[str, Any]]
) -> None:
    """Only a few parts of a file are in memory, however large it is."""
    with storage.open_write("big") as file:
        for number in range(20):
            file.write(bytes([number]) * MIB)
        assert storage.list("") == (), "it appears when it is closed, whole"
    assert [method for method, _ in requests].count("upload_part") == 3
    assert storage.size("big") == 20 * MIB
    requests.clear()
    with storage.open_read("big") as file:
        file.seek(-8, 2)
        assert file.read() == bytes([19]) * 8
        file.seek(3 * MIB - 1)
        assert file.read(2) == b"\x02\x03"
    ranges = [asked for method, asked in requests if method == "get_object"]
    assert ranges == [f"bytes={20 * MIB - 8}-{20 * MIB - 1}", f"bytes={3 * MIB - 1}-{7 * MIB}"]


def test_few_requests_are_made(storage: S3Storage, requests: list[tuple[str, Any]]) -> None:
    """Each request costs time and money."""
    for action, expected in (
        (lambda: storage.put_if_absent("a", b"x"), ["put_object"]),
        (lambda: storage.read("a"), ["get_object"]),
        (lambda: storage.size("a"), ["head_object"]),
        (lambda: storage.list(""), ["list_objects_v2"]),
        (storage.is_empty, ["list_objects_v2"]),
        (lambda: storage.put_if_absent("a", b"y"), ["put_object", "head_object"]),
        (lambda: storage.delete("a"), ["delete_object"]),
    ):
        requests.clear()
        action()
        assert [method for method, _ in requests] == expected


@pytest.mark.parametrize("failing", ["upload_part", "complete_multipart_upload"])
def test_a_failed_large_write_leaves_neither_object_nor_parts(
    storage: S3Storage, s3: S3Server, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    call = storage._fs.call_s3

    def fails(method: str, **arguments: Any) -> Any:
        if method == failing and arguments.get("PartNumber") != 1:
            raise OSError(5, "the line is dead")
        return call(method, **arguments)

    monkeypatch.setattr(storage._fs, "call_s3", fails)
    file = storage.open_write("big")

    def write() -> None:
        file.write(bytes(17 * MIB))
        file.close()

    with pytest.raises(StorageError, match=f"cannot write {storage.url}/big: .*line is dead"):
        write()
    assert file.closed
    file.close()
    assert storage.list("") == ()
    uploads = call("list_multipart_uploads", Bucket=s3.bucket, Prefix=storage._key("big"))
    assert uploads.get("Uploads", []) == []


def test_uploads_that_may_not_be_listed_are_ignored(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: all other files are listed and collected as before, and all pages are read."""
    storage.put_if_absent("a/1", b"x")
    files = [storage.open_write(f"a/b c%2F-{number}") for number in range(3)]
    for file in files:
        file.write(bytes(9 * MIB))
    call = storage._fs.call_s3

    def paged(method: str, **arguments: Any) -> Any:
        """Return them one by one, like a server with pages."""
        if method != "list_multipart_uploads":
            return call(method, **arguments)
        after = arguments.pop("KeyMarker", ""), arguments.pop("UploadIdMarker", "")
        found = call(method, **arguments)["Uploads"]
        found.sort(key=lambda one: (one["Key"], one["UploadId"]))
        rest = [one for one in found if (one["Key"], one["UploadId"]) > after]
        markers = {"NextKeyMarker": rest[0]["Key"], "NextUploadIdMarker": rest[0]["UploadId"]}
        return {"Uploads": rest[:1], "IsTruncated": len(rest) > 1, **markers}

    def refused(method: str, **arguments: Any) -> Any:
        if method == "list_multipart_uploads":
            raise PermissionError("AccessDenied") from _answer("AccessDenied")
        return call(method, **arguments)

    monkeypatch.setattr(storage._fs, "call_s3", refused)
    assert [item.name for item in storage.listed("a")] == ["a/1"]
    monkeypatch.setattr(storage._fs, "call_s3", paged)
    names = [item.name for item in storage.listed("a")]
    assert [name.partition(".upload-")[0] for name in names] == [
        *(f"a/.b c%2F-{number}" for number in range(3)),
        "a/1",
    ]
    monkeypatch.setattr(storage._fs, "call_s3", call)
    for name in names[:3]:
        storage.delete(name)
    assert [item.name for item in storage.listed("")] == ["a/1"]
    with pytest.raises(StorageError, match=f"cannot write {storage.url}/a/b c"):
        files[0].close()


def _answer(code: str) -> Exception:
    error = Exception(code)
    error.response = {"Error": {"Code": code}}  # type: ignore[attr-defined]
    return error


def test_folder_markers_and_hidden_files_are_ignored(storage: S3Storage, s3: S3Server) -> None:
    """Spark's s3a and consoles create folder markers, and desktops create hidden files."""
    prefix = storage.url.rpartition("/")[2]
    for name in ("", "a/", "a/.hidden", ".desktop/file"):
        storage._fs.call_s3("put_object", Bucket=s3.bucket, Key=f"{prefix}/{name}", Body=b"")
    assert storage.list("a") == ()
    assert not storage.is_empty(), "a/.hidden lies in a folder that is not hidden"
    storage.delete("a/.hidden")
    assert storage.is_empty()
    with pytest.raises(FileNotFoundError):
        storage.size("a")
