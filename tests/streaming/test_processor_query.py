"""Queries of a ``StatefulProcessor``: start, stop, changes, errors and outputs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from statestore import StateStore
from statestore.errors import InvalidArgumentError, ProcessorError, SchemaMismatchError
from statestore.keys.arrow import key_groups
from statestore.streaming import (
    Changes,
    MicroBatch,
    ProcessorOptions,
    QueryState,
    StatefulQuery,
    to_delta,
)
from statestore.streaming.processor import Processing
from statestore.streaming.processor_states import INDEX
from statestore.testing.faults import CountingStorage
from tests.streaming.processors import Base
from tests.streaming.world import World

pytestmark = pytest.mark.spark

EVENTS = "id long, user string, amount long"


class Totals(Base):
    """A total per key, with actions that the test selects."""

    schema, life, fails, wait = "total long", None, False, 0

    def init(self, handle: Any) -> None:
        """Declare the total."""
        self.handle = handle
        self.total = handle.getValueState("total", self.schema, self.life)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add the amounts."""
        total = (self.total.get() or (0,))[0] + sum(row.amount for row in rows)
        if self.fails:
            raise ValueError(f"no total for {total}")
        more = (None,) * (self.schema.count(",") if "," in self.schema else 0)
        self.total.update((total, *more))
        if self.wait:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + self.wait)
        yield Row(user=str(key[0]), total=total)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Emit the total with a negative sign."""
        (total,) = self.total.get() or (0,)
        self.total.clear()
        yield Row(user=key[0], total=-total)


def made(
    world: World, time_mode: str = "None", key: str | list[str] = "user", **own: Any
) -> StatefulQuery:
    """Return a query of a processor with these attributes."""
    processor = Totals(pandas=False)
    output = own.pop("output", None)
    for name, value in own.items():
        setattr(processor, name, value)
    return StatefulQuery.of_processor(
        store=world.store,
        operator="totals",
        processor=processor,
        processor_options=ProcessorOptions(
            output_schema="user string, total long",
            output_mode="Update",
            time_mode=time_mode,
            max_parallelism=8,
        ),
        key=key,
        parallelism=2,
        output=output,
    )


def rows(world: World, name: str = "total") -> list[dict[str, Any]]:
    """Return the rows of a state in the newest checkpoint."""
    found = world.store.restore(parallelism=1).keyed("totals", name).to_arrow(0)
    return sorted(found.drop_columns(["key_group"]).to_pylist(), key=lambda row: str(row["user"]))


def at(number: int, ms: int = 0, before_ms: int = 0) -> MicroBatch:
    """Return a micro-batch of a query, planned at a time, after another one."""
    before = MicroBatch("q", number - 1, (), before_ms or None) if number else None
    return MicroBatch("q", number, (), ms or None, (), before)


def test_an_error_in_a_processor_names_the_key(world: World) -> None:
    """The error has the key group, key and micro-batch; the last checkpoint stays the newest."""
    made(world).process(world.frame("a", "b"), at(0))
    (group,) = key_groups([pa.array(["b"])], max_parallelism=8, hash_scheme="flink-sql")
    where = rf"in micro-batch 1, key group {group}, key \('b',\): ValueError: no total"
    with pytest.raises(ProcessorError, match=rf"operator 'totals' failed {where}"):
        made(world, fails=True).process(world.frame("b"), at(1))
    assert world.store.checkpoints() == (1,)
    made(world).process(world.frame("b"), at(1))
    assert rows(world) == [{"user": "a", "total": 1}, {"user": "b", "total": 2}]


@pytest.mark.long
def test_the_key_group_in_an_error_is_the_stored_one(world: World) -> None:
    """For a key with several columns, with nulls and NaN, before and after it is stored."""
    day, at_noon = date(2024, 2, 29), datetime(2024, 2, 29, 12, 0, 0, 4)
    keys = [
        ("é" * 9, math.nan, 1.5, Decimal("-1.25"), day, at_noon, True, bytearray(b"\x00b"), -3),
        (None, -0.5, math.nan, Decimal(10**17), None, at_noon, None, b"", None),
        (None,) * 9,
    ]
    schema = (
        "a string, b double, c float, d decimal(20,2), e date, f timestamp, g boolean, h binary, "
        "i int, amount long"
    )
    frames = [
        world.spark.createDataFrame([(*key, amount)], schema) for amount, key in enumerate(keys)
    ]
    groups: list[list[int]] = [[], []]
    for number in (0, 1):
        for frame in frames:
            with pytest.raises(ProcessorError) as caught:
                made(world, key=list("abcdefghi"), fails=True).process(frame, at(number))
            found = re.search(rf"micro-batch {number}, key group (\d+), key", str(caught.value))
            assert found is not None
            groups[number].append(int(found[1]))
        if not number:
            together = reduce(DataFrame.unionAll, frames)
            made(world, key=list("abcdefghi")).process(together, at(0))
    stored = world.store.restore(parallelism=1).keyed("totals", "total").to_arrow(0)
    of_rows = [row["key_group"] for row in sorted(stored.to_pylist(), key=itemgetter("total"))]
    assert groups == [of_rows, of_rows]


def test_invalid_arguments_are_refused(world: World) -> None:
    """Before any file is written."""
    with pytest.raises(InvalidArgumentError, match="the events lack the column 'who'"):
        made(world, key="who").process(world.frame("a"), at(0))
    with pytest.raises(InvalidArgumentError, match="time_mode='Often'"):
        made(world, time_mode="Often")
    with pytest.raises(InvalidArgumentError, match="have no watermark"):
        made(world, "EventTime").process(world.frame("a"), at(0))
    with pytest.raises(ProcessorError, match='a processor with time_mode="None"'):
        made(world, wait=5).process(world.frame("a"), at(0))
    assert world.store.checkpoints() == ()


class Silent(Totals):
    """A processor without output, whose output schema has a list column."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Count the events."""
        self.total.update((sum(1 for _ in rows),))
        return iter([])


