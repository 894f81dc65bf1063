"""The whole demo on a slice of the flights: any mistake makes it fail.

``tests/test_docs.py`` covers the successful run over all flights, which docs/index.md shows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from statestore.demo import job as job_module
from statestore.demo import run, story
from statestore.demo.flights import FlightLog
from statestore.demo.job import Job, restore
from statestore.errors import InvalidArgumentError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

SLICE = 30


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce files per key group, micro-batches and Delta commits, which take time and are not
    under test.
    """
    monkeypatch.setattr(job_module, "MAX_PARALLELISM", 8)
    monkeypatch.setattr(job_module, "BATCHES_TO_HALF", 1)
    monkeypatch.setattr(story, "TABLE_FORMAT", "parquet")


@pytest.mark.long  # in each run, the demo of tests/test_docs.py succeeds
def test_json_of_a_demo_that_succeeds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path), output="json", flights_per_month=SLICE) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["equal"]
    check_checkpoints(told)
    assert sum(each["offset"] for each in told["offsets"]) == 180


def check_checkpoints(told: dict[str, Any]) -> None:
    """Check the members of the JSON that do not depend on the result."""
    assert [c["parallelism"] for c in told["checkpoints"]] == [4, 7, 7]
    assert [c["flights"] for c in told["checkpoints"]] == [180, 360, 360]
    assert [c["layout"] for c in told["checkpoints"]] == ["partitioned", "partitioned", "auto"]
    assert told["checkpoints"][2]["files"] < told["checkpoints"][1]["files"]
    assert told["plan"][0]["key_groups"] == {"first": 0, "last": 1}
    assert len(told["plan"]) == 7
    assert sorted(each["partition"] for each in told["offsets"]) == list(range(1, 13))


@pytest.mark.long_cases("a flight is read twice")
@pytest.mark.parametrize(
    "by",
    [
        pytest.param(-1, id="a flight is read twice"),
        pytest.param(1, id="a flight is lost", marks=pytest.mark.long),
    ],
)
def test_a_wrongly_restored_offset_is_detected(
    by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The demo also leaves a used directory unchanged, and its JSON names the demo's own."""

    def shifted(*args: Any) -> Job:
        job = restore(*args)
        return replace(job, offsets={**job.offsets, 3: job.offsets[3] + by})

    (tmp_path / "demo-2").write_text("mine")
    monkeypatch.setattr(story, "restore", shifted)
    told = told_by_a_failed_demo(tmp_path, capfd)
    assert wrong_states(told) >= {"totals", "routes"}
    assert told["directory"] == str(tmp_path / "demo-3")
    assert (tmp_path / "demo-2").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-2", "demo-3"]
    check_checkpoints(told)


@pytest.mark.long
def test_a_skipped_record_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    read = FlightLog.read

    def skipping(
        log: FlightLog, spark: SparkSession, starts: Mapping[int, int], stops: Mapping[int, int]
    ) -> DataFrame:
        rows = read(log, spark, starts, stops)
        if starts == log.starts and stops == log.ends:
            return rows  # the uninterrupted run reads every record
        return rows.where((F.col("partition") != 5) | (F.col("offset") != SLICE - 1))

    monkeypatch.setattr(FlightLog, "read", skipping)
    assert wrong_states(told_by_a_failed_demo(tmp_path, capfd)) >= {"totals", "routes"}


def told_by_a_failed_demo(directory: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the demo, check that it fails, and return its JSON."""
    assert run(str(directory), output="json", flights_per_month=SLICE) == 1
    told: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert not told["equal"]
    return told


def wrong_states(told: dict[str, Any]) -> set[str]:
    """Return the states whose rows and digests both differ."""
    wrong = [state for state in told["states"] if not state["equal"]]
    for state in wrong:
        assert state["differing_rows"] > 0
        assert state["digest"] != state["uninterrupted_digest"]
    return {state["state"] for state in wrong}


def test_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError, match="statestore demo DIR"):
        run(str(tmp_path / "file"), flights_per_month=SLICE)


def test_an_output_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="text or json, not 'xml'"):
        run(str(tmp_path / "demo"), output="xml")
    assert not (tmp_path / "demo").exists()
