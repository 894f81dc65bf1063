"""The job compared with the same logic in plain Python, and with other micro-batches."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from statestore.demo import flights as flights_module
from statestore.demo.flights import FlightLog, read_flights, write_log
from statestore.demo.job import FlightBatch, Job, consume, micro_batches, restore, snapshot, start
from statestore.errors import InvalidArgumentError, MissingDependencyError
from statestore.store import StateStore

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> FlightLog:
    return write_log(read_flights(), tmp_path_factory.mktemp("log") / "flights", 1000)


@pytest.fixture(scope="module")
def done(spark: SparkSession, log: FlightLog) -> Job:
    """The job after all flights, in three micro-batches that end in the middle of partitions."""
    job = start(log, 4)
    batches = micro_batches(job.offsets, log.ends, 4, log.rows)
    assert len(batches) > 3
    for some in (batches[:1], batches[1:3], batches[3:]):
        job = consume(spark, log, job, FlightBatch(some[0].starts, some[-1].stops))
    assert job.offsets == log.ends
    return job


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.collect()]


def source(spark: SparkSession, log: FlightLog) -> list[dict[str, Any]]:
    return rows_of(log.read(spark, log.starts, log.ends))


def test_the_log_has_every_flight_once() -> None:
    rows = read_flights()
    assert rows.num_rows == 336_776
    assert rows["tail_number"].null_count == 2_512
    assert rows["departure"].null_count == 0


@pytest.mark.long
def test_only_the_given_offsets_are_read(spark: SparkSession, log: FlightLog) -> None:
    starts, stops = dict.fromkeys(log.ends, 7), dict.fromkeys(log.ends, 7)
    stops[3], stops[12] = 9, 8
    read = rows_of(log.read(spark, starts, stops))
    found = sorted((row["partition"], row["offset"]) for row in read)
    assert found == [(3, 7), (3, 8), (12, 7)]


def test_the_offset_is_the_position_in_the_month(spark: SparkSession, log: FlightLog) -> None:
    first = {row["partition"]: row for row in source(spark, log) if row["offset"] == 0}
    assert sorted(first) == list(range(1, 13))
    january = first[1]
    assert (january["flight"], january["tail_number"], january["route"]) == (
        "UA1545",
        "N14228",
        "EWR-IAH",
    )
    assert january["departure"].strftime("%m-%d %H:%M") == "01-01 10:15"


def test_totals_and_routes_equal_plain_python(
    spark: SparkSession, log: FlightLog, done: Job
) -> None:
    assert done.states is not None
    totals: dict[str, list[Any]] = {}
    routes: Counter[tuple[str, str]] = Counter()
    for row in source(spark, log):
        if row["tail_number"] is not None:
            old = totals.get(row["tail_number"], [0, 0, 0, row["departure"]])
            totals[row["tail_number"]] = [
                old[0] + 1,
                old[1] + row["miles"],
                old[2] + (row["minutes"] or 0),
                max(old[3], row["departure"]),
            ]
            routes[row["tail_number"], row["route"]] += 1
    assert {key: rest for key, *rest in map(tuple, done.states.totals.collect())} == totals
    assert {(key, route): n for key, route, n in map(tuple, done.states.routes.collect())} == routes


def test_the_last_five_equal_plain_python(spark: SparkSession, log: FlightLog, done: Job) -> None:
    assert done.states is not None
    by_aircraft = defaultdict(list)
    for row in source(spark, log):
        if row["tail_number"] is not None:
            place = (row["departure"], row["partition"], row["offset"])
            by_aircraft[row["tail_number"]].append((place, row["flight"], row["route"]))
    found: dict[str, dict[int, Any]] = defaultdict(dict)
    for row in rows_of(done.states.recent):
        place = (row["departure"], row["partition"], row["offset"])
        found[row["tail_number"]][row["position"]] = (place, row["flight"], row["route"])
    assert max(map(len, by_aircraft.values())) > 5
    assert found == {
        key: dict(enumerate(sorted(flights)[-5:])) for key, flights in by_aircraft.items()
    }


def test_flights_without_a_tail_number_are_counted(
    spark: SparkSession, log: FlightLog, done: Job
) -> None:
    without = Counter(r["partition"] for r in source(spark, log) if r["tail_number"] is None)
    assert sum(without.values()) > 0
    assert done.unkeyed == {partition: without[partition] for partition in log.ends}


@pytest.mark.long
def test_a_restored_job_has_a_spark_partition_per_subtask(
    spark: SparkSession, log: FlightLog, done: Job, tmp_path: Path
) -> None:
    store = StateStore.open(str(tmp_path / "store"), spark=spark, table_format="parquet")
    restored = restore(store, snapshot(store, done), 7)
    assert restored.states is not None
    for state in restored.states.by_name().values():
        assert state.rdd.getNumPartitions() == 7
    assert (restored.offsets, restored.unkeyed) == (log.ends, done.unkeyed)


def test_a_missing_flights_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 1, not 0"):
        write_log(read_flights(), tmp_path / "flights", 0)


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flights_module, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="install the extra 'demo': "):
        read_flights()
