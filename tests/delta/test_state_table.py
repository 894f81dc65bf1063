"""Both table formats pass one suite. Further tests cover the Delta table alone."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore, errors
from statestore.testing.table_suite import (
    StateTableSuite,
    publish,
    rows_of,
    spark_rows,
    take,
    write,
)

TABLE = "operators/totals/keyed/total"


@pytest.mark.long  # in each run the suite passes with a log, and most other tests have none
class TestParquetTable(StateTableSuite):
    """Data files without a log."""

    @pytest.fixture
    def store(self, tmp_path: Path, spark: SparkSession) -> StateStore:
        return StateStore.open(str(tmp_path / "a store"), spark=spark, table_format="parquet")


@pytest.fixture
def parquet(tmp_path: Path, spark: SparkSession) -> StateStore:
    return StateStore.open(str(tmp_path / "a store"), spark=spark, table_format="parquet")


@pytest.fixture
def users(spark: SparkSession) -> DataFrame:
    return spark.range(0, 500, 1, 2).selectExpr("'user-' || id AS user", "id * 10 AS total")


@pytest.mark.long
def test_a_parquet_table_has_no_log(parquet: StateStore, users: DataFrame) -> None:
    """The format needs no jar and writes nothing but data files."""
    take(parquet, users)
    assert parquet.checkpoint().manifest.keyed[0].table.version is None
    assert not (Path(parquet.url) / TABLE / "_delta_log").exists()


@pytest.mark.long
def test_co_located_rows_are_not_shuffled(
    parquet: StateStore, users: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: rows of a restore are updated and written at the same parallelism, in any order of
    key groups. Misplaced rows are refused.
    """
    take(parquet, users)
    restored = parquet.restore(parallelism=3).keyed("totals", "total")
    updated = restored.to_spark().drop("key_group").withColumn("total", F.col("total") + 1)
    monkeypatch.setattr(DataFrame, "repartitionById", None)
    wanted = users.withColumn("total", F.col("total") + 1)
    for lying in (updated, updated.sortWithinPartitions(F.desc("user"))):
        with parquet.snapshot(parallelism=3) as checkpoint:
            entry = checkpoint.write_keyed("totals", "total", lying, key="user", co_located=True)
        found = parquet.restore(parallelism=5).keyed("totals", "total")
        assert spark_rows(found.to_spark()) == rows_of(wanted)
        written = Path(parquet.url, entry.table.path).rglob(f"{checkpoint.id:010d}-*.parquet")
        assert len([*written]) == len(entry.handles)
    for wrong in (users, updated.repartition(7), updated.coalesce(1)):
        with (
            pytest.raises(errors.InvalidArgumentError, match="was declared co-located"),
            parquet.snapshot(parallelism=3) as checkpoint,
        ):
            checkpoint.write_keyed("totals", "total", wrong, key="user", co_located=True)
    assert parquet.checkpoints() == (1, 2, 3)


@pytest.mark.long  # the other classes also write this layout, because their states are small
class TestRangedFiles(StateTableSuite):
    """Few files, each with a range of key groups, restore like the other layouts."""

    @pytest.fixture
    def store(self, tmp_path: Path, spark: SparkSession) -> StateStore:
        return StateStore.open(
            str(tmp_path / "store"), spark=spark, table_format="parquet", layout="ranged"
        )


def test_each_task_writes_one_file(tmp_path: Path, spark: SparkSession) -> None:
    """Each file ends where the next task's file begins."""
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet", layout="ranged")
    take(store, spark.range(500).selectExpr("'user-' || id AS user", "id AS total").repartition(2))
    handles = store.checkpoint().manifest.keyed[0].handles
    assert [(h.key_groups.first, h.key_groups.last) for h in handles] == [
        *((0, 7), (8, 15), (16, 23)),
        (24, 31),
    ]


