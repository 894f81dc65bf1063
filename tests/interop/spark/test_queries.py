"""What the tests of checkpoints go by: queries that run a micro-batch again, and rows in a wrong
partition, which Spark does not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.interop.spark.queries import (
    NO_DATA_BATCHES,
    QUERIES,
    copy_location,
    events,
    planned_only,
    run,
    state_rows,
    wrong_partitions,
)


class Stopped(NamedTuple):
    """What a query emitted until it was stopped, and the checkpoint that it left."""

    source: Path
    location: Path
    emitted: dict[int, list[str]]


Maker = Callable[..., Stopped]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files of events."""
    folder = tmp_path_factory.mktemp("in")
    events(folder, 0, 5)
    return folder


def start(
    spark: SparkSession, name: str, provider: str, source: Path, location: Path
) -> dict[int, list[str]]:
    """Run a query of four partitions over what it has not read yet.

    Without data there is no micro-batch here: a start would end with one, which tells the next one
    of its watermark, so that other events are late than in a query that was not stopped.
    """
    return run(
        spark,
        QUERIES[name],
        source=source,
        location=str(location),
        provider=provider,
        partitions=4,
        conf={NO_DATA_BATCHES: "false"},
    )


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Make a checkpoint of three files and, by a second start, two more, once for each query."""
    made: dict[tuple[str, str], Stopped] = {}
    growing = tmp_path_factory.mktemp("growing")

    def make(name: str, provider: str) -> Stopped:
        if (name, provider) not in made:
            source = growing / name / provider
            location = growing / f"{name}-{provider}"
            events(source, 0, 3)
            first = start(spark, name, provider, source, location)
            events(source, 3, 5)
            second = start(spark, name, provider, source, location)
            assert (list(first), list(second)) == ([0, 1, 2], [3, 4])
            made[name, provider] = Stopped(source, location, first | second)
        return made[name, provider]

    return make


@pytest.mark.parametrize(("name", "provider"), [("agg", "hdfs"), ("session", "rocksdb")])
def test_a_copy_runs_a_planned_micro_batch_again(
    spark: SparkSession, tmp_path: Path, stopped: Maker, name: str, provider: str
) -> None:
    """The original is out of the way: a copy has nothing from it."""
    source, location, emitted = stopped(name, provider)
    copy, away = tmp_path / "copy", tmp_path / "away"
    copy_location(location, copy)
    rows = state_rows(spark, copy)
    location.rename(away)
    try:
        assert start(spark, name, provider, source, copy) == {}
        assert planned_only(copy) == 4
        assert state_rows(spark, copy) != rows
        assert start(spark, name, provider, source, copy) == {4: emitted[4]}
        assert state_rows(spark, copy) == rows
    finally:
        away.rename(location)


def test_rows_in_a_wrong_partition_are_noticed(
    spark: SparkSession, tmp_path: Path, stopped: Maker
) -> None:
    """By their number, and by what is emitted: Spark itself says nothing of them."""
    source, location, emitted = stopped("agg", "hdfs")
    copy = tmp_path / "copy"
    copy_location(location, copy)
    planned_only(copy)
    state = copy / "state" / "0"
    for old, new in (("1", "other"), ("2", "1"), ("other", "2")):
        (state / old).rename(state / new)
    wrong = wrong_partitions(spark, copy, 4)
    again = start(spark, "agg", "hdfs", source, copy)
    assert wrong["0/default"] > 0
    assert list(again) == [4]
    assert again[4] != emitted[4]


def test_a_run_leaves_the_session_as_it_was(
    spark: SparkSession, tmp_path: Path, source: Path
) -> None:
    def all_settings() -> dict[str, str]:
        return dict(spark.conf.getAll)

    before = all_settings()
    sink = tmp_path / "out"
    emitted = run(
        spark,
        QUERIES["dedup"],
        source=source,
        location=str(tmp_path / "location"),
        provider="rocksdb",
        partitions=3,
        sink=sink,
    )
    state_rows(spark, tmp_path / "location")
    assert all_settings() == before
    assert {int(file.stem): file.read_text().splitlines() for file in sink.iterdir()} == emitted
