"""A query that starts with state from tables emits what it emits after the whole history.

The tables are computed from the events without Spark's streaming, or read from the state of a query
that ran.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore.errors import DuplicateKeyError, InvalidArgumentError, StateStoreError
from statestore.interop.spark.bootstrap_location import bootstrap_location
from statestore.interop.spark.location import CheckpointLocation
from statestore.interop.spark.parts import list_parts, map_columns, read_stored_rows
from statestore.interop.spark.planned_query import PlannedQuery, plan_query
from statestore.interop.spark.state_files import Provider
from statestore.interop.spark.state_reader import prepared_session
from statestore.storage import open_storage
from tests.interop.spark.processors import DAY
from tests.interop.spark.queries import (
    PROVIDERS,
    QUERIES,
    SCHEMA,
    Query,
    events,
    run,
    settings,
    stream,
)

Tables = Mapping[str, DataFrame]
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
HISTORY, ALL = 2, 4  # the files before the start, and all files
DELAY = timedelta(minutes=10)


@dataclass(frozen=True)
class History:
    """The events before the start, as Spark and Python read them without streaming."""

    rows: DataFrame
    events: tuple[dict[str, Any], ...]

    @property
    def watermark(self) -> datetime:
        """A query's watermark after all events."""
        latest: datetime = max(row["t"] for row in self.events)
        return latest - DELAY


def read_history(spark: SparkSession, source: Path) -> History:
    """Read the events of the first files."""
    paths = [source / f"{number:05}.json" for number in range(HISTORY)]
    lines = [line for path in paths for line in path.read_text().splitlines()]
    rows = tuple(row | {"t": datetime.fromisoformat(row["t"])} for row in map(json.loads, lines))
    return History(spark.read.schema(SCHEMA).json([str(path) for path in paths]), rows)


def totals(rows: DataFrame) -> DataFrame:
    """Count, sum, average and maximum, per nullable key."""
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("price"), F.avg("v"), F.max("id"))


def totals_tables(history: History) -> Tables:
    buffers = history.rows.groupBy("k").agg(
        F.count("*").alias("count"),
        F.sum("price").alias("sum"),
        F.lit(False).alias("isEmpty"),
        F.sum("v").cast("double").alias("sum_2"),
        F.count("v").alias("count_2"),
        F.max("id").alias("max"),
    )
    return {"stateStoreSave-0/default": buffers}


def windows_tables(history: History) -> Tables:
    """The sums of windows that have not ended yet; the key is a struct."""
    sums = history.rows.groupBy(F.window("t", "5 minutes"), "k").agg(
        F.sum("v").alias("sum"), F.max("price").alias("max")
    )
    return {"stateStoreSave-0/default": sums.where(F.col("window.end") > F.lit(history.watermark))}


def dedup_tables(history: History) -> Tables:
    return {"dedupe-0/default": history.rows.select("id", "small").distinct()}


def two_tables(history: History) -> Tables:
    """The first event of each id, and sums of these events for windows that are still open."""
    spark = history.rows.sparkSession
    expires: dict[int, datetime] = {}
    sums: dict[tuple[datetime, int | None], int] = {}
    for row in history.events:
        if row["id"] not in expires:
            expires[row["id"]] = row["t"] + DELAY
            start = row["t"] - timedelta(seconds=row["t"].timestamp() % 300)
            sums[start, row["small"]] = sums.get((start, row["small"]), 0) + row["v"]
    ids = [
        (key, round(end.timestamp() * 1_000_000))
        for key, end in expires.items()
        if end > history.watermark
    ]
    windows = [
        (start, start + timedelta(minutes=5), small, total)
        for (start, small), total in sums.items()
        if start + timedelta(minutes=5) > history.watermark
    ]
    return {
        "dedupeWithinWatermark-1/default": spark.createDataFrame(
            ids, "id int, expiresAtMicros long"
        ),
        "stateStoreSave-0/default": spark.createDataFrame(
            windows, "window_start timestamp, window_end timestamp, small short, sum long"
        ),
    }


def inner_join(rows: DataFrame) -> DataFrame:
    """All pairs of events with the same keys, without a watermark."""
    right = rows.where("v % 3 = 0").selectExpr("k as k2", "small + 1 as small2", "id as id2")
    left = rows.select("k", "small", "v", "t")
    return left.join(right, F.expr("k = k2 and small + 1 = small2"))


