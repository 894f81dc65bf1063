r"""A Spark job with state: orders from Kafka, totals per customer, one checkpoint a run.

    spark-submit --master spark://host:7077 statestore/demo/orders.py \
        --store s3://bucket/prefix --bootstrap host:9092 --topic orders --parallelism 4

A run restores the newest checkpoint at its own parallelism and reads the orders after the
checkpoint's offsets. The first run reads all orders. Then the run updates the totals and takes the
next checkpoint. The first checkpoint has all totals, and later ones only the changed totals.
Credentials come from the environment of driver and executors. The last line on stdout is a JSON
document with the results.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import CheckpointNotFoundError, StoreNotFoundError
from statestore.restore.restored import RestoredCheckpoint
from statestore.sources.offsets import (
    SourceOffset,
    offset_elements,
    source_offset,
    starting_offsets_json,
    subtask_of_partition,
)
from statestore.store import StateStore

UID, STATE, SOURCE, OFFSETS = "totals-by-customer", "totals", "orders-source", "offsets"
MAX_PARALLELISM = 128
ORDER = "id BIGINT, customer STRING, cents BIGINT"

PerSubtask = tuple[tuple[SourceOffset, ...], ...]


@dataclass(frozen=True)
class OrderSource:
    """A topic, and the broker where it is."""

    spark: SparkSession
    bootstrap: str
    topic: str

    def read(self, start: str, end: str = "latest") -> DataFrame:
        """Return the orders between two offsets, as Spark's Kafka source names them."""
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        rows = reader.options(subscribe=self.topic, startingOffsets=start, endingOffsets=end).load()
        order = F.from_json(F.col("value").cast("string"), ORDER)
        return rows.select("topic", "partition", "offset", order.alias("order"))

    def ends(self, start: str) -> tuple[SourceOffset, ...]:
        """Return the current end of each partition that has orders after ``start``.

        Orders after these ends are read by the next run.
        """
        last = self.read(start).groupBy("topic", "partition").agg(F.max("offset").alias("offset"))
        ends = [source_offset(row) for row in last.collect()]
        return tuple(replace(end, offset=end.offset + 1) for end in ends)


def run(source: OrderSource, store: StateStore, parallelism: int) -> dict[str, Any]:
    """Run the job once; return the restored, read and written parts."""
    old = _newest(store, parallelism)
    begun = _restored_offsets(old, parallelism)
    known = [offset for offsets in begun for offset in offsets]
    start = starting_offsets_json(known) if known else "earliest"
    offsets = _advance_offsets(begun, source.ends(start))
    until = starting_offsets_json(offset for each in offsets for offset in each)
    orders = source.read(start, until).select("order.*")
    come = orders.groupBy("customer").agg(
        F.count("*").alias("orders"), F.sum("cents").alias("cents"), F.max("id").alias("last_id")
    )
    with store.snapshot(parallelism=parallelism) as checkpoint:
        _put(checkpoint, come, old)
        checkpoint.write_split(SOURCE, OFFSETS, [offset_elements(each) for each in offsets])
    entry = checkpoint.manifest.keyed_entry(UID, STATE)
    newest = entry.layers[-1].entry if entry.layers else entry
    return {
        "checkpoint": checkpoint.id,
        "parallelism": parallelism,
        "executors": _executors(source.spark),
        "restored": _restored_rows(old),
        "orders": _sum(offsets) - _sum(begun),
        "starts": [list(offset_elements(each)) for each in begun],
        "offsets": [list(offset_elements(each)) for each in offsets],
        "written": {
            "rows": newest.rows,
            "bytes": newest.size_bytes,
            "files": newest.files,
            "in full": not entry.layers,
        },
    }


def _newest(store: StateStore, parallelism: int) -> RestoredCheckpoint | None:
    try:
        return store.restore(parallelism=parallelism)
    except (StoreNotFoundError, CheckpointNotFoundError):
        return None


def _restored_rows(old: RestoredCheckpoint | None) -> dict[str, Any] | None:
    """Return the restored rows by subtask; Spark partition i is subtask i."""
    if old is None:
        return None
    rows = old.keyed(UID, STATE).to_spark().groupBy(F.spark_partition_id().alias("subtask"))
    counts = {row["subtask"]: row["count"] for row in rows.count().collect()}
    return {
        "checkpoint": old.checkpoint_id,
        "parallelism": old.manifest.parallelism,
        "rows": [counts.get(subtask, 0) for subtask in range(old.parallelism)],
    }


def _restored_offsets(old: RestoredCheckpoint | None, parallelism: int) -> PerSubtask:
    """Return the offsets at which each subtask continues."""
    if old is None:
        return ((),) * parallelism
    state = old.operator_state(SOURCE, OFFSETS)
    return tuple(tuple(map(source_offset, elements)) for elements in state.subtasks())


def _advance_offsets(begun: PerSubtask, ends: Sequence[SourceOffset]) -> PerSubtask:
    """Return the offsets after a run; a new partition is assigned to a subtask."""
    new = {(end.topic, end.partition): end for end in ends}
    moved = [
        [new.pop((offset.topic, offset.partition), offset) for offset in offsets]
        for offsets in begun
    ]
    for end in new.values():
        moved[subtask_of_partition(end.topic, end.partition, len(moved))].append(end)
    return tuple(map(tuple, moved))


def _put(checkpoint: Any, run_totals: DataFrame, old: RestoredCheckpoint | None) -> None:
    """Write the totals: all of them in the first checkpoint, later only changed customers."""
    if old is None:
        checkpoint.write_keyed(
            UID, STATE, run_totals, key="customer", max_parallelism=MAX_PARALLELISM
        )
        return
    state = old.keyed(UID, STATE).to_spark().drop("key_group")
    before = state.select("customer", *(F.col(name).alias(f"old_{name}") for name in _ADDED))
    added = [(F.col(n) + F.coalesce(F.col(f"old_{n}"), F.lit(0))).alias(n) for n in _ADDED]
    changed = run_totals.join(before, "customer", "left").select("customer", *added, "last_id")
    # By id: the changes are relative to the restored checkpoint, even if there is a newer one.
    checkpoint.write_changes(UID, STATE, changed, base=old.checkpoint_id, key="customer")


_ADDED = ("orders", "cents")


def _sum(offsets: PerSubtask) -> int:
    return sum(offset.offset for each in offsets for offset in each)


def _executors(spark: SparkSession) -> int:
    context: Any = spark.sparkContext._jsc.sc()
    return int(context.getExecutorMemoryStatus().size()) - 1  # without the driver


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once in the Spark that spark-submit started; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    for name in ("--store", "--bootstrap", "--topic"):
        parser.add_argument(name, required=True)
    parser.add_argument("--parallelism", type=int, required=True)
    options = parser.parse_args(arguments)
    spark = SparkSession.Builder().appName("orders").getOrCreate()
    store = StateStore.open(options.store, spark=spark, table_format="parquet")
    done = run(OrderSource(spark, options.bootstrap, options.topic), store, options.parallelism)
    print(json.dumps(done), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
