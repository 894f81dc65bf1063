"""The time from a stopped job at parallelism 4 to every row in its new task at 8.

It is compared with Spark's own offline repartition (4.2, a private call, only RocksDB), which
shuffles the state and writes all of it again, and the ``statestore`` reader that reads the result.
Both sides have the same keys and values: the rows of a streaming aggregation, read from its
checkpoint.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.measure import Figure, in_turn
from bench.state import state_rows
from statestore import StateStore
from statestore.spark.session import spark_session

__all__ = ["figures", "rates"]

WRITTEN_AT, RESTORED_AT = 4, 8
CORES = 2
FASTER_ARROW, FASTER_SPARK = 10.0, 5.0

# The best rate of a restore of such keys with Flink 2.3 on two cores, quoted: HashMap backend,
# canonical savepoint, snapshot compression, 1 million string keys, from 4 to 8.
FLINK_ROWS_PER_SECOND = 593_000.0
RATE_ARROW, RATE_SPARK = 10.0, 2.0

_REPARTITION = "offline repartition, statestore reader"
_ARROW, _SPARK = "restore, Arrow", "restore, Spark DataFrame"
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SETTINGS = {
    "spark.sql.shuffle.partitions": str(WRITTEN_AT),
    "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
}


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of Spark's repartition of ``rows`` keys, as a multiple of a restore's time.

    Each run of the repartition has its own copy of the checkpoint, which is made in advance.
    """
    spark = _session()
    known = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        checkpoint = _streamed(spark, folder, rows)
        store = _stored(spark, folder, checkpoint)
        copies = [folder / f"checkpoint-{number}" for number in range(repeats + 1)]
        for copy in copies:
            shutil.copytree(checkpoint, copy)
        runs: dict[str, Callable[[], object]] = {
            _REPARTITION: partial(_repartition, spark, iter(copies)),
            _ARROW: partial(_restore_arrow, store, rows),
            _SPARK: partial(_restore_spark, store),
        }
        seconds = in_turn(runs, repeats)
        assert all(_state(spark, copy).count() == rows for copy in copies[-1:])
    finally:
        for name, before in known.items():
            if before is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, before)
    return [
        _times(seconds, _REPARTITION),
        _faster(seconds, _ARROW, FASTER_ARROW),
        _faster(seconds, _SPARK, FASTER_SPARK),
    ]


def rates(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the rows per second of a restore from 4 to 8, compared with Flink's best rate."""
    spark = _session()
    store = StateStore.open(str(folder / "rates"), spark=spark)
    with store.snapshot(parallelism=WRITTEN_AT) as checkpoint:
        checkpoint.write_keyed(
            "bench", "state", state_rows(spark, rows), key="user", max_parallelism=128
        )
    runs: dict[str, Callable[[], object]] = {
        _ARROW: partial(_restore_arrow, store, rows),
        _SPARK: partial(_restore_spark, store),
    }
    seconds = in_turn(runs, repeats)
    return [
        _rate(f"{_ARROW}, both cores", rows, seconds[_ARROW], RATE_ARROW),
        _rate(_SPARK, rows, seconds[_SPARK], RATE_SPARK),
    ]


def _session() -> SparkSession:
    return spark_session(app_name="statestore-bench", master=f"local[{CORES}]", driver_memory="8g")


def _streamed(spark: SparkSession, folder: Path, rows: int) -> Path:
    """Run a streaming aggregation to its end; return its checkpoint, which has a row per key."""
    source, checkpoint = str(folder / "source"), folder / "checkpoint"
    state_rows(spark, rows).write.parquet(source)
    schema = spark.read.parquet(source).schema
    totals = (
        spark.readStream.schema(schema)
        .parquet(source)
        .groupBy("user")
        # Four different functions: the reader names a value after its function.
        .agg(F.count("*"), F.sum("amount"), F.max("last_seen"), F.min("note"))
    )
    query = (
        totals.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return checkpoint


def _stored(spark: SparkSession, folder: Path, checkpoint: Path) -> StateStore:
    """Store the state of the checkpoint at the same parallelism."""
    frame = _state(spark, checkpoint).select("key.*", "value.*")
    store = StateStore.open(str(folder / "store"), spark=spark)
    with store.snapshot(parallelism=WRITTEN_AT) as taken:
        taken.write_keyed("bench", "state", frame, key="user", max_parallelism=128)
    return store


def _state(spark: SparkSession, checkpoint: Path) -> DataFrame:
    return spark.read.format("statestore").load(str(checkpoint))


def _repartition(spark: SparkSession, copies: Iterator[Path]) -> None:
    copy = next(copies)
    manager: Any = spark._streamingCheckpointManager
    manager.repartition(str(copy), RESTORED_AT)
    _noop(_state(spark, copy))


def _restore_arrow(store: StateStore, rows: int) -> None:
    """Read every subtask, two at a time."""
    restored = store.restore(parallelism=RESTORED_AT).keyed("bench", "state")

    def read(subtask: int) -> int:
        return sum(batch.num_rows for batch in restored.to_batches(subtask))

    with ThreadPoolExecutor(CORES) as pool:
        assert sum(pool.map(read, range(RESTORED_AT))) == rows


def _restore_spark(store: StateStore) -> None:
    _noop(store.restore(parallelism=RESTORED_AT).keyed("bench", "state").to_spark())


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _times(seconds: dict[str, list[float]], what: str) -> Figure:
    values = seconds[what]
    return Figure("B5", what, statistics.median(values), "s", min(values), max(values))


def _faster(seconds: dict[str, list[float]], what: str, goal: float) -> Figure:
    """Return the time of a restore; its ratio says how many times longer the repartition takes."""
    values, floor = seconds[what], statistics.median(seconds[_REPARTITION])
    own = statistics.median(values)
    low, high = min(values), max(values)
    return Figure("B5", what, own, "s", low, high, _REPARTITION, floor / own, goal, at_least=True)


def _rate(what: str, rows: int, seconds: list[float], goal: float) -> Figure:
    own = rows / statistics.median(seconds)
    low, high = rows / max(seconds), rows / min(seconds)
    ratio, floor = own / FLINK_ROWS_PER_SECOND, "Flink's best, quoted"
    return Figure("B6", what, own, "rows/s", low, high, floor, ratio, goal, at_least=True)
