"""Tests specific to HDFS: failures of two servers, refused requests, and variables."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pyarrow as pa
import pytest
import requests

from statestore import StateStore
from statestore.catalog.deletions import read_deletions
from statestore.errors import StorageError
from statestore.storage import Storage, open_storage
from statestore.storage.hdfs import HdfsStorage
from statestore.storage.requests import ATTEMPTS
from tests.servers.flaky_proxy import Fault, FlakyProxy, flaky_proxy
from tests.servers.hdfs import HdfsServer
from tests.services.secrecy import failure

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.usefixtures("short_waits"),
]

MIB = 2**20


def _write(storage: Storage) -> tuple[str, ...]:
    with storage.open_write("b") as file:
        file.write(bytes(20 * MIB))
    assert storage.size("b") == 20 * MIB
    return storage.list("")


CALLS: dict[str, tuple[Callable[[Storage], Any], Any]] = {
    "read": (lambda storage: storage.read("a"), b"x" * 1000),
    "size": (lambda storage: storage.size("a"), 1000),
    "list": (lambda storage: storage.list(""), ("a",)),
    "put_if_absent": (lambda storage: storage.put_if_absent("b", b"x"), True),
    "write in parts": (_write, ("a", "b")),
    "delete": (lambda storage: storage.delete("a"), None),
}


@pytest.fixture
def hdfs_url(hdfs: HdfsServer, request: pytest.FixtureRequest) -> str:
    return hdfs.url("".join(letter for letter in request.node.name if letter.isalnum()))


@pytest.fixture(scope="module")
def namenode(hdfs: HdfsServer) -> Iterator[FlakyProxy]:
    with flaky_proxy(hdfs.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def datanode(hdfs: HdfsServer) -> Iterator[FlakyProxy]:
    with flaky_proxy(hdfs.datanode) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def no_faults(namenode: FlakyProxy, datanode: FlakyProxy) -> None:
    """End the faults of earlier tests."""
    for proxy in (namenode, datanode):
        proxy.calm()
        proxy.choose = None


@pytest.fixture
def flaky(hdfs: HdfsServer, hdfs_url: str, namenode: FlakyProxy) -> Storage:
    """The folder of the test through the proxy of the namenode."""
    return open_storage(hdfs_url, hdfs.through(namenode.endpoint))


# Every call takes the same retries. A lost response matters to the requests that write.
IN_EACH_RUN = [
    ("read", Fault.BUSY, "OPEN"),
    ("put_if_absent", Fault.LOST, "CREATE"),
    ("put_if_absent", Fault.LOST, "RENAME"),
    ("write in parts", Fault.LOST, "APPEND"),
    ("write in parts", Fault.LOST, "RENAME"),
    ("delete", Fault.LOST, "DELETE"),
]
KINDS = ("CREATE", "RENAME", "APPEND", "GETFILESTATUS", "OPEN", "LISTSTATUS", "DELETE")
FURTHER = [
    case for case in product(CALLS, (Fault.BUSY, Fault.LOST), KINDS) if case not in IN_EACH_RUN
]


@pytest.mark.parametrize(
    "cases",
    [IN_EACH_RUN, pytest.param(FURTHER, marks=pytest.mark.long)],
    ids=["in each run", "further"],
)
def test_a_request_to_the_namenode_is_retried(
    hdfs: HdfsServer,
    hdfs_url: str,
    namenode: FlakyProxy,
    cases: list[tuple[str, Fault, str]],
    subtests: pytest.Subtests,
) -> None:
    """I4: the response to each request is lost; a put recognizes the file that it renamed."""
    for number, (name, fault, kind) in enumerate(cases):
        with subtests.test(name, fault=fault.name, kind=kind):
            call, expected = CALLS[name]
            url = f"{hdfs_url}/{number}"
            open_storage(url, hdfs.options).put_if_absent("a", b"x" * 1000)
            flaky = open_storage(url, hdfs.through(namenode.endpoint))
            _fail_once(namenode, fault, f"op={kind}")
            assert call(flaky) == expected


def _fail_once(proxy: FlakyProxy, fault: Fault, operation: str, after: int = 0) -> None:
    """Make the first request of an operation fail, or a later one."""
    left = [None] * after + [fault]
    proxy.choose = lambda method, path, headers: left.pop(0) if left and operation in path else None


def test_a_permanently_busy_namenode_is_named(
    flaky: Storage, namenode: FlakyProxy, subtests: pytest.Subtests
) -> None:
    """The number of attempts is exact: two layers that both retry would multiply it."""
    for name, (call, _) in CALLS.items():
        with subtests.test(name):
            namenode.fail(Fault.BUSY)
            message = failure(partial(call, flaky), StorageError)
            assert len(namenode.seen) == ATTEMPTS
            assert f"(tried {ATTEMPTS} times in " in message
            assert message.endswith("the server is overloaded; try again later")


def test_a_file_of_another_writer_is_not_mistaken_for_its_own(
    hdfs: HdfsServer, hdfs_url: str, flaky: Storage, namenode: FlakyProxy
) -> None:
    storage = open_storage(hdfs_url, hdfs.options)
    storage.put_if_absent("a", b"same")
    _fail_once(namenode, Fault.LOST, "op=RENAME")
    assert not flaky.put_if_absent("a", b"same")
    assert [item.name for item in storage.listed("")] == ["a"]


def test_a_put_fails_if_its_hidden_file_was_deleted(
    hdfs: HdfsServer, hdfs_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: the writer was suspended for days, and its hidden file was removed as an orphan file."""
    storage = open_storage(hdfs_url, hdfs.options)
    rename = HdfsStorage._rename

    def late(self: HdfsStorage, hidden: str, *more: Any) -> bool:
        self._remove(hidden)
        return rename(self, hidden, *more)

    monkeypatch.setattr(HdfsStorage, "_rename", late)
    for write in (lambda: storage.put_if_absent("a", b"x"), lambda: _write(storage)):
        assert "deleted before it was renamed" in failure(write, StorageError)
    monkeypatch.undo()
    assert storage.put_if_absent("a", b"y")
    monkeypatch.setattr(HdfsStorage, "_rename", late)
    # another writer's, with the same bytes
    failure(lambda: storage.put_if_absent("a", b"y"), StorageError)
    assert storage.read("a") == b"y"


