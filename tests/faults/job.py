"""The job under test: it takes snapshots with Spark and Delta as fast as it can, until it is
killed.

The checkpoint's number determines all of its content, so that any reader can check a checkpoint.
The job prints ``ready`` after Spark has started, and waits for a command to start. Then it prints
each checkpoint's number directly after its ``with`` block. A printed checkpoint must never be lost.
"""

from __future__ import annotations

import sys
from typing import Any

from statestore.errors import CheckpointNotFoundError, StoreNotFoundError
from statestore.spark.session import spark_session
from statestore.store import StateStore
from tests.servers.process import SHORT_LIVED_JVM

__all__ = ["READY", "offsets", "per_country", "totals"]

READY = "ready"
PARALLELISM = 2
MAX_PARALLELISM = 4
PARTITIONS = 4


def totals(number: int) -> list[dict[str, Any]]:
    """Return the value state of a checkpoint: one row per user, with more users over time."""
    return [{"user": f"u{i}", "n": number * 1000 + i} for i in range(20 + number % 7)]


def per_country(number: int) -> list[dict[str, Any]]:
    """Return the map state of a checkpoint, in which entries appear and disappear."""
    return [
        {"user": f"u{i}", "country": f"c{(number + j) % 5}", "n": number * 100 + j}
        for i in range(12)
        for j in range((number + i) % 3)
    ]


def offsets(number: int) -> list[list[dict[str, Any]]]:
    """Return the union state of a checkpoint: the position in each partition, per subtask."""
    elements = [{"partition": p, "offset": number * 10 + p} for p in range(PARTITIONS)]
    return [elements[subtask::PARALLELISM] for subtask in range(PARALLELISM)]


def last_number(store: StateStore) -> int:
    """Return the number that the newest checkpoint's offsets encode, or 0 for a new store."""
    try:
        restored = store.restore(parallelism=1)
    except (CheckpointNotFoundError, StoreNotFoundError):
        return 0
    first = restored.operator_state("source", "offsets").subtask(0, where={"partition": [0]})
    return int(first[0]["offset"]) // 10


def run(url: str, scratch: str) -> None:
    """Continue from the newest checkpoint forever. Every checkpoint has the next number."""
    spark = spark_session(
        app_name="statestore-kills",
        master="local[2]",
        driver_memory="512m",
        extra_conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": scratch,
            "spark.sql.warehouse.dir": f"{scratch}/warehouse",
            "spark.driver.extraJavaOptions": " ".join(
                (f"-Djava.io.tmpdir={scratch}", *SHORT_LIVED_JVM)
            ),
        },
    )
    print(READY, flush=True)
    if not sys.stdin.readline():
        return  # the process that sends commands has exited
    store = StateStore.open(url, spark=spark)
    number = last_number(store)
    while True:
        number += 1
        value = spark.createDataFrame(totals(number), "user string, n long")
        entries = spark.createDataFrame(per_country(number), "user string, country string, n long")
        with store.snapshot(parallelism=PARALLELISM) as checkpoint:
            checkpoint.write_keyed(
                "users", "totals", value, key="user", max_parallelism=MAX_PARALLELISM
            )
            checkpoint.write_keyed(
                "users", "per_country", entries, kind="map", key="user", entry="country"
            )
            checkpoint.write_union("source", "offsets", offsets(number))
        assert checkpoint.id == number
        print(checkpoint.id, flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:])
