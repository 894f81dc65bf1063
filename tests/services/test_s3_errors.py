"""Errors of options and connections that only S3 has; objects/test_errors.py has the others."""

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

from statestore.errors import StorageError
from statestore.storage.s3 import S3Storage
from tests.servers.s3 import S3Server
from tests.services.secrecy import failure, shown

pytestmark = [pytest.mark.services, pytest.mark.slow]

Options = dict[str, Any]

# one attempt instead of ten over many seconds
IMPATIENT = {"retries": {"total_max_attempts": 1}, "proxies": {}}


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


@pytest.mark.long
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
