"""A restored DataFrame asks Spark for the hosts with copies; otherwise it is unchanged."""

from __future__ import annotations

import logging
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from statestore import StateStore
from statestore.jobgraph.slots import place_subtasks
from statestore.keys.groups import KeyGroupAssignment
from statestore.restore.placement import preferred_hosts, previous_allocations
from statestore.restore.restored import RestoredKeyedState
from statestore.spark import tasks
from statestore.spark.tasks import executor_hosts, names_for_spark, numbers
from statestore.storage.local_cache import CacheOptions

ROWS = pa.table({"user": [f"u{i}" for i in range(300)], "n": [*range(300)]})
MAX_PARALLELISM = 12
PARALLELISMS = [
    *(pytest.param(parallelism, marks=pytest.mark.long) for parallelism in (1, 4, 5)),
    *(3, MAX_PARALLELISM),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one checkpoint, taken at parallelism 4 with a local cache."""
    folder = tmp_path_factory.mktemp("locality")
    with opened(folder, None).snapshot(parallelism=4) as checkpoint:
        checkpoint.write_keyed(
            "users", "n", ROWS, key="user", max_parallelism=MAX_PARALLELISM, layout="partitioned"
        )
    return folder


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set preferred locations as on a cluster, where other hosts may have executors."""
    monkeypatch.setattr(tasks, "_is_local", lambda spark: False)


def opened(folder: Path, spark: SparkSession | None, *, cache: bool = True) -> StateStore:
    local = folder / "cache" if cache else None
    url = str(folder / "store")
    return StateStore.open(
        url, spark=spark, table_format="parquet", cache=CacheOptions(local) if local else None
    )


def restored(
    folder: Path, spark: SparkSession, parallelism: int, *hosts: str
) -> RestoredKeyedState:
    """Return the state as if old subtask i had run on the i-th of ``hosts``, if there are any."""
    state = opened(folder, spark).restore(parallelism=parallelism).keyed("users", "n")
    if hosts:
        given = [
            replace(handle, host=hosts[handle.key_groups.first * len(hosts) // MAX_PARALLELISM])
            for handle in state.entry.handles
        ]
        state.entry = replace(state.entry, handles=tuple(given))
    return state


def locations(frame: DataFrame) -> list[list[str]]:
    """Return the preferred locations of each partition of the final plan."""
    context: Any = frame.sparkSession.sparkContext
    rdd = frame._jdf.queryExecution().toRdd()
    scheduler = context._jsc.sc().dagScheduler()
    found = [scheduler.getPreferredLocs(rdd, i) for i in range(rdd.getNumPartitions())]
    return [[each.apply(i).host() for i in range(each.size())] for each in found]


def localities(frame: DataFrame) -> list[str]:
    """Run a DataFrame; return the locality level of each partition."""
    context: Any = frame.sparkSession.sparkContext
    group = uuid.uuid4().hex
    context.setJobGroup(group, "localities")
    frame.collect()
    context.setLocalProperty("spark.jobGroup.id", None)
    spark = context._jsc.sc()
    spark.listenerBus().waitUntilEmpty()
    (job,) = context.statusTracker().getJobIdsForGroup(group)
    (stage,) = context.statusTracker().getJobInfo(job).stageIds
    tasks = spark.statusStore().taskList(stage, 0, 1000)
    found = {tasks.apply(i).index(): tasks.apply(i).taskLocality() for i in range(tasks.size())}
    return [found[i] for i in range(len(found))]


def contents(frame: DataFrame) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each Spark partition, in order."""
    return [[tuple(row) for row in part] for part in frame.rdd.glom().collect()]


def contents_by_arrow(state: RestoredKeyedState) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each subtask, read without Spark."""
    subtasks = range(state.assignment.parallelism)
    tables = [state.to_arrow(i) for i in subtasks]
    return [[tuple(row.values()) for row in table.to_pylist()] for table in tables]


def seconds_of(work: Callable[[], object]) -> float:
    """Return the duration of a call in seconds."""
    start = time.monotonic()
    work()
    return time.monotonic() - start


def explained(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


# --- A restore ------------------------------------------------------------------------------------


@pytest.mark.long_cases("12")
@pytest.mark.parametrize("parallelism", PARALLELISMS)
def test_the_real_host_is_preferred(folder: Path, spark: SparkSession, parallelism: int) -> None:
    """This machine, under the name of Spark's only executor, and the rows of each subtask."""
    state = restored(folder, spark, parallelism)
    assert {handle.host for handle in state.entry.handles} == {socket.gethostname()}
    frame = state.to_spark()
    (here,) = executor_hosts(spark)
    assert locations(frame) == [[here]] * parallelism
    assert contents(frame) == contents_by_arrow(state)
    assert localities(frame) == ["NODE_LOCAL"] * parallelism


@pytest.mark.long_cases("hosts1-3", "hosts2-3", "hosts2-12", "hosts0-12")
@pytest.mark.parametrize("parallelism", PARALLELISMS)
@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "b", "c", "a"), ("c", "", "", "b"), ("a",)])
@pytest.mark.usefixtures("cluster")
def test_each_partition_prefers_the_host_of_its_slot(
    folder: Path, spark: SparkSession, parallelism: int, hosts: tuple[str, ...]
) -> None:
    """There are exactly ``parallelism`` partitions, and no shuffle."""
    state = restored(folder, spark, parallelism, *hosts)
    frame = state.to_spark()
    assert isinstance(state.assignment, KeyGroupAssignment)
    offered = previous_allocations(state.entry.handles, state.assignment)
    placed = place_subtasks(state.assignment, offered.previous, offered.slots)
    wanted = preferred_hosts(state.entry.handles, state.assignment)
    assert any(wanted)
    for slot, host in zip(placed, wanted, strict=True):
        assert host in (offered.host_of(slot), "")
    assert locations(frame) == [[host] if host else [] for host in wanted]
    assert frame.rdd.getNumPartitions() == parallelism
    assert "Exchange" not in explained(frame)


@pytest.mark.usefixtures("cluster")
def test_rows_and_schema_equal_those_of_a_plain_restore(folder: Path, spark: SparkSession) -> None:
    """For hosts with any name, and for subtasks without a host."""
    state = restored(folder, spark, 5, "b", "", "a")
    plain = opened(folder, spark, cache=False).restore(parallelism=5).keyed("users", "n")
    frame, wanted = state.to_spark(), plain.to_spark()
    assert [] in locations(frame)
    assert frame.schema == wanted.schema
    assert contents(frame) == contents(wanted) == contents_by_arrow(plain)


@pytest.mark.usefixtures("cluster")
def test_narrow_transformations_keep_the_locations(folder: Path, spark: SparkSession) -> None:
    """After a filter, a projection and caching, a subtask is still read where its copies are."""
    frame = restored(folder, spark, 2, "a", "b").to_spark()
    assert locations(frame.where("n > 10").select("user")) == [["a"], ["b"]]
    cached = frame.cache()
    assert locations(cached) == [["a"], ["b"]]
    cached.unpersist()


@pytest.mark.usefixtures("cluster")
def test_an_unavailable_preferred_host_is_no_error(folder: Path, spark: SparkSession) -> None:
    """No executor runs on that host: another one reads the rows, without a delay."""
    frame = restored(folder, spark, 2, "gone.invalid").to_spark()
    assert locations(frame) == [["gone.invalid"]] * 2
    assert frame.count() == ROWS.num_rows
    # Two partitions that wait would take spark.locality.wait (3 s) each, every time.
    assert any(seconds_of(frame.count) < 2 * 3 for _ in range(5))


def test_in_local_mode_no_other_host_is_preferred(folder: Path, spark: SparkSession) -> None:
    """Spark would wait forever: no running task ends, so no new offer is made."""
    here = socket.gethostname()
    (name,) = executor_hosts(spark)
    frame = restored(folder, spark, 2, here, "gone.invalid").to_spark()
    assert locations(frame) == [[name], []]
    assert frame.count() == ROWS.num_rows
    assert localities(frame) == ["NODE_LOCAL", "PROCESS_LOCAL"]  # the latter means no preference
    other = restored(folder, spark, 2, "gone.invalid").to_spark()
    assert "Range (0, 2" in explained(other)


@pytest.mark.parametrize("cache", [True, False])
def test_without_hosts_or_cache_it_is_a_plain_range(
    folder: Path, tmp_path: Path, spark: SparkSession, cache: bool
) -> None:
    """Files written without a cache have no host, and copies are useless without a cache."""
    if cache:
        folder = tmp_path
        with opened(folder, None, cache=False).snapshot(parallelism=4) as checkpoint:
            checkpoint.write_keyed(
                "users",
                "n",
                ROWS,
                key="user",
                max_parallelism=MAX_PARALLELISM,
                layout="partitioned",
            )
    frame = opened(folder, spark, cache=cache).restore(parallelism=3).keyed("users", "n")
    assert "Range (0, 3, step=1, splits=3)" in explained(frame.to_spark())
    assert locations(frame.to_spark()) == [[], [], []]
    assert frame.to_spark().count() == ROWS.num_rows


# --- Numbers with preferred locations -------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_number_i_is_in_partition_i(spark: SparkSession) -> None:
    """Also if no partition or not the last one has a preference, or a name has a line break."""
    for hosts in (["x", "", "x", "ü\ny", ""], ["", "x"], ["x"]):
        frame = numbers(spark, len(hosts), hosts)
        assert contents(frame) == [[(i,)] for i in range(len(hosts))]
        assert locations(frame) == [[host] if host else [] for host in hosts]
    for none in ([], ["", ""]):
        assert "Range (0, 2" in explained(numbers(spark, 2, none))


@pytest.mark.usefixtures("cluster")
def test_the_largest_parallelism_is_built_in_few_calls(spark: SparkSession) -> None:
    """32,768 partitions on 100 hosts take far less time than a call into the JVM for each."""
    executors = executor_hosts(spark)
    hosts = [executors[0], *(f"10.9.8.{i % 100}" for i in range(32_767))]
    frame = numbers(spark, len(hosts), hosts)
    assert frame.rdd.getNumPartitions() == 32_768
    # The fastest of five: other processes may slow down some of them.
    assert any(seconds_of(lambda: numbers(spark, len(hosts), hosts)) < 5 for _ in range(5))


def test_a_session_without_a_jvm_gets_a_plain_range() -> None:
    """Spark Connect: its session is not a classic one, and here has only ``range``."""

    class Connected:
        __module__ = "pyspark.sql.connect.session"

        def range(self, *numbers: int) -> tuple[int, ...]:
            return numbers

    session: Any = Connected()
    found: Any = numbers(session, 3, ["a", "b", "c"])
    assert found == (0, 3, 1, 3)


@pytest.mark.usefixtures("cluster")
def test_a_spark_that_refuses_gets_a_plain_range(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Some hosted Sparks forbid calls into the JVM: the restore continues with a log message."""

    def refuse(*_: object) -> None:
        raise Py4JError("makeRDD is not allowed\n  at ...")

    monkeypatch.setattr(tasks, "_create_located_frame", refuse)
    with caplog.at_level(logging.WARNING):
        frame = numbers(spark, 2, ["a", ""])
    assert "Range (0, 2" in explained(frame)
    assert caplog.messages == [
        (
            "Spark does not support preferred locations, so tasks run on any host: "
            "makeRDD is not allowed"
        )
    ]


# --- Names ----------------------------------------------------------------------------------------

ADDRESSES = {
    "one": {"10.0.0.1"},
    "one.cluster": {"10.0.0.1", "fd00::1"},
    "two": {"10.0.0.2", "10.1.0.2"},
    "10.1.0.2": {"10.1.0.2"},
    "[fd00::1]": {"fd00::1"},
    "six": {"fd00::1"},
    "localhost": {"127.0.0.1", "::1"},
    socket.gethostname(): {"10.0.0.9"},
    "driver": {"10.0.0.9"},
    "10.0.0.9": {"10.0.0.9"},
}


def names(hosts: list[str], executors: list[str], driver: str = "") -> list[str]:
    def addresses(name: str) -> frozenset[str]:
        return frozenset(ADDRESSES.get(name, ()))

    found = names_for_spark(hosts, executors, driver, addresses=addresses)
    return [found[host] for host in hosts]


def test_a_host_gets_the_name_of_its_executor() -> None:
    """A host matches an executor by name or address; otherwise it keeps its name."""
    assert names(["one", "two"], ["two", "one"]) == ["one", "two"]
    assert names(["one", "two"], ["10.1.0.2", "one.cluster"]) == ["one.cluster", "10.1.0.2"]
    assert names(["six"], ["[fd00::1]"]) == ["[fd00::1]"]
    assert names(["unknown", "two"], ["one", "other"]) == ["unknown", "two"]
    assert names(["one"], []) == ["one"]
    assert names(["one"], ["[fd00::1]", "one.cluster", "one"]) == ["one"]
    assert names_for_spark(["", ""], ["one"]) == {}


def test_the_first_executor_with_a_common_address_is_chosen() -> None:
    """The driver's name is the last in the list of executors, so it is the last choice."""
    assert names(["one.cluster"], ["[fd00::1]", "one"]) == ["[fd00::1]"]
    assert names(["one.cluster"], ["two", "one", "[fd00::1]"]) == ["one"]


def test_this_machine_is_known_by_loopback_and_by_the_drivers_name() -> None:
    here = socket.gethostname()
    assert names([here], ["localhost"]) == ["localhost"]
    assert names([here, "one"], ["one", "10.0.0.9"]) == ["10.0.0.9", "one"]
    assert names([here], ["unresolved"], driver="unresolved") == ["unresolved"]
    assert names(["one"], ["localhost"]) == ["one"]


def test_names_are_looked_up_once_and_only_if_necessary() -> None:
    asked: list[str] = []

    def addresses(name: str) -> frozenset[str]:
        asked.append(name)
        return frozenset({"10.0.0.1"})

    assert names_for_spark(["b", "a"], ["a", "b"], addresses=addresses) == {"a": "a", "b": "b"}
    assert asked == []
    found = names_for_spark(["a", "x", "x"], ["a", "b"], addresses=addresses)
    assert found == {"a": "a", "x": "a"}
    assert sorted(asked) == ["a", "b", "x"]


def test_addresses_come_from_the_operating_system() -> None:
    """A real lookup: this machine by name and by address, and a name that does not exist."""
    assert names_for_spark(["localhost"], ["127.0.0.1"]) == {"localhost": "127.0.0.1"}
    assert names_for_spark(["localhost"], ["[::1]"]) == {"localhost": "[::1]"}
    odd = ["x" * 70 + ".y", "no.such.host.invalid", "a b"]
    assert names_for_spark(odd, ["127.0.0.1"]) == {host: host for host in odd}
