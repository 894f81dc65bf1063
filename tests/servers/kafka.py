"""A real Kafka broker on this machine, for tests: one KRaft node, from Kafka's published jars.

::

    with kafka_broker(directory) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})

It listens on the loopback address alone, keeps everything below its directory, and makes no topic
by itself. It is killed when the block ends, and also when this process ends in any other way. In a
directory where one ran before, that one is started again: with its topics, at its port.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from statestore.errors import MissingDependencyError
from statestore.spark.session import java_home
from tests.servers.jars import BROKER, jars_of, spark_home
from tests.servers.process import SHORT_LIVED_JVM, free_ports, log_tail, running, wait_for

__all__ = ["KafkaBroker", "kafka_broker"]

START_SECONDS = 60
STARTS = 3
LOG, PROPERTIES, PORTS = "broker.log", "server.properties", "ports.json"
CLUSTER_ID = "c3RhdGVzdG9yZS10ZXN0cw"
_JVM = ("-Xmx512m", *SHORT_LIVED_JVM)


@dataclass(frozen=True)
class KafkaBroker:
    """A broker that runs: where it listens."""

    bootstrap: str


@contextmanager
def kafka_broker(directory: Path) -> Iterator[KafkaBroker]:
    """Run a broker until the block ends: a new one without topics, or the one of this directory.

    Raises MissingDependencyError without Java or its jars, or StorageError with the end of its log.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ran = (directory / PORTS).exists()
    for _ in range(STARTS):
        if not ran:
            (directory / PORTS).write_text(json.dumps(free_ports(2)))
        port, controller = json.loads((directory / PORTS).read_text())
        (directory / PROPERTIES).write_text(_properties(directory, port, controller))
        java = [str(java_home() / "bin" / "java"), *_JVM, "-cp", _classpath()]
        _format(java, directory)
        command = [*java, "kafka.Kafka", PROPERTIES]
        with running(command, directory=directory, log=LOG) as process:
            if wait_for(process, lambda: _connect(port), seconds=START_SECONDS):  # noqa: B023
                yield KafkaBroker(f"127.0.0.1:{port}")
                return
        # Most likely somebody else took one of its ports just before it did.
    raise log_tail(directory / LOG, "the Kafka broker")


def _properties(directory: Path, port: int, controller: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": directory / "data",
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        # One that is killed and started again waits until the one before is given up: 9 s.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # So that tests see a log begin later within a second, and not within five minutes.
        "log.retention.check.interval.ms": 500,
        "log.segment.delete.delay.ms": 500,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _classpath() -> str:
    """Return the broker's jars, and of Scala's library the one that Spark brings."""
    scala = sorted((spark_home() / "jars").glob("scala-library-*.jar"))
    if not scala:
        raise MissingDependencyError("this pyspark has no jars: install pyspark from its wheel")
    return ":".join(map(str, (*jars_of(BROKER), scala[0])))


def _format(java: list[str], directory: Path) -> None:
    command = ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
    arguments = ["--cluster-id", CLUSTER_ID, "--config", PROPERTIES]
    subprocess.run([*java, *command, *arguments], cwd=directory, check=True, capture_output=True)


def _connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=1).close()
