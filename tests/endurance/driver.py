"""The streaming job of the endurance test: a process whose query is started and stopped on command.

It reads one JSON document from its input: where everything is. Then it reads commands:

* ``start 3`` starts the query at this parallelism, with a newly opened store.
* ``stop`` ends it after the current micro-batch, and prints :data:`STOPPED`.
* ``quit`` ends the process.

It prints JSON documents: :data:`READY`, each committed checkpoint, each restart after an error, and
from time to time the heap of the JVM after a full collection.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statestore import CheckpointListener, StateStore
from statestore.jobgraph.restart import FixedDelay
from statestore.listeners import CheckpointCommitted, CheckpointFailed, CompactionFailed
from statestore.restarts import brief, run_with_restarts
from statestore.spark.session import spark_session
from statestore.streaming import (
    MicroBatch,
    QueryOptions,
    QueryState,
    RetentionPolicy,
    StatefulQuery,
    Updated,
)
from tests.endurance.workload import EVENT_SCHEMA, OPERATOR, STATE, STATE_SCHEMA, update

__all__ = ["FAILED", "KEEP", "KEEP_EVERY", "READY", "STOPPED"]

READY, STOPPED, FAILED = "ready", "stopped", "failed"
KEEP, KEEP_EVERY = 20, 8
"""The query keeps this many checkpoints, and expires older ones each this many checkpoints."""
_RESTARTS = 1000
_lock = threading.Lock()


def say(**document: Any) -> None:
    """Print a document in one line."""
    with _lock:
        print(json.dumps(document), flush=True)


@dataclass
class Told(CheckpointListener):
    """Prints the commits of a query, and its failed compactions."""

    batch: int = -1
    """The number of the current micro-batch."""

    def on_committed(self, event: CheckpointCommitted) -> None:
        """Print a checkpoint and its durations."""
        phases = {f"{name}_ms": spent for name, spent in event.metrics.spent}
        phases["took_ms"] = event.metrics.took_ms
        say(event="commit", checkpoint=event.checkpoint_id, batch=self.batch, **phases)

    def on_failed(self, event: CheckpointFailed) -> None:
        """Print the error of a checkpoint."""
        say(event="failure", what=brief(event.error))

    def on_restored(self, event: object) -> None:
        """Print nothing: each micro-batch restores."""

    def on_compaction_failed(self, event: CompactionFailed) -> None:
        """Print the error of a background compaction."""
        say(event="compaction", what=brief(event.error))


class Job:
    """The query, in a thread that starts it again after errors."""

    def __init__(self, spark: SparkSession, places: Mapping[str, Any]) -> None:
        self._spark, self._places = spark, places
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._parallelism = 1

    def start(self, parallelism: int) -> None:
        """Start the query."""
        self._parallelism = parallelism
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """End the query, and wait for its end."""
        self._stopping.set()
        self._thread.join()
        say(event=STOPPED)

    def _run(self) -> None:
        strategy = FixedDelay(attempts=_RESTARTS, delay="1s")
        try:
            run_with_restarts(
                strategy, self._once, on_restart=lambda text: say(event="restart", what=text)
            )
        except Exception as error:  # noqa: BLE001 - the other process reports it
            say(event=FAILED, what=brief(error), all=str(error)[-4000:])

    def _once(self) -> None:
        if self._stopping.is_set():
            return
        told = Told()
        query = self._query(told)
        stream = self._spark.readStream.schema(EVENT_SCHEMA).option("maxFilesPerTrigger", 1)
        events = stream.json(self._places["events"])
        running = query.start(
            events, self._places["location"], processing_time=self._places["interval"]
        )
        try:
            while not running.awaitTermination(1):
                if self._stopping.is_set():
                    return
        finally:
            running.stop()

    def _query(self, told: Told) -> StatefulQuery:
        store = StateStore.open(
            self._places["store"],
            storage_options=self._places["options"],
            listeners=[told],
        )

        def noting(
            events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch
        ) -> Updated:
            told.batch = batch.number
            return update(events, states, batch)

        return StatefulQuery(
            store=store,
            operator=OPERATOR,
            key="key",
            states={STATE: QueryState(STATE_SCHEMA, max_parallelism=32)},
            update=noting,
            parallelism=self._parallelism,
            options=QueryOptions(retention=RetentionPolicy(keep=KEEP, every=KEEP_EVERY)),
        )


def _tell_heap(spark: SparkSession, seconds: float, ending: threading.Event) -> None:
    """Print the heap that is in use after a full collection, each few seconds until the end."""
    java = spark._jvm.java.lang  # type: ignore[union-attr]
    memory = java.management.ManagementFactory.getMemoryMXBean()
    while not ending.wait(seconds):
        java.System.gc()
        say(
            event="heap",
            live_bytes=memory.getHeapMemoryUsage().getUsed(),
            non_heap_bytes=memory.getNonHeapMemoryUsage().getUsed(),
        )


def main() -> None:
    """Run until the input ends."""
    logging.basicConfig(level=logging.WARNING)
    places = json.loads(sys.stdin.readline())
    spark = spark_session(
        master="local[2]",
        table_format="parquet",
        driver_memory="1g",
        extra_conf={
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.enabled": "false",
            "spark.sql.warehouse.dir": str(Path(places["location"]).parent / "warehouse"),
        },
    )
    job, ending = Job(spark, places), threading.Event()
    heap = threading.Thread(target=_tell_heap, args=(spark, places["heap_seconds"], ending))
    heap.start()
    say(event=READY)
    for line in sys.stdin:
        match line.split():
            case ["start", parallelism]:
                job.start(int(parallelism))
            case ["stop"]:
                job.stop()
            case _:
                break
    ending.set()
    heap.join()
    spark.stop()


if __name__ == "__main__":
    main()
