"""The conformance suite on real servers of each service, and tests specific to object stores."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from statestore.storage import Storage, open_storage
from statestore.storage.objects import ObjectStorage
from statestore.testing.suites import StorageSuite
from tests.servers.azure import AzureServer
from tests.servers.gcs import GcsServer
from tests.servers.hdfs import HdfsServer
from tests.servers.s3 import S3Server
from tests.services.objects.conftest import Server
from tests.services.racing import LANES, race

pytestmark = [pytest.mark.services, pytest.mark.slow]

MIB = 2**20


class ObjectStorageSuite(StorageSuite):
    """The suite, except that many names are contended for at a time; see racing.py."""

    writers = 4
    races = 24

    def test_of_many_writers_one_wins_and_no_reader_sees_a_part(self, storage: Storage) -> None:
        assert isinstance(storage, ObjectStorage)
        names = [f"races/{number:04}" for number in range(self.races)]
        won, problems = race(storage, self.writers, names, lanes=self.races // 4)
        assert problems == []
        assert sorted(name for mine in won for name in mine) == names
        assert sum(map(bool, won)) > 1, "nobody had a rival"

    @pytest.mark.long
    def test_a_thousand_races(self, storage: Storage) -> None:
        assert isinstance(storage, ObjectStorage)
        names = [f"races/{number:04}" for number in range(1000)]
        won, problems = race(storage, 2 * self.writers, names)
        assert problems == []
        assert sorted(name for mine in won for name in mine) == names


def test_the_race_replaces_the_race_of_the_suite() -> None:
    """Under another name, both would run for each service, and the suite's takes a minute."""
    own = {name for name in vars(ObjectStorageSuite) if name.startswith("test_")}
    assert own - {*vars(StorageSuite)} == {"test_a_thousand_races"}


class SuiteWithLongRaces(ObjectStorageSuite):
    """The suite for services whose races are left to the nightly, which has a thousand more."""

    @pytest.mark.long
    def test_of_many_writers_one_wins_and_no_reader_sees_a_part(self, storage: Storage) -> None:
        super().test_of_many_writers_one_wins_and_no_reader_sees_a_part(storage)


class TestS3(ObjectStorageSuite):
    @pytest.fixture
    def storage(self, s3: S3Server) -> Storage:
        # one connection for each name that is contended for at the same time
        config = s3.options["config_kwargs"] | {"max_pool_connections": LANES}
        return open_storage(s3.url(uuid.uuid4().hex), s3.options | {"config_kwargs": config})


class TestAzure(SuiteWithLongRaces):
    @pytest.fixture
    def storage(self, azure: AzureServer) -> Storage:
        return open_storage(azure.url(uuid.uuid4().hex), azure.options)


class TestGoogle(SuiteWithLongRaces):
    @pytest.fixture
    def storage(self, gcs: GcsServer) -> Storage:
        return open_storage(gcs.url(uuid.uuid4().hex), gcs.options)


class TestHdfs(SuiteWithLongRaces):
    renews = False  # WebHDFS has no copy operation

    @pytest.fixture
    def storage(self, hdfs: HdfsServer) -> Storage:
        return open_storage(hdfs.url(uuid.uuid4().hex), hdfs.options)


def test_a_store_can_be_at_the_root_of_the_bucket(server: Server) -> None:
    name = f"whole-{uuid.uuid4().hex[:8]}"
    server.make_bucket(name)
    url = server.url("x").replace(f"{server.bucket}/x", f"{name}/")
    storage = open_storage(url, server.options)
    assert storage.is_empty()
    assert storage.put_if_absent("a/b", b"x")
    assert (storage.list(""), storage.list("a"), storage.read("a/b")) == (("a/b",), ("a/b",), b"x")


def test_the_scheme_s3a_names_the_same_bucket() -> None:
    storage = open_storage("s3a://whole-bucket/", {})
    assert (storage.url, storage.spark_url("a")) == ("s3://whole-bucket", "s3a://whole-bucket/a")