@pytest.mark.usefixtures("uncompiled")  # tests/spark compiles the same snapshots
class TestDeltaTable(StateTableSuite):
    """The same data files, and a Delta log that names the newest checkpoint's files."""

    @pytest.fixture
    def store(self, tmp_path: Path, spark: SparkSession) -> StateStore:
        return StateStore.open(str(tmp_path / "store"), spark=spark)

    @pytest.mark.long  # tests/maintenance/test_verify.py has the data source in each run
    def test_the_data_source_reads_the_same(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        super().test_the_data_source_reads_the_same(store, users, spark)

    def test_any_delta_reader_reads_the_checkpoints(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        """Any Delta reader sees the newest state as a table, and each version as its checkpoint."""
        take(store, users)
        take(store, users.where("total >= 1000"))
        wanted = rows_of(users.where("total >= 1000"))
        path = f"{store.url}/{TABLE}"
        assert spark_rows(spark.read.format("delta").load(path)) == wanted
        assert spark_rows(_Frame(pl.read_delta(path).to_arrow())) == wanted
        # DuckDB reads the files that the log names, because its Delta extension would be a
        # download.
        files = [f"{path}/{handle.path}" for handle in store.checkpoint().manifest.keyed[0].handles]
        query = "SELECT * FROM read_parquet($files, hive_partitioning=true)"
        found = duckdb.sql(query, params={"files": files})
        assert found is not None
        assert spark_rows(_Frame(found.to_arrow_table())) == wanted
        # Delta's time travel to the recorded version returns the checkpoint's rows.
        version = store.checkpoint(1).manifest.keyed[0].table.version
        then = spark.read.format("delta").option("versionAsOf", version).load(path)
        assert spark_rows(then) == rows_of(users)
        history = spark.sql(f"DESCRIBE HISTORY delta.`{path}`").sort("version").collect()
        assert [row.userMetadata for row in history] == [
            "statestore checkpoint 1",
            "statestore checkpoint 2",
        ]

    @pytest.mark.long
    def test_the_layout_can_change_between_checkpoints(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        """Each version of the table and each checkpoint reads back as it was written."""
        path = f"{store.url}/{TABLE}"
        frames = [users, users.where("total >= 1000"), users.where("total < 500")]
        for layout, frame in zip(("partitioned", "ranged", "partitioned"), frames, strict=True):
            with store.snapshot(parallelism=2) as checkpoint:
                checkpoint.write_keyed(
                    "totals", "total", frame, key="user", max_parallelism=32, layout=layout
                )
            assert spark_rows(spark.read.format("delta").load(path)) == rows_of(frame)
        for number, frame in enumerate(frames, start=1):
            read = spark.read.format("delta").option("versionAsOf", number - 1).load(path)
            assert spark_rows(read) == rows_of(frame)
            restored = store.restore(checkpoint=number, parallelism=3).keyed("totals", "total")
            assert spark_rows(restored.to_spark()) == rows_of(frame)
        assert spark_rows(_Frame(pl.read_delta(path).to_arrow())) == rows_of(frames[-1])

    @pytest.mark.long
    def test_vacuum_with_default_settings_damages_no_kept_checkpoint(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        """Files that only older checkpoints use survive a VACUUM by another program."""
        take(store, users)
        take(store, users.where("total >= 1000"))
        DeltaTable.forPath(spark, f"{store.url}/{TABLE}").vacuum()
        restored = store.restore(checkpoint=1, parallelism=3).keyed("totals", "total")
        assert spark_rows(restored.to_spark()) == rows_of(users)

    def test_key_bounds_are_in_the_log(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        """Delta's statistics let a reader skip files by key."""
        take(store, users)
        log = spark.read.json(f"{store.url}/{TABLE}/_delta_log/*.json").where("add IS NOT NULL")
        statistics = [json.loads(row.stats) for row in log.select("add.stats").collect()]
        assert statistics
        assert all(statistic["minValues"]["user"].startswith("user-") for statistic in statistics)

    @pytest.mark.long  # test_foreign_hands.py has other commits in each run
    def test_a_foreign_commit_in_between_is_tolerated_or_reported(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        """Another program appends to the table. The next checkpoint replaces the rows, and kept
        ones stay.
        """
        take(store, users)
        foreign = users.limit(1).select(F.lit(0).alias("key_group"), "user", "total")
        foreign.write.format("delta").mode("append").save(f"{store.url}/{TABLE}")
        kept = store.restore(checkpoint=1, parallelism=3).keyed("totals", "total")
        assert spark_rows(kept.to_spark()) == rows_of(users)
        take(store, users)
        assert spark_rows(spark.read.format("delta").load(f"{store.url}/{TABLE}")) == rows_of(users)

    @pytest.mark.long
    def test_a_lost_race_leaves_the_table_readable(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        """I4: one of two snapshots wins, and the newest table version stays readable."""
        late = store.snapshot(parallelism=2)
        write(late.__enter__(), users)
        take(store, users.where("total >= 1000"))
        with pytest.raises(errors.CommitConflictError, match="committed by"):
            late.__exit__(None, None, None)
        assert store.checkpoints() == (1,)
        found = spark_rows(spark.read.format("delta").load(f"{store.url}/{TABLE}"))
        assert found == rows_of(users.where("total >= 1000"))

    @pytest.mark.long
    def test_any_thread_of_a_new_driver_publishes(
        self, store: StateStore, users: Any, spark: SparkSession
    ) -> None:
        """I10: a restarted driver reads Delta's log checkpoint, also in a thread without an active
        session.
        """
        take(store, users)
        properties = "SET TBLPROPERTIES ('delta.checkpointInterval' = '1')"
        spark.sql(f"ALTER TABLE delta.`{store.url}/{TABLE}` {properties}")
        take(store, users)
        log = Path(store.url) / TABLE / "_delta_log"
        assert list(log.glob("*.checkpoint*"))
        for checksum in log.glob("*.crc"):  # a driver that is killed after its commit leaves none
            checksum.unlink()
        entry = store.checkpoint().manifest.keyed[0]

        def in_a_new_driver() -> Any:
            spark._get_j_spark_session_class(spark._jvm).clearActiveSession()
            jvm: Any = spark._jvm
            jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
            return publish(store, entry, 2)

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(in_a_new_driver).result() == entry.table

    def test_a_state_that_was_empty_can_get_elements(self, store: StateStore) -> None:
        """The first element determines the columns, and the Delta table then adds them."""
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_union("source", "offsets", [[], []])
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_union("source", "offsets", [[{"n": 1}], []])
        assert store.restore().operator_state("source", "offsets").subtask(1) == [{"n": 1}]

    def test_another_schema_at_the_same_place_is_refused(
        self, store: StateStore, users: Any
    ) -> None:
        """A table of a checkpoint that is no longer visible does not accept other columns."""
        take(store, users)
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_union("other", "offsets", [[{"n": 1}]])
            checkpoint.drop("totals", "total")
        with pytest.raises(errors.SchemaMismatchError, match="total"):
            take(store, users.withColumn("total", F.col("total").cast("string")))
        assert len(store.checkpoints()) == 2


class _Frame:
    """An Arrow table that the suite's helpers accept like a DataFrame."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def drop(self, name: str) -> _Frame:
        return _Frame(self.table.drop_columns([name]))

    def toArrow(self) -> Any:
        return self.table
