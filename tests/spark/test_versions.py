"""One short test of each feature that uses Spark, for any supported version of it.

``make test-spark SPARK=4.0.5`` runs them with another version. ``make compatibility`` writes
docs/compatibility.md from their results. If a version lacks a feature, the call must be refused
with the version in the message.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from statestore import OperatorKey, StateStore, partition, spark_session
from statestore.errors import MissingDependencyError
from statestore.interop.spark import (
    bootstrap_location,
    export_checkpoint,
    import_checkpoint,
    plan_query,
    show_location,
)
from statestore.jobgraph.partitioners import KeyGroup
from statestore.snapshot.state_spec import Changes
from statestore.spark.compat import INSTALLED, NEWEST_WITH_DELTA
from statestore.streaming import MicroBatch, ProcessorOptions, StatefulQuery, by_key
from tests.interop.spark.queries import (
    NO_DATA_BATCHES,
    QUERIES,
    SCHEMA,
    Query,
    events,
    run,
    session,
    stream,
)
from tests.spark.test_connect import compare
from tests.streaming.processors import Base
from tests.streaming.world import World

# make test-spark runs them. With the installed version, each feature has tests of its own.
pytestmark = pytest.mark.long

ROWS, GROUPS = 1000, 16
FAMILIES_SINCE: tuple[int, int] = (4, 2)
REWRITER_SINCE: tuple[int, int] = (4, 2)
WITHOUT_NEW_JOINS_IN_FORMAT_1: tuple[int, int] = (4, 1)


@pytest.fixture
def store(spark: SparkSession, tmp_path: Path) -> StateStore:
    """A store with one checkpoint, written from a DataFrame."""
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    rows = spark.range(ROWS, numPartitions=3).selectExpr(
        "CAST(id AS STRING) AS k", "id * 2 AS n", "timestamp_micros(id) AS at"
    )
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=GROUPS)
    return store


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.n for row in frame.select("n").collect())


def test_snapshot_and_restore(store: StateStore) -> None:
    """Snapshot from a DataFrame, and restore as one at another parallelism."""
    frame = store.restore(parallelism=5).keyed("u", "s").to_spark()
    assert frame.rdd.getNumPartitions() == 5
    assert numbers(frame) == [2 * at for at in range(ROWS)]


def test_changes(store: StateStore, spark: SparkSession) -> None:
    """Incremental checkpoints from DataFrames, and lookups."""
    changed = spark.sql("SELECT '7' AS k, -1L AS n, timestamp '2026-01-01' AS at")
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes(
            "u", "s", Changes(upserts=changed, deletes=spark.sql("SELECT '8' AS k"))
        )
    keyed = store.restore(parallelism=3).keyed("u", "s")
    assert [row["n"] for row in keyed.get("7")] == [-1]
    assert keyed.get("8") == []
    assert keyed.to_spark().count() == ROWS - 1


def test_the_data_source(store: StateStore, spark: SparkSession) -> None:
    """The data source `keyed_state`."""
    options = {"store": store.url, "operator": "u", "state": "s", "parallelism": "3"}
    frame = spark.read.format("keyed_state").options(**options).load()
    assert numbers(frame) == [2 * at for at in range(ROWS)]


def test_partition(store: StateStore, spark: SparkSession) -> None:
    """Flink's partitioners on a DataFrame."""
    frame = store.restore(parallelism=2).keyed("u", "s").to_spark()
    moved = partition(frame, KeyGroup(key="k", max_parallelism=GROUPS), parallelism=3)
    places = moved.select("k", F.spark_partition_id().alias("place")).collect()
    restored = store.restore(parallelism=3).keyed("u", "s")
    for subtask in range(3):
        own = restored.to_arrow(subtask)["k"].to_pylist()
        assert sorted(own) == sorted(row.k for row in places if row.place == subtask)


