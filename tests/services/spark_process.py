"""Spark in a process of its own, because its jars are fixed when the JVM starts.

Its input arrives as JSON on stdin, because other users could list arguments. Its result goes to
stdout, and all log output to stderr.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from pyspark.sql import SparkSession

from statestore.spark.session import spark_session
from tests.servers.jars import CONNECTOR, TOKEN_PROVIDER, jars_of
from tests.syntax import ROOT

__all__ = ["kafka_session", "run_module"]


def kafka_session(name: str, partitions: int) -> SparkSession:
    """Return a session with the Kafka connector and this many shuffle partitions."""
    return spark_session(
        app_name=name,
        table_format="parquet",
        master="local[2]",
        extra_conf={
            "spark.jars": ",".join(map(str, jars_of(CONNECTOR) + jars_of(TOKEN_PROVIDER))),
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.ui.enabled": "false",
        },
    )


def run_module(name: str, given: dict[str, Any], status: int = 0) -> tuple[Any, str]:
    """Run a module of this folder until it exits; return its result and all its output."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.services.{name}"],
        input=json.dumps(given),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == status, done.stderr[-5000:]
    return json.loads(done.stdout or "null"), done.stdout + done.stderr
