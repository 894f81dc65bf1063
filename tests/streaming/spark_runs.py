"""The same ``StatefulProcessor`` over the same events on Spark's own state and on a store.

Each processor has one recorded run on Spark in ``tests/golden/processors``, so that a test can
compare a store with Spark without a second query. ``tests/golden/make_processors.py`` records them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from statestore import StateStore
from statestore.interop.spark import import_checkpoint
from statestore.storage import open_storage
from statestore.streaming import MicroBatch, ProcessorOptions, StatefulQuery
from statestore.streaming.planned import planned
from tests.interop.spark.queries import (
    DELAY,
    NO_DATA_BATCHES,
    SCHEMA,
    Query,
    run,
    texts,
)
from tests.streaming.processors import OUT, PROCESSORS

__all__ = [
    "RECORDED_FILES",
    "Pair",
    "SparkRun",
    "golden_file",
    "is_recorded_in_pandas",
    "recorded_run",
]

RECORDED_FILES = 3
"""The number of event files in a recorded run."""
_FOLDER = Path(__file__).parents[1] / "golden" / "processors"


@dataclass(frozen=True)
class SparkRun:
    """The micro-batches, the output and the final states of Spark's own query.

    ``emitted`` has the rows of each micro-batch. ``states`` has the rows of each state after the
    last micro-batch. Both are JSON.
    """

    planned: tuple[MicroBatch, ...]
    emitted: dict[int, list[str]]
    states: dict[str, list[str]]

    def to_json(self) -> str:
        """Return the text of a golden file."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> SparkRun:
        """Return the run of a golden file."""
        run = json.loads(text)
        return cls(
            tuple(map(_micro_batch, run["planned"])),
            {int(number): rows for number, rows in run["emitted"].items()},
            run["states"],
        )


def _micro_batch(fields: dict[str, Any]) -> MicroBatch:
    before = fields["before"]
    return MicroBatch(
        **fields
        | {
            "ends": tuple(fields["ends"]),
            "files": tuple((source, digest) for source, digest in fields["files"]),
            "names": tuple(fields["names"]),
            "before": None if before is None else _micro_batch(before),
        }
    )


def golden_file(name: str) -> Path:
    """Return the file of a processor's recorded run."""
    return _FOLDER / f"{name}.json"


def recorded_run(name: str) -> SparkRun:
    """Return a processor's recorded run."""
    return SparkRun.from_json(golden_file(name).read_text())


def is_recorded_in_pandas(name: str) -> bool:
    """Return True for every second processor. The others are recorded with rows."""
    return list(PROCESSORS).index(name) % 2 == 0


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
        # By processing time, Spark would run micro-batches without data forever.
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
            operator="op",
            processor=self.kind(self.pandas),
            processor_options=ProcessorOptions(
                output_schema=OUT,
                output_mode=self.output_mode,
                time_mode=self.time_mode,
                initial_state=_initial(self.spark, self.name),
                pandas=self.pandas,
                max_parallelism=8,
            ),
            key="k",
            parallelism=2,
            output=self.keep,
            **options,
        )

    def keep(self, frame: DataFrame, batch: MicroBatch) -> None:
        self.emitted[batch.number] = texts(frame)

    def planned(self) -> list[MicroBatch]:
        """Return the micro-batches of Spark's query."""
        location = open_storage(self.location)
        commits = list((Path(self.location) / "commits").glob("[0-9]*"))
        return [planned(location, number) for number in range(len(commits))]

    def frames(self, batches: Iterable[MicroBatch]) -> Iterator[tuple[MicroBatch, DataFrame]]:
        """Yield micro-batches with their events."""
        for batch in batches:
            first = 0 if batch.before is None else _end(batch.before)
            numbers = range(first, _end(batch))
            files = [str(self.folder / "events" / f"{number:05}.json") for number in numbers]
            rows = self.spark.read.schema(SCHEMA).json(files) if files else None
            frame = self.spark.createDataFrame([], SCHEMA) if rows is None else rows
            yield batch, _marked(frame)

    def on_spark_after(self, number: int) -> dict[str, list[str]]:
        """Return the states of Spark's own query after a micro-batch."""
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
                .drop_columns(["key_group"])
                .to_pylist()
            )
            for entry in restored.manifest.keyed
            if entry.state.uid == uid and entry.state.name != "default"
        }


def _end(batch: MicroBatch) -> int:
    """Return the number of the first event file after a micro-batch."""
    return int(json.loads(batch.ends[0])["logOffset"]) + 1


def _marked(frame: DataFrame) -> DataFrame:
    """Return events as Spark passes the events of a stream with a watermark."""
    columns = [
        frame[name].alias(name, metadata={"spark.watermarkDelayMs": 0}) if name == "t" else name
        for name in frame.columns
    ]
    return frame.select(*columns)
