"""Failures of an object store are StorageErrors: they name the URL and a remedy, but no secret.

Nothing is written in these cases. Some responses of real services cannot be produced on this
machine, such as those about permissions, retention and clocks. A proxy sends them as the service's
documentation describes them.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import google.auth.credentials
import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, StorageError, StoreNotFoundError
from statestore.storage import Storage, open_storage
from tests.servers.azure import AzureServer
from tests.servers.flaky_proxy import flaky_proxy
from tests.servers.gcs import GcsServer
from tests.servers.process import free_ports
from tests.servers.s3 import S3Server
from tests.services.objects.conftest import Server
from tests.services.secrecy import failure

pytestmark = [pytest.mark.services, pytest.mark.slow]

CALLS: dict[str, Callable[[Storage], Any]] = {
    "read": lambda storage: storage.read("a"),
    "size": lambda storage: storage.size("a"),
    "open_read": lambda storage: storage.open_read("a"),
    "put_if_absent": lambda storage: storage.put_if_absent("a", b"x"),
    "open_write": lambda storage: storage.open_write("a").close(),
    "list": lambda storage: storage.list(""),
    "is_empty": lambda storage: storage.is_empty(),
    "delete": lambda storage: storage.delete("a"),
}


# HDFS creates a folder with its first file.
@pytest.mark.parametrize("server", ["s3", "azure", "gcs"], indirect=True)
def test_a_missing_bucket(server: Server, subtests: pytest.Subtests) -> None:
    url = server.url("store").replace(server.bucket, "no-such-bucket")
    storage = open_storage(url, server.options)
    kind = "container" if url.startswith("az") else "bucket"
    for name, call in CALLS.items():
        with subtests.test(name):
            message = failure(partial(call, storage), StorageError, server.secret_key)
            assert url in message
            assert message.endswith(f"the {kind} does not exist; create it, or check the URL")


WRONG_KEY = base64.b64encode(b"another key that is long enough").decode()


def wrong_credentials(server: Server) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield options with wrong credentials, and the advice of their error."""
    rejected = "the server rejects these credentials"
    if isinstance(server, AzureServer):
        advice = f"{rejected}, or they do not permit to "
        yield server.through(server.endpoint, WRONG_KEY), advice
        return
    yield server.options | {"secret": WRONG_KEY}, rejected
    yield server.options | {"key": "somebody", "secret": WRONG_KEY}, rejected
    yield server.options | {"anon": True}, rejected
    yield server.options | {"secret": None}, "storage options key and secret"


# The servers of the other services accept every client.
@pytest.mark.parametrize("server", ["s3", "azure"], indirect=True)
def test_wrong_credentials(server: Server, url: str, subtests: pytest.Subtests) -> None:
    for number, (options, advice) in enumerate(wrong_credentials(server)):
        storage = open_storage(url, options)
        for name, call in CALLS.items():
            with subtests.test(name, number=number):
                secrets = server.secret_key, WRONG_KEY
                message = failure(partial(call, storage), StorageError, *secrets)
                assert url in message
                assert advice in message


@pytest.mark.long_cases("hdfs")
def test_a_url_without_a_store(server: Server, url: str) -> None:
    open_storage(url, server.options).put_if_absent("something/else", b"x")
    store = StateStore.open(url, storage_options=server.options)
    message = failure(store.checkpoints, StoreNotFoundError, server.secret_key)
    assert f"no store at {url} (no statestore.json)" in message


@pytest.mark.usefixtures("short_waits")
def test_a_server_that_does_not_listen(server: Server, url: str, subtests: pytest.Subtests) -> None:
    (port,) = free_ports(1)
    options = server.through(f"http://127.0.0.1:{port}")
    if isinstance(server, S3Server):
        options["config_kwargs"] = {"retries": {"total_max_attempts": 1}, "proxies": {}}
    storage = open_storage(url, options)
    for name, call in CALLS.items():
        with subtests.test(name):
            message = failure(partial(call, storage), StorageError, server.secret_key)
            assert url in message
            assert str(port) in message
            assert "check that the server is running, and check the storage option" in message


DEAD_PROXY = "http://somebody:pr0xy-s3cret@127.0.0.1:9"
ADVICE = (
    "HTTP_PROXY sets the proxy http://…@127.0.0.1:9 for requests to 127.0.0.1: check that the "
    "proxy works, or add 127.0.0.1 to NO_PROXY to connect directly"
)


def snapshot(url: str, options: dict[str, Any], table_format: Any) -> None:
    store = StateStore.open(url, table_format=table_format, storage_options=options)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("totals", "total", pa.table({"user": ["a"], "n": [1]}), key="user")


