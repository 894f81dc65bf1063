"""A Python worker that Spark has released ends without output."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from statestore.spark.workers import until_closed, without_idle_workers

SCRIPT = """
import time

from statestore import StateStore
from statestore.spark.session import spark_session

spark = spark_session(
    master="local[2]",
    table_format="parquet",
    extra_conf={"spark.python.daemon.module": "tests.spark.noted_daemon"},
)
store = StateStore.open("store", spark=spark, table_format="parquet")
rows = spark.range(1_000, numPartitions=2).selectExpr("id", "uuid() AS text")
with store.snapshot(parallelism=2) as checkpoint:
    checkpoint.write_keyed("u", "s", rows, key="id", max_parallelism=2)
frame = store.restore().keyed("u", "s").to_spark()
assert frame.toArrow().num_rows == 1_000
spark.stop()
time.sleep(1)
"""


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The two ends of a worker's socket: the worker's and Spark's."""
    ours, sparks = socket.socketpair()
    with ours, sparks:
        yield ours, sparks


@pytest.mark.parametrize("authenticated", [True, False])
def test_a_worker_ends_when_its_socket_is_closed(authenticated: bool) -> None:
    asked = []

    def worker(sock: socket.socket, authenticated: bool) -> int:
        asked.append((sock.recv(4), authenticated))
        return 0

    run = until_closed(worker)
    with pair() as (ours, sparks):
        sparks.sendall(b"task")
        assert run(ours, authenticated) == 0
        sparks.close()
        assert run(ours, authenticated) != 0
    assert asked == [(b"task", authenticated)]


def test_a_worker_ends_when_its_rows_are_no_longer_read() -> None:
    with pair() as (ours, sparks):

        def worker(sock: socket.socket, authenticated: bool) -> int:
            sparks.close()
            while True:
                sock.sendall(b"rows")

        sparks.sendall(b"task")
        assert until_closed(worker)(ours, True) != 0


def test_an_error_in_a_worker_is_raised() -> None:
    def worker(sock: socket.socket, authenticated: bool) -> int:
        raise ValueError("a defect")

    with pair() as (ours, sparks):
        sparks.sendall(b"task")
        with pytest.raises(ValueError, match="a defect"):
            until_closed(worker)(ours, True)


PLAIN = """
import time

from statestore.spark.session import spark_session

spark = spark_session(
    master="local[2]",
    table_format="parquet",
    extra_conf={"spark.python.daemon.module": "tests.spark.noted_daemon"},
)
rows = spark.range(1_000, numPartitions=2)
assert rows.mapInArrow(lambda batches: batches, "id bigint").toArrow().num_rows == 1_000
assert len(rows.mapInArrow(lambda batches: batches, "id bigint").take(1)) == 1
spark.stop()
time.sleep(1)
"""


@pytest.mark.long  # in each run, test_session.py reads the output of workers with store tasks
@pytest.mark.spark
@pytest.mark.parametrize(
    ("script", "daemon"), [(SCRIPT, "pyspark.daemon"), (PLAIN, "statestore.spark.daemon")]
)
def test_the_workers_of_a_session_say_nothing(tmp_path: Path, script: str, daemon: str) -> None:
    """Tasks of the store are silent with PySpark's own daemon, all others with the store's."""
    noted = tmp_path / "noted"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"NOTED": str(noted), "DAEMON": daemon, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert noted.read_text() == ""


def describe_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the worker's process, whether it was forked with pandas, and a random number."""
    numpy = sys.modules["numpy"]
    has_pandas = gc.get_freeze_count() > 0 and "pandas" in sys.modules
    for _ in batches:
        row = {"process": os.getpid(), "has_pandas": has_pandas, "number": numpy.random.rand()}
        yield pa.RecordBatch.from_pylist([row])
    time.sleep(0.5)  # no worker is free for a second task


def test_workers_are_forked_with_their_modules_and_draw_other_numbers(spark: SparkSession) -> None:
    schema = "process long, has_pandas boolean, number double"
    rows = spark.range(2, numPartitions=2).mapInArrow(describe_worker, schema).collect()
    assert all(row.has_pandas for row in rows)
    assert len({row.process for row in rows}) == len({row.number for row in rows}) == 2


@pytest.mark.spark
def test_a_local_session_uses_the_daemon(spark: SparkSession) -> None:
    assert spark.conf.get("spark.python.daemon.module") == "statestore.spark.daemon"


TRACEBACK = b"""Traceback (most recent call last):
  File "/lib/pyspark.zip/pyspark/daemon.py", line 262, in manager
    code = worker(sock, authenticated)
  File "/lib/pyspark.zip/pyspark/daemon.py", line 95, in worker
    outfile.flush()
"""
BROKEN = b"BrokenPipeError: [Errno 32] Broken pipe\n"


@pytest.mark.parametrize(
    "kept",
    [
        TRACEBACK + b"ValueError: a\n",
        TRACEBACK.replace(b"pyspark/daemon.py", b"job.py") + BROKEN,
        TRACEBACK,  # the process ended
        b"  File pyspark/daemon.py\n" + BROKEN,
    ],
    ids=["another error", "another program", "cut", "no traceback"],
)
def test_only_the_traceback_of_an_idle_worker_is_left_out(kept: bytes) -> None:
    lines = b"a\n" + TRACEBACK + BROKEN + b"b\n" + kept
    assert b"".join(without_idle_workers(lines.splitlines(keepends=True))) == b"a\nb\n" + kept
