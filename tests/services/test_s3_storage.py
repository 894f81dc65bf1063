"""S3Storage on a real server: the conformance suite, and what is peculiar to S3 and to s3fs."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fsspec.asyn import sync
from s3fs.errors import translate_boto_error

from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage import S3Storage, Storage
from statestore.testing.suites import StorageSuite
from tests.servers.s3 import S3Server
from tests.services.racing import LANES, race

MIB = 2**20


class TestS3Storage(StorageSuite):
    """The suite; the race is run many names at a time, see racing.py."""

    races = 128

    @pytest.fixture
    def storage(self, s3: S3Server, url: str) -> S3Storage:
        # A connection for each name that is raced for at a time.
        config = s3.options["config_kwargs"] | {"max_pool_connections": LANES}
        return S3Storage(url, s3.options | {"config_kwargs": config})

    def test_of_many_writers_one_wins_and_no_reader_sees_a_part(self, storage: Storage) -> None:
        assert isinstance(storage, S3Storage)
        names = [f"races/{number:04}" for number in range(self.races)]
        won, problems = race(storage, self.writers, names)
        assert problems == []
        assert sorted(name for mine in won for name in mine) == names
        assert sum(map(bool, won)) > 1, "nobody had a rival"


@pytest.fixture
def requests(storage: S3Storage, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What is asked of the server, as it is asked: method and byte range."""
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


def test_the_bucket_itself_can_hold_a_store(s3: S3Server) -> None:
    s3.make_bucket("whole-bucket")
    storage = S3Storage("s3a://whole-bucket/", s3.options)
    assert storage.is_empty()
    assert storage.put_if_absent("a/b", b"x")
    assert (storage.list(""), storage.list("a"), storage.read("a/b")) == (("a/b",), ("a/b",), b"x")
    assert (storage.url, storage.spark_url("a")) == ("s3://whole-bucket", "s3a://whole-bucket/a")


def test_a_large_file_is_written_in_parts_and_read_by_ranges(
    storage: S3Storage, requests: list[tuple[str, Any]]
) -> None:
    """However large a file is, a few parts of it are in memory."""
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
    """Each is paid for, in time and money."""
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


def test_a_file_that_is_dropped_does_not_appear(storage: S3Storage) -> None:
    """An error left it behind, and nobody closed it."""
    file = storage.open_write("dropped")
    file.write(bytes(9 * MIB))
    del file
    gc.collect()
    assert storage.list("") == ()