def test_a_lost_response_of_a_datanode(
    hdfs: HdfsServer, hdfs_url: str, datanode: FlakyProxy, subtests: pytest.Subtests
) -> None:
    """The file is recognized, or written again under another name; nothing is appended twice."""
    through = {"data_proxy": {hdfs.datanode: datanode.endpoint}}
    for name, number in product(("put_if_absent", "write in parts", "read"), range(3)):
        with subtests.test(name, number=number):
            call, expected = CALLS[name]
            url = f"{hdfs_url}/{name.replace(' ', '-')}-{number}"
            open_storage(url, hdfs.options).put_if_absent("a", b"x" * 1000)
            flaky = open_storage(url, hdfs.options | through)
            _fail_once(datanode, Fault.LOST, "op=", after=number)
            assert call(flaky) == expected


def test_a_part_that_may_still_arrive_is_not_appended_again(
    hdfs: HdfsServer, hdfs_url: str, datanode: FlakyProxy
) -> None:
    storage = open_storage(hdfs_url, hdfs.options)
    through = {"data_proxy": {hdfs.datanode: datanode.endpoint}}
    flaky = open_storage(hdfs_url, hdfs.options | through)
    _fail_once(datanode, Fault.BUSY, "op=APPEND")
    message = failure(lambda: _write(flaky), StorageError)
    assert len([path for _, path in datanode.seen if "op=APPEND" in path]) == 1
    assert f"cannot write {hdfs_url}/b" in message
    assert storage.list("") == ()


def test_a_user_without_permission_is_named(hdfs: HdfsServer, hdfs_url: str) -> None:
    """The error has the user, the URL and the option."""
    open_storage(hdfs_url, hdfs.options).put_if_absent("a", b"x")
    other = open_storage(hdfs_url, hdfs.options | {"user": "somebody"})
    message = failure(lambda: other.put_if_absent("b", b"x"), StorageError)
    assert hdfs_url in message
    assert "somebody" in message
    assert "HDFS does not permit it" in message
    assert other.read("a") == b"x"


