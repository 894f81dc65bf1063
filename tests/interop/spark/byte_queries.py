"""Streaming queries of Spark's own, with state of every kind, over files of events."""

from __future__ import annotations

import json
import os
import random
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import Row

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PARTITIONS = "spark.sql.shuffle.partitions"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_COLUMNS = "k string, v long, t timestamp, id int, d decimal(24, 3), b binary"


@contextmanager
def settings(spark: SparkSession, given: Mapping[str, str]) -> Iterator[None]:
    """Set what a query takes from its session, and take it back."""
    before = {name: spark.conf.get(name, None) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def write_events(folder: Path, numbers: range) -> None:
    """Write one file of events for each number: one micro-batch each."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        chance = random.Random(number)
        events = [_event(number, chance) for _ in range(100)]
        path = folder / f"{number}.json"
        path.write_text("\n".join(map(json.dumps, events)))
        os.utime(path, (10**9 + number, 10**9 + number))  # files are read in this order


def _event(number: int, chance: random.Random) -> dict[str, Any]:
    at = datetime(2026, 1, 1) + timedelta(seconds=number * 600 + chance.randrange(900))
    return {
        "k": chance.choice([None, *(f"k{n}" for n in range(30))]),
        "v": chance.randrange(100),
        "t": at.isoformat(),
        "id": chance.randrange(200),
        "d": chance.choice([None, chance.randrange(10**18) / 1000]),
        "b": chance.choice([None, "AAEC/w=="]),
    }


def _events(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(_COLUMNS).option("maxFilesPerTrigger", 1)
    return reader.json(str(folder))


def _aggregated(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(
        F.count("*").alias("n"), F.sum("d"), F.avg("v"), F.collect_list("v"), F.avg("d")
    )


def _nested(events: DataFrame) -> DataFrame:
    pair = F.struct("id", F.array("v", F.lit(None)).alias("a"), F.lit(None).alias("nothing"))
    table = F.map_from_arrays(F.array(F.lit("x"), F.lit("y")), F.array("d", F.lit(1.5)))
    key = F.struct(F.col("k"), F.struct("b", F.to_date("t").alias("day")).alias("inner"))
    return events.groupBy(key.alias("key")).agg(
        F.last(pair), F.last(table), F.max("t"), F.last("b")
    )


def _windowed(events: DataFrame) -> DataFrame:
    late = events.withWatermark("t", "10 minutes")
    return late.groupBy(F.window("t", "5 minutes"), "k").agg(F.sum("v").alias("s"))


def _two_operators(events: DataFrame) -> DataFrame:
    once = events.withWatermark("t", "10 minutes").dropDuplicates(["id", "t"])
    return once.groupBy(F.window("t", "5 minutes")).agg(F.sum("v"))


def _session(events: DataFrame) -> DataFrame:
    late = events.withWatermark("t", "10 minutes")
    return late.groupBy(F.session_window("t", "1 minute"), "k").agg(F.sum("v").alias("s"))


def _join(events: DataFrame) -> DataFrame:
    left = events.withWatermark("t", "10 minutes")
    others = events.selectExpr("k as k2", "t as t2", "id as id2", "d as d2")
    right = others.withWatermark("t2", "10 minutes")
    on = F.expr("k = k2 and id = id2 and t2 >= t and t2 <= t + interval 5 minutes")
    return left.join(right, on, "leftOuter")


# Of each query: its output mode, and what it does with events.
KINDS: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "aggregated": ("update", _aggregated),
    "global": ("update", lambda events: events.agg(F.sum("v"))),
    "nested": ("update", _nested),
    "windowed": ("append", _windowed),
    "session": ("append", _session),
    "join": ("append", _join),
    "two-operators": ("append", _two_operators),
    "dedup": ("append", lambda events: events.dropDuplicates(["id", "k"])),
}


def run(spark: SparkSession, kind: str, events: Path, location: Path) -> list[Row]:
    """Run the query until it has read all files, and return the rows that it has emitted."""
    emitted: list[Row] = []
    mode, query = KINDS[kind]
    writer = query(_events(spark, events)).writeStream.outputMode(mode)
    writer = writer.option("checkpointLocation", str(location)).trigger(availableNow=True)
    writer.foreachBatch(lambda rows, _: emitted.extend(rows.collect())).start().awaitTermination()
    return emitted


def stores(spark: SparkSession, location: Path) -> list[tuple[int, str]]:
    """Return operator and name of every store of a checkpoint."""
    rows = spark.read.format("state-metadata").load(str(location)).collect()
    return [(row.operatorId, row.stateStoreName) for row in rows]


def state(
    spark: SparkSession, location: Path, store: tuple[int, str], *, raw: bool = False
) -> DataFrame:
    """Return one store's rows, or their bytes."""
    spark.streams  # noqa: B018 - starts what the reader asks for partitions
    reader = spark.read.format("statestore").option("operatorId", store[0])
    reader = reader.option("storeName", store[1])
    return reader.option("_readAllColumnFamilies", str(raw)).load(str(location))
