"""Queries with named sources, which Spark allows to be added, removed and reordered."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statestore.streaming import ProcessorOptions, Progress, StatefulQuery
from tests.streaming.world import EVENTS, World

pytestmark = pytest.mark.spark

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
VERSION = "spark.sql.streaming.offsetLog.formatVersion"
UNFINISHED = "spark.sql.streaming.checkUnfinishedRepartitionOnRestart"


@pytest.fixture
def evolution(spark: SparkSession, version: int) -> Iterator[None]:
    """Make Spark require a name for each source and write this version of the offset log."""
    spark.conf.set(EVOLUTION, "true")
    spark.conf.set(VERSION, str(version))
    # Spark 4.2 expects shuffle partitions there, which version 2 does not have.
    spark.conf.set(UNFINISHED, "false")
    yield
    for name in (EVOLUTION, VERSION, UNFINISHED):
        spark.conf.unset(name)


class Sources:
    """Folders of events that are read by name, and the number of events of each user in them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        self.files = 0

    def add(self, name: str, *users: str) -> None:
        """Write a file of events; file times ascend, so that their order is fixed."""
        folder = self.world.folder / name
        folder.mkdir(exist_ok=True)
        rows = [{"id": i, "user": user, "amount": 1} for i, user in enumerate(users)]
        path = folder / f"{self.files}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        self.files += 1
        self.counts.update(users)

    def read(self, *names: str, named: bool = True) -> DataFrame:
        """Return the events of some folders as one stream; a micro-batch has one file of each."""
        frames = []
        for name in names:
            reader = self.world.spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
            reader = reader.name(name) if named else reader
            frames.append(reader.json(str(self.world.folder / name)))
        first, *others = frames
        for other in others:
            first = first.unionByName(other)
        return first

    def run(self, *names: str, named: bool = True, location: str = "progress") -> None:
        """Process all events with a new query, and compare its state with the expected one."""
        stream = self.read(*names, named=named)
        place = str(self.world.folder / location)
        self.world.query().start(stream, place, available_now=True).awaitTermination()
        assert self.world.state() == {user: (n, n) for user, n in self.counts.items()}


def progress(world: World) -> Progress:
    return Progress.of(world.store.restore(), "source")


@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.long)])
def test_named_sources_count_each_event_once(world: World, evolution: None) -> None:
    """In the first run, after a restart with new files, and after Spark lost a commit."""
    sources = Sources(world)
    sources.add("orders", "a", "b", "a")
    sources.add("returns", "a", "c")
    sources.add("returns", "c")
    sources.run("orders", "returns")
    assert dict(zip(progress(world).names, progress(world).ends, strict=True)) == {
        "orders": '{"logOffset":0}',
        "returns": '{"logOffset":1}',
    }
    newest = world.store.restore().checkpoint_id
    for name in ("commits/1", "commits/.1.crc"):
        (world.folder / "progress" / name).unlink()
    sources.run("orders", "returns")  # the last micro-batch again
    assert world.store.restore().checkpoint_id == newest
    sources.add("orders", "d")
    sources.run("orders", "returns")
    assert len(progress(world).files or ()) == 2


@pytest.mark.long
@pytest.mark.parametrize("version", [2])
def test_named_sources_can_be_added_removed_and_reordered(world: World, evolution: None) -> None:
    sources = Sources(world)
    sources.add("orders", "a", "b")
    sources.add("returns", "a")
    sources.run("orders", "returns")
    sources.add("orders", "a")
    sources.run("returns", "orders")
    sources.add("late", "c", "a")
    sources.add("returns", "d")
    sources.run("late", "returns", "orders")
    assert sorted(progress(world).names) == ["late", "orders", "returns"]
    sources.add("late", "e")
    sources.run("late")
    assert progress(world).names == ("late",)
    assert progress(world).ends == ('{"logOffset":1}',)


@pytest.mark.parametrize("version", [1])
def test_reordered_sources_are_refused_if_spark_identifies_them_by_position(
    world: World, evolution: None
) -> None:
    """With version 1 of the offset log, Spark gives one source the position of another.

    For file sources Spark detects that they have fewer files. For other sources this package
    detects it.
    """
    sources = Sources(world)
    sources.add("orders", "a")
    sources.add("orders", "b")
    sources.add("returns", "c")
    sources.run("orders", "returns")
    sources.add("returns", "d")
    newest = world.store.restore().checkpoint_id
    with pytest.raises(Exception, match=r"doesn't exist|have another order"):
        sources.run("returns", "orders")
    assert world.store.restore().checkpoint_id == newest


@pytest.mark.long
@pytest.mark.parametrize("version", [2])
def test_unnamed_sources_in_the_same_session(
    world: World, spark: SparkSession, evolution: None
) -> None:
    """In version 2 of the offset log their names are numbers, in any order."""
    spark.conf.set(EVOLUTION, "false")
    sources = Sources(world)
    for name in ("a", "b"):
        sources.add(name, "u", name)
    sources.run("a", "b", named=False)
    sources.add("b", "w")
    sources.run("a", "b", named=False)
    assert progress(world).names == ()
    assert progress(world).ends == ('{"logOffset":0}', '{"logOffset":1}')


@pytest.mark.long
def test_a_stream_that_is_read_twice_has_one_folder(world: World) -> None:
    """Spark records its end twice, and the files that it has read once."""
    sources = Sources(world)
    for users in ("ab", "ac"):
        sources.add("orders", *users)
        stream = sources.read("orders", named=False)
        twice = stream.unionByName(stream)
        place = str(world.folder / "progress")
        world.query().start(twice, place, available_now=True).awaitTermination()
        assert world.state() == {user: (2 * n, 2 * n) for user, n in sources.counts.items()}
    assert progress(world).ends == ('{"logOffset":1}', '{"logOffset":1}')


class Counts(StatefulProcessor):
    """A processor that counts events, with timers, so that its query has a source of ticks."""

    def init(self, handle: Any) -> None:
        """Declare one value."""
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        """Add the events."""
        known = self.n.get()
        self.n.update(((known[0] if known else 0) + sum(1 for _ in rows),))
        return iter(())

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.long
@pytest.mark.parametrize("version", [2, 1])
def test_a_processor_with_timers_over_named_sources(world: World, evolution: None) -> None:
    """The source of ticks has a name too, but no entry in the ends of the sources."""
    sources = Sources(world)
    sources.add("orders", "a", "b")
    sources.add("returns", "a")
    for _ in range(2):
        query = StatefulQuery.of_processor(
            store=world.store,
            operator="totals",
            processor=Counts(),
            processor_options=ProcessorOptions(
                output_schema="user string",
                output_mode="Update",
                time_mode="ProcessingTime",
                max_parallelism=8,
            ),
            key="user",
            parallelism=2,
        )
        stream = sources.read("orders", "returns")
        place = str(world.folder / "progress")
        query.start(stream, place, available_now=True).awaitTermination()
        assert sorted(progress(world).names) == ["orders", "returns"]
        state = world.store.restore(parallelism=1).keyed("totals", "n")
        found = {row["user"]: row["n"] for row in state.to_arrow(0).to_pylist()}
        assert found == sources.counts
        sources.add("returns", "c")
