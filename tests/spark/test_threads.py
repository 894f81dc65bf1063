"""Many threads take snapshots of one store in one SparkSession: each commits or conflicts."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import CommitConflictError

THREADS, ROUNDS, ROWS = 6, 2, 60


def rows_of(spark: SparkSession, number: int) -> DataFrame:
    """Return rows that all have this attempt's number, so that mixed attempts are detectable."""
    return spark.range(0, ROWS, 1, 2).select(F.col("id").alias("k"), F.lit(number).alias("n"))


def found_in(store: StateStore, checkpoint_id: int, name: str) -> dict[int, int]:
    rows = store.restore(checkpoint=checkpoint_id, parallelism=1).keyed("counts", name)
    return {row["k"]: row["n"] for row in rows.to_arrow(0).to_pylist()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("shares", "table_format"),
    [
        pytest.param(True, "delta", id="one object, delta"),
        pytest.param(False, "parquet", id="an object each, parquet"),
        pytest.param(True, "parquet", id="one object, parquet"),
        pytest.param(False, "delta", id="an object each, delta"),
    ],
)
def test_threads_commit_or_conflict(
    spark: SparkSession, tmp_path: Path, table_format: str, shares: bool
) -> None:
    """I4, I6: a committed attempt has all its rows in both states of its checkpoint.

    No other attempt has a row or a file there.
    """
    url = str(tmp_path / "store")

    def opened() -> StateStore:
        return StateStore.open(url, spark=spark, table_format=table_format, compaction=None)

    shared, meeting = opened(), threading.Barrier(THREADS)
    take(shared, rows_of(spark, 0), full=True)

    def attempt(number: int) -> tuple[int, int] | None:
        rows = rows_of(spark, number)
        meeting.wait(60)
        try:
            store = shared if shares else opened()
            return number, take(store, rows, full=random.Random(number).random() < 0.5)
        except CommitConflictError:
            return None

    committed: dict[int, int] = {1: 0}
    for around in range(ROUNDS):
        numbers = range(1 + around * THREADS, 1 + (around + 1) * THREADS)
        with ThreadPoolExecutor(THREADS) as pool:
            done = [one for one in pool.map(attempt, numbers) if one is not None]
        assert done, "nobody committed"
        committed |= {checkpoint_id: number for number, checkpoint_id in done}
        shared = opened()  # the current object may have lost its claim
    store = opened()
    assert store.checkpoints() == tuple(sorted(committed))
    assert store.maintenance.verify(deep=True).is_intact
    for checkpoint_id, number in committed.items():
        for name in ("first", "second"):
            assert found_in(store, checkpoint_id, name) == dict.fromkeys(range(ROWS), number)
    # A writer that loses at the put of its manifest leaves its files to a collection, which keeps
    # those that the newest version of a Delta table shows.
    store.maintenance.gc(minimum_age="0")
    entries = [entry for n in store.checkpoints() for entry in store.checkpoint(n).manifest.entries]
    named = {
        f"{part.table.path}/{handle.path}"
        for entry in entries
        for part in entry.parts
        for handle in part.handles
    }
    tables = {entry.table.path for entry in entries if table_format == "delta"}
    present = {str(path.relative_to(url)) for path in Path(url).rglob("*.parquet")}
    assert present - shown_by_logs(tables, url) <= named, "a writer that lost has left files"
    assert named <= present


def shown_by_logs(tables: set[str], url: str) -> set[str]:
    return {
        f"{table}/{uri.rpartition('/')[2]}"
        for table in tables
        for uri in DeltaTable(f"{url}/{table}").file_uris()
    }


def take(store: StateStore, rows: DataFrame, *, full: bool) -> int:
    """Take a checkpoint of two states, as full rows or as changes of all rows."""
    with store.snapshot(parallelism=2) as checkpoint:
        for name in ("first", "second"):
            write: Callable[..., object] = (
                checkpoint.write_keyed if full else checkpoint.write_changes
            )
            write("counts", name, rows, key="k", max_parallelism=8)
    return checkpoint.id
