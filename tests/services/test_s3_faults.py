"""Tests specific to S3 when a network fails: its uploads, its settings, its conditions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from statestore import StateStore
from statestore.delta.backend import shown_files
from statestore.delta.log_cleanup import INTERVAL
from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage.requests import ATTEMPTS
from statestore.storage.s3 import S3Storage, attempts_of, with_retries
from tests.servers.flaky_proxy import Fault, FlakyProxy, Headers, flaky_proxy
from tests.servers.s3 import S3Server
from tests.services.secrecy import failure

pytestmark = [pytest.mark.services, pytest.mark.slow]

MIB = 2**20
PAYLOAD = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FlakyProxy]:
    with flaky_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def options(s3: S3Server, proxy: FlakyProxy) -> dict[str, Any]:
    """The storage options for the proxy; half a second of silence is enough here."""
    config = s3.options["config_kwargs"] | {"read_timeout": 0.5}
    return s3.options | {"endpoint_url": proxy.endpoint, "config_kwargs": config}


@pytest.fixture
def flaky(options: dict[str, Any], storage: S3Storage, url: str) -> S3Storage:
    """The storage through the proxy, with the file ``a``."""
    storage.put_if_absent("a", PAYLOAD)
    return S3Storage(url, options)


def test_only_the_last_response_of_a_large_file_is_lost(
    flaky: S3Storage, proxy: FlakyProxy
) -> None:
    """A completed upload no longer exists, so a retried completion gets a not-found response."""
    file = flaky.open_write("big")
    file.write(bytes(9 * MIB))
    proxy.fail(Fault.LOST, times=2, methods=("POST",))
    file.close()
    assert flaky.size("big") == 9 * MIB
    assert flaky.read("big") == bytes(9 * MIB)


def take(store: StateStore, number: int) -> None:
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_broadcast("u", "s", [{"n": number}])


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "snapshots"),
    [
        (Fault.RESET, 2),
        (Fault.RESET, 12),
        (Fault.CUT, 12),
    ],
)
def test_a_delta_table_is_read_although_an_answer_breaks_off(
    fault: Fault,
    snapshots: int,
    options: dict[str, Any],
    url: str,
    proxy: FlakyProxy,
    short_waits: None,
) -> None:
    """delta-rs reports such an answer as an error: each request of a read may be the one."""
    store = StateStore.open(url, storage_options=options)
    proxy.calm()
    for number in range(snapshots):
        take(store, number)
    (entry,) = store.checkpoint().manifest.operator
    storage, folder = store.parts.storage, entry.table.path
    proxy.calm()
    files = shown_files(storage, folder)
    assert files
    requests = len(proxy.seen)
    has_checkpoint = any("checkpoint.parquet" in path for _, path in proxy.seen)
    assert has_checkpoint is (snapshots > INTERVAL)
    for request in range(requests):
        proxy.fail(fault, times=1, after=request)
        assert shown_files(storage, folder) == files
        assert len(proxy.seen) > requests


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "step"),
    [
        (Fault.CUT, 6),
        pytest.param(Fault.CUT, 1),
        pytest.param(Fault.RESET, 1),
    ],
)
def test_a_snapshot_publishes_a_table_although_an_answer_breaks_off(
    fault: Fault,
    step: int,
    options: dict[str, Any],
    url: str,
    proxy: FlakyProxy,
    short_waits: None,
) -> None:
    store = StateStore.open(url, storage_options=options)
    proxy.calm()
    take(store, 0)
    proxy.calm()
    take(store, 1)
    of_the_log = [n for n, (_, path) in enumerate(proxy.seen) if "_delta_log" in path]
    assert len(of_the_log) > 5
    chosen = of_the_log[::step]
    for number, request in enumerate(chosen, start=2):
        proxy.fail(fault, times=1, after=request)
        take(store, number)
    proxy.calm()
    newest = store.restore(parallelism=1).operator_state("u", "s").per_old_subtask()
    assert newest == [[{"n": len(chosen) + 1}]]
    (entry,) = store.checkpoint().manifest.operator
    assert entry.table.version == len(chosen) + 1  # no entry is in the log twice


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("ConditionalRequestConflict", "another put of the same object is in progress"),
        ("ExistingObjectIsDirectory", "ExistingObjectIsDirectory"),
    ],
)
def test_a_put_that_another_request_disturbs_is_sent_again(
    flaky: S3Storage, proxy: FlakyProxy, code: str, advice: str, short_waits: None
) -> None:
    """Amazon's S3 sends the first code while it cannot decide which put was first. Another server
    sends the second one while it deletes an empty folder.
    """
    body = f"<Error><Code>{code}</Code><Message>Try again.</Message></Error>".encode()
    headers = {"Content-Type": "application/xml"}
    proxy.refuse(409, headers, body, ("PUT",), times=4)
    assert flaky.put_if_absent("new", b"x")
    proxy.refuse(409, headers, body, ("PUT",))
    with pytest.raises(StorageError, match=f"cannot write {flaky.url}/other: .*{advice}"):
        flaky.put_if_absent("other", b"x")
    assert len(proxy.seen) == 5
    proxy.refuse(409, headers, body, ("PUT",), times=1)
    with flaky.open_write("file") as file:
        file.write(b"y")
    assert flaky.read("file") == b"y"


def test_each_setting_can_be_overridden() -> None:
    given = with_retries({"key": "k", "config_kwargs": {"read_timeout": 60}})
    assert given["config_kwargs"]["read_timeout"] == 60
    assert (given["key"], attempts_of(given)) == ("k", ATTEMPTS)
    assert attempts_of(with_retries({"config_kwargs": {"retries": {"max_attempts": 9}}})) == 10
    assert attempts_of(with_retries({"config_kwargs": {"retries": {"total_max_attempts": 9}}})) == 9
    with pytest.raises(InvalidArgumentError, match="config_kwargs must be a table"):
        with_retries({"config_kwargs": 7})


def test_a_server_without_conditional_put_is_refused(s3: S3Server, url: str) -> None:
    """I4: a real server looks like one without conditions if a proxy drops the condition."""
    signer = S3SigV4Auth(Credentials(s3.access_key, s3.secret_key), "s3", s3.region)

    def unconditional(method: str, path: str, headers: Headers, body: bytes) -> Headers:
        """Drop the condition and sign the remaining headers."""
        kept = {name: value for name, value in headers if name.lower() != "if-none-match"}
        if len(kept) == len(headers):
            return headers
        del kept["Authorization"]
        request = AWSRequest(method, f"http://{kept['Host']}{path}", kept, body)
        signer.add_auth(request)
        return list(request.headers.items())

    with flaky_proxy(s3.endpoint, unconditional) as proxy:
        broken = s3.options | {"endpoint_url": proxy.endpoint}
        store = StateStore.open(url, table_format="parquet", storage_options=broken)
        message = failure(lambda: store.snapshot(parallelism=1), StorageError, s3.secret_key)
        puts = [path for method, path in proxy.seen if method == "PUT"]
    assert f"{url} cannot hold a store: its server ignores conditional puts" in message
    assert len(puts) == 2
    assert all("/.probe-" in urlsplit(path).path for path in puts)
    assert S3Storage(url, s3.options).listed("") == ()
