"""``make cluster-demo``: run the services of ``docker-compose.yml`` as processes of this machine.

    python -m tests.servers.cluster_demo

Starts an S3 server, a Kafka broker and a Spark standalone cluster with two workers. They come from
their published packages and listen only on the loopback address. Then it runs
``statestore.demo.cluster`` on them and stops them. Their files are in a temporary directory, which
is deleted at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from statestore.errors import StateStoreError
from tests.servers.cluster import SparkCluster, spark_cluster
from tests.servers.jars import CONNECTOR, TOKEN_PROVIDER, jars_of
from tests.servers.kafka import KafkaBroker, kafka_broker
from tests.servers.s3 import S3Server, s3_server

__all__ = ["connector_jars", "main", "run_demo", "s3_environment"]

_ROOT = Path(__file__).resolve().parents[2]


def s3_environment(s3: S3Server) -> dict[str, str]:
    """Return the variables with which processes can find this package and use an S3 server.

    No proxy is used for the loopback address.
    """
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_DEFAULT_REGION": s3.region,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def connector_jars() -> str:
    """Return Spark's Kafka connector as ``spark.jars``; MissingDependencyError without it."""
    return ",".join(map(str, (*jars_of(CONNECTOR), *jars_of(TOKEN_PROVIDER))))


def run_demo(s3: S3Server, kafka: KafkaBroker, cluster: SparkCluster, *options: str) -> int:
    """Run the demo on running services; return its exit code.

    The cluster was started with :func:`s3_environment`. ``options`` are the demo's own.
    """
    places = ["--master", cluster.master, "--bootstrap", kafka.bootstrap]
    store = ["--store", s3.url("cluster-demo"), "--jars", connector_jars()]
    command = [sys.executable, "-m", "statestore.demo.cluster", *places, *store, *options]
    return subprocess.run(command, env=cluster.environment, check=False).returncode


def main() -> int:
    """Start all services, run the demo, stop the services; return the exit code."""
    begin = time.monotonic()
    try:
        connector_jars()
        with (
            tempfile.TemporaryDirectory(prefix="statestore-cluster-") as name,
            s3_server(Path(name) / "s3") as s3,
            kafka_broker(Path(name) / "kafka") as kafka,
            spark_cluster(Path(name) / "spark", environment=s3_environment(s3)) as cluster,
        ):
            workers = ", ".join(
                f"{worker['host']}:{worker['port']}" for worker in _workers(cluster)
            )
            print(f"S3 server  {s3.endpoint}")
            print(f"Kafka      {kafka.bootstrap}")
            print(f"Spark      {cluster.master}, workers {workers}")
            print(f"All of them run, after {time.monotonic() - begin:.0f} s.\n", flush=True)
            return run_demo(s3, kafka, cluster)
    except StateStoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _workers(cluster: SparkCluster) -> list[dict[str, object]]:
    found: list[dict[str, object]] = cluster.state()["workers"]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