class Wrong(Totals):
    """A processor whose output or state has other types than declared."""

    yields: Any = None
    keeps: Any = None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Store and emit the values that the test selects."""
        self.total.update((self.keeps or 1,))
        yield Row(user=key[0], total=self.yields or 1)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        pytest.param(
            {"yields": "x"},
            r"yields rows that do not fit \(user string, total bigint\)",
            id="yields",
            marks=pytest.mark.long,
        ),
        (
            {"keeps": "x"},
            r"sets values of state 'total' that do not fit \(user string, total bigint",
        ),
    ],
)
def test_values_of_other_types_are_refused(world: World, own: dict[str, str], message: str) -> None:
    """The error has the columns; nothing is committed."""
    query = made(world)
    assert isinstance(query.update, Processing)
    processor = Wrong(pandas=False)
    for name, value in own.items():
        setattr(processor, name, value)
    wrong = replace(query, update=replace(query.update, processor=processor))
    with pytest.raises(ProcessorError, match=f"'totals' in micro-batch 0 {message}"):
        wrong.process(world.frame("a"), at(0))
    assert world.store.checkpoints() == ()


@pytest.mark.long
def test_nan_is_one_key_and_so_is_zero(world: World) -> None:
    """Events find the key's rows, whichever bits they have."""
    query = made(world, key="x")
    other_nan = pa.array([-1, 0], pa.int64()).view(pa.float64())[0].as_py()
    for number, values in enumerate(
        ((1.5, math.nan, -0.0), (0.0, other_nan, 1.5, -0.0, math.nan), (-0.0,), (other_nan,))
    ):
        columns = [pa.array(values), pa.array([1] * len(values))]
        query.process(world.spark.createDataFrame(pa.table(columns, ["x", "amount"])), at(number))
    found = world.store.restore(parallelism=1).keyed("totals", "total").to_arrow(0)
    assert sorted((str(row["x"]), row["total"]) for row in found.to_pylist()) == [
        ("0.0", 4),
        ("1.5", 2),
        ("nan", 4),
    ]


@pytest.mark.long
def test_a_processor_can_emit_nothing(world: World) -> None:
    """Its output is empty, but has its columns."""
    given: list[tuple[int, list[str]]] = []
    query = StatefulQuery.of_processor(
        store=world.store,
        operator="totals",
        processor=Silent(pandas=False),
        processor_options=ProcessorOptions(
            output_schema="user string, ids array<string>", output_mode="Append", time_mode="None"
        ),
        key="user",
        parallelism=2,
        output=lambda frame, _: given.append((frame.count(), frame.columns)),
    )
    query.process(world.frame("a", "a"), at(0))
    assert given == [(0, ["user", "ids"])]
    assert rows(world) == [{"user": "a", "total": 2}]


@pytest.mark.long
def test_timers_fire_without_events_through_ticks(world: World) -> None:
    """Idle micro-batches create no checkpoints; a micro-batch with a due timer creates one."""
    given: list[tuple[str, int]] = []
    world.add(events=2)

    def output(frame: DataFrame, batch: MicroBatch) -> None:
        given.extend((row.user, row.total) for row in frame.collect())

    query = made(world, "ProcessingTime", wait=15_000, output=output)
    stream = world.spark.readStream.schema(EVENTS).json(str(world.folder / "in"))
    started = query.start(stream, str(world.folder / "progress"), processing_time="1s")
    try:
        ends = time.monotonic() + 90
        while len(given) < 4 and started.isActive and time.monotonic() < ends:
            time.sleep(0.2)
        while len(world.store.checkpoints()) < 2 and started.isActive and time.monotonic() < ends:
            time.sleep(0.2)
    finally:
        started.stop()
    assert sorted(given) == [("u0", 0), ("u0", 0), ("u7", -1), ("u7", 1)]
    assert world.store.checkpoints() == (1, 2)
    (progress,) = world.store.restore().operator_state("source", "progress").per_old_subtask()
    assert progress[0]["batch"] > 1
    assert rows(world) == rows(world, "timers") == []


