"""A query continues from an exported checkpoint as if it had never been stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from statestore.errors import InvalidArgumentError, UnsupportedTypeError
from statestore.interop.spark.export_state import export_checkpoint
from statestore.interop.spark.import_state import import_checkpoint
from statestore.interop.spark.query_settings import SparkTarget
from tests.interop.spark.queries import (
    NO_DATA_BATCHES,
    QUERIES,
    copy_location,
    events,
    run,
    settings,
)

Provider = Literal["hdfs", "rocksdb"]

HDFS: Provider = "hdfs"
ROCKS: Provider = "rocksdb"
# Each query with its first provider, and its providers after the first and the second move.
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
# Queries whose operators are covered by other queries and tests in each run.
LONG = ("nested", "fmgws", "global", "dedup", "two")
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


class World:
    """A folder with a query's events, its checkpoint locations, and a store."""

    def __init__(
        self, spark: SparkSession, folder: Path, name: str, partitions: int, conf: dict[str, str]
    ) -> None:
        self.spark, self.folder, self.query, self.conf = spark, folder, QUERIES[name], conf
        self.partitions = partitions
        self.store = StateStore.open(str(folder / "store"), spark=spark, layout="auto")

    def run(self, location: str, provider: Provider, last: int) -> dict[int, list[str]]:
        """Run the query until it has read the files before ``last``; return the emitted rows."""
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
            partitions=self.partitions,
            conf=self.conf,
        )

    def move(self, here: str, there: str, provider: Provider, partitions: int) -> None:
        """Import a location, and export it."""
        import_checkpoint(self.spark, str(self.folder / here), self.store)
        target = str(self.folder / there)
        export_checkpoint(
            self.store, target, partitions=partitions, target=SparkTarget(provider=provider)
        )


@pytest.mark.long
def test_a_micro_batch_is_recognized_by_its_rows_and_logs(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An edited export has the number of the micro-batch, and other rows."""
    world = World(spark, tmp_path, "agg", 2, {})
    world.run("query", HDFS, 2)
    place, edited = str(tmp_path / "query"), str(tmp_path / "edited")
    first = import_checkpoint(spark, place, world.store, max_parallelism=16)
    for most in (None, 16):
        again = import_checkpoint(spark, place, world.store, max_parallelism=most)
        assert (again.found, again.checkpoint_id) == (True, first.checkpoint_id)
    with pytest.raises(InvalidArgumentError, match=r"has 16 key groups.*change to 32"):
        import_checkpoint(spark, place, world.store, max_parallelism=32)
    (state,) = first.record.stores
    rows = world.store.restore().keyed(state.uid, state.state).to_arrow()
    key = {name: rows.column(name)[0].as_py() for name in state.columns.key_columns}
    world.store.maintenance.edit(state.uid, state.state, delete=[key])
    export_checkpoint(world.store, edited, partitions=2)
    assert import_checkpoint(spark, place, world.store).found
    other = StateStore.open(str(tmp_path / "other"), spark=spark)
    import_checkpoint(spark, place, other)
    done = import_checkpoint(spark, edited, other)
    assert (done.found, done.is_incremental, done.record.batch) == (False, True, first.record.batch)
    assert other.restore().keyed(state.uid, state.state).to_arrow().num_rows == len(rows) - 1


@pytest.mark.long_cases(
    "dedupwm-one move",
    "fmgws_t-one move",
    "limit-one move",
    "agg_many-one move",
    "join-one move",
    "session-one move",
)
@pytest.mark.parametrize(
    "partitions",
    [
        pytest.param((2, 3), id="one move"),
        pytest.param((4, 7, 3), id="two moves", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    ("name", "providers", "version"),
    [
        *(
            pytest.param(name, ways, "1", id=name, marks=pytest.mark.long if name in LONG else ())
            for name, *ways in WAYS
        ),
        pytest.param(
            "agg", [ROCKS, ROCKS, ROCKS], "2", id="agg in format 2", marks=pytest.mark.long
        ),
    ],
)
def test_a_query_continues_at_other_parallelisms(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    providers: list[Provider],
    version: str,
    partitions: tuple[int, ...],
) -> None:
    """After each move it emits the same rows as without a move."""
    # One query also has micro-batches without data, which advance a watermark, in both runs.
    has_more = name == "aggwin"
    no_data = {NO_DATA_BATCHES: str(has_more).lower()}
    world = World(spark, tmp_path, name, partitions[0], {FORMAT: version, **no_data})
    files = 2
    world.run("moved-0", providers[0], files)
    copy_location(tmp_path / "moved-0", tmp_path / "plain")
    plain: dict[int, list[str]] = {}
    moved: dict[int, list[str]] = {}
    for move in range(1, len(partitions)):
        here, there = f"moved-{move - 1}", f"moved-{move}"
        world.move(here, there, providers[move], partitions[move])
        files += 1
        moved |= world.run(there, providers[move], files)
        if has_more or move == len(partitions) - 1:
            plain |= world.run("plain", providers[0], files)
    assert moved == plain
    assert any(moved.values())


CHECKSUMS = {
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "true",
    "spark.sql.streaming.stateStore.rowChecksum.readVerificationRatio": "1",
}
JOIN_IN_FAMILIES = {"spark.sql.streaming.join.stateFormatVersion": "3"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "before", "after", "conf"),
    [
        pytest.param("agg", ROCKS, HDFS, CHECKSUMS, id="checksums in hdfs"),
        pytest.param("agg", HDFS, ROCKS, CHECKSUMS, id="checksums in rocksdb"),
        pytest.param("join", ROCKS, ROCKS, JOIN_IN_FAMILIES, id="join in column families"),
    ],
)
def test_a_query_with_another_format_continues(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    before: Provider,
    after: Provider,
    conf: dict[str, str],
) -> None:
    """Spark checks each checksum that it reads."""
    world = World(spark, tmp_path, name, 2, {NO_DATA_BATCHES: "false", **conf})
    world.run("first", before, 2)
    copy_location(tmp_path / "first", tmp_path / "plain")
    with settings(spark, conf):
        world.move("first", "moved", after, 3)
    moved = world.run("moved", after, 3)
    assert moved == world.run("plain", before, 3)
    assert any(moved.values())


@pytest.mark.long
def test_a_join_in_format_4_is_imported_and_not_exported(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's rewriter, also when Spark calls it, writes such a join so that Spark cannot read it.

    The key of its rows also has their event time, which does not determine the partition.
    """
    conf = {
        "spark.sql.streaming.join.stateFormatVersion": "4",
        "spark.sql.streaming.join.stateFormatV4.enabled": "true",
    }
    world = World(spark, tmp_path, "join", 2, {NO_DATA_BATCHES: "false", **conf})
    world.run("first", "rocksdb", 2)
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    done = import_checkpoint(spark, str(tmp_path / "first"), store)
    (imported,) = done.record.stores
    assert imported.columns.key.names == ["field0", "field1"]
    state = store.restore().keyed(imported.uid, imported.state).to_arrow()
    assert {*state["column_family_name"].to_pylist()} == {
        f"{side}-{family}"
        for side in ("left", "right")
        for family in ("keyWithTsToValues", "tsWithKey")
    }
    with pytest.raises(UnsupportedTypeError, match="a join in state format 4, as files that Spark"):
        export_checkpoint(store, str(tmp_path / "moved"), partitions=3)
    assert not (tmp_path / "moved").exists()
