"""32,768 key groups compared with 128: the same rows, each with the layout that ``auto`` selects.

They are written and restored in Arrow, without a JVM, and through Spark. The files and bytes of
both are counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import Figure, Runs, in_turn
from bench.state import state_rows, state_table
from statestore import StateStore
from statestore.restore.restored import RestoredKeyedState
from statestore.spark.session import spark_session

__all__ = ["figures"]

TARGET = "B10"
_GROUPS = (FEW, MANY) = (128, 32_768)
WRITTEN_AT, RESTORED_AT = 4, 8
MOST_SNAPSHOT, MOST_RESTORE = 2.0, 1.5


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return ratios of snapshot and restore with many key groups to those with few.

    Half of the figures start Spark.
    """
    table = state_table(rows)
    arrow = [StateStore.open(str(folder / f"arrow-{g}"), table_format="parquet") for g in _GROUPS]
    found = _measured("Arrow", dict(zip(_GROUPS, arrow, strict=True)), table, _arrow, repeats)
    del table
    spark = spark_session(app_name="statestore-bench", master="local[2]", driver_memory="8g")
    frame = state_rows(spark, rows).persist()
    frame.count()
    stores = {g: StateStore.open(str(folder / f"spark-{g}"), spark=spark) for g in _GROUPS}
    found += _measured("Spark", stores, frame, _spark, repeats)
    frame.unpersist()
    return found


def _measured(
    engine: str,
    stores: dict[int, StateStore],
    rows: Any,
    read: Callable[[RestoredKeyedState], object],
    repeats: int,
) -> list[Figure]:
    writes: Runs = {
        f"snapshot, {engine}, {groups:,} key groups": partial(_snapshot, store, rows, groups)
        for groups, store in stores.items()
    }
    snapshots = in_turn(writes, repeats)
    reads: Runs = {
        f"restore, {engine}, {groups:,} key groups": partial(
            read, store.restore(parallelism=RESTORED_AT).keyed("bench", "state")
        )
        for groups, store in stores.items()
    }
    restores = in_turn(reads, repeats)
    found = [_figure(snapshots, "s", MOST_SNAPSHOT), _figure(restores, "s", MOST_RESTORE)]
    for fact, unit in (("files", "files"), ("size_bytes", "bytes")):
        counts = {
            f"{unit}, {engine}, {groups:,} key groups": [
                float(getattr(store.checkpoint().manifest, fact))
            ]
            for groups, store in stores.items()
        }
        found.append(_figure(counts, unit))
    return found


def _snapshot(store: StateStore, rows: Any, groups: int) -> None:
    with store.snapshot(parallelism=WRITTEN_AT) as checkpoint:
        checkpoint.write_keyed(
            "bench", "state", rows, key="user", max_parallelism=groups, layout="auto"
        )


def _arrow(restored: RestoredKeyedState) -> None:
    for subtask in range(RESTORED_AT):
        for _ in restored.to_batches(subtask):
            pass


def _spark(restored: RestoredKeyedState) -> None:
    restored.to_spark().write.format("noop").mode("overwrite").save()


def _figure(values: dict[str, list[float]], unit: str, goal: float | None = None) -> Figure:
    """Return the second of two figures as a ratio to the first."""
    floor, what = values
    own, base = statistics.median(values[what]), statistics.median(values[floor])
    low, high = min(values[what]), max(values[what])
    return Figure(TARGET, what, own, unit, low, high, floor, own / base, goal)
