"""The overhead of ``by_key`` compared with calling a function for each key.

The function returns its input rows. The floor is Spark's own ``applyInArrow`` over the same
cogrouped rows, which uses Arrow tables without pandas and without checks. ``applyInPandas`` is
measured for comparison, although it changes values and ``by_key`` does not. One state row and one
event for each key are cached in advance, and the result is discarded. The three run in turn, and
the first round does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.measure import Figure, counted, times
from bench.streaming import session
from statestore.streaming import MicroBatch, by_key

__all__ = ["KEYS", "figures"]

KEYS = 2_000
ARROW, PANDAS, OURS = "by key, applyInArrow", "by key, applyInPandas", "by key, by_key"


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time per call for ``rows`` keys with each of the three."""
    spark = session()
    events, state = _cached(spark, rows)
    update = by_key("user", _same)

    def both(apply: str) -> DataFrame:
        grouped = events.groupBy("user").cogroup(state.groupBy("user"))
        result: DataFrame = getattr(grouped, apply)(_state, state.schema)
        return result

    def ours() -> DataFrame:
        [shared] = update(events, {"state": state}, MicroBatch("bench", 0)).shared
        return shared

    ways: dict[str, Callable[[], DataFrame]] = {
        ARROW: lambda: both("applyInArrow"),
        PANDAS: lambda: both("applyInPandas"),
        OURS: ours,
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(repeats + 1):
        for way, frame in ways.items():
            begun = time.perf_counter()
            frame().write.format("noop").mode("overwrite").save()
            if number:
                seconds[way].append(time.perf_counter() - begun)
    spark.stop()
    return [
        times("B32", ARROW, seconds),
        times("B32", PANDAS, seconds, floor=ARROW),
        times("B32", OURS, seconds, floor=ARROW),
        counted("B32", "keys", rows, "keys"),
    ]


def _cached(spark: SparkSession, rows: int) -> tuple[DataFrame, DataFrame]:
    keys = spark.range(rows).select(F.concat(F.lit("user "), "id").alias("user"), "id")
    events = keys.select("user", F.col("id").alias("amount")).cache()
    state = keys.select("user", F.col("id").alias("n"), F.lit(1).alias("total")).cache()
    events.count(), state.count()
    return events, state


def _same(key: Any, events: Any, state: Any) -> Any:
    return state


def _state(events: Any, state: Any) -> Any:
    return state
