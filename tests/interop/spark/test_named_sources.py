"""Version 2 of the offset log, which identifies sources by their names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import DamagedFileError, InvalidArgumentError
from statestore.interop.spark import (
    SparkTarget,
    export_checkpoint,
    export_progress,
    import_checkpoint,
    show_location,
)
from statestore.interop.spark.import_record import QueryRecord
from statestore.interop.spark.location import CheckpointLocation
from statestore.storage import LocalStorage
from statestore.streaming import QueryOptions, StatefulQuery
from tests.interop.spark.queries import (
    PROVIDERS,
    UNFINISHED,
    offset_log,
    planned_only,
    settings,
    texts,
)
from tests.servers.published import SPARK
from tests.streaming.world import of_one

pytestmark = pytest.mark.spark

PARTITIONS = "spark.sql.shuffle.partitions"
UID = "stateStoreSave-0"


def added(events: DataFrame, state: DataFrame) -> DataFrame:
    both = state.unionByName(events.groupBy("user").count())
    return both.groupBy("user").agg(F.sum("count").alias("count"))


@dataclass
class Named:
    """A query that counts users in two folders, each of which is a source, and a store.

    ``folders`` has the folders of sources with other names than their folders.
    """

    spark: SparkSession
    folder: Path
    is_named: bool = True
    files: int = 0
    folders: dict[str, str] = field(default_factory=dict)
    store: StateStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = StateStore.open(str(self.folder / "store"), spark=self.spark)

    def add(self, source: str, users: str) -> None:
        """Write a file with one event for each character; file times ascend."""
        (self.folder / source).mkdir(exist_ok=True)
        path = self.folder / source / f"{self.files}.json"
        path.write_text("".join(json.dumps({"user": user}) + "\n" for user in users))
        os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        self.files += 1

    def events(self, *sources: str) -> DataFrame:
        """Return the events of all sources; a micro-batch has one file of each."""
        frames = []
        for source in sources:
            reader = self.spark.readStream.schema("user string").option("maxFilesPerTrigger", 1)
            reader = reader.name(source) if self.is_named else reader
            frames.append(reader.json(str(self.folder / self.folders.get(source, source))))
        first, *others = frames
        for other in others:
            first = first.union(other)
        return first

    def conf(self, partitions: int) -> dict[str, str]:
        return offset_log(2, self.is_named) | {PARTITIONS: str(partitions)}

    def run(
        self,
        location: str,
        *sources: str,
        partitions: int = 3,
        provider: str = "hdfs",
        conf: Mapping[str, str] | None = None,
    ) -> dict[int, list[str]]:
        """Run Spark's query to the end of its sources; return the emitted rows by micro-batch."""
        emitted: dict[int, list[str]] = {}

        def keep(batch: DataFrame, number: int) -> None:
            emitted[number] = texts(batch)

        providers = {"spark.sql.streaming.stateStore.providerClass": PROVIDERS[provider]}
        with settings(self.spark, {**self.conf(partitions), **providers, **(conf or {})}):
            counted = self.events(*(sources or ("orders", "returns"))).groupBy("user").count()
            query = counted.writeStream.outputMode("update").foreachBatch(keep)
            query = query.option("checkpointLocation", str(self.folder / location))
            assert query.trigger(availableNow=True).start().awaitTermination(240)
        return emitted

    def take(self, location: str) -> QueryRecord:
        return import_checkpoint(self.spark, str(self.folder / location), self.store).record

    def give(self, location: str, partitions: int, **options: Any) -> None:
        export_checkpoint(self.store, str(self.folder / location), partitions=partitions, **options)

    def hand_over(self, location: str) -> None:
        export_progress(self.store, str(self.folder / location))

    def run_here(self, location: str) -> None:
        """Run a ``StatefulQuery`` that does the same."""
        query = StatefulQuery(
            store=self.store,
            operator=UID,
            key="user",
            states={"default": "user string, count long"},
            update=of_one(added),
            parallelism=2,
            options=QueryOptions(source="query"),
        )
        with settings(self.spark, self.conf(2)):
            events = self.events("orders", "returns")
            started = query.start(events, str(self.folder / location), available_now=True)
            assert started.awaitTermination(240)


@pytest.fixture
def named(spark: SparkSession, tmp_path: Path) -> Named:
    """The query after two micro-batches."""
    found = Named(spark, tmp_path)
    found.add("orders", "uvw")
    found.add("returns", "ux")
    found.add("orders", "uy")
    assert [*found.run("before")] == [0, 1]
    return found


