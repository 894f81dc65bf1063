"""Real stateful queries of Structured Streaming, whose checkpoints are imported and exported.

All of them read :func:`events`, which are JSON files from a seeded generator, one file per
micro-batch. They emit the same rows in each run, because the rows depend on no clock, no random
number and no undefined order. A query that continues from another checkpoint can therefore be
compared with one that was never stopped.
"""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout

from tests.interop.spark.processors import Listed, Living, running, waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
BOTH = ("hdfs", "rocksdb")
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
UNFINISHED = "spark.sql.streaming.checkUnfinishedRepartitionOnRestart"
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
SCHEMA = (
    "k string, id int, v long, t timestamp, price decimal(10,2), day date, small short, blob binary"
)
START = datetime(2026, 1, 1, tzinfo=UTC)
SPAN = 600  # seconds of events in a file
DELAY = "10 minutes"
EVENTS = 80
KEYS = [None, "", *(f"k{number}" for number in range(10))]


@dataclass(frozen=True)
class Query:
    """A stateful query over :func:`events`.

    Args:
        name: its key in :data:`QUERIES`.
        mode: its output mode.
        build: the function that builds it from a stream of events.
        providers: the state store providers that it supports, "hdfs" and "rocksdb".
        conf: the settings that it requires.
    """

    name: str
    mode: str
    build: Callable[[DataFrame], DataFrame]
    providers: tuple[str, ...] = BOTH
    conf: Mapping[str, str] = field(default_factory=dict)


