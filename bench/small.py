"""The fixed cost of a store: checkpoints of little state.

The state has 65 thousand rows in three keyed and two operator states, as Delta tables: totals, a
map and a list per user, the offsets of a source, and one row for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.measure import Figure, sample
from statestore import CheckpointWriter, StateStore
from statestore.spark.session import spark_session

__all__ = ["figures", "small_tables", "write_small"]

PARALLELISM, KEY_GROUPS = 4, 128
ROWS = 65_000
CHECKPOINTS_A_REPEAT = 10  # fewer would not show a tail
MOST_SECONDS = {
    ("Arrow", "auto"): 0.3,
    ("Arrow", "partitioned"): 1.0,
    ("Spark", "auto"): 1.0,
    ("Spark", "partitioned"): 2.0,
}
MOST_FIRST = 3.0


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the seconds of a checkpoint from Arrow and through Spark, in both layouts.

    The first checkpoint of a session is a separate figure.
    """
    tables = small_tables(rows)
    spark = spark_session(app_name="statestore-bench", master="local[2]")
    frames = {name: spark.createDataFrame(table).persist() for name, table in tables.items()}
    for frame in frames.values():
        frame.count()
    first = _seconds(_taken(folder / "first", frames, "auto", spark), 1)
    found = []
    for engine, given in (("Arrow", tables), ("Spark", frames)):
        for layout in ("auto", "partitioned"):
            take = _taken(folder / f"{engine}-{layout}", given, layout, spark)
            _seconds(take, 2)  # creates the tables, and warms up
            goal = MOST_SECONDS[engine, layout]
            what = f"checkpoint of {rows:,} rows, {engine}, {layout}"
            seconds = _seconds(take, repeats * CHECKPOINTS_A_REPEAT)
            found.append(sample("B21", what, seconds, goal=goal, tail=True))
    what = "first checkpoint of a session, Spark, auto"
    found.append(sample("B21", what, first, goal=MOST_FIRST))
    spark.stop()
    return found


def small_tables(rows: int) -> dict[str, pa.Table]:
    """Return the rows of the keyed states, with this total."""
    users = [f"user-{number:06}" for number in range(rows // 3)]
    numbers = range(len(users))
    return {
        "totals": pa.table({"user": users, "n": numbers}),
        "routes": pa.table({"user": users, "to": ["x"] * len(users), "n": numbers}),
        "last": pa.table({"user": users, "at": [0] * len(users), "n": numbers}),
    }


def _taken(
    folder: Path, given: dict[str, Any], layout: str, spark: SparkSession
) -> Callable[[], None]:
    store = StateStore.open(str(folder), table_format="delta", spark=spark)

    def take() -> None:
        with store.snapshot(parallelism=PARALLELISM) as checkpoint:
            write_small(checkpoint, given, layout)

    return take


def write_small(checkpoint: CheckpointWriter, given: dict[str, Any], layout: str) -> None:
    """Write all states, from the rows of any engine."""
    options: dict[str, Any] = {"key": "user", "max_parallelism": KEY_GROUPS, "layout": layout}
    checkpoint.write_keyed("users", "totals", given["totals"], **options)
    checkpoint.write_keyed("users", "routes", given["routes"], kind="map", entry="to", **options)
    checkpoint.write_keyed("users", "last", given["last"], kind="list", entry="at", **options)
    checkpoint.write_split("source", "offsets", [[{"partition": 0, "offset": 1}], [], [], []])
    checkpoint.write_union("users", "unkeyed", [[{"n": 1}], [], [], []])


def _seconds(run: Callable[[], None], repeats: int) -> list[float]:
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return found
