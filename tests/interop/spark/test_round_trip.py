"""A query goes on from an exported checkpoint as if it had never been stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from tests.interop.spark.queries import NO_DATA_BATCHES, QUERIES, copy_location, events, run

Provider = Literal["hdfs", "rocksdb"]

HDFS: Provider = "hdfs"
ROCKS: Provider = "rocksdb"
# Each query with the provider that it begins with, and those that it goes on with at 7, and at 3.
WAYS = [
    ("agg_many", ROCKS, HDFS, ROCKS),
    ("nested", HDFS, ROCKS, HDFS),
    ("aggwin", HDFS, HDFS, ROCKS),
    ("global", ROCKS, ROCKS, HDFS),
    ("dedup", HDFS, ROCKS, ROCKS),
    ("dedupwm", ROCKS, HDFS, HDFS),
    ("session", HDFS, ROCKS, HDFS),
    ("join", ROCKS, HDFS, ROCKS),
    ("fmgws", HDFS, ROCKS, HDFS),
    ("fmgws_t", ROCKS, HDFS, ROCKS),
    ("limit", HDFS, ROCKS, HDFS),
    ("two", ROCKS, ROCKS, HDFS),
]
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class World:
    """A folder with a query's events, its checkpoint locations, and a store."""

    def __init__(self, spark: SparkSession, folder: Path, name: str, conf: dict[str, str]) -> None:
        self.spark, self.folder, self.query, self.conf = spark, folder, QUERIES[name], conf
        self.store = StateStore.open(str(folder / "store"), spark=spark, layout="auto")

    def run(self, location: str, provider: Provider, last: int) -> dict[int, list[str]]:
        """Run the query until it has read the files before ``last``; return what it emitted."""
        source = self.folder / "events"
        events(source, 0, last)
        for later in source.glob("*.json"):
            if int(later.stem) >= last:
                later.unlink()
        return run(
            self.spark,
            self.query,
            source=source,
            location=str(self.folder / location),
            provider=provider,
            partitions=4,
            conf=self.conf,
        )

    def move(self, here: str, there: str, provider: Provider, partitions: int) -> None:
        """Import a location, and export it."""
        import_checkpoint(self.spark, str(self.folder / here), self.store)
        target = str(self.folder / there)
        export_checkpoint(self.spark, self.store, target, partitions=partitions, provider=provider)


@pytest.mark.parametrize(
    ("name", "first", "second", "third", "version"),
    [*((*way, "1") for way in WAYS), ("agg", ROCKS, ROCKS, ROCKS, "2")],
    ids=[*(way[0] for way in WAYS), "agg in format 2"],
)
def test_a_query_goes_on_at_other_parallelisms(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    first: Provider,
    second: Provider,
    third: Provider,
    version: str,
) -> None:
    """At 4, at 7 and at 3 partitions it emits what it emits at 4 all along."""
    # One query has micro-batches without data too, by which a watermark moves on, at each end.
    has_more = name == "aggwin"
    no_data = {NO_DATA_BATCHES: str(has_more).lower()}
    world = World(spark, tmp_path, name, {FORMAT: version, **no_data})
    world.run("at-4", first, 2)
    copy_location(tmp_path / "at-4", tmp_path / "plain")
    plain = world.run("plain", first, 3) if has_more else {}
    plain |= world.run("plain", first, 4)
    world.move("at-4", "at-7", second, 7)
    later = world.run("at-7", second, 3)
    world.move("at-7", "at-3", third, 3)
    later |= world.run("at-3", third, 4)
    assert later == plain
    assert any(later.values())
