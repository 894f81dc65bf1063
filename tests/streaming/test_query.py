"""A streaming query with its state in a store: each micro-batch counts once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    LeftOutStateError,
    NullKeyError,
    StateStoreError,
)
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import Manifest
from statestore.format.schema import Field, Schema
from statestore.format.state import KeyedState, StateKind, TimeToLive
from statestore.parquet.writer import ParquetOptions
from statestore.spark import state_lookup as read
from statestore.streaming import (
    Changes,
    MicroBatch,
    RetentionPolicy,
    StatefulQuery,
    Updated,
)
from statestore.streaming.query_options import QueryState, refuse_other_form
from statestore.streaming.stateful_query import SmallBatchProbe
from tests.streaming.world import EVENTS, World, of_one, totals

pytestmark = pytest.mark.spark


def test_totals_continue_at_any_parallelism(world: World) -> None:
    """Each file has a checkpoint, and a restarted query continues at any parallelism.

    It has one subtask or as many as there are key groups, and its progress is in the same manifest.
    """
    committed: list[Manifest] = []
    for parallelism in (2, 1, 8):
        world.add(files=2)
        world.run(world.query(parallelism=parallelism, on_commit=committed.append))
        assert world.state() == world.expected
        assert world.store.checkpoint().manifest.parallelism == parallelism
    ids = tuple(manifest.checkpoint_id for manifest in committed)
    assert ids == tuple(range(1, 7)) == world.store.checkpoints()
    restored = world.store.restore()
    (progress,) = restored.operator_state("source", "progress").per_old_subtask()
    assert [element["batch"] for element in progress] == [5]
    ((position,),) = restored.operator_state("source", "positions").per_old_subtask()
    assert position == {"source": 0, "ends_at": '{"logOffset":5}'}


def test_a_repeated_micro_batch_writes_nothing(world: World) -> None:
    """Spark's commit record is missing, as after a kill of the driver right after the commit.

    The micro-batch runs again, and the next ones continue.
    """
    world.add(files=2)
    world.run(world.query())
    commits = world.folder / "progress" / "commits"
    for name in ("1", ".1.crc"):
        (commits / name).unlink()
    world.run(world.query(parallelism=3))
    assert (commits / "1").exists()
    assert world.store.checkpoints() == (1, 2)
    world.add()
    world.run(world.query(parallelism=3))
    assert world.store.checkpoints() == (1, 2, 3)
    assert world.state() == world.expected


@pytest.mark.long
def test_an_outdated_location_skips_no_events(world: World) -> None:
    """Spark's checkpoint location is an older copy, or a power loss removed its newest files.

    Spark then assigns the same numbers to other events. The state is reset to the end of the
    location, and each event counts once.
    """
    location = world.folder / "progress"
    for copy, files in (("far", 2), ("near", 1)):
        world.add(files)
        world.run(world.query())
        shutil.copytree(location, world.folder / copy)
    world.add()
    world.run(world.query())
    before = world.store.checkpoint().manifest, world.state()
    assert world.store.checkpoints() == (1, 2, 3, 4)
    world.add(files=3)
    for copy, files, how in (
        ("near", 4, "in Spark's checkpoint location .* with other files"),
        ("far", 1, "Spark runs micro-batch 2 again"),
    ):
        shutil.rmtree(location)
        shutil.copytree(world.folder / copy, location)
        with pytest.raises(StreamingQueryException, match=f"ends with micro-batch 3 .*{how}"):
            world.run(world.query(), files=files)
        assert (world.store.checkpoint().manifest, world.state()) == before
    with world.store.snapshot(parallelism=2) as checkpoint:
        checkpoint.carry_rest(base=2)
    world.run(world.query())
    assert world.state() == world.expected


def test_a_location_with_a_truncated_id_is_named(world: World) -> None:
    """A power failure can do that to a location whose query had only begun."""
    world.add()
    (world.folder / "progress").mkdir()
    (world.folder / "progress" / "metadata").write_text('{"id":"')
    with pytest.raises(InvalidArgumentError, match="progress/metadata is missing or not in Spark"):
        world.run(world.query())
    assert not (world.folder / "store" / "checkpoints").exists()
    (world.folder / "progress" / "metadata").unlink()
    world.run(world.query())
    assert world.state() == world.expected


def test_a_micro_batch_is_committed_once(world: World) -> None:
    """The update function is not even called again."""
    calls = []

    def update(events: DataFrame, state: DataFrame) -> DataFrame:
        calls.append(1)
        return totals(events, state)

    query, batch = world.query(update=of_one(update)), MicroBatch("q", 0)
    assert query.process(world.frame("a"), batch) is not None
    assert query.process(world.frame("a"), batch) is None
    assert world.query(update=of_one(update)).process(world.frame("a"), batch) is None
    assert len(calls) == 1
    assert world.store.checkpoints() == (1,)


@pytest.mark.long
def test_a_micro_batch_needs_few_jobs(world: World) -> None:
    """The number of jobs includes the update's shuffles, and does not grow over time."""
    query, context = world.query(parallelism=4), world.spark.sparkContext
    counts = []
    for number in range(4):
        context.setJobGroup(f"micro-batch {number}", "")
        query.process(world.frame("a", "b", f"c{number}"), MicroBatch("q", number))
        jobs = context.statusTracker().getJobIdsForGroup(f"micro-batch {number}")
        counts.append(len(jobs))
    context.setJobGroup("", "")
    assert 0 < min(counts) <= max(counts[1:]) <= 4


