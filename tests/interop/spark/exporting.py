"""The job under test: it exports a checkpoint repeatedly, each time into a new folder.

It prints ``ready`` after Spark has started, and waits for a command to start. Then it prints the
name of each complete folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from statestore import StateStore
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.query_settings import SparkTarget
from statestore.interop.spark.state_files import Provider
from statestore.spark.session import spark_session
from tests.servers.process import SHORT_LIVED_JVM


def main(url: str, folder: str, scratch: str) -> None:
    """Export the newest checkpoint of a store until the process is killed.

    Spark's leftover files are in ``scratch``. Its name is short, because Spark creates sockets
    there.
    """
    options = " ".join((f"-Djava.io.tmpdir={scratch}", *SHORT_LIVED_JVM))
    spark = spark_session(
        app_name="statestore-exports",
        master="local[2]",
        driver_memory="512m",
        extra_conf={
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.driver.extraJavaOptions": options,
        },
    )
    store = StateStore.open(url, spark=spark)
    print("ready", flush=True)
    if not sys.stdin.readline():
        return  # the process that sends commands has exited
    for number in range(1000):
        provider: Provider = "hdfs" if number % 2 else "rocksdb"
        target = Path(folder) / f"target-{number}"
        export_checkpoint(store, str(target), partitions=3, target=SparkTarget(provider=provider))
        print(target, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
