"""The rows of many keys as a DataFrame: the driver or tasks read them, with equal results."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import MissingFileError
from statestore.restore.restored import RestoredKeyedState
from statestore.spark import state_lookup as read
from statestore.spark.cached_rows import coalesce_small

COLUMNS = {
    "k": "concat('k', id)",
    "n": "id",
    "price": "CAST(id * 1.5 AS decimal(12,3))",
    "at": "timestamp_millis(id * 3600000)",
    "local": "TIMESTAMP_NTZ'2026-03-29 02:30:00'",
    "day": "DATE'1582-10-15'",
    "raw": "CAST(CAST(id AS STRING) AS BINARY)",
    "ratio": "CAST(id AS FLOAT)",
    "tags": "array(CAST(id AS STRING), NULL)",
    "nested": "struct(CAST(id AS INT) AS a, map('m', id) AS b)",
}
KEYS = pa.table({"k": ["k3", "k50", "absent"]})
CACHE_BYTES = 2**20 + 1  # different from the cache of any other test
ZONE = "spark.sql.session.timeZone"


@pytest.fixture
def stored(spark: SparkSession, tmp_path: Path) -> RestoredKeyedState:
    """A state with a base and a layer."""
    store = StateStore.open(str(tmp_path / "s"), spark=spark, table_format="parquet")
    rows = spark.range(100).select(*(F.expr(sql).alias(name) for name, sql in COLUMNS.items()))
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=16)
    with store.snapshot(parallelism=3) as checkpoint:
        changed = rows.where("n = 50").withColumn("n", F.lit(-1).cast("long"))
        checkpoint.write_changes("u", "s", changed, key="k")
    return store.restore(parallelism=3).keyed("u", "s")


def in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_FEW_KEYS_BYTES", 0)


def test_the_driver_reads_the_same_rows_as_tasks(
    spark: SparkSession, stored: RestoredKeyedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every column, for any type and any session time zone."""
    before = str(spark.conf.get(ZONE))
    try:
        spark.conf.set(ZONE, "Europe/Berlin")
        here = stored.lookup_in_spark(KEYS)
        assert coalesce_small(here) is not None
        in_tasks(monkeypatch)
        there = stored.lookup_in_spark(KEYS)
        assert coalesce_small(there) is None
        assert here.schema == there.schema
        few, many = (frame.orderBy("k").toArrow() for frame in (here, there))
    finally:
        spark.conf.set(ZONE, before)
    assert few.equals(many)
    assert few["n"].to_pylist() == [3, -1]
    some = stored.lookup_in_spark(KEYS, ["n", "k"])
    assert sorted(some.collect()) == [(-1, "k50"), (3, "k3")]


def test_the_driver_caches_the_rows_that_it_reads(
    stored: RestoredKeyedState, tmp_path: Path
) -> None:
    first = stored.lookup_in_spark(KEYS, ["n"], cache_bytes=CACHE_BYTES).collect()
    for file in tmp_path.glob("s/operators/**/*.parquet"):
        file.unlink()
    assert stored.lookup_in_spark(KEYS, ["n"], cache_bytes=CACHE_BYTES).collect() == first
    with pytest.raises(MissingFileError):
        stored.lookup_in_spark(KEYS)


def test_large_reads_are_done_by_tasks(
    stored: RestoredKeyedState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks read more bytes than the driver's limit, unless these are or fit in its cache."""
    monkeypatch.setattr(read, "_FEW_READ_BYTES", 0)
    assert coalesce_small(stored.lookup_in_spark(KEYS)) is None
    assert coalesce_small(stored.lookup_in_spark(KEYS, cache_bytes=1)) is None
    assert coalesce_small(stored.lookup_in_spark(KEYS, cache_bytes=CACHE_BYTES + 1)) is not None
    for file in tmp_path.glob("s/operators/**/*.parquet"):
        file.unlink()
    with pytest.raises(PythonException, match="MissingFileError"):
        stored.lookup_in_spark(KEYS).collect()


def test_many_bytes_are_read_by_several_threads(
    stored: RestoredKeyedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    class RecordedPool(ThreadPoolExecutor):
        def __init__(self, most: int) -> None:
            threads.append(most)
            super().__init__(most)

    monkeypatch.setattr(read, "ThreadPoolExecutor", RecordedPool)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    few = stored.lookup_in_spark(KEYS, ["n"], cache_bytes=CACHE_BYTES + 2).collect()
    monkeypatch.setattr(read, "_BYTES_OF_ONE_THREAD", 0)
    many = stored.lookup_in_spark(KEYS, ["n"], cache_bytes=CACHE_BYTES + 3).collect()
    assert threads == [1, 3]
    assert sorted(row.n for row in few) == sorted(row.n for row in many) == [-1, 3]