def inner_join_tables(history: History) -> Tables:
    """One key of the left side is a computed value; it is a column of the table."""
    left = history.rows.select(
        (F.col("small") + 1).cast("int").alias("field1"), "k", "small", "v", "t"
    )
    right = history.rows.where("v % 3 = 0").select(
        F.col("k").alias("k2"),
        (F.col("small") + 1).cast("int").alias("small2"),
        F.col("id").alias("id2"),
    )
    return {
        "symmetricHashJoin-0/left": left.where("k is not null and small is not null"),
        "symmetricHashJoin-0/right": right.where("k2 is not null and small2 is not null"),
    }


def running_tables(history: History) -> Tables:
    state = history.rows.groupBy("k").agg(
        F.struct(F.count("*").alias("n"), F.sum("v").alias("total")).alias("groupState")
    )
    return {"applyInPandasWithState-0/default": state}


def living_tables(history: History) -> Tables:
    """Values, lists and maps with a TTL, and timers. Positions need not begin with 0."""
    spark = history.rows.sparkSession
    soon = int(datetime.now(UTC).timestamp() * 1000) + 5 * DAY
    counts: dict[str | None, int] = {}
    seen: list[tuple[str | None, int, int, int]] = []
    by_id: dict[tuple[str | None, int], int] = {}
    for number, row in enumerate(history.events):
        key = None if row["k"] is None else f"{row['k']}-{row['id'] % 4}"
        counts[key] = counts.get(key, 0) + 1
        seen.append((key, 10 * number, row["v"], soon))
        by_id[key, row["id"] % 7] = by_id.get((key, row["id"] % 7), 0) + 1
    uid = "transformWithStateInPandasExec-0"
    return {
        f"{uid}/n": spark.createDataFrame(
            [(key, n, soon) for key, n in counts.items()], "k string, n long, ttlExpirationMs long"
        ),
        f"{uid}/seen": spark.createDataFrame(
            seen, "k string, position int, v long, ttlExpirationMs long"
        ),
        f"{uid}/byId": spark.createDataFrame(
            [(*key, n, soon) for key, n in by_id.items()],
            "k string, user_key_id int, n long, ttlExpirationMs long",
        ),
        f"{uid}/timers": spark.createDataFrame(
            [(key, soon + 30 * DAY) for key in counts], "k string, expiration long"
        ),
    }


@dataclass(frozen=True)
class Case:
    """A query, and the tables with which it starts."""

    query: Query
    tables: Callable[[History], Tables]
    provider: Provider
    partitions: int


CASES = {
    "aggregation": Case(Query("totals", "update", totals), totals_tables, "hdfs", 3),
    "windows": Case(QUERIES["aggwin"], windows_tables, "rocksdb", 3),
    "deduplication": Case(QUERIES["dedup"], dedup_tables, "rocksdb", 2),
    "within the watermark": Case(QUERIES["two"], two_tables, "hdfs", 2),
    "join": Case(Query("inner_join", "append", inner_join), inner_join_tables, "hdfs", 3),
    "function of groups": Case(QUERIES["fmgws"], running_tables, "rocksdb", 3),
    "processor": Case(QUERIES["tws_ttl"], living_tables, "rocksdb", 3),
}


class World:
    """A folder with events, and a query over them."""

    def __init__(self, spark: SparkSession, folder: Path, query: Query) -> None:
        self.spark, self.folder, self.source = spark, folder, folder / "events"
        self.query = query

    def run(self, location: str, provider: str, partitions: int, last: int) -> list[list[str]]:
        """Run the query over the files before ``last``; return what each micro-batch emitted."""
        events(self.source, 0, last)
        emitted = run(
            self.spark,
            self.query,
            source=self.source,
            location=str(self.folder / location),
            provider=provider,
            partitions=partitions,
        )
        return [emitted[number] for number in sorted(emitted)]

    def plan(self, provider: str, partitions: int) -> PlannedQuery:
        """Plan the query, so that it begins after the files of the history."""
        with self.settings(provider, partitions):
            return plan_query(
                self.query.build(stream(self.spark, self.source)),
                output_mode=self.query.mode,
                files_after=datetime.fromtimestamp(1_000_000_000 + HISTORY - 1, UTC),
            )

    def settings(self, provider: str, partitions: int) -> Any:
        return settings(
            self.spark,
            {
                "spark.sql.streaming.stateStore.providerClass": PROVIDERS[provider],
                "spark.sql.shuffle.partitions": str(partitions),
                "spark.sql.session.timeZone": "UTC",
                **self.query.conf,
            },
        )


