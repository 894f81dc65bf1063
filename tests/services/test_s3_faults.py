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
from statestore.errors import InvalidArgumentError, StorageError
from statestore.storage import S3Storage
from statestore.storage.requests import ATTEMPTS
from statestore.storage.s3 import attempts_of, with_retries
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
    assert [name for page in S3Storage(url, s3.options)._pages("") for name in page] == []
