"""Queries whose sources have names, which is how Spark lets them come, go and change places."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from statestore.streaming import Progress, StatefulQuery
from tests.streaming.world import EVENTS, World

pytestmark = pytest.mark.spark

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
VERSION = "spark.sql.streaming.offsetLog.formatVersion"
UNFINISHED = "spark.sql.streaming.checkUnfinishedRepartitionOnRestart"


@pytest.fixture
def evolution(spark: SparkSession, version: int) -> Iterator[None]:
    """Have Spark want a name of each source, and write the offset log in a version."""
    spark.conf.set(EVOLUTION, "true")
    spark.conf.set(VERSION, str(version))
    # Spark 4.2 looks for shuffle partitions there that version 2 does not have.
    spark.conf.set(UNFINISHED, "false")
    yield
    for name in (EVOLUTION, VERSION, UNFINISHED):
        spark.conf.unset(name)


class Sources:
    """Folders of events that are read by name, and how often each user is in them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        self.files = 0

    def add(self, name: str, *users: str) -> None:
        """Write a file of events; file times ascend, so that their order is known."""
        folder = self.world.folder / name
        folder.mkdir(exist_ok=True)
        rows = [{"id": i, "user": user, "amount": 1} for i, user in enumerate(users)]
        path = folder / f"{self.files}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.utime(path, (1_700_000_000 + self.files, 1_700_000_000 + self.files))
        self.files += 1
        self.counts.update(users)

    def read(self, *names: str, named: bool = True) -> DataFrame:
        """Return the events of some folders as one stream, a file of each a micro-batch."""
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
        """Let a new query take all events there are, and compare its state with what there was."""
        stream = self.read(*names, named=named)
        place = str(self.world.folder / location)
        self.world.query().start(stream, place, availableNow=True).awaitTermination()
        assert self.world.state() == {user: (n, n) for user, n in self.counts.items()}


def progress(world: World) -> Progress:
    return Progress.of(world.store.restore(), "source")


@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.long)])
def test_named_sources_count_each_event_once(world: World, evolution: None) -> None:
    """At first, when the query is started again with new files, and when Spark forgot a commit."""
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
    sources.run("orders", "returns")  # the last micro-batch once more
    assert world.store.restore().checkpoint_id == newest
    sources.add("orders", "d")
    sources.run("orders", "returns")
    assert len(progress(world).files or ()) == 2


@pytest.mark.parametrize("version", [2])
def test_named_sources_come_and_go_and_change_places(world: World, evolution: None) -> None:
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
def test_sources_that_changed_places_are_refused_where_spark_goes_by_places(
    world: World, evolution: None
) -> None:
    """With version 1 of the offset log Spark gives one source the position of another.

    Of files Spark sees that it does not have that many; of other sources this package sees it.
    """
    sources = Sources(world)
    sources.add("orders", "a")
    sources.add("orders", "b")
    sources.add("returns", "c")
    sources.run("orders", "returns")
    sources.add("returns", "d")
    newest = world.store.restore().checkpoint_id
    with pytest.raises(Exception, match=r"doesn't exist|in another order"):
        sources.run("returns", "orders")
    assert world.store.restore().checkpoint_id == newest


@pytest.mark.parametrize("version", [2])
def test_unnamed_sources_of_the_same_session(
    world: World, spark: SparkSession, evolution: None
) -> None:
    """Their numbers are their names in the second version of the offset log, in any order."""
    spark.conf.set(EVOLUTION, "false")
    sources = Sources(world)
    for name in ("a", "b"):
        sources.add(name, "u", name)
    sources.run("a", "b", named=False)
    sources.add("b", "w")
    sources.run("a", "b", named=False)
    assert progress(world).names == ()
    assert progress(world).ends == ('{"logOffset":0}', '{"logOffset":1}')


def test_a_stream_that_is_read_twice_has_one_folder(world: World) -> None:
    """Spark writes down where it ends twice, and which files it has read once."""
    sources = Sources(world)
    for users in ("ab", "ac"):
        sources.add("orders", *users)
        stream = sources.read("orders", named=False)
        twice = stream.unionByName(stream)
        place = str(world.folder / "progress")
        world.query().start(twice, place, availableNow=True).awaitTermination()
        assert world.state() == {user: (2 * n, 2 * n) for user, n in sources.counts.items()}
    assert progress(world).ends == ('{"logOffset":1}', '{"logOffset":1}')


class Counts(StatefulProcessor):
    """Counts events, and has timers, so that its query has a source of ticks."""

    def init(self, handle: Any) -> None:
        """Have one value."""
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, times: Any) -> Iterator[Any]:
        """Add up."""
        known = self.n.get()
        self.n.update(((known[0] if known else 0) + sum(1 for _ in rows),))
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("version", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_processor_with_timers_over_named_sources(world: World, evolution: None) -> None:
    """The source of ticks has a name too, and no place among where the sources end."""
    sources = Sources(world)
    sources.add("orders", "a", "b")
    sources.add("returns", "a")
    for _ in range(2):
        query = StatefulQuery.of_processor(
            store=world.store,
            uid="totals",
            processor=Counts(),
            key="user",
            output_schema="user string",
            output_mode="Update",
            time_mode="ProcessingTime",
            parallelism=2,
            max_parallelism=8,
        )
        stream = sources.read("orders", "returns")
        place = str(world.folder / "progress")
        query.start(stream, place, availableNow=True).awaitTermination()
        assert sorted(progress(world).names) == ["orders", "returns"]
        state = world.store.restore(parallelism=1).keyed("totals", "n")
        found = {row["user"]: row["n"] for row in state.to_arrow(0).read_all().to_pylist()}
        assert found == sources.counts
        sources.add("returns", "c")