@pytest.mark.long_cases("azure", "hdfs")
def test_a_large_file_is_sent_in_parts(storage: ObjectStorage) -> None:
    """With no last part, with one part and a rest, and with more parts than one compose joins."""
    for parts, rest in ((1, 0), (2, 7), (70, 3)):
        storage.part_bytes = 5 * MIB if parts < 10 else 2**18  # type: ignore[misc]
        if storage.scheme in ("s3", "hdfs") and parts > 10:
            continue  # S3's parts have at least 5 MiB, and HDFS appends each part to the file
        size = parts * storage.part_bytes + rest
        data = np.arange(size // 4 + 1, dtype=">u4").tobytes()[:size]
        name = f"big-{parts}"
        with storage.open_write(name) as file:
            file.write(data)
            assert storage.list("") == (), "it appears when it is closed, whole"
        assert storage.size(name) == size
        with storage.open_read(name) as file:
            assert file.read() == data
            file.seek(-3, 2)
            assert file.read() == data[-3:]
        assert [item.name for item in storage.listed("")] == [name], "nothing is left beside it"
        storage.delete(name)


def test_a_file_that_is_not_closed_does_not_appear(storage: ObjectStorage) -> None:
    """An error left it open."""
    file = storage.open_write("dropped")
    file.write(bytes(9 * MIB))
    del file
    gc.collect()
    assert storage.list("") == ()


def test_all_pages_of_a_long_listing_are_read(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: one page is not the whole listing."""
    names = tuple(f"a/{number}" for number in range(7))
    for name in names:
        storage.put_if_absent(name, b"x")
    pages = ObjectStorage._pages
    monkeypatch.setattr(
        ObjectStorage, "_pages", lambda self, folder, most=0: pages(self, folder, 3)
    )
    assert storage.list("a") == names


@pytest.mark.long_cases("azure", "hdfs", "gcs")
def test_threads_share_a_connection(storage: ObjectStorage) -> None:
    """Eight threads put each name at the same time: it is put once."""
    names = [f"a/{number // 8}" for number in range(96)]
    with ThreadPoolExecutor(8) as threads:
        put = list(threads.map(lambda name: storage.put_if_absent(name, name.encode()), names))
        read = list(threads.map(storage.read, names))
    assert put.count(True) == 12
    assert read == [name.encode() for name in names]


@pytest.mark.long
def test_it_works_in_another_process(storages: list[ObjectStorage]) -> None:
    """It is pickled with its credentials, without its connection."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for storage in storages:
            storage.put_if_absent("a", b"from the driver")
            assert pool.apply(storage.read, ("a",)) == b"from the driver"
            assert pool.apply(storage.put_if_absent, ("b", b"from a worker"))
            assert storage.read("b") == b"from a worker"


FORKS = """
import os, pickle, sys
storages = pickle.load(sys.stdin.buffer)
while storages:
    storage = storages.pop()
    storage.put_if_absent("a", b"x")
    for round in range(2):
        child = os.fork()
        if child == 0:
            found = storage.read("a")
            del storage
            sys.exit(0 if found == b"x" else 1)
        status = os.waitpid(child, 0)[1]
        assert status == 0, (storage, status)
        assert storage.read("a") == b"x"
print("done")
"""

LEAVES = """
import pickle, sys
left_open = []
for storage in pickle.load(sys.stdin.buffer):
    storage.put_if_absent("a", bytes(10**6))
    half_read = storage.open_read("a")
    half_read.read(10)
    half_written = storage.open_write("b")
    half_written.write(bytes(9 * 2**20))
    left_open += [half_read, half_written]
print("done")
"""


def _run(code: str, storages: list[ObjectStorage], *options: str) -> tuple[str, str, float]:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        input=pickle.dumps(storages),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip(), done.stderr.decode(), time.monotonic() - start


@pytest.mark.long
def test_a_forked_process_opens_its_own_connection(storages: list[ObjectStorage]) -> None:
    """The parent's connection stays usable, even when the child ends."""
    # Python 3.12 warns about a fork while fsspec's thread is running.
    assert _run(FORKS, storages, "-W", "ignore")[0] == "done"


@pytest.mark.long
def test_an_interpreter_exits_silently_with_open_files(storages: list[ObjectStorage]) -> None:
    """fsspec's thread causes no warning, no delay and no partial object."""
    out, err, seconds = _run(LEAVES, storages, "-W", "error")
    assert (out, err) == ("done", "")
    assert seconds < 60
    assert [storage.list("") for storage in storages] == [("a",)] * len(storages)
