"""The streaming job that gets killed: totals of events by key, one file of them a micro-batch.

Run by ``tests/streaming/kills.py`` as a process of its own. It says :data:`READY` when Spark
stands, is told the parallelism, and says the number of each checkpoint that it has committed, and
:data:`DONE` when there are no more events.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.spark.session import spark_session
from statestore.streaming import MicroBatch, QueryState, StatefulQuery

__all__ = ["DONE", "READY", "Totals", "add_file", "totals_of"]

READY, DONE = "ready", "done"
EVENTS, KEYS = 200, 60
PRIME = 1_000_003
SCHEMA = "key string, n long, amount long, ids long, squares long"

Totals = dict[str, tuple[int, int, int, int]]
"""Of each key: the number of its events, and the sums of their amounts, ids, and squared ids."""


def events_of(number: int) -> list[dict[str, int | str]]:
    """Return the events in a file."""
    ids = range(number * EVENTS, (number + 1) * EVENTS)
    return [{"id": i, "key": f"k{i * 7919 % PRIME % KEYS}", "amount": i % 13 - 3} for i in ids]


def add_file(folder: Path, number: int) -> None:
    """Put a file where the query finds it, as a whole, and younger than those before."""
    hidden = folder / f".{number:06}.json"
    hidden.write_text("".join(json.dumps(event) + "\n" for event in events_of(number)))
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(folder / f"{number:06}.json")


def totals_of(files: Iterable[int]) -> Totals:
    """Return what the state is behind these files: plain Python, without a stop."""
    totals: Totals = {}
    for event in (event for number in files for event in events_of(number)):
        n, amount, ids, squares = totals.get(str(event["key"]), (0, 0, 0, 0))
        i = int(event["id"])
        own = (n + 1, amount + int(event["amount"]), ids + i, squares + i * i % PRIME)
        totals[str(event["key"])] = own
    return totals


def update(
    events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch
) -> Mapping[str, DataFrame]:
    """Add the events to the totals."""
    state = states["by-key"]
    square = F.col("id") * F.col("id") % PRIME
    new = events.select("key", F.lit(1), "amount", "id", square).toDF(*state.columns)
    sums = (F.sum(name).alias(name) for name in state.columns[1:])
    return {"by-key": state.unionAll(new).groupBy("key").agg(*sums)}


def main() -> None:
    """Run until there are no more events, or until it is killed."""
    folder = Path(sys.argv[1]).parent
    spark = spark_session(
        master="local[2]",
        table_format="parquet",
        extra_conf={"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"},
    )
    print(READY, flush=True)
    parallelism = int(sys.stdin.readline())
    query = StatefulQuery(
        store=StateStore.open(str(folder / "store"), table_format="parquet"),
        uid="totals",
        key="key",
        states={"by-key": QueryState(SCHEMA, {"max_parallelism": 32})},
        update=update,
        parallelism=parallelism,
        on_commit=lambda manifest: print(manifest.checkpoint_id, flush=True),
    )
    stream = spark.readStream.schema("id long, key string, amount long")
    events = stream.option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    query.start(events, str(folder / "progress"), availableNow=True).awaitTermination()
    print(DONE, flush=True)


if __name__ == "__main__":
    main()