def events(folder: Path, first: int, last: int, seed: int = 5) -> None:
    """Write the files ``first`` to ``last - 1``, each with later events than the previous one.

    A file has the same content in every call. A tenth of its events is so late that a watermark
    drops some of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, last):
        # A text seed gives the same numbers in every process.
        draw = random.Random(f"{seed}/{number}")
        lines = [json.dumps(_event(draw, number)) for _ in range(EVENTS)]
        # A concurrent reader of the folder sees a complete file, or none.
        hidden, file = folder / f".{number:05}", folder / f"{number:05}.json"
        hidden.write_text("\n".join(lines) + "\n")
        os.utime(hidden, (1_000_000_000 + number, 1_000_000_000 + number))
        hidden.rename(file)


def _event(draw: random.Random, number: int) -> dict[str, Any]:
    second = number * SPAN + draw.randrange(SPAN) - (draw.random() < 0.1) * draw.randrange(1500)
    return {
        "k": draw.choice(KEYS),
        "id": draw.randrange(150),
        "v": draw.randrange(100),
        "t": (START + timedelta(seconds=second)).isoformat(),
        "price": f"{draw.randrange(-500, 10_000) / 100:.2f}",
        "day": str(date(2026, 1, 1) + timedelta(days=draw.randrange(3))),
        "small": draw.choice([None, 1, -2]),
        "blob": base64.b64encode(bytes([draw.randrange(3)] * draw.randrange(2))).decode(),
    }


def stream(spark: SparkSession, source: Path) -> DataFrame:
    """Return the events of a folder as a stream with one file per micro-batch.

    It has a name if the session requires names.
    """
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    if spark.conf.get(EVOLUTION, "false") == "true":
        reader = reader.name("events")
    return reader.json(str(source))


def offset_log(version: int, is_named: bool) -> dict[str, str]:
    """Return the settings for a version of the offset log, and for sources with names."""
    return {
        "spark.sql.streaming.offsetLog.formatVersion": str(version),
        EVOLUTION: str(is_named).lower(),
        # Spark 4.2 requires shuffle partitions in the plan, where version 2 has none.
        UNFINISHED: str(version == 1).lower(),
    }


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session temporarily."""
    before = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def run(
    spark: SparkSession,
    query: Query,
    *,
    source: Path,
    location: str,
    provider: str,
    partitions: int,
    conf: Mapping[str, str] | None = None,
) -> dict[int, list[str]]:
    """Run a query over all files that it has not read yet.

    Args:
        spark: the session, whose settings are restored afterwards.
        query: the query.
        source: the folder of :func:`events`.
        location: the checkpoint location, which is created if it does not exist.
        provider: "hdfs" or "rocksdb".
        partitions: the number of shuffle partitions, which applies only to a new checkpoint.
        conf: settings that override the query's settings.

    Returns:
        The rows that each micro-batch emitted, as JSON, sorted.
    """
    emitted: dict[int, list[str]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        emitted[number] = texts(batch)

    values = {
        "spark.sql.streaming.stateStore.providerClass": PROVIDERS[provider],
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.session.timeZone": "UTC",
        **query.conf,
        **(conf or {}),
    }
    with settings(spark, values):
        started = (
            query.build(stream(spark, source))
            .writeStream.outputMode(query.mode)
            .foreachBatch(keep)
            .option("checkpointLocation", location)
            .trigger(availableNow=True)
            .start()
        )
        try:
            if not started.awaitTermination(240):
                raise TimeoutError(f"{query.name} still runs, at {started.lastProgress}")
        finally:
            started.stop()
    return emitted


def texts(rows: DataFrame) -> list[str]:
    """Return the rows as JSON, including nulls, sorted. Two columns may have one name."""
    whole = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    return sorted(row[0] for row in rows.select(whole).collect())


def copy_location(src: str | Path, dst: str | Path) -> None:
    """Copy a checkpoint, so that a restart does not affect the next one.

    The schema paths of a transformWithState are absolute, and the copy gets its own paths.
    """
    old, new = Path(src).absolute(), Path(dst).absolute()
    shutil.copytree(old, new)
    for file in new.glob("state/*/_metadata/v2/[0-9]*"):
        before = file.read_text()
        after = before.replace(f"{old}/state/", f"{new}/state/")
        if after != before:
            file.write_text(after)
            # Otherwise Spark reports that the file differs from what it wrote.
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def planned_only(location: str | Path) -> int:
    """Delete the commit of the last micro-batch, so that it is only planned; return its number.

    A kill between the tasks' state writes and the driver's log write has the same effect. Spark
    writes ``offsets/N`` before the micro-batch, then its tasks write the state, and the driver
    writes ``commits/N``. The state of N stays, and the next start rewrites it.
    """
    commits = Path(location) / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
    return last


def state_rows(spark: SparkSession, location: str | Path) -> dict[str, list[str]]:
    """Return the rows of every store, without their partitions, as JSON, sorted.

    Stores are named ``operator/store``, and the variables of a transformWithState
    ``operator/store/variable``. ``operator/store/*`` has all its column families, as bytes. The
    rows are those of the last committed micro-batch.
    """
    with _reading(spark, location):
        return {name: texts(rows.drop("partition_id")) for name, rows in _stores(spark, location)}


def _stores(spark: SparkSession, location: str | Path) -> Iterator[tuple[str, DataFrame]]:
    """Yield stores, or their variables, as a reader returns them."""
    for store in _metadata(spark, location):
        name = f"{store.operatorId}/{store.stateStoreName}"
        if store.operatorProperties is None:
            yield name, _read(spark, location, store, storeName=store.stateStoreName)
            continue
        # A join in column families has properties, but no variables.
        for variable in json.loads(store.operatorProperties).get("stateVariables", ()):
            what = variable["stateName"]
            if variable["stateVariableType"] == "TimerState":
                options = {"readRegisteredTimers": "true"}
            else:
                # The order of a list matters, and flat rows do not have it. The order of a map does
                # not matter.
                flat = str(variable["stateVariableType"] != "ListState")
                options = {"stateVarName": what, "flattenCollectionTypes": flat}
            yield f"{name}/{what}", _read(spark, location, store, **options)
        # This includes the column families that Spark uses internally.
        yield f"{name}/*", _read(spark, location, store, _readAllColumnFamilies="true")


def _metadata(spark: SparkSession, location: str | Path) -> list[Row]:
    return spark.read.format("state-metadata").load(str(location)).collect()


def _read(spark: SparkSession, location: str | Path, store: Row, **options: str) -> DataFrame:
    reader = spark.read.format("statestore").option("operatorId", store.operatorId)
    return reader.options(**options).load(str(location))


@contextmanager
def _reading(spark: SparkSession, location: str | Path) -> Iterator[None]:
    """Prepare a session for reading the states of a checkpoint."""
    # A session without a stream has no state store coordinator, which reading requires.
    assert spark.streams is not None
    commits = Path(location) / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    version = (commits / str(last)).read_text().splitlines()[0].removeprefix("v")
    values = {
        "spark.sql.streaming.stateStore.checkpointFormatVersion": version,
        "spark.sql.session.timeZone": "UTC",
    }
    with settings(spark, values):
        yield


def _timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("t", DELAY)


def agg(rows: DataFrame) -> DataFrame:
    """Count, sum, average and a list, per nullable key."""
    return rows.groupBy("k").agg(
        F.count("*").alias("n"), F.sum("price"), F.avg("v"), F.collect_list("v")
    )


def nested(rows: DataFrame) -> DataFrame:
    """A nested struct as the key, and structs, arrays, maps and a void column as values."""
    pair = F.struct("id", F.array("v", F.lit(None)).alias("a"))
    table = F.map_from_arrays(F.array(F.lit("x"), F.lit("y")), F.array("price", F.lit(1.5)))
    inner = F.when(F.col("small") > 0, F.struct("blob", "day"))
    key = F.struct(F.col("k"), inner.alias("in ner"))
    return rows.groupBy(key.alias("key")).agg(
        F.max(F.struct("t", pair.alias("pair"))), F.max(F.struct("v", F.to_json(table))), F.max("t")
    )


def agg_many(rows: DataFrame) -> DataFrame:
    """A key of five types, struct values, and buffers that only Spark can decode."""
    return rows.groupBy(
        "day",
        F.floor(F.col("price") / 40).cast("decimal(10,2)").alias("price"),
        "small",
        "blob",
        "k",
    ).agg(
        F.max(F.struct("v", "t", "id")).alias("largest"),
        F.approx_count_distinct("id").alias("ids"),
        F.stddev("v").alias("spread"),
        F.sort_array(F.collect_set("v")).alias("vs"),
    )


def aggwin(rows: DataFrame) -> DataFrame:
    """Sums of windows, which are emitted when the windows end."""
    return _timed(rows).groupBy(F.window("t", "5 minutes"), "k").agg(F.sum("v"), F.max("price"))


def aggregate_all(rows: DataFrame) -> DataFrame:
    """One group without a key, in one partition."""
    return rows.agg(F.sum("v"), F.sum("price"), F.count("k"))


def dedup(rows: DataFrame) -> DataFrame:
    """The first row of each id."""
    return rows.dropDuplicates(["id", "small"])


def dedupwm(rows: DataFrame) -> DataFrame:
    """The first row of each id, which the watermark removes later."""
    return _timed(rows).dropDuplicatesWithinWatermark(["id"])


def session(rows: DataFrame) -> DataFrame:
    """Sessions of a key, which can merge."""
    return _timed(rows).groupBy(F.session_window("t", "1 minute"), "k").agg(F.sum("v"))


def join(rows: DataFrame) -> DataFrame:
    """Rows with the rows that follow them within five minutes, or with nulls."""
    left = _timed(rows).select("k", "small", "v", "t").alias("left")
    right = (
        rows.where("v % 3 = 0")
        .selectExpr("k as k2", "small as small2", "id as id2", "t as t2")
        .withWatermark("t2", DELAY)
    )
    near = F.expr("k = k2 and small = small2 and t2 > t and t2 <= t + interval 5 minutes")
    return left.join(right, near, "leftOuter")


def limit(rows: DataFrame) -> DataFrame:
    """The first rows of all, counted in one partition."""
    return rows.select("k", "id", "v").limit(3 * EVENTS + EVENTS // 2)


def two(rows: DataFrame) -> DataFrame:
    """Two stateful operators: deduplicated rows, and windowed sums of them."""
    return dedupwm(rows).groupBy(F.window("t", "5 minutes"), "small").agg(F.sum("v"))


def fmgws(rows: DataFrame) -> DataFrame:
    """A state per key that never ends."""
    shape = "k string, n long, total long"
    return rows.groupBy("k").applyInPandasWithState(
        running, shape, "n long, total long", "update", GroupStateTimeout.NoTimeout
    )


def fmgws_t(rows: DataFrame) -> DataFrame:
    """A state per key that ends in event time, with many keys, so that some have no events."""
    keyed = _timed(rows).selectExpr("concat(k, '-', id % 4) as k", "t")
    return keyed.groupBy("k").applyInPandasWithState(
        waiting,
        "k string, n long, last long",
        "n long, last long",
        "update",
        GroupStateTimeout.EventTimeTimeout,
    )


def transform(
    make: Callable[[], StatefulProcessor], time: str = "EventTime"
) -> Callable[[DataFrame], DataFrame]:
    """Return the query of a processor, in pandas."""

    def build(rows: DataFrame) -> DataFrame:
        keyed = _timed(rows).selectExpr("concat(k, '-', id % 4) as k", "id", "v", "t").groupBy("k")
        return keyed.transformWithStateInPandas(
            make(), "k string, what string, has string", "Update", time
        )

    return build


_ROCKSDB = ("rocksdb",)
QUERIES: dict[str, Query] = {
    query.name: query
    for query in (
        Query("agg", "update", agg),
        Query("agg_many", "update", agg_many),
        Query("nested", "update", nested),
        Query("aggwin", "append", aggwin),
        Query("global", "update", aggregate_all),
        Query("dedup", "append", dedup),
        Query("dedupwm", "append", dedupwm),
        Query("session", "append", session),
        Query("join", "append", join),
        Query("fmgws", "update", fmgws),
        Query("fmgws_t", "update", fmgws_t),
        Query("limit", "append", limit),
        Query("two", "append", two),
        Query(
            "tws_avro",
            "update",
            transform(Listed),
            _ROCKSDB,
            {"spark.sql.streaming.stateStore.encodingFormat": "avro"},
        ),
        Query("tws_listed", "update", transform(Listed), _ROCKSDB),
        # With processing time there is always one more micro-batch, unless each requires data.
        Query(
            "tws_ttl",
            "update",
            transform(Living, "ProcessingTime"),
            _ROCKSDB,
            {NO_DATA_BATCHES: "false"},
        ),
    )
}