def test_spark_connect(spark: SparkSession, tmp_path: Path) -> None:
    """A session of Spark Connect: the same files, reads, `bootstrap`, `by_key`, and the jobs."""
    compare(spark, tmp_path, sys.executable)


def test_a_delta_table_in_spark(
    store: StateStore, spark: SparkSession, record_property: Callable[[str, object], None]
) -> None:
    """Tables read as `format("delta")`, by Delta's jar."""
    if INSTALLED > NEWEST_WITH_DELTA:
        with pytest.raises(MissingDependencyError, match=f"no jar for Spark {pyspark.__version__}"):
            spark_session(table_format="delta", app_name="another")
        record_property("refused", True)
        return
    table = store.checkpoint().manifest.keyed_entry("u", "s").table
    frame = spark.read.format("delta").load(f"{store.url}/{table.path}")
    assert numbers(frame) == [2 * at for at in range(ROWS)]


def test_a_query_of_dataframes(spark: SparkSession, tmp_path: Path) -> None:
    """`StatefulQuery` with an update of DataFrames."""
    world = World(spark, tmp_path)
    world.add(2)
    world.run(world.query())
    assert world.state() == world.expected


def test_a_query_by_key(spark: SparkSession, tmp_path: Path) -> None:
    """`StatefulQuery` with `by_key`."""

    def update(key: tuple[Any, ...], events: Any, state: Any) -> Any:
        import pandas as pd

        n = len(events) + int(state["n"].sum())
        total = int(events["amount"].sum()) + int(state["total"].sum())
        return pd.DataFrame([{"user": key[0], "n": n, "total": total}])

    world = World(spark, tmp_path)
    world.add(2)
    world.run(world.query(update=by_key("user", update)))
    assert world.state() == world.expected


class Total(Base):
    """A total per key, and a timer that clears it."""

    def init(self, handle: Any) -> None:
        """Declare the total."""
        self.handle = handle
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add up, and register a timer."""
        total = (self.total.get() or (0,))[0] + sum(row.amount for row in rows)
        self.total.update((total,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield Row(user=str(key[0]), total=total)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Emit the total with a negative sign."""
        (total,) = self.total.get() or (0,)
        self.total.clear()
        yield Row(user=str(key[0]), total=-total)


def test_a_processor(spark: SparkSession, tmp_path: Path) -> None:
    """`StatefulQuery.of_processor`, with a value and a timer."""
    world = World(spark, tmp_path)
    given: list[list[tuple[str, int]]] = []
    query = StatefulQuery.of_processor(
        store=world.store,
        operator="totals",
        processor=Total(pandas=False),
        processor_options=ProcessorOptions(
            output_schema="user string, total long",
            output_mode="Update",
            time_mode="ProcessingTime",
            max_parallelism=8,
        ),
        key="user",
        parallelism=2,
        output=lambda rows, _: given.append(sorted(map(tuple, rows.collect()))),
    )
    first = MicroBatch("q", 0, planned_at_ms=1000)
    query.process(world.frame("a", "a", "b"), first)
    query.process(world.frame("c"), MicroBatch("q", 1, planned_at_ms=2000, before=first))
    assert given == [[("a", 2), ("b", 1)], [("a", -2), ("b", -1), ("c", 1)]]


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k", "small").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