# Other tests in each run begin queries: with Kafka, with Delta, and by the command.
@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_query_starts_with_tables(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Its output is that of a query that read the whole history."""
    case = CASES[name]
    world = World(spark, tmp_path, case.query)
    world.run("whole", case.provider, 2, HISTORY)
    history = read_history(spark, world.source)
    plan = world.plan(case.provider, case.partitions)
    with world.settings(case.provider, case.partitions):
        bootstrap_location(
            plan,
            str(tmp_path / "new"),
            case.tables(history),
            watermark=history.watermark if plan.has_watermark else None,
        )
    new = world.run("new", case.provider, case.partitions, ALL)
    assert new == world.run("whole", case.provider, 2, ALL)
    assert any(new)


@pytest.mark.long
@pytest.mark.parametrize(
    ("second", "error", "message"),
    [
        (7, DuplicateKeyError, "1 row with the key of another (k, position)"),
        (None, InvalidArgumentError, "1 row with a null in column 'position'"),
    ],
    ids=["the same", "null"],
)
def test_elements_of_a_list_need_distinct_positions(
    spark: SparkSession,
    tmp_path: Path,
    second: int | None,
    error: type[StateStoreError],
    message: str,
) -> None:
    """Otherwise their order would be arbitrary."""
    case = CASES["processor"]
    world = World(spark, tmp_path, case.query)
    events(world.source, 0, HISTORY)
    plan = world.plan(case.provider, case.partitions)
    seen = spark.createDataFrame(
        [("a", 7, 1, 0), ("a", second, 2, 0)],
        "k string, position int, v long, ttlExpirationMs long",
    )
    tables = {state.name: seen if state.state == "seen" else None for state in plan.states}
    with world.settings(case.provider, case.partitions), pytest.raises(error) as caught:
        bootstrap_location(plan, str(tmp_path / "new"), tables)
    assert message in str(caught.value)
    assert not (tmp_path / "new").exists()


def read_tables(spark: SparkSession, location: Path, plan: PlannedQuery) -> Tables:
    """Return the state of a query that ran, as a table for each state that the plan wants."""
    source = CheckpointLocation(open_storage(str(location)))
    batch = source.batch()
    tables = {}
    operators = source.operators(batch)
    wanted = {
        (state.planned.part.operator, state.planned.part.state): state for state in plan.states
    }
    with prepared_session(spark, source, batch, operators) as url:
        for part in (part for operator in operators for part in list_parts(operator)):
            state = wanted.get((part.operator, part.state))
            if state is None:
                continue
            rows = read_stored_rows(spark, url, batch, part)
            table = map_columns(rows, part).to_state(rows).select(*state.schema.names)
            # The rows are copied, because the query runs on before they are read.
            tables[state.name] = spark.createDataFrame(table.collect(), state.schema)
    return tables


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "provider", "partitions", "version"),
    [
        (name, *way)
        for name, query in QUERIES.items()
        for way in (("hdfs", 5, "1"), ("rocksdb", 5, "1"), ("rocksdb", 1, "2"))
        if way[0] in query.providers and name != "tws_avro" and (name, way[2]) != ("limit", "2")
    ],
)
def test_a_query_starts_with_the_state_of_another(
    spark: SparkSession,
    tmp_path: Path,
    name: str,
    provider: Provider,
    partitions: int,
    version: str,
) -> None:
    """Each query of the tests, with each provider and both formats of checkpoints."""
    query = QUERIES[name]
    world = World(spark, tmp_path, replace(query, conf={**query.conf, FORMAT: version}))
    world.run("whole", provider, 2, HISTORY)
    plan = world.plan(provider, partitions)
    location = CheckpointLocation(open_storage(str(tmp_path / "whole")))
    watermark = location.commit(location.batch()).next_watermark_ms
    with world.settings(provider, partitions):
        tables = read_tables(spark, tmp_path / "whole", plan)
        bootstrap_location(
            plan,
            str(tmp_path / "new"),
            tables,
            watermark=datetime.fromtimestamp(watermark / 1000, UTC),
        )
    new = world.run("new", provider, partitions, ALL)
    assert new == world.run("whole", provider, 2, ALL)
    assert any(new)
