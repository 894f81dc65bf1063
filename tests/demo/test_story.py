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
from statestore.demo import micro_batches, run, story
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
    monkeypatch.setattr(micro_batches, "BATCHES_TO_HALF", 1)
    monkeypatch.setattr(story, "TABLE_FORMAT", "parquet")


def test_a_used_directory_is_unchanged_and_json_names_the_demo_directory(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo-2").write_text("mine")
    assert run(str(tmp_path), output="json", flights_per_month=SLICE) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["directory"] == str(tmp_path / "demo-3")
    assert (tmp_path / "demo-2").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-2", "demo-3"]
    assert told["equal"]
    assert [c["parallelism"] for c in told["checkpoints"]] == [4, 7, 7]
    assert [c["flights"] for c in told["checkpoints"]] == [180, 360, 360]
    assert [c["layout"] for c in told["checkpoints"]] == ["partitioned", "partitioned", "auto"]
    assert told["checkpoints"][2]["files"] < told["checkpoints"][1]["files"]
    assert told["plan"][0]["key_groups"] == {"first": 0, "last": 1}
    assert len(told["plan"]) == 7
    assert sorted(each["partition"] for each in told["offsets"]) == list(range(1, 13))
    assert sum(each["offset"] for each in told["offsets"]) == 180


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
    def shifted(*args: Any) -> Job:
        job = restore(*args)
        return replace(job, offsets={**job.offsets, 3: job.offsets[3] + by})

    monkeypatch.setattr(story, "restore", shifted)
    assert wrong_states(tmp_path, capfd) >= {"totals", "routes"}


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
    assert wrong_states(tmp_path, capfd) >= {"totals", "routes"}


def wrong_states(directory: Path, capfd: pytest.CaptureFixture[str]) -> set[str]:
    """Run the demo, check that it fails, and return the states whose rows and digests
    both differ.
    """
    assert run(str(directory), output="json", flights_per_month=SLICE) == 1
    told: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert not told["equal"]
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