def test_uploads_that_nobody_may_list_are_not_seen(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: all else is listed, and collected, as before; their pages are read to the end."""
    storage.put_if_absent("a/1", b"x")
    files = [storage.open_write(f"a/b c%2F-{number}") for number in range(3)]
    for file in files:
        file.write(bytes(9 * MIB))
    call = storage._fs.call_s3

    def paged(method: str, **arguments: Any) -> Any:
        """Show them one by one, as a server that pages."""
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


def test_a_long_listing_is_read_to_its_end(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: a page is not the listing."""
    names = tuple(f"a/{number}" for number in range(7))
    for name in names:
        storage.put_if_absent(name, b"x")
    pages = S3Storage._pages
    monkeypatch.setattr(S3Storage, "_pages", lambda self, folder: pages(self, folder, 3))
    assert storage.list("a") == names


def test_markers_of_folders_and_hidden_files_are_no_files_of_a_store(
    storage: S3Storage, s3: S3Server
) -> None:
    """Spark's s3a and consoles make the one, desktops the other."""
    prefix = storage.url.rpartition("/")[2]
    for name in ("", "a/", "a/.hidden", ".desktop/file"):
        storage._fs.call_s3("put_object", Bucket=s3.bucket, Key=f"{prefix}/{name}", Body=b"")
    assert storage.list("a") == ()
    assert not storage.is_empty(), "a/.hidden lies in a folder that is not hidden"
    storage.delete("a/.hidden")
    assert storage.is_empty()
    with pytest.raises(FileNotFoundError):
        storage.size("a")


def test_a_put_whose_answer_was_lost_has_won(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: botocore sends it again, and the second is refused because of the first."""
    call = storage._fs.call_s3

    def twice(method: str, **arguments: Any) -> Any:
        if method == "put_object":
            call(method, **arguments)
        return call(method, **arguments)

    monkeypatch.setattr(storage._fs, "call_s3", twice)
    assert storage.put_if_absent("a", b"mine")
    assert not storage.put_if_absent("a", b"mine"), "the same bytes, and yet another put"


@pytest.mark.parametrize(("conflicts", "wins"), [(2, True), (5, False)])
def test_a_put_that_met_another_is_sent_again(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch, conflicts: int, wins: bool
) -> None:
    """Amazon's S3 answers 409 while it cannot tell yet who was first."""
    answer = {"Error": {"Code": "ConditionalRequestConflict", "Message": "conflict"}}
    left, call = [None] * conflicts, storage._fs.call_s3

    def busy(method: str, **arguments: Any) -> Any:
        if left and method == "put_object":
            left.pop()
            raise translate_boto_error(ClientError(answer, "PutObject"))
        return call(method, **arguments)

    monkeypatch.setattr(storage._fs, "call_s3", busy)
    if wins:
        assert storage.put_if_absent("a", b"x")
        assert storage.read("a") == b"x"
        return
    with pytest.raises(
        StorageError, match=f"cannot write {storage.url}/a: .*; another put of it is under way"
    ):
        storage.put_if_absent("a", b"x")


def test_threads_share_a_connection(storage: S3Storage) -> None:
    """The same names from eight threads: each is put once."""
    names = [f"a/{number % 25}" for number in range(200)]
    with ThreadPoolExecutor(8) as threads:
        put = list(threads.map(lambda name: storage.put_if_absent(name, name.encode()), names))
        read = list(threads.map(storage.read, names))
    assert put.count(True) == 25
    assert read == [name.encode() for name in names]


def test_it_works_in_another_process(storage: S3Storage) -> None:
    """Pickled with its credentials, without its connection."""
    storage.put_if_absent("a", b"from the driver")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(storage.read, ("a",)) == b"from the driver"
        assert pool.apply(storage.put_if_absent, ("b", b"from a worker"))
    assert storage.read("b") == b"from a worker"


FORKS = """
import os, pickle, sys
storage = pickle.load(sys.stdin.buffer)
storage.put_if_absent("a", b"x")
for round in range(2):
    child = os.fork()
    if child == 0:
        found = storage.read("a")
        del storage
        sys.exit(0 if found == b"x" else 1)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
    assert storage.read("a") == b"x"
print("done")
"""

LEAVES = """
import pickle, sys
storage = pickle.load(sys.stdin.buffer)
storage.put_if_absent("a", bytes(10**6))
half_read = storage.open_read("a")
half_read.read(10)
half_written = storage.open_write("b")
half_written.write(bytes(9 * 2**20))
print("done")
"""


def _run(code: str, storage: S3Storage, *options: str) -> tuple[str, str, float]:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        input=pickle.dumps(storage),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip(), done.stderr.decode(), time.monotonic() - start


def test_a_forked_process_opens_its_own_connection(storage: S3Storage) -> None:
    """And leaves its parent's as it is, also when it ends."""
    # A fork beside a running thread, which is s3fs's, is what Python 3.12 warns about.
    assert _run(FORKS, storage, "-W", "ignore")[0] == "done"


def test_an_interpreter_ends_in_silence_with_files_open(storage: S3Storage) -> None:
    """No warning from the thread that s3fs keeps, no wait, no half-written object."""
    out, err, seconds = _run(LEAVES, storage, "-W", "error")
    assert (out, err) == ("done", "")
    assert seconds < 20
    assert storage.list("") == ("a",)


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("s3://", {}, "needs a bucket"),
        ("s3:///", {}, "needs a bucket"),
        ("s3://b/x", {"key": "a", "username": "b"}, "storage options do not fit: .*not both"),
        ("s3://b/x", {"max_concurrency": 0}, "storage options do not fit: max_concurrency"),
    ],
)
def test_what_cannot_be_a_store_is_refused(url: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        S3Storage(url, options)
