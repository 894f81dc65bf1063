"""The comparison finds one wrong row in any state, and finds nothing in equal states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from statestore.demo import job as job_module
from statestore.demo.flights import read_flights, write_log
from statestore.demo.job import FlightBatch, Job, consume, snapshot, start
from statestore.demo.story import compare, differing_rows
from statestore.store import StateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import Column, SparkSession

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Reference:
    """A finished job, and the store with its snapshot."""

    job: Job
    store: StateStore


@pytest.fixture(scope="module")
def reference(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    folder = tmp_path_factory.mktemp("reference")
    log = write_log(read_flights(), folder / "flights", 30)
    job = consume(spark, log, start(log, 3), FlightBatch(log.starts, log.ends))
    store = StateStore.open(str(folder / "store"), spark=spark, table_format="parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_module, "MAX_PARALLELISM", 8)
        snapshot(store, job)
        yield Reference(job, store)


def first_key(job: Job) -> Column:
    assert job.states is not None
    first: str = job.states.totals.agg(F.min("tail_number")).collect()[0][0]
    return F.col("tail_number") == F.lit(first)


def another_total(job: Job) -> Job:
    assert job.states is not None
    miles = F.col("miles") + first_key(job).cast("long")
    totals = job.states.totals.withColumn("miles", miles)
    return replace(job, states=replace(job.states, totals=totals))


def another_route(job: Job) -> Job:
    assert job.states is not None
    route = F.when(first_key(job), F.concat("route", F.lit("!"))).otherwise(F.col("route"))
    routes = job.states.routes.withColumn("route", route)
    return replace(job, states=replace(job.states, routes=routes))


def no_list(job: Job) -> Job:
    assert job.states is not None
    recent = job.states.recent.where(~first_key(job))
    return replace(job, states=replace(job.states, recent=recent))


def another_offset(job: Job) -> Job:
    return replace(job, offsets={**job.offsets, 3: job.offsets[3] + 1})


def another_count(job: Job) -> Job:
    return replace(job, unkeyed={**job.unkeyed, 3: job.unkeyed[3] + 1})


@pytest.mark.long
@pytest.mark.parametrize(
    ("tamper", "state"),
    [
        (another_total, "totals"),
        (another_route, "routes"),
        (no_list, "recent"),
        (another_offset, "offsets"),
        (another_count, "unkeyed"),
    ],
)
def test_a_wrong_row_is_found_by_rows_and_by_digest(
    tamper: Callable[[Job], Job],
    state: str,
    reference: Reference,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    store = StateStore.open(str(tmp_path / "store"), spark=spark, table_format="parquet")
    checkpoint = snapshot(store, tamper(reference.job))
    found = compare(store, checkpoint, reference.store, reference.job)
    (wrong,) = [each for each in found if not each.equal]
    assert wrong.state == state
    assert wrong.differing_rows > 0
    assert wrong.digest != wrong.uninterrupted_digest


@pytest.mark.long
def test_equal_states_are_equal(reference: Reference) -> None:
    found = compare(reference.store, 1, reference.store, reference.job)
    assert {each.state for each in found if each.equal} == {
        "totals",
        "routes",
        "recent",
        "offsets",
        "unkeyed",
    }


def test_duplicate_rows_count_and_null_is_a_value(spark: SparkSession) -> None:
    left = spark.createDataFrame([(1, "a"), (1, "a"), (2, None)], "id int, name string")
    right = spark.createDataFrame([("a", 1), (None, 2), (None, 2)], "name string, id int")
    assert differing_rows(left, left) == 0
    assert differing_rows(left, right) == 2