def test_few_events_need_no_python_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver handles keys, rows and changes, starting with the second micro-batch."""
    query = world.query()
    query.process(world.frame("a", "b"), MicroBatch("q", 0))
    for name in ("mapInArrow", "mapInPandas"):
        monkeypatch.setattr(DataFrame, name, None)
    query.process(world.frame("b", "c"), MicroBatch("q", 1))
    assert world.state() == {"a": (1, 1), "b": (2, 2), "c": (1, 1)}


@pytest.mark.long
@pytest.mark.parametrize(
    "provider",
    [
        "RocksDBStateStoreProvider",
        "HDFSBackedStateStoreProvider",
    ],
)
def test_many_events_after_a_spark_state_occur_once(world: World, provider: str) -> None:
    """The probe runs one Spark partition first; if the events are many, all of them are computed.

    Values that the probe has put into Spark's state do not count.
    """
    package = "org.apache.spark.sql.execution.streaming.state"
    session = world.spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.streaming.stateStore.providerClass", f"{package}.{provider}")
    world.add(events=40_000)
    first = world.folder / "in" / "000000.json"
    again = world.folder / "in" / "again.json"
    shutil.copyfile(first, again)
    os.utime(again, (1_700_000_001, 1_700_000_001))
    world.add(events=10)
    reader = session.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1)
    stream = reader.json(str(world.folder / "in")).dropDuplicates(["id"])
    progress = str(world.folder / "progress")
    world.query().start(stream, progress, available_now=True).awaitTermination()
    assert world.store.checkpoint().checkpoint_id == 3
    assert world.state() == world.expected


def test_after_many_events_small_batches_are_probed_occasionally() -> None:
    probe = SmallBatchProbe()
    assert [probe.next() for _ in range(3)] == [True] * 3
    probe.record(is_small=False)
    assert [probe.next() for _ in range(17)] == [False] * 15 + [True] * 2
    probe.record(is_small=False)
    assert not probe.next()
    probe.record(is_small=True)
    assert probe.next()


@pytest.mark.long
def test_few_events_of_one_partition_are_computed_once(world: World) -> None:
    """They reach the update in one partition, like the rows of their keys."""
    seen: list[tuple[int, int]] = []
    evaluated = world.spark.sparkContext.accumulator(0)

    def update(events: DataFrame, state: DataFrame) -> DataFrame:
        seen.append((events.rdd.getNumPartitions(), state.rdd.getNumPartitions()))
        return totals(events, state)

    def counted(rows: Any) -> Any:
        for row in rows:
            evaluated.add(1)
            yield row

    for number in range(3):
        frame = world.frame("a", "b", f"c{number}").coalesce(1)
        frame = world.spark.createDataFrame(frame.rdd.mapPartitions(counted), frame.schema)
        world.query(update=of_one(update)).process(frame, MicroBatch("q", number))
    assert seen[1:] == [(1, 1), (1, 1)]
    assert evaluated.value == 9
    assert world.state()["a"] == (3, 3)


@pytest.mark.long
def test_many_events_are_processed_by_tasks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks read and write large micro-batches, with the same result."""
    for module, name in ((read, "_FEW_KEYS_BYTES"), (read, "_FEW_READ_BYTES")):
        monkeypatch.setattr(module, name, 0)
    parquet = ParquetOptions(driver_bytes=1)
    store = StateStore(replace(world.store.parts, parquet=parquet))
    query = world.query(store=store, cache_bytes=0)
    for number, users in enumerate(("aab", "bc", "cd")):
        query.process(world.frame(*users), MicroBatch("q", number))
    with pytest.raises(NullKeyError, match=r"1 events of micro-batch 3 have a null key .*None"):
        query.process(world.frame("a", None), MicroBatch("q", 3))
    assert world.state() == {"a": (2, 2), "b": (2, 2), "c": (2, 2), "d": (1, 1)}