@dataclass(frozen=True)
class Moved:
    """A query with Spark's own state, and a store that has imported this state."""

    spark: SparkSession
    folder: Path
    query: Query
    provider: str = "rocksdb"

    def begin(self) -> StateStore:
        """Run the query over the first events, and import its state into a store."""
        events(self.folder / "events", 0, 2)
        self.run("spark")
        return self.take("spark", "imported")

    def take(self, where: str, name: str) -> StateStore:
        """Import the state of a location into a store."""
        store = StateStore.open(str(self.folder / name), spark=self.spark)
        import_checkpoint(self.spark, str(self.folder / where), store)
        return store

    def run(self, where: str) -> dict[int, list[str]]:
        """Run the query with a checkpoint location; return the output of each micro-batch."""
        return run(
            self.spark,
            self.query,
            source=self.folder / "events",
            location=str(self.folder / where),
            provider=self.provider,
            partitions=3,
            conf={NO_DATA_BATCHES: "false"},
        )

    def export(self, store: StateStore) -> None:
        """Export the state for another number of partitions."""
        export_checkpoint(store, str(self.folder / "back"), partitions=5)

    def check_both_go_on(self) -> None:
        """Compare the output of the exported and the original query for further events."""
        events(self.folder / "events", 2, 3)
        emitted = self.run("back")
        assert any(emitted.values())
        assert emitted == self.run("spark")

    def check_edit(self, column: str) -> None:
        """Purge a key, and compare what the exported and the original query emit afterwards.

        ``column`` is the column of the output that has the first column of the key.
        """
        store = self.begin()
        entry = store.checkpoint().manifest.keyed[0]
        keyed = store.restore().keyed(entry.state.uid, entry.state.name).to_spark()
        key = keyed.select(*entry.state.key).first()
        assert key is not None
        store.maintenance.forget(
            OperatorKey(entry.state.uid, tuple(key) if len(key) > 1 else key[0]), search=False
        )
        self.export(store)
        assert contents(self.take("back", "again")) == contents(store)
        events(self.folder / "events", 2, 3)
        emitted, plain = (
            {row for rows in self.run(where).values() for row in rows}
            for where in ("back", "spark")
        )
        assert emitted & plain
        of_key = f'"{column}":{json.dumps(key[0])}'
        assert [row for row in emitted ^ plain if f"{of_key}," not in row] == []


def contents(store: StateStore) -> dict[str, list[str]]:
    """Return the rows of each keyed state, sorted."""
    restored = store.restore()
    return {
        entry.state.name: sorted(
            str(row)
            for row in restored.keyed(entry.state.uid, entry.state.name)
            .to_spark()
            .drop("key_group")
            .collect()
        )
        for entry in store.checkpoint().manifest.keyed
    }


def moved(spark: SparkSession, folder: Path, name: str, provider: str = "rocksdb") -> Moved:
    return Moved(spark, folder, QUERIES[name], provider)


def test_an_aggregation(spark: SparkSession, tmp_path: Path) -> None:
    """`spark import`, `purge` and `spark export` of an aggregation."""
    moved(spark, tmp_path, "agg").check_edit("k")


def test_a_deduplication(spark: SparkSession, tmp_path: Path) -> None:
    """`spark import`, `purge` and `spark export` of `dropDuplicates`."""
    moved(spark, tmp_path, "dedup").check_edit("id")


def test_a_deduplication_within_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """`spark import`, `purge` and `spark export` of `dropDuplicatesWithinWatermark`."""
    moved(spark, tmp_path, "dedupwm", "hdfs").check_edit("id")


def test_a_join(spark: SparkSession, tmp_path: Path) -> None:
    """`spark import`, `purge` and `spark export` of a stream-stream join in state format 2."""
    moved(spark, tmp_path, "join").check_edit("k")