@pytest.mark.long
@pytest.mark.parametrize("provider", ["hdfs", "rocksdb"])
def test_a_query_with_named_sources_moves(named: Named, provider: Any) -> None:
    """Afterwards the sources can have another order, and there can be another one."""
    record = named.take("before")
    assert dict(zip(record.names, record.ends, strict=True)) == {
        "orders": '{"logOffset":1}',
        "returns": '{"logOffset":0}',
    }
    shown = show_location(named.spark, str(named.folder / "before"))
    assert {*shown.source_names} == {"orders", "returns"}
    named.give("after", 5, target=SparkTarget(provider=provider))
    named.add("returns", "uz")
    named.add("late", "ua")
    sources = ("late", "returns", "orders")
    moved = named.run("after", *sources, partitions=5, provider=provider)
    assert moved == named.run("before", *sources)
    assert moved == {
        2: ['{"user":"a","count":1}', '{"user":"u","count":5}', '{"user":"z","count":1}']
    }
    again = named.take("after")
    assert {*again.names} == {*sources}


@pytest.mark.long
def test_the_new_location_has_the_number_of_partitions(named: Named) -> None:
    """Spark 4.2 and 4.3 leave it out, and use the one of the session after a restart."""
    named.take("before")
    named.give("after", 5)
    for _ in range(2):
        named.add("orders", "uvwxyz")
        moved = named.run("after", partitions=7, conf={UNFINISHED: "true"})
        assert moved == named.run("before")
    location = CheckpointLocation(LocalStorage(str(named.folder / "after")))
    assert location.plan(location.batch()).settings[PARTITIONS] == "5"
    (operator,) = location.operators(location.batch())
    assert [store.partitions for store in operator.stores] == [5]


@pytest.mark.long
def test_a_planned_micro_batch_runs_again(named: Named) -> None:
    named.add("returns", "uz")
    emitted = named.run("before")
    assert planned_only(named.folder / "before") == 2
    record = named.take("before")
    assert record.batch == 1
    named.give("after", 2)
    assert named.run("after", partitions=2) == emitted


@pytest.mark.long
def test_numbered_sources_keep_their_order(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes their lines in another order than their numbers."""
    numbered = Named(spark, tmp_path, is_named=False)
    for users in ("uvw", "uy"):
        numbered.add("orders", users)
    numbered.add("returns", "ux")
    numbered.run("before")
    record = numbered.take("before")
    assert record.names == ()
    assert record.ends == ('{"logOffset":1}', '{"logOffset":0}')
    numbered.give("after", 5)
    numbered.add("returns", "uv")
    assert numbered.run("after", partitions=5) == numbered.run("before")


@pytest.mark.long
@pytest.mark.parametrize("is_named", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_stateful_query_continues_and_returns(
    spark: SparkSession, tmp_path: Path, is_named: bool
) -> None:
    named = Named(spark, tmp_path, is_named=is_named)
    named.add("orders", "uvw")
    named.add("returns", "ux")
    named.run("before")
    named.take("before")
    named.hand_over("progress")
    named.add("returns", "uz")
    named.run_here("progress")
    named.give("after", 4, progress=str(tmp_path / "progress"))
    before = named.run("before")
    assert before == {1: ['{"user":"u","count":3}', '{"user":"z","count":1}']}
    named.add("orders", "zu")
    assert named.run("after", partitions=4) == named.run("before")


def test_a_location_with_other_sources_is_refused(named: Named) -> None:
    """The progress of the query that continued with the state has all sources of the state."""
    named.take("before")
    named.hand_over("progress")
    named.add("returns", "uz")
    named.run_here("progress")
    plan = named.folder / "progress" / "offsets" / "2"
    plan.with_name(".2.crc").unlink()
    plan.write_text(plan.read_text().replace("returns:", "refunds:"))
    with pytest.raises(InvalidArgumentError, match="ends at other source positions"):
        named.give("after", 2, progress=str(named.folder / "progress"))


@pytest.mark.parametrize("number", range(4))
def test_a_published_plan_of_version_2(tmp_path: Path, number: int) -> None:
    folder = SPARK.unpack("structured-streaming/offset-map", tmp_path)
    folder.rename(tmp_path / "offsets")
    plan = CheckpointLocation(LocalStorage(str(tmp_path))).plan(number)
    assert (plan.sources, plan.names, plan.ends) == (("0",), (), (str(number),))
    assert plan.planned_at_ms == 1758651405232
    assert plan.settings[PARTITIONS] == "5"


SETTINGS = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["orders"], "a line has no name of a source, or two have the same one"),
        (["orders:{}", "orders:{}"], "a line has no name of a source, or two have the same one"),
        (["orders:{"], "is not in Spark's format"),
        ([], "it has no end position of a source"),
    ],
)
def test_a_damaged_plan_of_version_2(tmp_path: Path, lines: list[str], message: str) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("\n".join(["v2", SETTINGS, *lines]))
    with pytest.raises(DamagedFileError, match=message):
        CheckpointLocation(LocalStorage(str(tmp_path))).plan(0)
