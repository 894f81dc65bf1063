"""The streaming job that gets killed: totals of events by key, one file of events per micro-batch.

``tests/streaming/kills.py`` runs it as a process of its own. It prints :data:`READY` when Spark is
running, and then reads the parallelism. It prints the number of each checkpoint that it commits,
and :data:`DONE` when there are no more events.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from statestore import StateStore
from statestore.format.manifest import Manifest
from statestore.spark.session import spark_session
from statestore.streaming import (
    MicroBatch,
    ProcessorOptions,
    QueryOptions,
    QueryState,
    StatefulQuery,
    to_delta,
)

__all__ = [
    "COLUMNS",
    "DONE",
    "PROCESSOR",
    "READY",
    "UPDATE",
    "Totals",
    "add_file",
    "file_name",
    "set_time",
    "totals_of",
]

READY, DONE = "ready", "done"
EVENTS, KEYS = 200, 60
PRIME = 1_000_003
SCHEMA = "key string, n long, amount long, ids long, squares long"
COLUMNS = ("key", "n", "amount", "ids", "squares")
UPDATE, PROCESSOR = "update", "processor"

Totals = dict[str, tuple[int, int, int, int]]
"""For each key: the number of its events, and the sums of their amounts, ids and squared ids."""


def events_of(number: int) -> list[dict[str, int | str]]:
    """Return the events in a file."""
    ids = range(number * EVENTS, (number + 1) * EVENTS)
    return [{"id": i, "key": f"k{i * 7919 % PRIME % KEYS}", "amount": i % 13 - 3} for i in ids]


def add_file(folder: Path, number: int) -> None:
    """Create a file atomically where the query finds it, with a later time than earlier files."""
    hidden = folder / f".{file_name(number)}"
    hidden.write_text("".join(json.dumps(event) + "\n" for event in events_of(number)))
    set_time(hidden, number)
    hidden.rename(folder / file_name(number))


def file_name(number: int) -> str:
    """Return the name of a file of events."""
    return f"{number:06}.json"


def set_time(file: Path, number: int) -> None:
    """Give a file of events its time, in which Spark sorts the files."""
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def totals_of(files: Iterable[int]) -> Totals:
    """Return the expected state after these files, computed in plain Python without a stop."""
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


class Adding(StatefulProcessor):
    """A processor with the same totals, which emits the amounts of each micro-batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the totals and the ids seen so far."""
        self.totals = handle.getValueState("by-key", SCHEMA.partition(", ")[2])
        self.ids = handle.getMapState("ids", "id long", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Add the events of a key."""
        old = self.totals.get() or (0, 0, 0, 0)
        new: tuple[int, ...] = (0, 0, 0, 0)
        for row in rows:
            (n,) = self.ids.getValue((row.id,)) or (0,)
            self.ids.updateValue((row.id,), (n + 1,))
            one = (1, row.amount, row.id, row.id * row.id % PRIME)
            new = tuple(map(sum, zip(new, one, strict=True)))
        self.totals.update(tuple(map(sum, zip(old, new, strict=True))))
        yield Row(**dict(zip(COLUMNS, (key[0], *new), strict=True)))

    def close(self) -> None:
        """Do nothing."""


def query_of(store: StateStore, parallelism: int, folder: Path, form: str) -> StatefulQuery:
    """Return the query, with an update function or a processor."""
    if form == PROCESSOR:
        return StatefulQuery.of_processor(
            store=store,
            operator="totals",
            processor=Adding(),
            processor_options=ProcessorOptions(
                output_schema=SCHEMA, output_mode="Update", time_mode="None", max_parallelism=32
            ),
            key="key",
            parallelism=parallelism,
            output=to_delta(str(folder / "out")),
            options=QueryOptions(on_commit=say),
        )
    return StatefulQuery(
        store=store,
        operator="totals",
        key="key",
        states={"by-key": QueryState(SCHEMA, max_parallelism=32)},
        update=update,
        parallelism=parallelism,
        options=QueryOptions(on_commit=say),
    )


def say(manifest: Manifest) -> None:
    """Print that a checkpoint is committed."""
    print(manifest.checkpoint_id, flush=True)


def main() -> None:
    """Run until there are no more events, or until it is killed."""
    folder = Path(sys.argv[1]).parent
    spark = spark_session(
        master="local[2]",
        table_format="parquet",
        extra_conf={"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"},
    )
    print(READY, flush=True)
    parallelism, form = sys.stdin.readline().split()
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    query = query_of(store, int(parallelism), folder, form)
    stream = spark.readStream.schema("id long, key string, amount long")
    events = stream.option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    query.start(events, str(folder / "progress"), available_now=True).awaitTermination()
    print(DONE, flush=True)


if __name__ == "__main__":
    main()