def test_keys_without_events_are_not_read(world: World) -> None:
    seen: list[list[str]] = []

    def update(events: DataFrame, state: DataFrame) -> DataFrame:
        assert state.columns == ["total", "user", "n"]
        assert (
            state.sparkSession is events.sparkSession or state.sparkSession == events.sparkSession
        )
        seen.append(sorted(row.user for row in state.collect()))
        return totals(events, state)

    query = world.query(update=of_one(update))
    for number, users in enumerate(("abc", "bcd", "e", "ae")):
        query.process(world.frame(*users), MicroBatch("q", number))
    assert seen == [[], ["b", "c"], [], ["a", "e"]]
    assert world.state() == {u: (n, n) for u, n in zip("abcde", (2, 2, 2, 1, 2), strict=True)}


def test_a_micro_batch_can_have_no_events_and_no_changes(world: World) -> None:
    query = world.query()
    assert query.process(world.frame(), MicroBatch("q", 0)) is not None
    assert world.state() == {}
    query.process(world.frame("a"), MicroBatch("q", 1))
    assert query.process(world.frame(), MicroBatch("q", 2)) is not None
    nothing = replace(query, update=of_one(lambda events, state: Changes()))
    assert nothing.process(world.frame("a", "b"), MicroBatch("q", 3)) is not None
    assert world.state() == {"a": (1, 1)}
    assert world.store.checkpoints() == (1, 2, 3, 4)


@pytest.mark.long
def test_an_update_can_delete_rows(world: World) -> None:
    """In the first micro-batch, where there is nothing to delete, and later."""

    def update(events: DataFrame, states: Mapping[str, DataFrame], batch: MicroBatch) -> Updated:
        all_of_it = totals(events, states["per-user"])
        even = F.col("n") % 2 == 0
        changes = Changes(all_of_it.where(~even), deletes=all_of_it.where(even))
        return Updated({"per-user": changes}, shared=[all_of_it])

    query = world.query(update=update)
    for number, users in enumerate(("aab", "bc", "c", "c")):
        query.process(world.frame(*users), MicroBatch("q", number))
    assert world.state() == {"c": (1, 1)}