def _set_quota(hdfs: HdfsServer, url: str, names: int) -> None:
    folder = f"{hdfs.endpoint}/webhdfs/v1/{url.partition('//')[2].partition('/')[2]}"
    asked = {"op": "SETQUOTA", "namespacequota": str(names), "user.name": getpass.getuser()}
    requests.put(folder, params=asked, timeout=10).raise_for_status()


def test_an_exceeded_quota_is_named(hdfs: HdfsServer, hdfs_url: str) -> None:
    storage = open_storage(hdfs_url, hdfs.options)
    storage.put_if_absent("a", b"x")
    _set_quota(hdfs, hdfs_url, 2)
    for write in (lambda: storage.put_if_absent("b", b"x"), lambda: _write(storage)):
        message = failure(write, StorageError)
        assert "a quota of this folder is exhausted; raise it" in message
        assert "tried" not in message
    assert storage.list("") == ("a",)


def test_garbage_is_collected_although_a_quota_leaves_no_room_for_its_record(
    hdfs: HdfsServer, hdfs_url: str
) -> None:
    store = StateStore.open(open_storage(hdfs_url, hdfs.options), table_format="parquet")
    for _ in range(2):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "n", [{"k": "a"}], key="k", max_parallelism=1)
    store.maintenance.expire(retain=1)
    _set_quota(hdfs, hdfs_url, 1)
    assert store.maintenance.gc(minimum_age="0").removed.files == 1
    _set_quota(hdfs, hdfs_url, 1000)
    assert [one.command for one in read_deletions(store.parts.catalog().storage)] == ["expire"]


REFUSALS = [
    ("SafeModeException", "Name node is in safe mode.", "is in safe mode and accepts no"),
    ("StandbyException", "Operation category WRITE is not supported", "not the active one"),
    ("InvalidToken", "token is expired", "check the storage options token and kerberos"),
]


def test_a_refusal_of_the_namenode_is_named(
    flaky: Storage, namenode: FlakyProxy, subtests: pytest.Subtests
) -> None:
    """The proxy sends the errors that Hadoop documents."""
    headers = {"Content-Type": "application/json"}
    for name, said, advice in REFUSALS:
        with subtests.test(name):
            error = {"exception": name, "javaClassName": name, "message": said}
            body = json.dumps({"RemoteException": error}).encode()
            namenode.refuse(403, headers, body, ("PUT",))
            message = failure(partial(flaky.put_if_absent, "a", b"x"), StorageError)
            assert said.rstrip(".") in message
            assert advice in message


def test_a_file_whose_replicas_are_late_is_written_again(
    hdfs: HdfsServer, hdfs_url: str, datanode: FlakyProxy
) -> None:
    """Each attempt has a hidden file of its own, so that no part is written twice."""
    said = "Unable to close file because the last block b does not have enough number of replicas."
    error = {"exception": "IOException", "javaClassName": "java.io.IOException", "message": said}
    body = json.dumps({"RemoteException": error}).encode()
    datanode.refuse(403, {"Content-Type": "application/json"}, body, ("PUT",))
    through = {"data_proxy": {hdfs.datanode: datanode.endpoint}}
    flaky = open_storage(hdfs_url, hdfs.options | through)
    message = failure(partial(flaky.put_if_absent, "a", b"x"), StorageError)
    created = [path.partition("?")[0] for _, path in datanode.seen if "op=CREATE" in path]
    assert len(set(created)) == ATTEMPTS
    assert said.rstrip(".") in message
    assert f"(tried {ATTEMPTS} times in " in message
    assert message.endswith("the server is overloaded; try again later")


@pytest.mark.long
def test_a_command_uses_environment_variables(hdfs: HdfsServer, hdfs_url: str) -> None:
    """Its argument is a URL without storage options."""
    store = StateStore.open(hdfs_url, table_format="parquet", storage_options=hdfs.options)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", pa.table({"k": [1, 2, 3]}), key="k")
    variables = {f"FSSPEC_WEBHDFS_{name.upper()}": str(v) for name, v in hdfs.options.items()}
    done = subprocess.run(
        [sys.executable, "-m", "statestore", "list", "--store", hdfs_url, "--output", "json"],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (listed,) = json.loads(done.stdout)["checkpoints"]
    assert listed["rows"] == 3
