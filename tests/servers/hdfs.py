"""Run a real HDFS on this machine for tests: a namenode and a datanode in one JVM.

They come from Hadoop's own package ``hadoop-client-minicluster``.

::

    with hdfs_server(directory) as server:
        store = StateStore.open(server.url("my-store"), storage_options=server.options)

``python -m tests.servers.hdfs`` fetches the jars. The cluster listens only on the loopback address,
on free ports, and keeps all files in its directory. It is killed when the block ends, and also if
this process dies.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from statestore.spark.session import java_home
from tests.servers.jars import JarSet, fetched, jars_of
from tests.servers.process import SHORT_LIVED_JVM, free_ports, log_tail, running, wait_for

__all__ = ["HADOOP_VERSION", "HdfsServer", "hdfs_server"]

HADOOP_VERSION = "3.5.0"  # the version of Spark's own client
# The cluster is part of Hadoop's tests and needs the libraries of those tests.
_JARS = JarSet(
    f"hdfs-{HADOOP_VERSION}",
    (
        f"org.apache.hadoop:hadoop-client-minicluster:{HADOOP_VERSION}",
        "org.junit.jupiter:junit-jupiter-api:5.10.2",
        "org.mockito:mockito-core:4.11.0",
    ),
)
LOG = "hdfs.log"
START_SECONDS = 120
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class HdfsServer:
    """A running cluster: its addresses for WebHDFS and for Hadoop's own clients."""

    endpoint: str
    namenode: str
    datanode: str
    bucket: str = "tests"
    secret_key: str = field(default="nothing is asked for", repr=False)

    @property
    def options(self) -> dict[str, Any]:
        """The ``storage_options`` of a store, as WebHDFS needs them."""
        return self.through(self.endpoint)

    def through(self, endpoint: str) -> dict[str, Any]:
        """Return the options for the same namenode at another address."""
        return {"port": urlsplit(endpoint).port}

    def url(self, prefix: str) -> str:
        """Return the URL of a folder."""
        return f"hdfs://{self.namenode}/{self.bucket}/{prefix}"

    def make_bucket(self, name: str) -> None:
        """Do nothing: a folder is created with its first file."""


@contextmanager
def hdfs_server(directory: Path) -> Iterator[HdfsServer]:
    """Run a cluster until the block ends; its superuser is the user of this process.

    Raises MissingDependencyError without the jars, or StorageError with the end of its log.
    """
    jars = ":".join(str(jar) for jar in jars_of(_JARS))
    directory.mkdir(parents=True, exist_ok=True)
    rpc, web = free_ports(2)
    endpoint, datanodes = f"http://127.0.0.1:{web}", []
    settings = {
        "hadoop.tmp.dir": directory / "tmp",
        "hdfs.minidfs.basedir": directory / "dfs",
        # The datanode's own writes wait this long until the namenode confirms the last block. Its
        # web server has few threads, and each write occupies one.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 5,
    }
    command = [str(java_home() / "bin" / "java"), "-Xmx512m", *SHORT_LIVED_JVM]
    command += ["-Dio.netty.eventLoopThreads=32", "-cp", jars]
    command += ["org.apache.hadoop.mapreduce.MiniHadoopClusterManager", "-nomr", "-format"]
    command += ["-nnport", str(rpc), "-nnhttpport", str(web), "-datanodes", "1"]
    for name, value in settings.items():
        command += ["-D", f"{name}={value}"]

    def ask() -> None:
        # A first write proves that a datanode accepts files.
        url = f"{endpoint}/webhdfs/v1/first?op=CREATE&user.name=root&overwrite=true"
        request = urllib.request.Request(f"{url}&noredirect=true", method="PUT")
        with _HTTP.open(request, timeout=10) as answer:
            datanodes.append(urlsplit(json.load(answer)["Location"]).netloc)

    with running(command, directory=directory, log=LOG) as process:
        if not wait_for(process, ask, seconds=START_SECONDS):
            raise log_tail(directory / LOG, "HDFS")
        yield HdfsServer(endpoint, f"127.0.0.1:{rpc}", f"http://{datanodes[-1]}")


if __name__ == "__main__":
    raise SystemExit(fetched(_JARS))
