"""A Spark query over a topic, and operations on its checkpoints, step by step."""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import StorageError
from statestore.interop.spark import (
    SparkTarget,
    bootstrap_location,
    export_checkpoint,
    import_checkpoint,
    plan_query,
    repartition_location,
    show_location,
)
from tests.services.kafka_topics import Topics
from tests.services.spark_process import kafka_session

UID = "stateStoreSave-0"


def main() -> None:
    """Execute the steps."""
    given = json.load(sys.stdin)
    spark = kafka_session("spark-checkpoint-on-kafka", 4)
    found = [_do(spark, given, step) for step in given["steps"]]
    spark.stop()
    print(json.dumps(found))


def _do(spark: SparkSession, given: dict[str, Any], step: dict[str, Any]) -> Any:
    store = StateStore.open(given["store"], spark=spark, layout="auto")
    match step["do"]:
        case "run":
            topics = step.get("topics", [given["topic"]])
            return _run(spark, given, topics, step["location"], step.get("kill_in"))
        case "fill":
            values = records(step["first"], step["last"])
            return Topics(given["bootstrap"]).fill(step.get("topic", given["topic"]), values)
        case "repartition":
            changes = SparkTarget(renamed_sources=step["renamed"], added_sources=step["added"])
            old = step["location"].replace(step["to"], step["from"])
            moved = repartition_location(spark, old, step["location"], partitions=3, target=changes)
            return {name: json.loads(end) for name, end in moved.sources.items() if end != "-"}
        case "show":
            shown = show_location(spark, step["location"])
            return [
                shown.batch,
                shown.uncommitted,
                shown.provider,
                [*map(json.loads, shown.sources)],
            ]
        case "import":
            return import_checkpoint(spark, step["location"], store).record.batch
        case "correct":
            state = store.restore().keyed(UID, "default")
            (row,) = state.get(step["user"])
            store.maintenance.edit(UID, "default", put=[{**row, "sum": row["sum"] + step["more"]}])
            (corrected,) = store.restore().keyed(UID, "default").get(step["user"])
            return [row["sum"], corrected["sum"]]
        case "offsets":
            return store.restore(parallelism=1).operator_state("query", "offsets").subtask(0)
        case "export":
            done = export_checkpoint(
                store,
                step["location"],
                partitions=step["partitions"],
                target=SparkTarget(provider=step["provider"]),
            )
            return [done.batch, len(done.stores[0].rows)]
        case "bootstrap":
            return _bootstrap(spark, given, step)
    raise AssertionError(step)


def records(first: int, last: int) -> dict[int, list[str]]:
    """Return the values of some records in each of three partitions."""
    return {
        number: [f"u{(at + number) % 7}:{at}" for at in range(first, last)] for number in range(3)
    }


def _run(
    spark: SparkSession,
    given: dict[str, Any],
    topics: list[str],
    location: str,
    kill_in: int | None,
) -> dict[int, list[Any]]:
    """Run the query to the end of the topic, or kill it within a micro-batch."""
    emitted: dict[int, list[Any]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        rows = sorted([*row] for row in batch.collect())
        if number == kill_in:
            os.kill(os.getpid(), signal.SIGKILL)
        emitted[number] = rows

    totals = _totals(spark, topics, _from(given, "startingOffsets", "earliest"))
    writer = totals.writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", location).trigger(availableNow=True).start()
    query.awaitTermination()
    return emitted


def _from(given: dict[str, Any], option: str, value: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": given["bootstrap"], option: value}


def _totals(spark: SparkSession, topics: list[str], options: dict[str, str]) -> DataFrame:
    """Return the number and sum of the records of each user; each topic is a source."""
    reader = spark.readStream.format("kafka").options(**options).option("maxOffsetsPerTrigger", 60)
    sources = [reader.option("subscribe", topic).load() for topic in topics]
    records = reduce(DataFrame.union, sources)
    events = records.select(
        F.substring_index(F.col("value").cast("string"), ":", 1).alias("user"),
        F.substring_index(F.col("value").cast("string"), ":", -1).try_cast("long").alias("amount"),
    )
    return events.groupBy("user").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))


def _bootstrap(spark: SparkSession, given: dict[str, Any], step: dict[str, Any]) -> Any:
    """Write a location with a table of totals; return where its source begins, or the error."""
    options = _from(given, step["option"], step["value"]) | step.get("options", {})
    try:
        plan = plan_query(_totals(spark, [given["topic"]], options), output_mode="update")
    except StorageError as error:
        return str(error)
    table = spark.createDataFrame(step["totals"], "user string, count long, sum long")
    bootstrap_location(plan, step["location"], {f"{UID}/default": table}, partitions=3)
    return [json.loads(source.begins) for source in plan.sources]


if __name__ == "__main__":
    main()