def test_a_join_in_format_1(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """`spark import`, `purge` and `spark export` of an inner join in state format 1."""
    conf = {"spark.sql.streaming.join.stateFormatVersion": "1"}
    query = Moved(spark, tmp_path, Query("inner", "append", inner, conf=conf))
    if INSTALLED >= WITHOUT_NEW_JOINS_IN_FORMAT_1:
        with pytest.raises(StreamingQueryException, match="Unsupported schema writer version: 1"):
            query.begin()
        record_property("refused", True)
        return
    query.check_edit("k")


def inner(rows: DataFrame) -> DataFrame:
    left = rows.withWatermark("t", "10 minutes").select("k", "v", "t")
    right = rows.where("v < 20").selectExpr("k as k2", "id as id2", "t as t2")
    near = F.expr("k = k2 and t2 > t and t2 <= t + interval 5 minutes")
    return left.join(right.withWatermark("t2", "10 minutes"), near)


def test_sessions(spark: SparkSession, tmp_path: Path) -> None:
    """`spark import`, `purge` and `spark export` of session windows in HDFS-backed stores."""
    moved(spark, tmp_path, "session", "hdfs").check_edit("k")


def test_groups_with_state(spark: SparkSession, tmp_path: Path) -> None:
    """`spark import`, `purge` and `spark export` of `applyInPandasWithState`."""
    moved(spark, tmp_path, "fmgws_t").check_edit("k")


def test_variables_with_a_ttl(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """`spark import`, `purge` and `spark export` of `transformWithStateInPandas` with a TTL."""
    check_variables(moved(spark, tmp_path, "tws_ttl"), record_property)


def test_variables_and_event_timers(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """`spark import`, `purge` and `spark export` of `transformWithStateInPandas`, event timers."""
    check_variables(moved(spark, tmp_path, "tws_listed"), record_property)


def check_variables(query: Moved, record_property: Callable[[str, object], None]) -> None:
    spark, folder = query.spark, query.folder
    if INSTALLED < FAMILIES_SINCE:
        refused = (
            r"operator 0 \(transformWithStateInPandasExec\).* "
            rf"Spark {re.escape(pyspark.__version__)} .*Spark 4\.2"
        )
        with pytest.raises(MissingDependencyError, match=refused):
            query.begin()
        with pytest.raises(MissingDependencyError, match=refused):
            show_location(spark, str(folder / "spark"))
        assert not (folder / "imported").exists()
        record_property("refused", True)
        return
    query.check_edit("k")


def test_import(spark: SparkSession, tmp_path: Path) -> None:
    """`statestore spark show` and `statestore spark import`."""
    store = Moved(spark, tmp_path, Query("totals", "update", totals)).begin()
    shown = show_location(spark, str(tmp_path / "spark"))
    assert [operator.name for operator in shown.operators] == ["stateStoreSave"]
    state = store.restore(parallelism=3).keyed("stateStoreSave-0", "default").to_spark()
    assert state.count() == sum(shown.operators[0].stores[0].rows or ())


def test_export(spark: SparkSession, tmp_path: Path) -> None:
    """`statestore spark export`; the query emits the same rows afterwards."""
    moved = Moved(spark, tmp_path, Query("totals", "update", totals))
    moved.export(moved.begin())
    moved.check_both_go_on()


def test_a_new_query_with_a_table(spark: SparkSession, tmp_path: Path) -> None:
    """`statestore spark bootstrap`; the query emits what one over the whole history emits."""
    moved = Moved(spark, tmp_path, Query("totals", "update", totals))
    moved.begin()
    rows = stream(spark, tmp_path / "events")
    plan = plan_query(totals(rows), output_mode="update", files_after=datetime.now(UTC))
    history = spark.read.schema(SCHEMA).json(str(tmp_path / "events"))
    counts = totals(history).withColumnsRenamed({"n": "count", "total": "sum"})
    bootstrap_location(plan, str(tmp_path / "back"), {plan.states[0].name: counts}, partitions=5)
    events(tmp_path / "events", 2, 3)
    (emitted,) = moved.run("back").values()
    assert [emitted] == [*moved.run("spark").values()]
    assert emitted


def test_export_by_the_rewriter(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """`statestore spark export` of session windows in RocksDB."""
    moved = Moved(spark, tmp_path, Query("session", "append", session))
    store = moved.begin()
    if INSTALLED < REWRITER_SINCE:
        refused = rf"4\.2 or later.* {pyspark.__version__}"
        with pytest.raises(MissingDependencyError, match=refused):
            moved.export(store)
        record_property("refused", True)
        return
    moved.export(store)
    moved.check_both_go_on()
