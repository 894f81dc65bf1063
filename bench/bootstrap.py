"""Start a job with state from a table, compared with the replay of its history by the engine.

The job counts and sums the events of each key. Spark and Flink replay the history from files: Spark
from Parquet, in one micro-batch, and Flink from JSON. The table has the result, one row per key. It
becomes a location from which Spark starts, and a savepoint from which Flink runs a compiled plan;
both include the verification. What Flink needs includes the start of its process. Flink's replay
has its state on the heap, which is its fastest: in RocksDB with the default memory of a local
cluster it is many times slower.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.measure import Figure, counted, in_turn, output_of, times
from statestore import StateStore
from statestore.interop.flink import export_savepoint
from statestore.interop.flink_plans import bootstrap_flink_state, read_flink_plan
from statestore.interop.spark import bootstrap_location, plan_query
from statestore.spark.session import spark_session
from tests.servers.flink import VERSIONS, Flink

__all__ = ["figures"]

MEMORY = "-Xmx8g"
SHORT_LIVED = ("-Xmx", "-XX:TieredStopAtLevel", "-XX:+UseSerialGC")
EVENTS = 3
"""The events of each key in the history."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SPARK, FLINK = "replay, Spark", "replay, Flink"
LOCATION, SAVEPOINT = "a table becomes a Spark location", "a table becomes a Flink savepoint"
SQL = """
CREATE TABLE events (user_id STRING, amount BIGINT)
WITH ('connector' = 'filesystem', 'path' = 'file://{history}', 'format' = 'json');

CREATE TABLE totals (user_id STRING, n BIGINT, total BIGINT) WITH ('connector' = 'blackhole');

STATEMENT SET BEGIN
INSERT INTO totals SELECT user_id, COUNT(*), SUM(amount) FROM events GROUP BY user_id;
END
"""


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of each way; they run in turn."""
    spark = spark_session(
        app_name="statestore-bench",
        master="local[2]",
        driver_memory="8g",
        table_format="parquet",
        extra_conf={
            "spark.sql.shuffle.partitions": "8",
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        },
    )
    _write_history(folder, rows)
    flink, plan = Flink(VERSIONS[0]), folder / "plan.json"
    (folder / "job.sql").write_text(SQL.format(history=folder / "json").strip())
    flink.java("golden.Plans", [f"compile {folder / 'job.sql'} {plan}"])
    seconds = in_turn(
        {
            SPARK: lambda: _replay(spark, folder),
            LOCATION: lambda: _bootstrap_location(spark, folder),
            FLINK: lambda: _replay_in_flink(flink, plan),
            SAVEPOINT: lambda: _bootstrap_savepoint(folder, plan),
        },
        repeats,
    )
    spark.stop()
    return [
        times("B33", SPARK, seconds),
        times("B33", LOCATION, seconds, floor=SPARK),
        times("B33", FLINK, seconds),
        times("B33", SAVEPOINT, seconds, floor=FLINK),
        counted("B33", "keys", rows, "keys"),
    ]


def _write_history(folder: Path, keys: int) -> None:
    """Write the events for both engines, and the table of their totals."""
    for name in ("parquet", "json"):
        (folder / name).mkdir()
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    connection.execute(
        f"CREATE VIEW events AS SELECT 'user-' || (range % {keys}) AS user_id, range AS amount "
        f"FROM range({keys * EVENTS})"
    )
    connection.execute(
        "CREATE VIEW totals AS SELECT user_id, count(*) AS count, sum(amount)::BIGINT AS sum FROM "
        "events GROUP BY user_id"
    )
    for view, place, kind in (
        ("events", "parquet/events.parquet", "PARQUET"),
        ("events", "json/events.json", "JSON"),
        ("totals", "totals.parquet", "PARQUET"),
    ):
        connection.execute(f"COPY {view} TO '{folder / place}' (FORMAT {kind})")


def _query(spark: SparkSession, folder: Path) -> DataFrame:
    events = spark.readStream.schema("user_id string, amount long").parquet(str(folder / "parquet"))
    return events.groupBy("user_id").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))


def _replay(spark: SparkSession, folder: Path) -> None:
    location = folder / "replayed"
    shutil.rmtree(location, ignore_errors=True)
    writer = _query(spark, folder).writeStream.outputMode("update").format("noop")
    writer = writer.option("checkpointLocation", str(location))
    writer.trigger(availableNow=True).start().awaitTermination()


def _replay_in_flink(flink: Flink, plan: Path) -> None:
    """Run the compiled plan in a JVM that optimizes, unlike those of the tests."""
    java, *arguments = flink.command("golden.Plans", [f"run {plan} hashmap -"])
    own = [each for each in arguments if not each.startswith(SHORT_LIVED)]
    output_of([java, MEMORY, *own])


def _bootstrap_location(spark: SparkSession, folder: Path) -> None:
    location = folder / "location"
    shutil.rmtree(location, ignore_errors=True)
    plan = plan_query(_query(spark, folder), output_mode="update")
    totals = spark.read.parquet(str(folder / "totals.parquet"))
    bootstrap_location(plan, str(location), {plan.states[0].name: totals})


def _bootstrap_savepoint(folder: Path, plan_file: Path) -> None:
    for place in ("store", "savepoint"):
        shutil.rmtree(folder / place, ignore_errors=True)
    plan = read_flink_plan(str(plan_file))
    (state,) = plan.states
    store = StateStore.open(str(folder / "store"), table_format="parquet")
    names = [column.name for column in state.table_columns]
    totals = pq.read_table(folder / "totals.parquet").rename_columns(names)
    bootstrap_flink_state(store, plan, state.operator, state.state, totals)
    export_savepoint(store, str(folder / "savepoint"), parallelism=2)
