"""Failures of a bucket are StorageErrors that name the URL and a remedy, but no secret."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from statestore import StateStore
from statestore.errors import InvalidArgumentError, StorageError, StoreNotFoundError
from statestore.storage import S3Storage
from tests.servers.process import free_ports
from tests.servers.s3 import S3Server
from tests.services.secrecy import failure, shown

pytestmark = [pytest.mark.services, pytest.mark.slow]

Options = dict[str, Any]

# one attempt instead of ten over many seconds
IMPATIENT = {"retries": {"total_max_attempts": 1}, "proxies": {}}

CALLS: dict[str, Callable[[S3Storage], Any]] = {
    "read": lambda storage: storage.read("a"),
    "size": lambda storage: storage.size("a"),
    "open_read": lambda storage: storage.open_read("a"),
    "put_if_absent": lambda storage: storage.put_if_absent("a", b"x"),
    "open_write": lambda storage: storage.open_write("a").close(),
    "list": lambda storage: storage.list(""),
    "is_empty": lambda storage: storage.is_empty(),
    "delete": lambda storage: storage.delete("a"),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Callable[[S3Storage], Any]:
    return CALLS[request.param]


def test_a_missing_bucket(s3: S3Server, call: Callable[[S3Storage], Any]) -> None:
    storage = S3Storage("s3://no-such-bucket/store", s3.options)
    message = failure(lambda: call(storage), StorageError, s3.secret_key)
    assert "s3://no-such-bucket/store" in message
    assert "the bucket does not exist; create it, or check the URL" in message


WRONG: dict[str, tuple[Options, str]] = {
    "secret": ({"secret": "tops3cret-wrong"}, "rejects these credentials"),
    "key": ({"key": "somebody", "secret": "tops3cret-wrong"}, "rejects these credentials"),
    "anonymous": ({"anon": True}, "rejects these credentials"),
    "half": ({"secret": None}, "storage options key and secret"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_credentials(
    s3: S3Server, url: str, call: Callable[[S3Storage], Any], wrong: str
) -> None:
    options, advice = WRONG[wrong]
    storage = S3Storage(url, s3.options | options)
    message = failure(lambda: call(storage), StorageError, s3.secret_key, "tops3cret-wrong")
    assert url in message
    assert advice in message


def test_no_credentials_at_all(
    s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    options = {name: value for name, value in s3.options.items() if name not in ("key", "secret")}
    message = failure(lambda: S3Storage(url, options).read("a"), StorageError)
    assert "set the variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in message


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"client_kwargs": {"nonsense": 1}}, "nonsense.*check the storage options"),
        ({"nonsense": 1}, "nonsense.*check the storage options"),
        ({"config_kwargs": {"nonsense": 1}}, "nonsense.*check the storage options"),
        ({"endpoint_url": "127.0.0.1:80"}, "Invalid endpoint.*check the storage options"),
    ],
)
def test_invalid_options(s3: S3Server, url: str, wrong: Options, advice: str) -> None:
    storage = S3Storage(url, s3.options | wrong)
    with pytest.raises(StorageError, match=f"cannot read {url}/a: .*{advice}") as caught:
        storage.read("a")
    assert s3.secret_key not in shown(caught.value)


def test_an_invalid_bucket_name(s3: S3Server) -> None:
    message = failure(S3Storage("s3://No Bucket!/x", s3.options).is_empty, StorageError)
    assert "\n" not in message
    assert 'Invalid bucket name "No Bucket!"' in message


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://key:tops3cret@bucket/store", {}),
        ("s3://bucket/store", {"endpoint_url": "http://key:tops3cret@127.0.0.1"}),
        ("s3://b/x", {"client_kwargs": {"endpoint_url": "http://key:tops3cret@127.0.0.1"}}),
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str, options: Options) -> None:
    message = failure(
        lambda: StateStore.open(url, storage_options=options), InvalidArgumentError, "tops3cret"
    )
    assert "credentials must not be in a URL" in message


def test_a_bucket_without_a_store(s3: S3Server, url: str) -> None:
    S3Storage(url, s3.options).put_if_absent("something/else", b"x")
    store = StateStore.open(url, storage_options=s3.options)
    message = failure(store.checkpoints, StoreNotFoundError, s3.secret_key)
    assert f"no store at {url} (no statestore.json)" in message


def test_a_server_that_does_not_listen(
    s3: S3Server, url: str, call: Callable[[S3Storage], Any]
) -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    options = s3.options | {"endpoint_url": endpoint, "config_kwargs": IMPATIENT}
    message = failure(lambda: call(S3Storage(url, options)), StorageError, s3.secret_key)
    assert url in message
    assert endpoint in message
    assert "check that the server is running, and check the storage option endpoint_url" in message


SERVES = """
import json, pathlib, sys, time
from tests.servers.s3 import s3_server
with s3_server(pathlib.Path(sys.argv[1])) as server:
    print(json.dumps(server.options), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[tuple[Options, subprocess.Popen[str]]]:
    """A server of another process, which the test can kill."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVES, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline()), process
        process.kill()


def test_the_server_stops_while_it_is_used(
    mortal: tuple[Options, subprocess.Popen[str]], tmp_path: Path
) -> None:
    """The server dies with its parent, even if that is killed; then every call fails."""
    options, process = mortal
    storage = S3Storage("s3://statestore-tests/x", options | {"config_kwargs": IMPATIENT})
    with storage.open_write("big") as file:
        file.write(bytes(20 * 2**20))
    half_read, half_written = storage.open_read("big"), storage.open_write("other")
    half_read.read(10)
    half_written.write(bytes(9 * 2**20))
    process.send_signal(signal.SIGKILL)
    _wait_until_closed(options["endpoint_url"])
    used: dict[str, Callable[[], Any]] = {
        "big": lambda: half_read.read(10 * 2**20),
        "other": half_written.close,
        "a": lambda: storage.put_if_absent("a", b"x"),
    }
    for name, use in used.items():
        message = failure(use, StorageError, options["secret"])
        assert f"s3://statestore-tests/x/{name}: " in message
        assert "check that the server is running" in message
    half_written.close()


def _wait_until_closed(endpoint: str) -> None:
    address = urlsplit(endpoint)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address.hostname, address.port or 80), timeout=1).close()
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError("the server outlived its owner")
