"""The cost of a micro-batch with a thousand due timers, of many and of a hundredth of them.

Each key has a value and a processing-time timer. A thousand timers are due each minute. The query
has no events: each micro-batch advances the clock by a minute. The two stores run in turn, and the
smaller one is the floor.

The measured time includes the whole micro-batch: it finds the timers, looks up their keys' rows,
calls the processor and commits the changes. Bytes are counted separately, in the first micro-batch
after a start and in the next one. The first one reads the rows of the keys from files that are not
cached.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.measure import Figure, counted, times
from bench.streaming import MAX_PARALLELISM, PARALLELISM, session
from statestore import StateStore
from statestore.streaming import MicroBatch, ProcessorOptions, QueryOptions, StatefulQuery
from statestore.testing.faults import CountingStorage

__all__ = ["figures"]

UID = "bench"
DUE = 1000
MINUTE = 60_000
HELD_BYTES = 2**31
_STRIDE = 7_368_787
"""A prime, so that timers that are due together belong to scattered keys."""


class Reminders(StatefulProcessor):
    """A value per key, which its timer clears."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the value."""
        self.total = handle.getValueState("total", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Count the events."""
        self.total.update((sum(1 for _ in rows),))
        return iter([])

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        """Emit the value."""
        (n,) = self.total.get() or (0,)
        self.total.clear()
        yield Row(user=key[0], n=n)

    def close(self) -> None:
        """Do nothing."""


@dataclass
class Reminded:
    """A store with this many timers, and the micro-batches so far."""

    spark: SparkSession
    folder: Path
    rows: int
    done: MicroBatch | None = None

    def run(self, query: StatefulQuery) -> None:
        """Fire the timers of the next minute."""
        number = 0 if self.done is None else self.done.number + 1
        given: list[int] = []
        query = replace(query, output=lambda frame, _: given.append(frame.count()))
        batch = MicroBatch("bench", number, (), number * MINUTE + MINUTE - 1, (), self.done)
        query.process(self.spark.createDataFrame([], "user string"), batch)
        assert sum(given) == (DUE if number else 0)
        self.done = replace(batch, before=None)

    def query(self, store: StateStore, cache_bytes: int) -> StatefulQuery:
        """Return the query, as at a start."""
        return StatefulQuery.of_processor(
            store=store,
            operator=UID,
            processor=Reminders(),
            processor_options=ProcessorOptions(
                output_schema="user string, n long",
                output_mode="Update",
                time_mode="ProcessingTime",
            ),
            key="user",
            parallelism=PARALLELISM,
            options=QueryOptions(succeeds=True, cache_bytes=cache_bytes),
        )

    def preload(self) -> None:
        """Write values and timers; the first micro-batch creates the timers' index."""
        number = np.arange(self.rows)
        user = pa.array(np.char.add("user-", (number * _STRIDE % self.rows).astype(str)))
        at = pa.array(MINUTE * (1 + number // DUE) + number % DUE)
        with self._store().snapshot(parallelism=PARALLELISM) as checkpoint:
            told: dict[str, Any] = {
                "key": "user",
                "max_parallelism": MAX_PARALLELISM,
                "hash_scheme": "flink-sql",
            }
            totals = pa.table({"user": user, "n": number})
            checkpoint.write_keyed(UID, "total", totals, **told)
            timers = pa.table({"user": user, "expiration": at})
            checkpoint.write_keyed(
                UID,
                "timers",
                timers,
                kind="timers",
                entry="expiration",
                time_domain="processing",
                **told,
            )
        self.run(self.query(self._store(), HELD_BYTES))

    def timed(self) -> float:
        """Return the seconds of a micro-batch of a running query."""
        query = self.query(self._store(), HELD_BYTES)
        start = time.perf_counter()
        self.run(query)
        return time.perf_counter() - start

    def read(self, what: str) -> list[Figure]:
        """Return the bytes read in the first micro-batch after a start, and in the next one."""
        storage = CountingStorage(str(self.folder))
        store = StateStore.open(storage, spark=self.spark, table_format="parquet", layout="auto")
        found = []
        query = self.query(store, HELD_BYTES + self.rows)  # separate from earlier cached data
        for when in ("after a start", "from then on"):
            storage.bytes_read = 0
            self.run(query)
            found.append(counted("B28", f"read {when}, {what}", storage.bytes_read, "bytes"))
        stored = sum(
            entry.size_bytes
            for entry in store.checkpoint().manifest.keyed
            if entry.state.uid == UID
        )
        return [*found, counted("B28", f"stored, {what}", stored, "bytes")]

    def _store(self) -> StateStore:
        return StateStore.open(
            str(self.folder), spark=self.spark, table_format="parquet", layout="auto"
        )


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of a micro-batch with few timers and with many, and the bytes read."""
    spark = session()
    stores = {
        f"{DUE:,} due of {number:,} timers": Reminded(spark, folder / str(number), number)
        for number in (max(rows // 100, DUE * (repeats + 3)), rows)
    }
    seconds: dict[str, list[float]] = {what: [] for what in stores}
    for store in stores.values():
        store.preload()
    for repeat in range(repeats + 1):
        for what, store in stores.items():
            spent = store.timed()
            if repeat:
                seconds[what].append(spent)
    few, many = stores
    found = [times("B28", few, seconds), times("B28", many, seconds, floor=few, goal=1.5)]
    found += [figure for what, store in stores.items() for figure in store.read(what)]
    spark.stop()
    return found
