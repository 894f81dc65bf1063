"""A snapshot and restores in a session of Spark Connect, in a process that another one drives.

PySpark has either classic sessions or remote ones in a process. The process that measures sends the
name of a run in a line, and waits for a line that says that the run has ended.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.measure import Runs
from tests.servers.spark_connect import client_environment, connect_server

__all__ = ["REMOTE", "connect_runs"]

REMOTE = ", Spark Connect"


@contextmanager
def connect_runs(folder: Path, rows: int, names: Sequence[str]) -> Iterator[Runs]:
    """Start a server and its client; yield the runs with these names until the block ends."""
    folder.mkdir(parents=True)
    with (
        connect_server(folder, memory="8g") as url,
        subprocess.Popen(
            [sys.executable, "-m", "bench.connect", str(folder), str(rows)],
            env=client_environment(url),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client,
    ):
        assert client.stdin is not None
        yield {name + REMOTE: partial(_run, client, name) for name in names}
        client.stdin.close()


def _run(client: subprocess.Popen[str], name: str) -> None:
    assert client.stdin is not None
    assert client.stdout is not None
    print(name, file=client.stdin, flush=True)
    if client.stdout.readline() != f"{name}\n":
        raise RuntimeError(f"the client of Spark Connect failed at {name!r}")


def main(arguments: Sequence[str]) -> int:
    """Do the runs that are requested, until there are no more."""
    from bench.spark import session_runs
    from bench.state import state_rows
    from statestore.spark.session import spark_session

    folder, rows = arguments
    spark = spark_session()
    frame = state_rows(spark, int(rows)).persist()
    frame.count()
    runs = session_runs(spark, Path(folder), frame)
    for line in sys.stdin:
        name = line.strip()
        runs[name]()
        print(name, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
