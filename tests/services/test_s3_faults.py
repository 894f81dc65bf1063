"""A network that fails in passing is waited for; one that fails for good is named, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from statestore import StateStore
from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage import S3Storage
from statestore.storage.requests import ATTEMPTS
from statestore.storage.s3 import attempts_of, patient
from tests.servers.flaky_proxy import Fault, FlakyProxy, Headers, flaky_proxy
from tests.servers.s3 import S3Server
from tests.services.secrecy import failure

MIB = 2**20
PAYLOAD = bytes(range(256)) * 4096

CALLS: dict[str, tuple[Callable[[S3Storage], Any], Any]] = {
    "read": (lambda storage: storage.read("a"), PAYLOAD),
    "read by ranges": (lambda storage: storage.open_read("a").read(), PAYLOAD),
    "size": (lambda storage: storage.size("a"), len(PAYLOAD)),
    "list": (lambda storage: storage.list(""), ("a",)),
    "is_empty": (lambda storage: storage.is_empty(), False),
    "put_if_absent": (lambda storage: storage.put_if_absent("b", b"x"), True),
    "write": (lambda storage: _write(storage, b"x"), ("a", "b")),
    "write in parts": (lambda storage: _write(storage, bytes(9 * MIB)), ("a", "b")),
    "delete": (lambda storage: storage.delete("a"), None),
}
# Faults in the answer's body; the others have a short one, or none.
WITH_A_BODY = ("read", "read by ranges", "list")


def _write(storage: S3Storage, data: bytes) -> tuple[str, ...]:
    with storage.open_write("b") as file:
        file.write(data)
    assert storage.size("b") == len(data)
    return storage.list("")


@pytest.fixture(scope="module")
def proxy(s3: S3Server) -> Iterator[FlakyProxy]:
    with flaky_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def options(s3: S3Server, proxy: FlakyProxy) -> dict[str, Any]:
    """Through the proxy; half a second of silence is enough here."""
    config = s3.options["config_kwargs"] | {"read_timeout": 0.5}
    return s3.options | {"endpoint_url": proxy.endpoint, "config_kwargs": config}


@pytest.fixture
def flaky(options: dict[str, Any], storage: S3Storage, url: str) -> S3Storage:
    """The storage through the proxy, with the file ``a``."""
    storage.put_if_absent("a", PAYLOAD)
    return S3Storage(url, options)


@pytest.mark.parametrize("name", CALLS)
def test_a_busy_server_is_asked_again(flaky: S3Storage, proxy: FlakyProxy, name: str) -> None:
    call, expected = CALLS[name]
    times = 3 if name == "put_if_absent" else 1
    proxy.fail(Fault.BUSY, times=times)
    assert call(flaky) == expected
    assert len(set(proxy.seen[: times + 1])) == 1, "one request, sent again"


@pytest.mark.parametrize("name", CALLS)
def test_a_lost_answer_is_asked_for_again(flaky: S3Storage, proxy: FlakyProxy, name: str) -> None:
    """I4: also when the server had done it; a put then recognises its own object."""
    call, expected = CALLS[name]
    proxy.fail(Fault.LOST, times=1)
    assert call(flaky) == expected
    assert len(set(proxy.seen[:2])) == 1


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CUT, Fault.STILL, Fault.SILENT])
@pytest.mark.parametrize("name", WITH_A_BODY)
def test_a_broken_answer_is_asked_for_again(
    flaky: S3Storage, proxy: FlakyProxy, name: str, fault: Fault
) -> None:
    call, expected = CALLS[name]
    proxy.fail(fault, times=1, methods=("GET",))
    assert call(flaky) == expected


def test_only_the_last_answer_of_a_large_file_is_lost(flaky: S3Storage, proxy: FlakyProxy) -> None:
    """What is complete is no upload any more: asking again to complete it says it is not there."""
    file = flaky.open_write("big")
    file.write(bytes(9 * MIB))
    proxy.fail(Fault.LOST, times=2, methods=("POST",))
    file.close()
    assert flaky.size("big") == 9 * MIB
    assert flaky.read("big") == bytes(9 * MIB)


def test_another_writers_object_is_not_taken_for_ones_own(
    flaky: S3Storage, proxy: FlakyProxy
) -> None:
    """I4: the answer is lost, and the object is another's."""
    proxy.fail(Fault.LOST, times=1)
    assert not flaky.put_if_absent("a", PAYLOAD)


