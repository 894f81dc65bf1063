"""A ``StatefulProcessor`` on a store does what it does on Spark's own ``transformWithState``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from statestore import StateStore
from statestore.interop.spark import import_checkpoint
from statestore.storage import open_storage
from statestore.streaming import MicroBatch, StatefulQuery
from statestore.streaming.planned import planned
from statestore.streaming.timer_index import INDEX
from tests.interop.spark.queries import (
    DELAY,
    NO_DATA_BATCHES,
    SCHEMA,
    Query,
    events,
    run,
    settings,
    texts,
)
from tests.streaming.processors import OUT, PROCESSORS

pytestmark = pytest.mark.spark

FILES = 4


def _stream(frame: DataFrame, time_mode: str) -> DataFrame:
    return frame.withWatermark("t", DELAY) if time_mode == "EventTime" else frame


def _initial(spark: SparkSession, name: str) -> DataFrame | None:
    if name != "begun":
        return None
    rows = [(key, n) for n, key in enumerate(("k1", "k2", "gone", None, "k2"))]
    return spark.createDataFrame(rows, "k string, n int")


class Pair:
    """A processor over the same events on Spark's state and on a store."""

    def __init__(self, spark: SparkSession, folder: Path, name: str, pandas: bool) -> None:
        self.spark, self.folder, self.name, self.pandas = spark, folder, name, pandas
        self.kind, self.output_mode, self.time_mode = PROCESSORS[name]
        self.location = str(folder / "spark")
        self.emitted: dict[int, list[str]] = {}
        self.store, self.imported = (
            StateStore.open(str(folder / one), spark=spark, table_format="parquet")
            for one in ("store", "imported")
        )

    def build(self, frame: DataFrame) -> DataFrame:
        grouped = _stream(frame, self.time_mode).groupBy("k")
        call = grouped.transformWithStateInPandas if self.pandas else grouped.transformWithState
        initial = _initial(self.spark, self.name)
        return call(
            self.kind(self.pandas),
            OUT,
            self.output_mode,
            self.time_mode,
            None if initial is None else initial.groupBy("k"),
        )

    def on_spark(self) -> dict[int, list[str]]:
        # By the time of processing there would be another micro-batch without data, without end.
        conf = {NO_DATA_BATCHES: "false"} if self.time_mode == "ProcessingTime" else {}
        return run(
            self.spark,
            Query(self.name, self.output_mode.lower(), self.build, conf=conf),
            source=self.folder / "events",
            location=self.location,
            provider="rocksdb",
            partitions=2,
        )

    def query(self, **options: Any) -> StatefulQuery:
        return StatefulQuery.of_processor(
            store=self.store,
            uid="op",
            processor=self.kind(self.pandas),
            key="k",
            output_schema=OUT,
            output_mode=self.output_mode,
            time_mode=self.time_mode,
            parallelism=2,
            output=self.keep,
            initial_state=_initial(self.spark, self.name),
            pandas=self.pandas,
            max_parallelism=8,
            **options,
        )

    def keep(self, frame: DataFrame, batch: MicroBatch) -> None:
        self.emitted[batch.number] = texts(frame)

    def batches(self) -> Iterator[tuple[MicroBatch, DataFrame]]:
        """Yield the micro-batches as Spark planned them, with their events."""
        location = open_storage(self.location)
        before = -1
        for number in range(len(list((Path(self.location) / "commits").glob("[0-9]*")))):
            batch = planned(location, number)
            last = json.loads(batch.ends[0])["logOffset"]
            files = [
                str(self.folder / "events" / f"{at:05}.json") for at in range(before + 1, last + 1)
            ]
            rows = self.spark.read.schema(SCHEMA).json(files) if files else None
            frame = self.spark.createDataFrame([], SCHEMA) if rows is None else rows
            yield batch, _marked(frame)
            before = last

    def on_spark_after(self, number: int) -> dict[str, list[str]]:
        """Return the states of Spark's own query as they were after a micro-batch."""
        import_checkpoint(self.spark, self.location, self.imported, batch=number)
        form = "Pandas" if self.pandas else "PySpark"
        return self.states(self.imported, f"transformWithStateIn{form}Exec-0", None)

    def states(self, store: StateStore, uid: str, now_ms: int | None) -> dict[str, list[str]]:
        restored = store.restore(parallelism=1, now_ms=now_ms)
        return {
            entry.state.name: sorted(
                json.dumps(row, default=str, sort_keys=True)
                for row in restored.keyed(uid, entry.state.name)
                .to_arrow(0)
                .read_all()
                .drop_columns(["key_group"])
                .to_pylist()
            )
            for entry in restored.manifest.keyed
            if entry.state.uid == uid and entry.state.name != "default"
        }


def _marked(frame: DataFrame) -> DataFrame:
    """Return events as Spark hands over those of a stream with a watermark."""
    columns = [
        frame[name].alias(name, metadata={"spark.watermarkDelayMs": 0}) if name == "t" else name
        for name in frame.columns
    ]
    return frame.select(*columns)


def _forms() -> Iterator[Any]:
    """Yield processors in both forms. One of them runs each time, and its states are compared at
    the end; the other compares them after every micro-batch, which takes long.
    """
    for number, name in enumerate(PROCESSORS):
        for pandas in (False, True):
            is_long = pandas == bool(number % 2)
            marks = [pytest.mark.long] if is_long else []
            form = "pandas" if pandas else "rows"
            yield pytest.param(name, pandas, is_long, marks=marks, id=f"{name}-{form}")


@pytest.mark.parametrize(("name", "pandas", "each_time"), list(_forms()))
def test_a_processor_gives_what_it_gives_on_spark(
    spark: SparkSession, tmp_path: Path, name: str, pandas: bool, each_time: bool
) -> None:
    """After every micro-batch the same rows, at a parallelism that changes each time; and the same
    states and timers.
    """
    events(tmp_path / "events", 0, FILES)
    pair = Pair(spark, tmp_path, name, pandas)
    expected = pair.on_spark()
    query, batches = pair.query(), list(pair.batches())
    with settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        for batch, frame in batches:
            number = batch.number
            replace(query, parallelism=1 + number % 3).process(frame, batch)
            assert pair.emitted.get(number, []) == expected.get(number, []), number
            if each_time or number == batches[-1][0].number:
                ours = pair.states(pair.store, "op", batch.planned_at_ms)
                assert _timers(ours.pop(INDEX, [])) == _timers(ours.get("timers", [])), number
                assert ours == pair.on_spark_after(number), number


def _timers(rows: list[str]) -> list[tuple[Any, Any]]:
    return sorted((str(row["k"]), row["expiration"]) for row in map(json.loads, rows))
