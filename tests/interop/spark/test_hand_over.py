"""A Spark query continues as a ``StatefulQuery`` on the state in a store, and back again."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import CommitConflictError, InvalidArgumentError
from statestore.interop.spark import export_checkpoint, export_progress, import_checkpoint
from statestore.streaming import MicroBatch, ProcessorOptions, QueryOptions, StatefulQuery
from tests.interop.spark.processors import Living
from tests.interop.spark.queries import (
    NO_DATA_BATCHES,
    QUERIES,
    Query,
    copy_location,
    events,
    offset_log,
    planned_only,
    run,
    settings,
    stream,
    texts,
)
from tests.streaming.world import of_one

UID, TTL = "stateStoreSave-0", "ttlExpirationMs"


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k", "small").agg(F.count("*").alias("n"), F.sum("v").alias("total"))


def added(events: DataFrame, state: DataFrame) -> DataFrame:
    """The same update on the columns of Spark's aggregation, which are its buffers."""
    new = events.groupBy("k", "small").agg(F.count("*").alias("count"), F.sum("v").alias("sum"))
    both = state.unionByName(new)
    return both.groupBy("k", "small").agg(F.sum("count").alias("count"), F.sum("sum").alias("sum"))


class Moves:
    """A query, its events, and a store."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.store = StateStore.open(str(folder / "store"), spark=spark, layout="auto")

    def run(self, where: str) -> dict[int, list[str]]:
        return run(
            self.spark,
            Query("totals", "update", totals),
            source=self.folder / "events",
            location=str(self.folder / where),
            provider="rocksdb",
            partitions=4,
        )

    def take(self, where: str) -> None:
        import_checkpoint(self.spark, str(self.folder / where), self.store)

    def hand_over(self, where: str, **options: Any) -> None:
        export_progress(self.store, str(self.folder / where), **options)

    def give(self, where: str, progress: str | None) -> None:
        export_checkpoint(
            self.store,
            str(self.folder / where),
            partitions=7,
            progress=progress and str(self.folder / progress),
        )

    def run_here(self, where: str, parallelism: int = 2) -> None:
        query = StatefulQuery(
            store=self.store,
            operator=UID,
            key=["k", "small"],
            states={"default": "k string, small short, count long, sum long"},
            update=of_one(added),
            parallelism=parallelism,
            options=QueryOptions(source="query"),
        )
        started = query.start(
            stream(self.spark, self.folder / "events"), str(self.folder / where), available_now=True
        )
        assert started.awaitTermination(300)

    def rows(self) -> dict[tuple[Any, ...], tuple[int, int]]:
        found = self.store.restore().keyed(UID, "default").to_spark()
        return {(row["k"], row["small"]): (row["count"], row["sum"]) for row in found.collect()}


@pytest.fixture
def moves(spark: SparkSession, tmp_path: Path) -> Moves:
    """The state after micro-batch 1, which is imported."""
    found = Moves(spark, tmp_path)
    events(tmp_path / "events", 0, 2)
    found.run("spark")
    found.take("spark")
    return found


@pytest.mark.long
def test_an_aggregation_continues_here_and_returns(moves: Moves) -> None:
    """This includes null keys. Each event counts once, at another parallelism in each system."""
    moves.hand_over("progress")
    events(moves.folder / "events", 2, 3)
    moves.run_here("progress")
    events(moves.folder / "events", 3, 4)
    moves.run_here("progress", parallelism=3)
    assert len(moves.store.checkpoints()) == 3
    moves.give("back", "progress")

    emitted = {
        (row["k"], row["small"]): (row["n"], row["total"])
        for batch in moves.run("spark").values()
        for row in map(json.loads, batch)
    }
    rows = moves.rows()
    assert rows == {**rows, **emitted}
    assert {(None, None), ("", 1)} < emitted.keys()
    events(moves.folder / "events", 4, 5)
    later = moves.run("spark")
    assert list(later) == [4]
    assert moves.run("back") == later
    moves.take("back")
    assert (
        moves.store.restore().operator_state("query", "progress").per_old_subtask()[0][0]["batch"]
        == 4
    )


@pytest.mark.long
def test_a_planned_micro_batch_runs_here(moves: Moves) -> None:
    events(moves.folder / "events", 2, 3)
    emitted = moves.run("spark")
    assert planned_only(moves.folder / "spark") == 2
    moves.hand_over("progress")
    moves.run_here("progress")
    rows = moves.rows()
    for row in map(json.loads, emitted[2]):
        assert rows[row["k"], row["small"]] == (row["n"], row["total"])


@pytest.mark.long
def test_a_processors_value_continues_here_and_returns(spark: SparkSession, tmp_path: Path) -> None:
    """The list, the map, TTLs and timers of its transformWithState are unchanged."""
    query, conf = QUERIES["tws_ttl"], {NO_DATA_BATCHES: "false"}
    source, store = tmp_path / "events", StateStore.open(str(tmp_path / "store"), spark=spark)

    def run_in_spark(where: str) -> dict[str, tuple[Any, ...]]:
        there = str(tmp_path / where)
        emitted = run(
            spark, query, source=source, location=there, provider="rocksdb", partitions=2, conf=conf
        )
        rows = (json.loads(row) for batch in emitted.values() for row in batch)
        return {row["k"]: ast.literal_eval(row["has"]) for row in rows}

    def counted(new: DataFrame, state: DataFrame) -> DataFrame:
        more = new.groupBy("k").agg(F.count("*").alias("n"), F.lit(2**50).alias(TTL))
        return state.union(more).groupBy("k").agg(F.sum("n").alias("n"), F.min(TTL).alias(TTL))

    events(source, 0, 1)
    before = run_in_spark("spark")
    import_checkpoint(spark, str(tmp_path / "spark"), store)
    export_progress(store, str(tmp_path / "progress"))
    events(source, 1, 2)
    here = StatefulQuery(
        store=store,
        operator="transformWithStateInPandasExec-0",
        key="k",
        states={"n": f"k string, n long, {TTL} long"},
        update=of_one(counted),
        parallelism=3,
        options=QueryOptions(source="query"),
    )
    keyed = stream(spark, source).selectExpr("concat(k, '-', id % 4) as k")
    started = here.start(keyed, str(tmp_path / "progress"), available_now=True)
    assert started.awaitTermination(300)
    export_checkpoint(
        store, str(tmp_path / "back"), partitions=3, progress=str(tmp_path / "progress")
    )

    events(source, 2, 3)
    after = run_in_spark("back")
    plain = run_in_spark("spark")
    assert None in after
    assert {key for key in after if key in plain and key in before}
    for key, ((n,), listed, mapped) in after.items():
        ((all_of_them,), all_listed, _) = plain[key]
        assert n == all_of_them
        was = before.get(key, ((0,), [], []))
        assert listed[: len(was[1])] == was[1]
        assert all_listed[-len(listed) + len(was[1]) :] == listed[len(was[1]) :]
        assert sum(n for _, (n,) in mapped) == len(listed)


def wrong(moves: Moves) -> dict[str, Callable[[], None]]:
    other, empty = moves.folder / "other", moves.folder / "empty"
    other.mkdir()
    (other / "metadata").write_text('{"id":"9a9f6e5e-0000-4000-8000-000000000000"}')
    empty.mkdir()
    return {
        "is unchanged since its import, at micro-batch 1": lambda: moves.give("new", "spark"),
        "is not empty": lambda: moves.hand_over("spark"),
        "is inside": lambda: moves.hand_over("store/new"),
    }


def wrong_later(moves: Moves) -> dict[str, Callable[[], None]]:
    return {
        r"pass the checkpoint location of that StatefulQuery \(--progress\)": (
            lambda: moves.give("new", None)
        ),
        "belongs to query 9a9f6e5e": lambda: moves.give("new", "other"),
        "is not a checkpoint location of a query": lambda: moves.give("new", "empty"),
        "has no completed micro-batch 2": lambda: moves.give("new", "spark"),
        "has continued with query": lambda: moves.hand_over("new"),
    }


@pytest.mark.long
def test_an_invalid_handover_is_refused(moves: Moves) -> None:
    for said, call in wrong(moves).items():
        with pytest.raises(InvalidArgumentError, match=said):
            call()
    moves.hand_over("progress")
    events(moves.folder / "events", 2, 3)
    moves.run_here("progress")
    for said, call in wrong_later(moves).items():
        with pytest.raises(InvalidArgumentError, match=said):
            call()
    moves.run("spark")
    with pytest.raises(InvalidArgumentError, match="also has state in Spark"):
        moves.give("new", "spark")
    plan = moves.folder / "progress" / "offsets" / "2"
    plan.with_name(".2.crc").unlink()
    plan.write_text(plan.read_text().replace('"logOffset":2', '"logOffset":1'))
    with pytest.raises(InvalidArgumentError, match="ends at other source positions"):
        moves.give("new", "progress")
    assert not (moves.folder / "new").exists()


@pytest.mark.long
def test_a_location_that_is_being_written(moves: Moves) -> None:
    marker = moves.folder / "new" / "offsets" / "3"
    marker.parent.mkdir(parents=True)
    marker.write_text("This is not a checkpoint of a query yet")
    with pytest.raises(CommitConflictError, match="another export"):
        moves.hand_over("new")


LIVING = ProcessorOptions(
    output_schema="k string, what string, has string",
    output_mode="Update",
    time_mode="ProcessingTime",
    pandas=True,
)


@pytest.mark.long
@pytest.mark.parametrize(
    ("returns", "version", "is_named"),
    [
        (False, 1, False),
        pytest.param(True, 1, False),
        pytest.param(True, 2, False),
        pytest.param(True, 2, True),
    ],
)
def test_a_processor_continues_here_and_returns(
    spark: SparkSession, tmp_path: Path, returns: bool, version: int, is_named: bool
) -> None:
    """All of its state moves: a value, a list, a map, TTLs and timers, at another parallelism each
    time. Its output equals the output of a query that never left Spark.

    In each run, test_transform_with_state.py continues a query in Spark from an export.
    """
    query, conf = QUERIES["tws_ttl"], {NO_DATA_BATCHES: "false", **offset_log(version, is_named)}
    source, store = tmp_path / "events", StateStore.open(str(tmp_path / "store"), spark=spark)

    def in_spark(where: str, partitions: int = 2) -> dict[int, list[str]]:
        there = str(tmp_path / where)
        return run(
            spark,
            query,
            source=source,
            location=there,
            provider="rocksdb",
            partitions=partitions,
            conf=conf,
        )

    emitted: dict[int, list[str]] = {}

    def keep(frame: DataFrame, batch: MicroBatch) -> None:
        emitted[batch.number] = texts(frame)

    events(source, 0, 1)
    in_spark("spark")
    copy_location(tmp_path / "spark", tmp_path / "plain")
    import_checkpoint(spark, str(tmp_path / "spark"), store)
    progress = str(tmp_path / "progress")
    export_progress(store, progress, ticks=True)
    events(source, 1, 3)
    here = StatefulQuery.of_processor(
        store=store,
        operator="transformWithStateInPandasExec-0",
        processor=Living(),
        processor_options=LIVING,
        key="k",
        parallelism=3,
        output=keep,
        options=QueryOptions(source="query"),
    )
    with settings(spark, conf):
        keyed = stream(spark, source).selectExpr("concat(k, '-', id % 4) as k", "id", "v", "t")
        started = here.start(keyed, progress, available_now=True)
        assert started.awaitTermination(300)
    plain = in_spark("plain")
    assert {number: rows for number, rows in emitted.items() if rows} == plain
    assert plain
    if not returns:
        return
    export_checkpoint(store, str(tmp_path / "back"), partitions=3, progress=progress)
    events(source, 3, 4)
    assert list(in_spark("back", 3).values()) == list(in_spark("plain").values())
