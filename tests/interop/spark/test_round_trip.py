"""A query goes on from an exported checkpoint as if it had never been stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from tests.interop.spark.queries import QUERIES, events, run

# Each query with the provider that it begins with, and those that it goes on with at 7, and at 3.
WAYS = [
    ("agg", "hdfs", "rocksdb", "hdfs"),
    ("agg_many", "rocksdb", "hdfs", "rocksdb"),
    ("nested", "hdfs", "rocksdb", "hdfs"),
    ("aggwin", "hdfs", "hdfs", "rocksdb"),
    ("global", "rocksdb", "rocksdb", "hdfs"),
    ("dedup", "hdfs", "rocksdb", "rocksdb"),
    ("dedupwm", "rocksdb", "hdfs", "hdfs"),
    ("session", "hdfs", "rocksdb", "hdfs"),
    ("join", "rocksdb", "hdfs", "rocksdb"),
    ("join_full", "hdfs", "rocksdb", "hdfs"),
    ("fmgws", "hdfs", "rocksdb", "hdfs"),
    ("fmgws_t", "rocksdb", "hdfs", "rocksdb"),
    ("limit", "hdfs", "hdfs", "hdfs"),
    ("two", "rocksdb", "rocksdb", "hdfs"),
]


@pytest.mark.parametrize(("name", "first", "second", "third"), WAYS, ids=[way[0] for way in WAYS])
def test_a_query_goes_on_at_other_parallelisms(
    spark: SparkSession, tmp_path: Path, name: str, first: str, second: str, third: str
) -> None:
    query, source = QUERIES[name], tmp_path / "events"
    store = StateStore.open(str(tmp_path / "store"), spark=spark, layout="auto")

    def runs(where: str, provider: str) -> dict[int, list[str]]:
        location = str(tmp_path / where)
        return run(spark, query, source=source, location=location, provider=provider, partitions=4)

    def moves(here: str, there: str, provider: str, partitions: int) -> None:
        import_checkpoint(spark, str(tmp_path / here), store)
        export_checkpoint(
            spark,
            store,
            str(tmp_path / there),
            partitions=partitions,
            provider="hdfs" if provider == "hdfs" else "rocksdb",
        )

    events(source, 0, 2)
    runs("at-4", first)
    moves("at-4", "at-7", second, 7)
    events(source, 2, 3)
    middle = runs("at-7", second)
    moves("at-7", "at-3", third, 3)
    events(source, 3, 4)
    last = runs("at-3", third)

    plain = run_all(spark, tmp_path, name, first)
    assert {**middle, **last} == {batch: plain[batch] for batch in {**middle, **last}}
    assert max(last) == max(plain)


def run_all(spark: SparkSession, folder: Path, name: str, provider: str) -> dict[int, list[str]]:
    """Run a query over files that come in the same steps, at 4 partitions all along."""
    source, emitted = folder / "once", dict[int, list[str]]()
    for first, last in ((0, 2), (2, 3), (3, 4)):
        events(source, first, last)
        location = str(folder / "plain")
        query = QUERIES[name]
        emitted |= run(
            spark, query, source=source, location=location, provider=provider, partitions=4
        )
    return emitted