@pytest.mark.long
def test_an_outdated_timer_index_is_rebuilt(world: World) -> None:
    """Timers that another program writes into the store fire too."""
    query = made(world, "ProcessingTime", wait=100_000)
    query.process(world.frame("a"), at(0, 1000))
    with world.store.snapshot(parallelism=2) as checkpoint:
        new = [{"user": None, "expiration": 500}, {"user": "z", "expiration": 7_000_000}]
        checkpoint.write_changes("totals", "timers", new)
        checkpoint.carry_rest()
    given: list[tuple[str, int]] = []
    query = made(
        world,
        "ProcessingTime",
        output=lambda frame, _: given.extend((row.user, row.total) for row in frame.collect()),
    )
    query.process(world.frame(), at(1, 160_000, 1000))
    assert sorted(given, key=str) == [("a", -1), (None, 0)]
    left = [{"user": "z", "expiration": 7_000_000}]
    assert rows(world, "timers") == left
    assert [(row["user"], row["minute"]) for row in rows(world, INDEX)] == [("z", 116)]


@pytest.mark.long
def test_few_of_many_timers_are_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the minutes that have passed are read."""
    query = made(world, "ProcessingTime", wait=60_000)
    for number in range(4):
        times = [1000 + one * 600_000 for one in (number, number - 1)]
        query.process(world.frame(f"u{number}"), at(number, *times))
        assert [row["user"] for row in rows(world, "timers")] == [f"u{number}"]
    scanned: list[Any] = []
    monkeypatch.setattr("statestore.streaming.processor_states.key_rows", scanned.append)
    query.process(world.frame(), at(4, 3_000_000, 1_801_000))
    assert rows(world, "timers") == scanned == []


class Later(Totals):
    """A timer that is as many minutes ahead as the sum of a key's events."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add the events, and set the timer."""
        total = sum(row.amount for row in rows)
        self.total.update((total,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + total * 60_000)
        return iter([])


def test_nothing_is_read_for_timers_that_are_not_due(world: World) -> None:
    """The index is read only for passed minutes, and other states only for those keys."""
    storage = CountingStorage(str(world.folder / "store"))
    query = made(world, "ProcessingTime")
    assert isinstance(query.update, Processing)
    later = replace(query.update, processor=Later(pandas=False), max_parallelism=128)
    store = StateStore.open(storage, table_format="parquet", layout="partitioned")
    query = replace(query, update=later, store=store)
    events = [(n, f"u{n}", n + 1) for n in range(40)]
    query.process(world.spark.createDataFrame(events, EVENTS), at(0, 1000))
    restored = world.store.restore(parallelism=1)
    minutes = restored.keyed("totals", INDEX).to_arrow(0)
    users = restored.keyed("totals", "total").to_arrow(0)
    storage.opened.clear()
    query.process(world.frame(), at(1, 62_000, 1000))
    assert [row["user"] for row in rows(world, "timers")] == sorted(f"u{n}" for n in range(1, 40))
    files = (re.search(r"keyed/(\w+)/key_group=(\d+)/", name) for name in storage.opened.elements())
    read = sorted((file[1], int(file[2])) for file in files if file is not None)
    passed = key_groups([pa.array([-1, 0, 1])], max_parallelism=128, hash_scheme="flink-sql")
    of_minutes = {*passed.tolist()} & {*minutes.column("key_group").to_pylist()}
    (of_due,) = (row["key_group"] for row in users.to_pylist() if row["user"] == "u0")
    due = [("timers", of_due), ("total", of_due)]
    assert read == sorted([*((INDEX, group) for group in of_minutes), *due])
    assert len(of_minutes) < minutes.num_rows / 10


@pytest.mark.long
def test_new_and_wider_columns_and_ttls_are_applied(world: World) -> None:
    """At the next start, in a separate checkpoint, which carries the progress."""
    made(world, schema="total int").process(world.frame("a", "b"), at(0))
    made(world, schema="total long, note string").process(world.frame("b"), at(1))
    assert rows(world) == [
        {"user": "a", "total": 1, "note": None},
        {"user": "b", "total": 2, "note": None},
    ]
    assert world.store.checkpoints() == (1, 2, 3)
    before = world.store.checkpoint().manifest
    with pytest.raises(SchemaMismatchError, match="total"):
        made(world, schema="total string, note string").process(world.frame("b"), at(2))
    assert world.store.checkpoint().manifest == before
    made(world, schema="total long, note string").process(world.frame("b"), at(2))
    assert [row["total"] for row in rows(world)] == [1, 3]


@pytest.mark.long
def test_a_ttl_is_turned_on_changed_and_off(world: World) -> None:
    """Rows that are stored when the TTL is turned on live from that time."""
    made(world, "ProcessingTime").process(world.frame("a", "b"), at(0, 1000))
    made(world, "ProcessingTime", life=500).process(world.frame("b"), at(1, 2000, 1000))
    assert rows_at(world, 2499) == [("a", 1, 2500), ("b", 2, 2500)]
    made(world, "ProcessingTime", life=9000).process(world.frame("b"), at(2, 2400, 2000))
    assert rows_at(world, 2499) == [("a", 1, 2500), ("b", 3, 11_400)]
    assert rows_at(world, 2501) == [("b", 3, 11_400)]
    made(world, "ProcessingTime").process(world.frame("a"), at(3, 2600, 2400))
    assert rows(world) == [{"user": "a", "total": 1}, {"user": "b", "total": 3}]


def rows_at(world: World, now_ms: int) -> list[tuple[Any, ...]]:
    """Return the rows of the totals that are alive at a time, and when they expire."""
    restored = world.store.restore(parallelism=1, now_ms=now_ms).keyed("totals", "total")
    found = restored.to_arrow(0).drop_columns(["key_group"]).to_pylist()
    return sorted((row["user"], row["total"], row["ttlExpirationMs"]) for row in found)


def test_columns_are_renamed_and_dropped(world: World) -> None:
    """It happens once, although the query is started again with the same options."""
    old = world.query(schema="user string, n long, total long, more long")
    old = replace(old, update=totals_of("n", "total", "more"))
    old.process(world.frame("a"), at(0))
    columns, renamed = "user string, n long, sum long", {"total": "sum"}
    state = QueryState(columns, max_parallelism=8, renamed=renamed, dropped="more")
    states = {"per-user": state}
    for number in (1, 2):
        new = replace(old, store=world.store, states=states, update=totals_of("n", "sum"))
        new.process(world.frame("a"), at(number))
    assert rows(world, "per-user") == [{"user": "a", "n": 3, "sum": 3}]
    assert world.store.checkpoints() == (1, 2, 3, 4)


def totals_of(*names: str) -> Any:
    """Return an update function that adds one to some columns for each event."""

    def update(events: DataFrame, states: Any, batch: MicroBatch) -> Any:
        new = events.select("user", *(F.lit(1).cast("long").alias(name) for name in names))
        both = states["per-user"].unionByName(new).groupBy("user")
        return {"per-user": both.agg(*(F.sum(name).alias(name) for name in names))}

    return update


@pytest.mark.long
def test_a_query_with_several_states(world: World) -> None:
    """They share the key; states that an update does not return are unchanged."""

    def update(events: DataFrame, states: Any, batch: MicroBatch) -> Any:
        counts = states["counts"].unionByName(events.select("user", F.lit(1).alias("n")))
        ids = events.select("user", "id")
        found = {"counts": counts.groupBy("user").agg(F.sum("n").alias("n"))}
        return found | ({"ids": Changes(upserts=ids)} if batch.number else {})

    query = StatefulQuery(
        store=world.store,
        operator="totals",
        key="user",
        states={
            "counts": "user string, n long",
            "ids": QueryState("user string, id long", kind="map", entry="id"),
        },
        update=update,
        parallelism=2,
    )
    query.process(world.frame("a", "b"), at(0))
    assert rows(world, "ids") == []
    query.process(world.frame("b", "b"), at(1))
    assert rows(world, "counts") == [{"user": "a", "n": 1}, {"user": "b", "n": 3}]
    assert rows(world, "ids") == [{"user": "b", "id": 0}, {"user": "b", "id": 1}]
    wrong = replace(query, update=lambda events, states, batch: {"other": states["ids"]})
    with pytest.raises(InvalidArgumentError, match="update returned rows of 'other'"):
        wrong.process(world.frame("a"), at(2))


def test_a_delta_table_gets_each_micro_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    """The micro-batch's number and the query's id prevent a second write, by any earlier writer."""
    url = str(tmp_path / "out")
    write = to_delta(url)
    for number, query in ((0, "q"), (0, "q"), (1, "q"), (0, "other"), (1, "q")):
        frame = spark.createDataFrame([(number, query)], "number int, query string")
        write(frame, MicroBatch(query, number))
    found = DeltaTable(url).to_pyarrow_table().to_pylist()
    assert sorted((row["query"], row["number"]) for row in found) == [
        ("other", 0),
        ("q", 0),
        ("q", 1),
    ]
