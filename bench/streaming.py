"""The cost of 10,000 events per micro-batch with a large state, compared with Spark's own state.

The same events, one file per micro-batch, are added up by key in several ways:

* By a query whose state is in a store, with its cache of file contents and without.
* By Spark's aggregation with RocksDB in update mode, whose output is discarded.

The floor is Spark's time for a micro-batch that computes nothing. All start with the same keys, and
have as many shuffle partitions as the state has subtasks.

They run in turn, five micro-batches per round. The first round does not count, nor does the first
micro-batch after a switch. A time is Spark's own duration of the trigger, from planning to commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from bench.measure import Figure, counted, times
from statestore import StateStore
from statestore.spark.session import spark_session
from statestore.streaming import MicroBatch, QueryOptions, StatefulQuery

__all__ = [
    "A_ROUND",
    "FIRST_OF_A_ROUND",
    "MAX_PARALLELISM",
    "PARALLELISM",
    "every_key",
    "figures",
    "read_events",
    "seconds_of",
    "session",
    "some_keys",
    "write",
]

EVENTS = 10_000
PARALLELISM, MAX_PARALLELISM = 4, 128
A_ROUND, FIRST_OF_A_ROUND = 5, 1
CACHE_BYTES = 2**30
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SPARK = "micro-batch, Spark's RocksDB"
EMPTY = "micro-batch, of which nothing is computed"
HELD, READ = "micro-batch, files held", "micro-batch, files read"
GOALS = {HELD: 0.7, READ: 1.0}
COLUMNS = "user string, amount long"


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of a micro-batch with each way; they run in turn, a few at a time."""
    spark = session()
    inputs = {
        way: folder / f"events-{number}" for number, way in enumerate((EMPTY, SPARK, HELD, READ))
    }
    for events in inputs.values():
        events.mkdir()
    scratch = folder / "scratch"
    write(every_key(spark, rows), scratch, 0, [inputs[SPARK]])
    held, read = (_preloaded(spark, folder / name, rows) for name in ("held", "read"))
    ways = {
        EMPTY: partial(_start_empty, spark, inputs[EMPTY]),
        SPARK: partial(_start_spark, spark, inputs[SPARK]),
        HELD: partial(_start, spark, held, CACHE_BYTES, inputs[HELD]),
        READ: partial(_start, spark, read, 0, inputs[READ]),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(repeats + 1):
        for number in range(1, A_ROUND + 1):
            batch = round_ * A_ROUND + number
            write(some_keys(spark, rows, batch), scratch, batch, inputs.values())
        for way, start in ways.items():
            query = start()
            query.awaitTermination()
            if round_:
                seconds[way] += seconds_of(query)[FIRST_OF_A_ROUND:]
    spark.stop()
    found = [
        times("B18", SPARK, seconds, tail=True),
        times("B18", EMPTY, seconds, floor=SPARK, tail=True),
    ]
    found += [
        times("B18", what, seconds, floor=SPARK, goal=most, tail=True)
        for what, most in GOALS.items()
    ]
    return [*found, counted("B18", "keys", rows, "keys")]


def session() -> SparkSession:
    """Return a session whose own states use RocksDB."""
    return spark_session(
        app_name="statestore-bench",
        master="local[2]",
        driver_memory="8g",
        extra_conf={
            "spark.sql.shuffle.partitions": str(PARALLELISM),
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        },
    )


def every_key(spark: SparkSession, rows: int) -> DataFrame:
    """Return an event for each key, with which every query starts."""
    return _events(spark.range(rows).select(F.col("id").alias("number"), F.lit(1).alias("amount")))


def some_keys(spark: SparkSession, rows: int, batch: int) -> DataFrame:
    """Return the events of a micro-batch, whose keys are drawn from its number."""
    drawn = F.pmod(F.xxhash64("id", F.lit(batch)), F.lit(rows))
    return _events(spark.range(EVENTS).select(drawn.alias("number"), F.col("id").alias("amount")))


def _events(numbers: DataFrame) -> DataFrame:
    user = F.concat(F.lit("user-"), F.col("number"))
    return numbers.select(user.alias("user"), F.col("amount").cast("long").alias("amount"))


def write(events: DataFrame, scratch: Path, number: int, inputs: Iterable[Path]) -> None:
    """Write events as one file, later than earlier files, into some folders."""
    events.coalesce(1).write.mode("overwrite").parquet(str(scratch))
    (written,) = scratch.glob("*.parquet")
    os.utime(written, (1_700_000_000 + number, 1_700_000_000 + number))
    for folder in inputs:
        os.link(written, folder / f"{number:04}.parquet")


def _start_empty(spark: SparkSession, inputs: Path) -> StreamingQuery:
    writer = read_events(spark, inputs).writeStream.foreachBatch(lambda events, number: None)
    writer = writer.option("checkpointLocation", f"{inputs}-progress")
    return writer.trigger(availableNow=True).start()


def _start_spark(spark: SparkSession, inputs: Path) -> StreamingQuery:
    totals = read_events(spark, inputs).groupBy("user")
    frame = totals.agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    writer = frame.writeStream.outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", f"{inputs}-progress")
    return writer.trigger(availableNow=True).start()


def _preloaded(spark: SparkSession, folder: Path, rows: int) -> StateStore:
    store = StateStore.open(str(folder), spark=spark, table_format="parquet")
    every = every_key(spark, rows)
    with store.snapshot(parallelism=PARALLELISM) as checkpoint:
        checkpoint.write_keyed(
            "bench",
            "totals",
            every.select("user", F.lit(1).cast("long").alias("n"), F.col("amount").alias("total")),
            key="user",
            max_parallelism=MAX_PARALLELISM,
            layout="auto",
        )
    return store


def _start(
    spark: SparkSession, store: StateStore, cache_bytes: int, inputs: Path
) -> StreamingQuery:
    query = StatefulQuery(
        store=store,
        operator="bench",
        key="user",
        states={"totals": "user string, n long, total long"},
        update=_totals,
        parallelism=PARALLELISM,
        options=QueryOptions(succeeds=True, cache_bytes=cache_bytes),
    )
    return query.start(read_events(spark, inputs), f"{inputs}-progress", available_now=True)


def read_events(spark: SparkSession, inputs: Path) -> DataFrame:
    """Return a stream of the events in a folder, one file per micro-batch."""
    reader = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(inputs))


def _totals(
    events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch
) -> Mapping[str, DataFrame]:
    state = states["totals"]
    new = events.select("user", F.lit(1).cast("long").alias("n"), F.col("amount").alias("total"))
    sums = (F.sum(name).alias(name) for name in ("n", "total"))
    return {"totals": state.unionByName(new).groupBy("user").agg(*sums)}


def seconds_of(query: StreamingQuery) -> list[float]:
    """Return the duration of each trigger that ran a micro-batch, even without input rows."""
    own = [
        one.durationMs["triggerExecution"]
        for one in query.recentProgress
        if "addBatch" in one.durationMs
    ]
    return [ms / 1000 for ms in own]
