"""State moves from one engine to the other, and its job continues there."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.interop.flink import export_savepoint, import_savepoint
from statestore.interop.flink_plans import bootstrap_flink_state, read_flink_plan
from statestore.interop.spark import bootstrap_location, import_checkpoint, plan_query
from statestore.spark.session_settings import session_settings
from tests.interop.flink.goldens import Golden
from tests.interop.flink_plans.test_real_plans import runs
from tests.interop.moved_processor import SCHEMA, MovedProcessor
from tests.interop.spark.queries import PROVIDERS, Query, events, run
from tests.servers.flink import VERSIONS, Flink

pytestmark = pytest.mark.spark

UID = "transformWithStateInPandasExec-0"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": PROVIDERS["rocksdb"],
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def continued(spark: SparkSession, source: Path) -> DataFrame:
    """Return the query of the processor; ``at`` is long before all timers."""
    rows = spark.readStream.schema("key long, value long, at timestamp").json(str(source))
    keyed = rows.withWatermark("at", "0 seconds").groupBy("key")
    return keyed.transformWithStateInPandas(MovedProcessor(), SCHEMA, "Update", "EventTime")


def states_in_flink(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the state of each key of ``by_long``, as Flink's own restore found it."""
    found: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["operator"] != "by_long" or row.get("timer", "event") != "event":
            continue
        state = found.setdefault(row["key"], {"last": None, "texts": [], "sums": {}, "timers": []})
        if "timer" in row:
            state["timers"].append(row["time"])
        elif row["state"] == "sums":
            state["sums"] = {int(number): value for number, value in row["value"]}
        else:
            state[row["state"]] = row["value"]
    return {key: {**state, "timers": sorted(state["timers"])} for key, state in found.items()}


@pytest.mark.long
def test_a_process_function_of_flink_continues_as_a_processor_of_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Value, list, map and event timers of a golden savepoint, key by key."""
    golden = Golden("2.3_heap_canonical")
    expected = states_in_flink(golden.rows())
    store = StateStore.open(str(tmp_path / "store"), spark=spark)
    import_savepoint(str(golden.unpack(tmp_path / "savepoint")), store)
    restored = store.restore()

    def table(state: str, **renamed: str) -> DataFrame:
        rows = restored.keyed("by_long", state).to_spark()
        return rows.withColumnsRenamed(renamed).drop("key_group")

    source, location = tmp_path / "events", tmp_path / "query"
    source.mkdir()
    with session_settings(spark, SETTINGS):
        plan = plan_query(continued(spark, source), output_mode="update")
        tables = {
            f"{UID}/last": table("last"),
            f"{UID}/texts": table("texts"),
            f"{UID}/sums": table("sums", map_key="user_key_number"),
            f"{UID}/timers": table("_timer_state/event_user-timers", timestamp="expiration"),
        }
        bootstrap_location(plan, str(location), tables, partitions=3)
        (source / "0.json").write_text(
            "\n".join(f'{{"key":{key},"value":7,"at":"1990-01-01T00:00:00Z"}}' for key in expected)
        )
        emitted: list[Any] = []
        query = continued(spark, source).writeStream.outputMode("update")
        query = query.foreachBatch(lambda rows, _number: emitted.extend(rows.collect()))
        query = query.option("checkpointLocation", str(location)).trigger(availableNow=True)
        assert query.start().awaitTermination(240)
    assert len(expected) > 100
    assert {row.key: row.asDict() for row in emitted} == {
        key: {"key": key, **state} for key, state in expected.items()
    }


MINUTES = """
CREATE TABLE events (k STRING, t TIMESTAMP(3))
WITH ('connector' = 'filesystem', 'path' = 'file://{source}', 'format' = 'json');

CREATE TABLE counts (k STRING, w TIMESTAMP(3), n BIGINT)
WITH ('connector' = 'print', 'print-identifier' = 'counts');

STATEMENT SET BEGIN
INSERT INTO counts
SELECT k, FLOOR(t TO MINUTE), COUNT(*) FROM events GROUP BY k, FLOOR(t TO MINUTE);
END
"""


def read_events(source: Path, first: int, last: int) -> list[tuple[str | None, datetime]]:
    """Return the keys and times of the events in some files."""
    files = [source / f"{number:05}.json" for number in range(first, last)]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [(line["k"], datetime.fromisoformat(line["t"]).replace(tzinfo=None)) for line in lines]


@pytest.mark.long
@pytest.mark.flink
@pytest.mark.parametrize("version", VERSIONS)
def test_a_windowed_count_of_spark_continues_in_flink_sql(
    spark: SparkSession, tmp_path: Path, version: str
) -> None:
    """Flink counts on from the windows that Spark has, and emits the numbers of all events."""
    source, location = tmp_path / "events", tmp_path / "query"
    counts = Query(
        "counts", "update", lambda rows: rows.groupBy(F.window("t", "1 minute"), "k").count()
    )
    events(source, 0, 2)
    run(spark, counts, source=source, location=str(location), provider="rocksdb", partitions=2)
    store = StateStore.open(str(tmp_path / "spark"), spark=spark)
    import_checkpoint(spark, str(location), store)
    windows = store.restore().keyed("stateStoreSave-0", "default").to_arrow()

    events(source, 0, 3)
    rest = tmp_path / "rest"
    rest.mkdir()
    lines = [{"k": key, "t": str(at)} for key, at in read_events(source, 2, 3)]
    (rest / "rows.json").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "job.sql").write_text(MINUTES.format(source=rest).strip())
    flink, plan_file = Flink(version), tmp_path / "plan.json"
    flink.java("golden.Plans", [f"compile {tmp_path / 'job.sql'} {plan_file}"])
    plan = read_flink_plan(str(plan_file))
    (state,) = plan.states
    columns = [windows["k"], windows["window_start"].cast(pa.timestamp("us")), windows["count"]]
    table = pa.table(columns, names=[column.name for column in state.table_columns])
    moved = StateStore.open(str(tmp_path / "flink"), table_format="parquet")
    bootstrap_flink_state(moved, plan, state.operator, state.state, table)
    savepoint = export_savepoint(moved, str(tmp_path / "savepoint"), parallelism=2).savepoint

    (changes,) = runs(flink.java("golden.Plans", [f"run {plan_file} rocksdb {savepoint}"]))
    all_events = Counter((key, at.replace(second=0)) for key, at in read_events(source, 0, 3))
    continued = {(key, at.replace(second=0)) for key, at in read_events(source, 2, 3)}
    last = {tuple(row.split(", ")[:2]): int(row.split(", ")[2]) for _, row in changes["counts"]}
    assert last == {
        (str(key).replace("None", "null"), f"{at:%Y-%m-%dT%H:%M}"): all_events[key, at]
        for key, at in continued
    }
    assert any(all_events[window] > 1 for window in continued)
