"""Spark and Delta on ``s3a://``; for some steps, Spark logs at level DEBUG."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.interop.spark import (
    export_checkpoint,
    export_progress,
    import_checkpoint,
    show_location,
)
from statestore.interop.spark.query_settings import SparkTarget
from statestore.interop.spark.state_files import Provider
from statestore.spark.session import spark_session
from statestore.streaming import MicroBatch, StatefulQuery
from statestore.testing.table_suite import arrow_rows, rows_of, spark_rows
from tests.interop.spark.queries import QUERIES, SCHEMA, events, run, stream

TABLE = "operators/totals/keyed/total"
OFFSETS = [[{"topic": "t", "partition": n, "offset": 100 + n}] for n in range(3)]


def main() -> None:
    """Take two checkpoints, restore them with Spark, and read their tables with Spark."""
    given = json.load(sys.stdin)
    spark = spark_session(
        app_name="spark-on-s3",
        master="local[2]",
        extra_conf={"spark.sql.shuffle.partitions": "2"},
        s3=True,
    )
    store = StateStore.open(given["url"], spark=spark, storage_options=given["options"])
    user = F.format_string("user-%03d", F.col("id")).alias("user")
    users = spark.range(0, 150, 1, 2).select(user, (F.col("id") * 10).alias("total"))
    for rows in (users, users.where("total >= 1000")):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.write_keyed("totals", "total", rows, key="user", max_parallelism=3)
            checkpoint.write_union("source", "offsets", OFFSETS[:2])
    found = _checked(spark, store, users) | {"dump": _dump(spark), "shown": _shown(store)}
    found["a query's location is in a bucket"] = _goes_on(spark, given["url"], given["options"])
    found["moved"] = _moved(spark, f"{given['url']}-query", given["options"], given["providers"])
    spark.stop()
    print(json.dumps(found))


def _goes_on(spark: SparkSession, url: str, options: dict[str, Any]) -> bool:
    """Start a query twice, with its checkpoint location in the bucket and its store elsewhere."""
    with TemporaryDirectory() as folder:
        store = StateStore.open(f"{folder}/store", spark=spark, table_format="parquet")

        def counted(new: Any, states: Any, batch: MicroBatch) -> Any:
            counts = new.groupBy("k").agg(F.count("*").alias("n"))
            both = states["counts"].unionAll(counts).groupBy("k")
            return {"counts": both.agg(F.sum("n").alias("n"))}

        query = StatefulQuery(
            store=store,
            operator="live",
            key="k",
            states={"counts": "k string, n long"},
            update=counted,
            parallelism=2,
        )
        for first in range(2):
            events(Path(folder, "events"), first, first + 1)
            rows = stream(spark, Path(folder, "events")).where("k IS NOT NULL")
            started = query.start(
                rows, f"{url}-progress", storage_options=options, available_now=True
            )
            started.awaitTermination()
        found = store.restore(parallelism=1).keyed("live", "counts").to_arrow(0)
        read = spark.read.schema(SCHEMA).json(f"{folder}/events").where("k IS NOT NULL")
        return sum(found["n"].to_pylist()) == read.count() and store.checkpoints() == (1, 2)


def _checked(spark: SparkSession, store: StateStore, users: Any) -> dict[str, Any]:
    """Return, by name, whether each result is as expected."""
    url = f"{store.url.replace('s3://', 's3a://')}/{TABLE}"
    delta = spark.read.format("delta")
    first, second = rows_of(users), rows_of(users.where("total >= 1000"))
    restored = store.restore(checkpoint=1, parallelism=3)
    keyed, offsets = restored.keyed("totals", "total"), restored.operator_state("source", "offsets")
    spark.sparkContext.setLogLevel("DEBUG")
    newest = spark_rows(delta.load(url))
    spark.sparkContext.setLogLevel("ERROR")
    versions = [store.checkpoint(number).manifest.keyed[0].table.version for number in (1, 2)]
    return {
        "restored with Spark": spark_rows(keyed.to_spark()) == first,
        "restored without": arrow_rows(keyed, 3) == first,
        "newest table": newest == second,
        "first version": spark_rows(delta.option("versionAsOf", versions[0]).load(url)) == first,
        "union": all(offsets.subtask(subtask) == OFFSETS[0] + OFFSETS[1] for subtask in range(3)),
        "versions": versions == [0, 1],
        "partitions": keyed.to_spark().rdd.getNumPartitions() == 3,
        "a bucket that is not there": _refusal(spark),
        "digests": [store.checkpoint(number).manifest.keyed[0].digest for number in (1, 2)],
        "rows": sorted(users.toArrow().column("user").to_pylist()),
    }


def _moved(
    spark: SparkSession, url: str, options: dict[str, Any], providers: list[Provider]
) -> list[Any]:
    """Return the output of a query that is imported, exported and continued in the bucket.

    It is continued where it began and from each provider's exported location. The result also has
    the locations as they are shown.
    """
    store = StateStore.open(f"{url}/store", spark=spark, storage_options=options)
    with TemporaryDirectory() as folder:
        source = Path(folder)
        events(source, 0, 2)
        _query(spark, source, f"{url}/first")
        import_checkpoint(spark, f"{url}/first", store, storage_options=options)
        for provider in providers:
            export_checkpoint(
                store,
                f"{url}/{provider}",
                partitions=3,
                target=SparkTarget(provider=provider),
                storage_options=options,
            )
        export_progress(store, f"{url}/progress", storage_options=options)
        events(source, 2, 3)
        places = [f"{url}/{name}" for name in ("first", *providers)]
        emitted = [_query(spark, source, place) for place in places]
    shown = [show_location(spark, place, storage_options=options) for place in places]
    return [emitted, [(one.batch, one.provider) for one in shown]]


def _query(spark: SparkSession, source: Path, location: str) -> dict[int, list[str]]:
    return run(
        spark,
        QUERIES["agg"],
        source=source,
        location=location.replace("s3://", "s3a://"),
        provider="hdfs",
        partitions=2,
    )


def _refusal(spark: SparkSession) -> str:
    try:
        spark.read.format("delta").load("s3a://no-such-bucket/table").count()
    except Exception as error:  # noqa: BLE001 - its text is looked at
        return str(error)
    return ""


def _dump(spark: SparkSession) -> str:
    """Return all settings that Spark shows."""
    sets = [tuple(row) for row in spark.sql("SET -v").collect()]
    listed = spark.sparkContext.getConf().getAll()
    return repr((sets, listed, spark.conf.getAll))


def _shown(store: StateStore) -> str:
    return repr((store, vars(store), store.restore(), vars(store.restore())))


if __name__ == "__main__":
    main()
