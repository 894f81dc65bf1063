"""Rescale a query's large state from 8 shuffle partitions to 16, compared with Spark's own way.

The query is Spark's aggregation with RocksDB. Spark's own repartition rewrites a checkpoint
location in place, so each run gets a copy, which is not timed. One way here is a repartition from
the old location to a new one; the other is an import into a store and an export. Both include the
verification at the end. A restore of the imported state in Arrow, at 16 subtasks, is measured too.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.measure import Figure, counted, in_turn, times
from statestore import StateStore
from statestore.interop.spark import (
    export_checkpoint,
    import_checkpoint,
    repartition_location,
)
from statestore.spark.session import spark_session

__all__ = ["figures"]

BEFORE, AFTER = 8, 16
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OWN = "8 to 16 partitions, Spark's own"
DIRECT = "repartition to 16, proved"
IN, OUT, BOTH = "import", "export to 16, proved", "import and export"
ARROW = "restore of the import at 16, in Arrow"


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of each way; they run in turn."""
    spark = spark_session(
        app_name="statestore-bench",
        master="local[2]",
        driver_memory="8g",
        table_format="parquet",
        extra_conf={
            "spark.sql.shuffle.partitions": str(BEFORE),
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        },
    )
    location = _query(spark, folder, rows)
    copies = _copies(location, folder, repeats + 1)
    kept = StateStore.open(str(folder / "kept"), spark=spark, table_format="parquet")
    import_checkpoint(spark, str(location), kept)
    runs = {
        OWN: lambda: _repartition(spark, next(copies)),
        DIRECT: lambda: _repartition_directly(spark, location, folder / "direct"),
        IN: lambda: _import(spark, location, folder / "in"),
        OUT: lambda: _export(spark, kept, folder / "out"),
        BOTH: lambda: _export(spark, _import(spark, location, folder / "in"), folder / "out"),
        ARROW: lambda: _restore(folder / "kept"),
    }
    seconds = in_turn(runs, repeats)
    spark.stop()
    return [
        times("B25", OWN, seconds),
        times("B25", DIRECT, seconds, floor=OWN, goal=1.2),
        times("B25", IN, seconds, floor=OWN),
        times("B25", OUT, seconds, floor=OWN, goal=0.8),
        times("B25", BOTH, seconds, floor=OWN),
        times("B25", ARROW, seconds, floor=OWN),
        counted("B25", "keys", rows, "keys"),
    ]


def _query(spark: SparkSession, folder: Path, rows: int) -> Path:
    """Run a query that reads each key once; return its checkpoint location."""
    user = F.concat(F.lit("user-"), F.col("id"))
    events = spark.range(rows).select(user.alias("user"), F.col("id").alias("amount"))
    events.write.parquet(str(folder / "events"))
    stream = spark.readStream.schema(events.schema).parquet(str(folder / "events"))
    totals = stream.groupBy("user").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
    writer = totals.writeStream.outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", str(folder / "location"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return folder / "location"


def _copies(location: Path, folder: Path, number: int) -> Iterator[Path]:
    copies = [folder / f"copy-{at}" for at in range(number)]
    for copy in copies:
        shutil.copytree(location, copy)
    return iter(copies)


def _repartition(spark: Any, location: Path) -> None:
    spark._streamingCheckpointManager.repartition(str(location), AFTER)


def _repartition_directly(spark: SparkSession, location: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    repartition_location(spark, str(location), str(folder), partitions=AFTER)


def _import(spark: SparkSession, location: Path, folder: Path) -> StateStore:
    shutil.rmtree(folder, ignore_errors=True)
    store = StateStore.open(str(folder), spark=spark, table_format="parquet")
    import_checkpoint(spark, str(location), store)
    return store


def _export(spark: SparkSession, store: StateStore, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    export_checkpoint(store, str(folder), partitions=AFTER)


def _restore(folder: Path) -> None:
    restored = StateStore.open(str(folder)).restore(parallelism=AFTER)
    state = restored.keyed("stateStoreSave-0", "default")
    for subtask in range(AFTER):
        for _ in state.to_batches(subtask):
            pass
