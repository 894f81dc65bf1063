"""Run a server of Spark Connect on this machine for tests and the bench, from this pyspark."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from statestore.spark.session import default_settings, java_home
from tests.servers.jars import spark_home
from tests.servers.process import free_ports, log_tail, running, wait_for
from tests.syntax import ROOT

__all__ = ["client_environment", "connect_server"]

START_SECONDS = 180
LOG = "spark-connect.log"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.daemon.module": "statestore.spark.daemon",
    "spark.ui.enabled": "false",
}


@contextmanager
def connect_server(
    directory: Path, settings: Mapping[str, str] | None = None, *, memory: str = "1g"
) -> Iterator[str]:
    """Run a server on two cores until the block ends; return its URL.

    Its executors find this checkout, as if the package were installed there. Raises StorageError
    with the end of its log if it does not start.
    """
    (port,) = free_ports(1)
    conf = default_settings("parquet") | SETTINGS | dict(settings or {})
    conf["spark.connect.grpc.binding.port"] = str(port)
    command = [
        *(str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"),
        *("--driver-memory", memory, "--class", SERVER),
        *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]
    environment = client_environment("") | {
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with running(command, directory=directory, log=LOG, environment=environment) as process:
        address = ("127.0.0.1", port)
        if not wait_for(
            process,
            lambda: socket.create_connection(address, timeout=1).close(),
            seconds=START_SECONDS,
        ):
            raise log_tail(directory / LOG, "Spark Connect")
        yield f"sc://127.0.0.1:{port}"


def client_environment(url: str) -> dict[str, str]:
    """Return the variables of a process whose sessions are those of a server; none without one."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_REMOTE")}
    own["PYTHONPATH"] = str(ROOT)
    return own | ({"SPARK_REMOTE": url} if url else {})
