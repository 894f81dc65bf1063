"""Snapshot and restore through Spark, compared with plain Parquet files of the same rows.

Both run in the same session, and also in a session of Spark Connect. The rows are cached in the
JVM, so that creating them is not measured. One run has one row per key. Another has a few keys with
most of the rows (Zipf), so that key groups differ in size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.connect import REMOTE, connect_runs
from bench.measure import Figure, Runs, counted, in_turn, times
from bench.state import state_rows
from statestore import StateStore
from statestore.restore.restored import RestoredKeyedState
from statestore.spark.hashing import key_group_column, owner_column
from statestore.spark.session import spark_session

__all__ = ["figures", "session_runs"]

PARALLELISM = 4
MAX_PARALLELISM = 128
RESTORED_AT = (3, 16, 64)

PLAIN, SHUFFLED = "write.parquet, no shuffle", "repartitionById, write.parquet"
READ = "read.parquet of the same files"

MOST_OF_PLAIN, MOST_OF_SHUFFLED, MOST_CO_LOCATED, MOST_READ = 2.5, 1.15, 1.25, 1.2
MOST_OF_CLASSIC = 1.3

FLINK_BYTES_A_ROW = 88
"""The size of a row in Flink's compressed savepoint, for a payload of 98 bytes."""


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the times of a snapshot and a restore, and the bytes of a row."""
    spark = spark_session(app_name="statestore-bench", master="local[2]", driver_memory="8g")
    found = []
    for skew in (None, "zipf"):
        frame = state_rows(spark, rows, skew).persist()
        frame.count()
        state = _State(spark, folder / str(skew), frame, skew)
        names = ["snapshot", *map(_restore, RESTORED_AT)]
        remote: AbstractContextManager[Runs] = nullcontext({})
        if skew is None:
            remote = connect_runs(folder / "connect", rows, names)
        with remote as runs:
            found += state.figures(repeats, runs)
        frame.unpersist(blocking=True)
    spark.stop()
    return found


def session_runs(spark: SparkSession, folder: Path, rows: DataFrame) -> Runs:
    """Return the snapshot and the restores of one row per key, in any session."""
    state = _State(spark, folder, rows, None)
    return {"snapshot": partial(state.snapshot, rows, co_located=False), **state.restores()}


class _State:
    """One state: its rows, its store, and the times of both operations."""

    def __init__(
        self, spark: SparkSession, folder: Path, rows: DataFrame, skew: str | None
    ) -> None:
        self._spark, self._folder, self._rows = spark, folder, rows
        self._store = StateStore.open(str(folder / "store"), spark=spark)
        self._namespace = () if skew is None else ("window",)
        self._suffix = "" if skew is None else f", {skew}"
        self.snapshot(rows, co_located=False)

    def figures(self, repeats: int, remote: Runs) -> list[Figure]:
        name = self._named
        snapshots = {what: run for what, run in remote.items() if what.startswith("snapshot")}
        restores = {what: run for what, run in remote.items() if what not in snapshots}
        written = in_turn({**self._writes(), **snapshots}, repeats)
        found = [
            times("", name(PLAIN), written),
            times("", name(SHUFFLED), written, floor=name(PLAIN)),
            times("B1", name("snapshot"), written, floor=name(PLAIN), goal=MOST_OF_PLAIN),
            times("B1", name("snapshot"), written, floor=name(SHUFFLED), goal=MOST_OF_SHUFFLED),
            times(
                "B2", name("snapshot, co-located"), written, floor=name(PLAIN), goal=MOST_CO_LOCATED
            ),
        ]
        found += (
            times("B1", what, written, floor="snapshot", goal=MOST_OF_CLASSIC) for what in snapshots
        )
        read = in_turn({**self._reads(), **restores}, repeats)
        found.append(times("", name(READ), read))
        for parallelism in RESTORED_AT:
            what = name(_restore(parallelism))
            found.append(times("B3", what, read, floor=name(READ), goal=MOST_READ))
        for what in restores:
            classic = what.removesuffix(REMOTE)
            found.append(times("B3", what, read, floor=classic, goal=MOST_OF_CLASSIC))
        if not self._namespace:
            entry = self._store.checkpoint().manifest.keyed[0]
            size = entry.size_bytes / entry.rows
            found.append(counted("B7", "bytes a row", size, "B", goal=FLINK_BYTES_A_ROW / 2))
        return found

    def _writes(self) -> Runs:
        rows = self._rows
        # The restored rows in Spark's cache and in their partitions, as a previous job leaves them.
        restored = self._store.restore(parallelism=PARALLELISM).keyed("bench", "state")
        lying = restored.to_spark().drop("key_group").persist()
        lying.count()
        key_group = key_group_column(
            rows.schema, ("user",), max_parallelism=MAX_PARALLELISM, hash_scheme="java"
        )
        owner = owner_column(key_group, max_parallelism=MAX_PARALLELISM, parallelism=PARALLELISM)
        runs: Runs = {
            PLAIN: partial(self._plain, rows),
            SHUFFLED: partial(self._plain, rows.repartitionById(PARALLELISM, owner)),
            "snapshot": partial(self.snapshot, rows, co_located=False),
            "snapshot, co-located": partial(self.snapshot, lying, co_located=True),
        }
        return {self._named(what): run for what, run in runs.items()}

    def _reads(self) -> Runs:
        entry = self._store.checkpoint().manifest.keyed[0]
        files = [f"{self._store.url}/{entry.table.path}/{handle.path}" for handle in entry.handles]
        runs: dict[str, Callable[[], object]] = {
            self._named(READ): lambda: _noop(self._spark.read.parquet(*files))
        }
        return runs | {self._named(what): run for what, run in self.restores().items()}

    def restores(self) -> Runs:
        """Return the restores by their names."""
        return {
            _restore(parallelism): partial(
                _read, self._store.restore(parallelism=parallelism).keyed("bench", "state")
            )
            for parallelism in RESTORED_AT
        }

    def snapshot(self, rows: DataFrame, *, co_located: bool) -> None:
        with self._store.snapshot(parallelism=PARALLELISM) as checkpoint:
            checkpoint.write_keyed(
                "bench",
                "state",
                rows,
                key="user",
                namespace=self._namespace,
                max_parallelism=MAX_PARALLELISM,
                co_located=co_located,
            )

    def _plain(self, rows: DataFrame) -> None:
        writer = rows.write.mode("overwrite").option("compression", "zstd")
        writer.parquet(str(self._folder / "plain"))

    def _named(self, what: str) -> str:
        return what + self._suffix


def _restore(parallelism: int) -> str:
    return f"restore {PARALLELISM} -> {parallelism}, Spark"


def _read(restored: RestoredKeyedState) -> None:
    _noop(restored.to_spark())


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()