@pytest.fixture
def dead_proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set a proxy that does not listen; connections from before and after are not used again."""
    monkeypatch.setenv("HTTP_PROXY", DEAD_PROXY)
    for name in ("http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    connections = type(open_storage(server.url("x"), server.options)._fs)  # type: ignore[attr-defined]
    connections.clear_instance_cache()
    yield
    connections.clear_instance_cache()


def through_proxies(server: Server) -> dict[str, Any]:
    """Return the options of the server, whose requests use the proxy of the environment."""
    return {name: value for name, value in server.options.items() if name != "config_kwargs"}


# gcsfs does not use proxies of the environment.
@pytest.mark.parametrize("server", ["s3", "azure", "hdfs"], indirect=True)
@pytest.mark.usefixtures("short_waits", "dead_proxy")
def test_a_dead_proxy_is_named(server: Server, url: str) -> None:
    options = through_proxies(server)
    message = failure(lambda: snapshot(url, options, "parquet"), StorageError, "pr0xy-s3cret")
    assert url in message
    assert message.endswith(ADVICE)


# The options of the S3 server exempt s3fs from proxies, but not delta-rs.
@pytest.mark.long
@pytest.mark.parametrize("server", ["s3", "gcs"], indirect=True)
@pytest.mark.usefixtures("dead_proxy")
def test_a_dead_proxy_of_delta_rs_is_named(server: Server, url: str) -> None:
    message = failure(lambda: snapshot(url, server.options, "delta"), StorageError, "pr0xy-s3cret")
    assert "cannot write the Delta table of state 'total' of operator 'totals'" in message
    assert "Connection refused" in message
    assert ADVICE in message


@pytest.mark.parametrize("server", ["s3", "azure", "gcs"], indirect=True)
@pytest.mark.usefixtures("dead_proxy")
def test_a_server_in_no_proxy_is_reached(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    snapshot(url, through_proxies(server), "delta")


def _xml(code: str, text: str) -> bytes:
    return (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()
    )


def _azure(status: int, code: str, text: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"x-ms-error-code": code, "Content-Type": "application/xml"}, _xml(code, text)


def _google(status: int, reason: str, text: str) -> tuple[int, dict[str, str], bytes]:
    error = {"code": status, "message": text, "errors": [{"reason": reason, "message": text}]}
    return status, {"Content-Type": "application/json"}, json.dumps({"error": error}).encode()


def _s3(status: int, code: str, text: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/xml"}, _xml(code, text)


Answer = tuple[int, dict[str, str], bytes]
REFUSALS: dict[str, list[tuple[Answer, str, str]]] = {
    "s3": [
        (_s3(403, "AccessDenied", "Access Denied"), "PUT", "do not permit s3:PutObject"),
        (_s3(403, "AccessDenied", "Denied"), "DELETE", "s3:DeleteObject (or a lock"),
        (_s3(403, "RequestTimeTooSkewed", "large"), "PUT", "clock of this machine is wrong"),
        (_s3(400, "ExpiredToken", "expired"), "PUT", "the credentials have expired"),
    ],
    "az": [
        (
            _azure(403, "AuthorizationPermissionMismatch", "not authorized"),
            "PUT",
            "do not permit to write blobs (role Storage Blob Data Contributor",
        ),
        (
            _azure(409, "BlobImmutableDueToPolicy", "immutable"),
            "DELETE",
            "an immutability policy or a lease of the container forbids it",
        ),
        (
            _azure(403, "AuthenticationFailed", "Request date header too old"),
            "PUT",
            "the clock of this machine is wrong",
        ),
        (
            _azure(403, "AuthenticationFailed", "Signature not valid in the specified time frame"),
            "PUT",
            "the credentials have expired",
        ),
        (
            _azure(409, "ResourceTypeMismatch", "a directory"),
            "PUT",
            "a folder with this name exists, in an account with a hierarchical namespace",
        ),
    ],
    "gs": [
        (
            _google(403, "forbidden", "x does not have storage.objects.create access"),
            "POST",
            "do not permit storage.objects.create (the role Storage Object User",
        ),
        (
            _google(403, "retentionPolicyNotMet", "subject to bucket's retention policy"),
            "DELETE",
            "a retention policy or a hold of the bucket forbids it",
        ),
        (_google(401, "authError", "Invalid Credentials"), "POST", "rejects these credentials"),
    ],
}
"""For each service: a refusal, the method of the refused request, and the advice of the error."""


@pytest.mark.parametrize("server", ["s3", "azure", "gcs"], indirect=True)
def test_a_services_refusal_is_named_before_a_store_is_created(
    server: Server, url: str, subtests: pytest.Subtests
) -> None:
    """The probe detects it. The place is then empty, except for the hidden probe itself."""
    with flaky_proxy(server.endpoint) as proxy:
        for number, (answer, method, advice) in enumerate(REFUSALS[url.partition(":")[0]]):
            with subtests.test(advice):
                place, options = f"{url}/{number}", server.through(proxy.endpoint)
                store = StateStore.open(place, table_format="parquet", storage_options=options)
                proxy.refuse(*answer, methods=(method,))
                message = failure(
                    partial(store.snapshot, parallelism=1), StorageError, server.secret_key
                )
                assert place in message
                assert advice in message
                assert open_storage(place, server.options).is_empty()


class Renewed(google.auth.credentials.Credentials):
    """Credentials whose token has expired on the server's side, and that can get a new one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token, self.renewals = "first", 0

    def refresh(self, request: object) -> None:
        """Get a new token."""
        self.renewals += 1
        self.token = f"renewed-{self.renewals}"


