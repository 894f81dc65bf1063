"""Real stateful queries of Structured Streaming, whose checkpoints are imported and exported.

All of them read :func:`events`, files of JSON that a seeded generator makes, one file in each
micro-batch, and say the same each time: no clock, no random number, and no order that Spark leaves
open is in what they emit. So a query that goes on from another checkpoint can be held against one
that was never stopped.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

if TYPE_CHECKING:
    from collections.abc import Mapping

PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
BOTH = ("hdfs", "rocksdb")
NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
SCHEMA = (
    "k string, id int, v long, t timestamp, price decimal(10,2), day date, small short, blob binary"
)
START = datetime(2026, 1, 1, tzinfo=UTC)
SPAN = 600  # seconds of events in a file
DELAY = "10 minutes"
WAIT = 300_000  # milliseconds after its last event until a key is let go
EVENTS = 80
KEYS = [None, "", *(f"k{number}" for number in range(10))]


@dataclass(frozen=True)
class Query:
    """A stateful query over :func:`events`.

    Args:
        name: what it is called in :data:`QUERIES`.
        mode: its output mode.
        build: makes it of a stream of events.
        providers: the state stores that it runs on, "hdfs" and "rocksdb".
        conf: settings that it needs.
    """

    name: str
    mode: str
    build: Callable[[DataFrame], DataFrame]
    providers: tuple[str, ...] = BOTH
    conf: Mapping[str, str] = field(default_factory=dict)


def events(folder: Path, first: int, last: int, seed: int = 5) -> None:
    """Write the files ``first`` to ``last - 1``, each later than the one before.

    A file is the same whichever others are written with it. A tenth of its events is so late that a
    watermark drops some of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, last):
        # A text as a seed is the same in every process.
        draw = random.Random(f"{seed}/{number}")
        lines = [json.dumps(_event(draw, number)) for _ in range(EVENTS)]
        # A reader that lists the folder meanwhile sees a whole file, or none.
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
    """Return the events of a folder as a stream, a file a micro-batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session for a while."""
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
    sink: Path | None = None,
    conf: Mapping[str, str] | None = None,
) -> dict[int, list[str]]:
    """Run a query over all files that it has not read yet.

    Args:
        spark: the session; its settings are afterwards what they were.
        query: the query.
        source: the folder of :func:`events`.
        location: the checkpoint that it starts from, or makes.
        provider: "hdfs" or "rocksdb".
        partitions: the number of shuffle partitions, which only a new checkpoint takes.
        sink: a folder that gets a file for each micro-batch, over the one of an earlier start.
        conf: settings that go over those of the query.

    Returns:
        The rows that each micro-batch emitted, as JSON, sorted.
    """
    emitted: dict[int, list[str]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        emitted[number] = texts(batch)
        if sink is not None:
            sink.mkdir(parents=True, exist_ok=True)
            (sink / f"{number}.json").write_text("".join(f"{row}\n" for row in emitted[number]))

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
    """Return the rows as JSON, with their nulls, sorted. Two columns may have one name."""
    whole = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    return sorted(row[0] for row in rows.select(whole).collect())


def _timed(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("t", DELAY)


def agg(rows: DataFrame) -> DataFrame:
    """Count, sum, average and a list, of a key that may be null."""
    return rows.groupBy("k").agg(
        F.count("*").alias("n"), F.sum("price"), F.avg("v"), F.collect_list("v")
    )


def agg_many(rows: DataFrame) -> DataFrame:
    """A key of five types; values that are structs, and buffers that only Spark understands."""
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
    """Sums of windows that are emitted when they are over."""
    return _timed(rows).groupBy(F.window("t", "5 minutes"), "k").agg(F.sum("v"), F.max("price"))


def aggregate_all(rows: DataFrame) -> DataFrame:
    """One group, which has no key and is in one partition."""
    return rows.agg(F.sum("v"), F.sum("price"), F.count("k"))


def dedup(rows: DataFrame) -> DataFrame:
    """The first row of each id."""
    return rows.dropDuplicates(["id", "small"])


def dedupwm(rows: DataFrame) -> DataFrame:
    """The first row of each id, which is forgotten after a while."""
    return _timed(rows).dropDuplicatesWithinWatermark(["id"])


def session(rows: DataFrame) -> DataFrame:
    """Sessions of a key, which grow together."""
    return _timed(rows).groupBy(F.session_window("t", "1 minute"), "k").agg(F.sum("v"))


def join(rows: DataFrame, how: str = "leftOuter") -> DataFrame:
    """Rows with those that follow them within five minutes, or with none."""
    left = _timed(rows).select("k", "small", "v", "t").alias("left")
    right = (
        rows.where("v % 3 = 0")
        .selectExpr("k as k2", "small as small2", "id as id2", "t as t2")
        .withWatermark("t2", DELAY)
    )
    near = F.expr("k = k2 and small = small2 and t2 > t and t2 <= t + interval 5 minutes")
    return left.join(right, near, how)


def join_full(rows: DataFrame) -> DataFrame:
    """The same with the rows of either side that found none."""
    return join(rows, "fullOuter")


def limit(rows: DataFrame) -> DataFrame:
    """The first rows of all: a number in one partition."""
    return rows.select("k", "id", "v").limit(3 * EVENTS + EVENTS // 2)


def two(rows: DataFrame) -> DataFrame:
    """Two stateful operators: first rows, and sums of them by windows."""
    return dedupwm(rows).groupBy(F.window("t", "5 minutes"), "small").agg(F.sum("v"))


def running(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key and sum them up."""
    n, total = state.get if state.exists else (0, 0)
    for frame in frames:
        n, total = n + len(frame), total + int(frame["v"].sum())
    state.update((n, total))
    yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def fmgws(rows: DataFrame) -> DataFrame:
    """A state of each key that never ends."""
    shape = "k string, n long, total long"
    return rows.groupBy("k").applyInPandasWithState(
        running, shape, "n long, total long", "update", GroupStateTimeout.NoTimeout
    )


def waiting(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key until there was none for a while; then say so, and forget it."""
    n, last = state.get if state.exists else (0, 0)
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [-n], "last": [last]})
        return
    for frame in frames:
        n, last = n + len(frame), max(last, milliseconds(frame))
    state.update((n, last))
    state.setTimeoutTimestamp(max(last, state.getCurrentWatermarkMs()) + WAIT)
    yield pd.DataFrame({"k": [key[0]], "n": [n], "last": [last]})


def fmgws_t(rows: DataFrame) -> DataFrame:
    """A state of each key that ends by event time; many keys, so that some have no events."""
    keyed = _timed(rows).selectExpr("concat(k, '-', id % 4) as k", "t")
    return keyed.groupBy("k").applyInPandasWithState(
        waiting,
        "k string, n long, last long",
        "n long, last long",
        "update",
        GroupStateTimeout.EventTimeTimeout,
    )


def milliseconds(frame: pd.DataFrame) -> int:
    """Return the latest time of a frame of events, which are in UTC."""
    return int(frame["t"].max().timestamp() * 1000)


class Ending(StatefulProcessor):
    """A state that says what it has after each micro-batch with events, and that a timer ends."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.handle = handle
        self.last = handle.getValueState("last", "last long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the events of a key; its timer is the last one's."""
        (last,) = self.last.get() or (0,)
        for frame in rows:
            last = max(last, milliseconds(frame))
            self.add(frame)
        self.last.update((last,))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + WAIT)
        # A second one of each key, which changes nothing: later, but for the same key.
        self.handle.registerTimer(last + 10 * WAIT)
        yield pd.DataFrame({"k": [key[0]], "what": ["events"], "has": [self.text()]})

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        """Say what there was, and forget it."""
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame({"k": [key[0]], "what": [f"timer {at}"], "has": [self.text()]})
        self.last.clear()
        self.clear()

    def close(self) -> None:
        """There is nothing to close."""

    def add(self, frame: pd.DataFrame) -> None:
        """Add some events of a key."""
        raise NotImplementedError

    def text(self) -> str:
        """Say what there is."""
        raise NotImplementedError

    def clear(self) -> None:
        """Forget it."""
        raise NotImplementedError


class Valued(Ending):
    """A value: number and sum."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        super().init(handle)
        self.totals = handle.getValueState("totals", "n long, total long")

    def add(self, frame: pd.DataFrame) -> None:
        """Add some events of a key."""
        n, total = self.totals.get() or (0, 0)
        self.totals.update((n + len(frame), total + int(frame["v"].sum())))

    def text(self) -> str:
        """Say what there is."""
        return str(self.totals.get())

    def clear(self) -> None:
        """Forget it."""
        self.totals.clear()


class Listed(Ending):
    """A list, in the order of the events."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        super().init(handle)
        self.seen = handle.getListState("seen", "id int, v long")

    def add(self, frame: pd.DataFrame) -> None:
        """Add some events of a key."""
        for row in frame.itertuples():
            self.seen.appendValue((int(row.id), int(row.v)))

    def text(self) -> str:
        """Say what there is."""
        return str(list(self.seen.get()))

    def clear(self) -> None:
        """Forget it."""
        self.seen.clear()


class Mapped(Ending):
    """A map of ids to numbers."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        super().init(handle)
        self.byId = handle.getMapState("byId", "id int", "n long, total long")

    def add(self, frame: pd.DataFrame) -> None:
        """Add some events of a key."""
        for row in frame.itertuples():
            key = (int(row.id) % 7,)
            n, total = self.byId.getValue(key) or (0, 0)
            self.byId.updateValue(key, (n + 1, total + int(row.v)))

    def text(self) -> str:
        """Say what there is."""
        return str(sorted(self.byId.iterator()))

    def clear(self) -> None:
        """Forget it."""
        self.byId.clear()


class Living(StatefulProcessor):
    """A value, a list and a map that live for ten days after their last change, by the clock."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the states."""
        life = 10 * 24 * 60 * 60 * 1000
        self.handle = handle
        self.n = handle.getValueState("n", "n long", life)
        self.seen = handle.getListState("seen", "v long", life)
        self.byId = handle.getMapState("byId", "id int", "n long", life)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the events of a key, and set a timer that no test lives to see."""
        for frame in rows:
            (n,) = self.n.get() or (0,)
            self.n.update((n + len(frame),))
            for row in frame.itertuples():
                self.seen.appendValue((int(row.v),))
                (n,) = self.byId.getValue((int(row.id) % 7,)) or (0,)
                self.byId.updateValue((int(row.id) % 7,), (n + 1,))
        if not list(self.handle.listTimers()):
            now = timerValues.getCurrentProcessingTimeInMs()
            self.handle.registerTimer(now + 30 * 24 * 60 * 60 * 1000)
        has = str((self.n.get(), list(self.seen.get()), sorted(self.byId.iterator())))
        yield pd.DataFrame({"k": [key[0]], "what": ["events"], "has": [has]})

    def close(self) -> None:
        """There is nothing to close."""


def transform(
    make: Callable[[], StatefulProcessor], time: str = "EventTime"
) -> Callable[[DataFrame], DataFrame]:
    """Return the query of a processor, in Pandas."""

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
        Query("aggwin", "append", aggwin),
        Query("global", "update", aggregate_all),
        Query("dedup", "append", dedup),
        Query("dedupwm", "append", dedupwm),
        Query("session", "append", session),
        Query("join", "append", join),
        Query("join_full", "append", join_full),
        Query("fmgws", "update", fmgws),
        Query("fmgws_t", "update", fmgws_t),
        Query("limit", "append", limit),
        Query("two", "append", two),
        Query("tws_value", "update", transform(Valued), _ROCKSDB),
        Query("tws_list", "update", transform(Listed), _ROCKSDB),
        Query("tws_map", "update", transform(Mapped), _ROCKSDB),
        Query(
            "tws_avro",
            "update",
            transform(Mapped),
            _ROCKSDB,
            {"spark.sql.streaming.stateStore.encodingFormat": "avro"},
        ),
        # By the clock there is always one more micro-batch, unless each needs data.
        Query(
            "tws_ttl",
            "update",
            transform(Living, "ProcessingTime"),
            _ROCKSDB,
            {NO_DATA_BATCHES: "false"},
        ),
    )
}