@pytest.mark.long
def test_an_event_without_a_key_stops_the_query(world: World) -> None:
    """The error has their number; nothing is written, in the first micro-batch and later."""
    query = world.query()
    for number in range(2):
        before = sorted(world.folder.glob("store/operators/**/*.parquet"))
        with pytest.raises(
            NullKeyError, match=r"2 events of micro-batch . have a null key"
        ) as info:
            query.process(world.frame("a", None, "b", None), MicroBatch("q", number))
        assert info.value.rows == 2
        assert sorted(world.folder.glob("store/operators/**/*.parquet")) == before
        query.process(world.frame("a"), MicroBatch("q", number))
    assert world.state() == {"a": (2, 2)}


def test_an_error_in_the_update_leaves_the_last_checkpoint(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged in one line, and nothing of the micro-batch is stored.

    The micro-batch runs again once the update is fixed.
    """
    world.add(files=2)
    world.run(world.query())
    before = world.store.checkpoint().manifest, world.state()
    world.add()
    fails = F.udf(lambda n: 1 // (n * 0), "long")

    def update(events: DataFrame, state: DataFrame) -> DataFrame:
        return totals(events, state).withColumn("n", fails("n"))

    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        world.run(world.query(update=of_one(update)))
    with pytest.raises(StreamingQueryException, match="for state 'per-user', not list"):
        world.run(world.query(update=of_one(lambda events, state: [])))
    with pytest.raises(StreamingQueryException, match="SchemaMismatchError"):
        world.run(world.query(update=of_one(lambda events, state: totals(events, state).drop("n"))))
    lines = [
        record.getMessage() for record in caplog.records if record.name == StatefulQuery.__module__
    ]
    told = [line.partition(" was not committed: ")[::2] for line in lines]
    batch = "micro-batch 2 of operator 'totals'"
    assert [(where, what.partition(":")[0]) for where, what in told] == [
        (batch, "PythonException"),
        (batch, "InvalidArgumentError"),
        (batch, "SchemaMismatchError"),
    ]
    assert not any("\n" in line for line in lines)
    assert (world.store.checkpoint().manifest, world.state()) == before
    world.run(world.query())
    assert world.state() == world.expected


def test_a_replaced_driver_cannot_commit(world: World) -> None:
    """Also if it stalled after it read the newest checkpoint and before it wrote."""
    first, second = world.query(), world.query()
    first.process(world.frame("a"), MicroBatch("q", 0))

    def slow(events: DataFrame, state: DataFrame) -> DataFrame:
        second.process(world.frame("a"), MicroBatch("q", 1))
        return totals(events, state)

    with pytest.raises(CommitConflictError):
        replace(first, update=of_one(slow)).process(world.frame("a"), MicroBatch("q", 1))
    with pytest.raises(CommitConflictError):
        first.process(world.frame("a"), MicroBatch("q", 2))
    assert world.state() == {"a": (2, 2)}
    second.process(world.frame("a"), MicroBatch("q", 2))
    assert world.state() == {"a": (3, 3)}


@pytest.mark.long
def test_a_new_query_must_declare_that_it_succeeds_another(world: World) -> None:
    """Its numbers start at zero, its state is kept, and the previous query cannot continue."""
    old = world.query()
    for number in range(3):
        old.process(world.frame("a"), MicroBatch("old", number))
    with pytest.raises(InvalidArgumentError, match="succeeds=True"):
        world.query().process(world.frame("a"), MicroBatch("new", 0))
    new = world.query(succeeds=True)
    new.process(world.frame("a"), MicroBatch("new", 0))
    assert new.process(world.frame("a"), MicroBatch("new", 0)) is None
    for number in (2, 3):
        with pytest.raises(InvalidArgumentError, match="query new has updated the state"):
            world.query(succeeds=True).process(world.frame("a"), MicroBatch("old", number))
    assert world.state() == {"a": (4, 4)}
    with pytest.raises(InvalidArgumentError, match=r"ends with micro-batch 0 .* continues with 2"):
        world.query().process(world.frame("a"), MicroBatch("new", 2))


def test_other_states_are_unchanged(world: World) -> None:
    """A keyed state, one with changes, and operator state, through micro-batches and a rescale."""
    rows = [{"user": f"u{i}", "n": i, "total": 2 * i} for i in range(30)]
    store = world.store
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.write_keyed("totals", "other", rows, key="user", max_parallelism=8)
        checkpoint.write_keyed("totals", "layered", rows, key="user", max_parallelism=8)
        checkpoint.write_split("sink", "files", [[{"name": "a"}], [{"name": "b"}], [{"name": "c"}]])
        checkpoint.write_union("sink", "seen", [[{"id": 1}], [], [{"id": 2}]])
        checkpoint.write_broadcast("sink", "rules", [{"id": 3}])
    with store.snapshot(parallelism=3) as checkpoint:
        checkpoint.carry_rest()
        changes = [{"user": "u3", "n": 7, "total": 7}]
        checkpoint.write_changes(
            "totals", "layered", Changes(changes, [{"user": "u4"}]), key="user"
        )
        checkpoint.write_changes("totals", "other", changes, key="user")
    before = world.state("other"), world.state("layered")
    for number, parallelism in enumerate((2, 5)):
        query = world.query(parallelism=parallelism)
        query.process(world.frame("u3"), MicroBatch("q", number))
    assert (world.state("other"), world.state("layered")) == before
    assert before[1]["u3"] == (7, 7)
    assert world.state() == {"u3": (2, 2)}
    files = world.store.restore(parallelism=4).operator_state("sink", "files")
    assert [one["name"] for i in range(4) for one in files.subtask(i)] == ["a", "b", "c"]
    rest = [
        world.store.restore(parallelism=4).operator_state("sink", name)
        for name in ("seen", "rules")
    ]
    assert [state.subtask(3) for state in rest] == [[{"id": 1}, {"id": 2}], [{"id": 3}]]
    assert not world.store.maintenance.verify(deep=True).broken


@pytest.mark.long_cases("None")
@pytest.mark.parametrize("state", [None, "per-user"])
def test_a_query_does_not_start_without_its_operators_state(
    world: World, state: str | None
) -> None:
    """I16: an import left the state out, and the query would start with no rows."""
    record = LeftOutState(operator="totals", state=state, reason="not read", command="flink import")
    with world.store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_broadcast("sink", "rules", [{"id": 3}])
        checkpoint.collected.record(left_out=[record])
    batch = MicroBatch("q", 0)
    with pytest.raises(LeftOutStateError, match=r"the query would start without it: totals"):
        world.query().process(world.frame("a"), batch)
    assert world.store.checkpoints() == (1,)
    world.query(leave_out=["totals"]).process(world.frame("a"), batch)
    assert world.state() == {"a": (1, 1)}
    world.query().process(world.frame("a"), MicroBatch("q", 1))
    assert world.state() == {"a": (2, 2)}


def test_lost_states_of_other_operators_do_not_stop_a_query(world: World) -> None:
    others = [
        LeftOutState(operator=operator, state=state, reason="not read", command="flink import")
        for operator, state in (("other", None), ("totals", "another"))
    ]
    with world.store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_broadcast("sink", "rules", [{"id": 3}])
        checkpoint.collected.record(left_out=others)
    world.query().process(world.frame("a"), MicroBatch("q", 0))
    assert [one.label for one in world.store.checkpoint().manifest.left_out] == [
        "other",
        "totals/another",
    ]


@pytest.mark.long
def test_a_schema_change_does_not_hide_lost_rows(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """I16: a salvage lost some rows, and the next start of the query has new columns."""
    world.query().process(world.frame("a", "b"), MicroBatch("q", 0))
    lost = LeftOutState(
        operator="totals", state="per-user", reason="damaged", command="salvage", first=0, last=1
    )
    with world.store.snapshot(parallelism=2) as checkpoint:
        checkpoint.collected.record(left_out=[lost])
        checkpoint.carry_rest()

    def update(events: DataFrame, state: DataFrame) -> DataFrame:
        return totals(events, state.drop("note")).withColumn("note", F.lit("x"))

    query = world.query("total long, user string, n long, note string", update=of_one(update))
    query.process(world.frame("a"), MicroBatch("q", 1))
    assert world.store.checkpoints() == (1, 2, 3, 4)
    assert world.state() == {"a": (2, 2), "b": (1, 1)}
    assert world.store.checkpoint().manifest.left_out == (lost,)
    query.process(world.frame("a"), MicroBatch("q", 2))
    warned = [record.message for record in caplog.records if "continues without" in record.message]
    assert warned == [
        (
            "operator 'totals' continues without rows of its source that checkpoint 2 lacks: "
            "totals/per-user:0-1 (damaged)"
        )
    ]


@pytest.mark.long_cases("Key_Group", "__deleted__")
@pytest.mark.parametrize("name", ["key_group", "Key_Group", "__deleted__"])
def test_a_reserved_column_is_refused_before_the_start(world: World, name: str) -> None:
    """A stored state would be converted without end, because the store never keeps the column."""
    world.query().process(world.frame("a"), MicroBatch("q", 0))
    world.add()
    query = world.query(f"user string, n long, total long, `{name}` long")
    with pytest.raises(InvalidArgumentError, match=f"'per-user'.*'{name}' is reserved"):
        world.run(query)
    with pytest.raises(InvalidArgumentError, match=f"'{name}' is reserved"):
        query.process(world.frame("a"), MicroBatch("q", 1))
    assert world.store.checkpoints() == (1,)


def test_a_conversion_that_does_not_converge_is_refused(world: World) -> None:
    """The state still differs from the query's after its conversion, so nothing is committed."""
    world.query().process(world.frame("a"), MicroBatch("q", 0))
    query = world.query(options={"max_parallelism": 8, "dropped": "total"})
    with pytest.raises(StateStoreError, match="total"):
        query.process(world.frame("a"), MicroBatch("q", 1))
    assert world.store.checkpoints() == (1,)


def test_a_converted_state_that_still_differs_is_refused() -> None:
    stored = KeyedState(
        uid="u",
        name="s",
        kind=StateKind.VALUE,
        schema=Schema((Field("user", "string"), Field("n", "long"))),
        key=("user",),
        key_types=("String",),
        max_parallelism=8,
        hash_scheme="java",
    )
    refuse_other_form(stored, QueryState("user string, n long"))
    for state in (
        QueryState("user string, n int"),
        QueryState("user string, n long, m long"),
        QueryState("user string, n long", ttl=TimeToLive("1d", "n")),
        QueryState("user string, n long", dropped="n"),
    ):
        with pytest.raises(InvalidArgumentError, match="'s' of operator 'u' cannot be converted"):
            refuse_other_form(stored, state)


def test_a_checkpoint_that_converts_a_state_is_reported_and_retained(world: World) -> None:
    world.query().process(world.frame("a"), MicroBatch("q", 0))
    committed: list[Manifest] = []
    query = world.query(
        "user string, n long, total long, more string",
        update=of_one(
            lambda events, state: totals(events, state.drop("more")).withColumn("more", F.lit("x"))
        ),
        on_commit=committed.append,
        retention=RetentionPolicy(1, every=2),
    )
    query.process(world.frame("a"), MicroBatch("q", 1))
    assert [manifest.checkpoint_id for manifest in committed] == [2, 3]
    assert world.store.checkpoints() == (2, 3)


@pytest.mark.long
def test_a_query_retains_about_this_many_checkpoints(world: World) -> None:
    query = world.query(retention=RetentionPolicy(3, every=4), cache_bytes=0)
    for number in range(5):
        query.process(world.frame("a"), MicroBatch("q", number))
    assert world.store.checkpoints() == (2, 3, 4, 5)
    assert world.state() == {"a": (5, 5)}