@pytest.mark.parametrize("name", ["read", "put_if_absent", "write in parts"])
def test_a_server_that_stays_busy_is_named(
    flaky: S3Storage, s3: S3Server, url: str, proxy: FlakyProxy, name: str
) -> None:
    proxy.fail(Fault.BUSY)
    start = time.monotonic()
    message = failure(lambda: CALLS[name][0](flaky), StorageError, s3.secret_key)
    assert time.monotonic() - start < 20
    assert url in message
    assert f"(tried {ATTEMPTS} times in " in message
    assert message.endswith("the server has too much to do; try again later")


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (Fault.SILENT, "read"),
        (Fault.STILL, "read by ranges"),
        (Fault.CUT, "read"),
        (Fault.RESET, "read by ranges"),
        (Fault.LOST, "list"),
    ],
)
def test_a_connection_that_stays_broken_is_named(
    flaky: S3Storage, s3: S3Server, url: str, proxy: FlakyProxy, fault: Fault, name: str
) -> None:
    """Tried so often, and no more: two layers that try again would multiply."""
    proxy.fail(fault, methods=("GET", "PUT"))
    start = time.monotonic()
    message = failure(lambda: CALLS[name][0](flaky), StorageError, s3.secret_key)
    assert time.monotonic() - start < ATTEMPTS + 8
    # A connection that was kept open and gives no answer: aiohttp itself opens another, once.
    most = 2 * ATTEMPTS if fault is Fault.LOST else ATTEMPTS
    assert ATTEMPTS <= len([method for method, _ in proxy.seen if method != "HEAD"]) <= most
    assert url in message
    assert f"(tried up to {ATTEMPTS} times in " in message
    assert "check that the server runs" in message


def test_a_snapshot_survives(url: str, options: dict[str, Any], proxy: FlakyProxy) -> None:
    """I7: the first request of each step of a snapshot and a restore fails."""
    store = StateStore.open(url, table_format="parquet", storage_options=options)
    rows = pa.table({"user": [f"user-{n}" for n in range(20)], "total": list(range(20))})
    for fault in (Fault.BUSY, Fault.LOST):
        proxy.fail(fault, times=1)
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.keyed("totals", "total", rows, key="user", max_parallelism=2)
            proxy.fail(fault, times=1)
        proxy.fail(fault, times=1)
        found = store.restore(parallelism=1).keyed("totals", "total").to_arrow(0).read_all()
        assert sorted(found["total"].to_pylist()) == list(range(20))
    assert store.checkpoints() == (1, 2)


def test_each_setting_can_be_replaced() -> None:
    given = patient({"key": "k", "config_kwargs": {"read_timeout": 60}})
    assert given["config_kwargs"]["read_timeout"] == 60
    assert (given["key"], attempts_of(given)) == ("k", ATTEMPTS)
    assert attempts_of(patient({"config_kwargs": {"retries": {"max_attempts": 9}}})) == 10
    assert attempts_of(patient({"config_kwargs": {"retries": {"total_max_attempts": 9}}})) == 9
    with pytest.raises(InvalidArgumentError, match="config_kwargs is a table"):
        patient({"config_kwargs": 7})


def test_a_server_without_conditional_put_is_refused(s3: S3Server, url: str) -> None:
    """I4: a real server behind a proxy that drops the condition, as servers do that know none."""
    signer = S3SigV4Auth(Credentials(s3.access_key, s3.secret_key), "s3", s3.region)

    def unconditional(method: str, path: str, headers: Headers, body: bytes) -> Headers:
        """Drop the condition, and sign what is left."""
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
    assert f"{url} cannot hold a store: its server does not hold to a conditional put" in message
    assert len(puts) == 2
    assert all("/.probe-" in urlsplit(path).path for path in puts)
    assert [name for page in S3Storage(url, s3.options)._pages("") for name in page] == []