def test_a_token_that_expires_during_a_snapshot_is_renewed(gcs: GcsServer) -> None:
    credentials = Renewed()
    with flaky_proxy(gcs.endpoint) as proxy:
        options = gcs.through(proxy.endpoint) | {"token": credentials}
        store = StateStore.open(gcs.url("renewed"), table_format="parquet", storage_options=options)
        rows = pa.table({"user": ["a", "b"], "total": [1, 2]})
        with store.snapshot(parallelism=1) as checkpoint:
            proxy.refuse(*_google(401, "authError", "Invalid Credentials"), ("POST",), times=1)
            checkpoint.write_keyed("totals", "total", rows, key="user", max_parallelism=2)
        found = store.restore(parallelism=1).keyed("totals", "total").to_arrow(0)
    assert sorted(found["total"].to_pylist()) == [1, 2]
    assert credentials.renewals == 1


INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("s3://", {}, "requires a bucket"),
    ("s3:///", {}, "requires a bucket"),
    ("az://", {}, "requires a bucket"),
    ("gs:///", {}, "requires a bucket"),
    ("hdfs://", {}, "requires a bucket"),
    ("hdfs://namenode:8020", {}, "requires a namenode and a folder"),
    ("s3://b/x", {"key": "a", "username": "b"}, "invalid storage options: .*not both"),
    ("s3://b/x", {"max_concurrency": 0}, "invalid storage options: max_concurrency"),
    ("az://container/x", {"anon": True}, "invalid storage options: .*account_name"),
    ("s3://key:s3cret@bucket/store", {}, "credentials must not be in a URL"),
    ("s3://b/x", {"endpoint_url": "http://key:s3cret@127.0.0.1"}, "credentials must not be in a"),
    (
        "s3://b/x",
        {"client_kwargs": {"endpoint_url": "http://key:s3cret@127.0.0.1"}},
        "credentials must not be in a URL",
    ),
    ("abfss://user:s3cret@account.dfs.core.windows.net/x", {}, "credentials must not be"),
    ("abfss://c@a.dfs.core.windows.net/x@y:z@", {}, "credentials must not be"),
    ("hdfs://user:s3cret@namenode/a", {}, "credentials must not be"),
]


def test_an_invalid_url_or_option_is_refused(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The error does not repeat the credentials."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    for url, options, expected in INVALID:
        with subtests.test(url, options=options):
            call = partial(StateStore.open, url, storage_options=options)
            assert re.search(expected, failure(call, InvalidArgumentError, "s3cret"))


def test_one_url_names_a_container_and_its_account() -> None:
    url = "abfss://container@account.dfs.core.windows.net"
    storage = open_storage(f"{url}/a/b", {"account_key": base64.b64encode(b"key").decode()})
    assert storage.url == f"{url}/a/b"
    assert storage.spark_url("c/d") == f"{url}/a/b/c/d"
    assert storage.delta_options()["azure_storage_account_name"] == "account"
    plain = {"account_name": "account", "account_key": base64.b64encode(b"key").decode()}
    bare = open_storage("az://container/a/b", plain)
    assert [bare.spark_url(name) for name in ("", "c")] == [f"{url}/a/b", f"{url}/a/b/c"]
    elsewhere = open_storage(f"{url.replace('windows.net', 'chinacloudapi.cn')}/a", plain)
    assert elsewhere.delta_options()["azure_endpoint"] == (
        "https://account.blob.core.chinacloudapi.cn"
    )
