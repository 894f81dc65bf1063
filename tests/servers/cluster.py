"""Run a Spark standalone cluster on this machine for tests: a master and workers, from pyspark.

::

    with spark_cluster(directory, workers=2) as cluster:
        subprocess.run([cluster.submit, "--master", cluster.master, "job.py"], …)

The master and each worker are separate processes on the loopback address. All are killed when the
block ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statestore.spark.session import java_home
from tests.servers.jars import spark_home
from tests.servers.process import free_ports, log_tail, running, wait_for
from tests.servers.quick_spark import quick_spark, spark_jvm

__all__ = ["SparkCluster", "spark_cluster"]

START_SECONDS = 60
STARTS = 3
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_DEPLOY = "org.apache.spark.deploy"


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster: its URL, its spark-submit command, and that command's environment."""

    master: str
    submit: str
    environment: dict[str, str]
    ui: str

    def state(self) -> dict[str, Any]:
        """Return the master's report on workers and applications; OSError if it does not answer."""
        with _HTTP.open(f"{self.ui}/json/", timeout=10) as answer:
            text = answer.read()
        try:
            found: dict[str, Any] = json.loads(text)
        except ValueError as error:  # during the start, the page may exist before its answers do
            raise OSError(f"{self.ui} does not answer as a master does") from error
        return found

    def executors(self) -> tuple[int, ...]:
        """Return the process ids of the running executors of this cluster."""
        own = [f"spark://Worker@{each['host']}:{each['port']}" for each in self.state()["workers"]]
        listed = subprocess.run(
            ["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True
        )
        return tuple(
            int(line.split(maxsplit=1)[0])
            for line in listed.stdout.splitlines()
            if "CoarseGrainedExecutorBackend" in line and any(url in line.split() for url in own)
        )


@contextmanager
def spark_cluster(
    directory: Path,
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkCluster]:
    """Run a master and workers until the block ends; StorageError with the end of a log.

    ``environment`` is for all of them and their executors, for example PYTHONPATH or credentials.
    It overrides the environment of this process.
    """
    directory.mkdir(parents=True, exist_ok=True)
    variables = _environment() | dict(environment or {})
    for _ in range(STARTS):
        with ExitStack() as stack:
            cluster = _started(stack, directory, workers, cores, memory, variables)
            if cluster is not None:
                yield cluster
                return
        # Most likely another process took one of its ports just before.
    raise log_tail(directory / "master.log", "the Spark cluster")


def _started(
    stack: ExitStack,
    directory: Path,
    workers: int,
    cores: int,
    memory: str,
    environment: dict[str, str],
) -> SparkCluster | None:
    port, ui = free_ports(2)
    cluster = SparkCluster(
        master=f"spark://127.0.0.1:{port}",
        submit=str(spark_home() / "bin" / "spark-submit"),
        environment=environment,
        ui=f"http://127.0.0.1:{ui}",
    )
    spark_class = str(spark_home() / "bin" / "spark-class")
    master = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui)]
    process = stack.enter_context(
        running(
            [spark_class, f"{_DEPLOY}.master.Master", *master],
            directory=directory,
            log="master.log",
            environment=cluster.environment,
        )
    )
    if not wait_for(process, cluster.state, seconds=START_SECONDS):
        return None
    for number in range(workers):
        work = directory / f"worker-{number}"
        arguments = ["--host", "127.0.0.1", "--cores", str(cores), "--memory", memory]
        places = ["--webui-port", str(free_ports(1)[0]), "--work-dir", str(work)]
        command = [spark_class, f"{_DEPLOY}.worker.Worker", *arguments, *places, cluster.master]
        process = stack.enter_context(
            running(
                command,
                directory=directory,
                log=f"worker-{number}.log",
                environment=cluster.environment,
            )
        )

    def has_workers() -> None:
        if len(cluster.state()["workers"]) < workers:
            raise OSError("not all workers are there yet")

    return cluster if wait_for(process, has_workers, seconds=START_SECONDS) else None


def _environment() -> dict[str, str]:
    """Return the variables with which all processes find Spark, Java and Python."""
    java, quick = " ".join(spark_jvm()), quick_spark()
    submit = f"{quick['SPARK_SUBMIT_OPTS']} '-Dspark.executor.extraJavaOptions={java}'"
    return {
        **os.environ,
        **quick,
        "SPARK_HOME": str(spark_home()),
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_SUBMIT_OPTS": submit,
        "SPARK_DAEMON_JAVA_OPTS": java,
    }
