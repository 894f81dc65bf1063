"""The cost of 10,000 events per micro-batch for a ``StatefulProcessor``, on a store and on Spark.

The same class processes the same events, one file per micro-batch: with Spark's
``transformWithStateInPandas`` and RocksDB, and on a store. One processor has only a value. The
other has a value, a list and an event-time timer that each event resets. Both start with the same
keys. They run in turn, as in B18. A time is Spark's own duration of the trigger.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.measure import Figure, counted, times
from bench.streaming import (
    A_ROUND,
    FIRST_OF_A_ROUND,
    MAX_PARALLELISM,
    PARALLELISM,
    every_key,
    read_events,
    seconds_of,
    session,
    some_keys,
    write,
)
from statestore import StateStore
from statestore.streaming import ProcessorOptions, QueryOptions, StatefulQuery

__all__ = ["figures"]

OUT = "user string, n long"


class Value(StatefulProcessor):
    """A count and a sum per key."""

    time_mode = "None"

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the value."""
        self.total = handle.getValueState("total", "n long, total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add the amounts."""
        n, total = self.total.get() or (0, 0)
        for frame in rows:
            n, total = n + len(frame), total + int(frame["amount"].sum())
        self.total.update((n, total))
        yield pd.DataFrame({"user": [key[0]], "n": [n]})

    def close(self) -> None:
        """Do nothing."""


class Several(Value):
    """The same totals, the last amounts, and a timer far in the future."""

    time_mode = "EventTime"

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the value and the list."""
        super().init(handle)
        self.handle, self.last = handle, handle.getListState("last", "amount long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add the amounts, keep the last ones, and reset the timer."""
        frames = list(rows)
        kept = [one for (one,) in self.last.get()] + [int(one) for one in frames[0]["amount"]]
        self.last.put([(one,) for one in kept[-3:]])
        for at in list(self.handle.listTimers()):
            self.handle.deleteTimer(at)
        self.handle.registerTimer(4_000_000_000_000 + kept[-1])
        yield from super().handleInputRows(key, iter(frames), timerValues)


GOALS = (0.5, 1.0)
WAYS = {"a value": Value, "a value, a list and a timer": Several}


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of a micro-batch of each processor in both ways; they run in turn."""
    spark = session()
    ways: dict[str, partial[StreamingQuery]] = {}
    inputs: list[Path] = []
    for number, (what, kind) in enumerate(WAYS.items()):
        for name, start in (("Spark's RocksDB", _start_spark), ("a store", _start)):
            inputs.append(folder / f"events-{len(inputs)}")
            inputs[-1].mkdir()
            own = folder / f"state-{number}"
            ways[f"micro-batch of {what}, {name}"] = partial(start, spark, kind(), inputs[-1], own)
    scratch = folder / "scratch"
    # All keys occur in the first micro-batches, whose time does not count.
    write(every_key(spark, rows), scratch, 0, inputs)
    for start in ways.values():
        start().awaitTermination()
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(repeats + 1):
        for number in range(1, A_ROUND + 1):
            batch = round_ * A_ROUND + number
            write(some_keys(spark, rows, batch), scratch, batch, inputs)
        for way, start in ways.items():
            query = start()
            query.awaitTermination()
            if round_:
                seconds[way] += seconds_of(query)[FIRST_OF_A_ROUND:]
    spark.stop()
    names = list(ways)
    found = []
    for floor, ours, goal in zip(names[::2], names[1::2], GOALS, strict=True):
        found += [
            times("B27", floor, seconds, tail=True),
            times("B27", ours, seconds, floor=floor, goal=goal, tail=True),
        ]
    return [*found, counted("B27", "keys", rows, "keys")]


def _events(spark: SparkSession, inputs: Path, processor: Value) -> DataFrame:
    events = read_events(spark, inputs)
    if processor.time_mode == "None":
        return events
    return events.withColumn("t", F.timestamp_seconds("amount")).withWatermark("t", "1 day")


def _start_spark(
    spark: SparkSession, processor: Value, inputs: Path, state: Path
) -> StreamingQuery:
    grouped = _events(spark, inputs, processor).groupBy("user")
    frame = grouped.transformWithStateInPandas(processor, OUT, "Update", processor.time_mode)
    writer = frame.writeStream.outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", f"{inputs}-progress")
    return writer.trigger(availableNow=True).start()


def _start(spark: SparkSession, processor: Value, inputs: Path, state: Path) -> StreamingQuery:
    query = StatefulQuery.of_processor(
        store=StateStore.open(str(state), spark=spark, table_format="parquet", layout="auto"),
        operator="bench",
        processor=processor,
        processor_options=ProcessorOptions(
            output_schema=OUT,
            output_mode="Update",
            time_mode=processor.time_mode,
            pandas=True,
            max_parallelism=MAX_PARALLELISM,
        ),
        key="user",
        parallelism=PARALLELISM,
        output=lambda frame, batch: frame.write.format("noop").mode("append").save(),
        options=QueryOptions(cache_bytes=2**30),
    )
    return query.start(_events(spark, inputs, processor), f"{inputs}-progress", available_now=True)
