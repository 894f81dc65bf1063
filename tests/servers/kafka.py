"""Run a real Kafka broker on this machine for tests: one KRaft node, from Kafka's published jars.

::

    with kafka_broker(directory) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})

The broker listens only on the loopback address, keeps all files in its directory, and does not
create topics by itself. It is killed when the block ends, and also if this process dies. In the
directory of an earlier broker, that broker is started again, with its topics and its port.
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
    """A running broker: its address."""

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
        # Most likely another process took one of its ports just before.
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
        # By default a broker that is killed and started again waits 9 s for its own session to end.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # Tests then see a raised log start offset within a second instead of five minutes.
        "log.retention.check.interval.ms": 500,
        "log.segment.delete.delay.ms": 500,
        "log.cleaner.backoff.ms": 200,  # likewise for compaction
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _classpath() -> str:
    """Return the broker's jars, with Spark's version of Scala's library."""
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
