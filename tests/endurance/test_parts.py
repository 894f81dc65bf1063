"""The parts of the endurance test that find errors: the expected state, and the samples."""

from __future__ import annotations

import csv
import json
import os
import time
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.storage import LocalStorage
from tests.endurance.run import schedule
from tests.endurance.sampler import Sampler, object_counts, process_figures
from tests.endurance.workload import EVENTS, KEYS, Totals, add_file, expected_state, victim


def model(folder: Path, files: int) -> Totals:
    """Return the state after the first files, computed event by event."""
    totals: Totals = {}
    for number in range(files):
        for line in (folder / f"{number:06}.json").read_text().splitlines():
            event = json.loads(line)
            if event["is_close"]:
                totals.pop(event["key"], None)
            else:
                n, amount = totals.get(event["key"], (0, 0))
                totals[event["key"]] = n + 1, amount + event["amount"]
    return totals


@pytest.fixture
def events(tmp_path: Path) -> Path:
    for number in range(60):
        add_file(tmp_path, number, purge=number // 20)
    return tmp_path


def in_order(events: Path) -> Path:
    """Sort the events of each file by id, as the update and DuckDB order them."""
    for file in events.glob("*.json"):
        lines = sorted(file.read_text().splitlines(), key=lambda line: json.loads(line)["id"])
        file.write_text("".join(f"{line}\n" for line in lines))
    return events


@pytest.mark.long_cases("1", "60")
@pytest.mark.slow
@pytest.mark.parametrize("files", [1, 30, 60])
def test_the_expected_state_is_that_of_the_events_one_by_one(events: Path, files: int) -> None:
    expected = expected_state(events, files, [])
    assert expected == model(in_order(events), files)
    assert victim(0) in expected


@pytest.mark.slow
def test_the_events_delete_keys_and_write_them_again(events: Path) -> None:
    seen = set(expected_state(events, 30, []))
    later = set(expected_state(events, 60, []))
    assert seen - later
    assert len(later) > KEYS * 0.9 * (1 - 1 / 20)
    assert 60 * EVENTS > 2 * KEYS


@pytest.mark.slow
def test_a_purged_key_is_not_expected(events: Path) -> None:
    assert victim(1) in expected_state(events, 60, [victim(0)])
    assert victim(0) not in expected_state(events, 60, [victim(0)])


def test_objects_are_counted_by_purpose(tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    for number in range(3):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_broadcast("u", "s", [{"n": number}])
    store.maintenance.expire(retain=1)
    counts = object_counts(LocalStorage(str(tmp_path / "store")), "a")
    assert counts.pop("a_bytes") > 0
    assert counts == {
        "a_data": 3,
        "a_log": 3,
        "a_manifest": 3,
        "a_tombstone": 2,
        "a_claim": 1,
        "a_other": 2,
        "a_longest_log": 3,
    }


def test_processes_are_measured() -> None:
    figures = process_figures(os.getpid(), [os.getpid(), 2**22])
    assert figures["driver_rss"] > 10e6
    assert figures["driver_handles"] >= 3
    assert figures["driver_threads"] >= 1
    assert (figures["jvm_rss"], figures["workers"]) == (0, 0)


@pytest.mark.slow
def test_samples_are_written_until_the_end(tmp_path: Path) -> None:
    with Sampler(tmp_path / "s.csv", 0.01, lambda: {"a": 1.0, "b": 2.0}) as sampler:
        time.sleep(0.2)
    assert sampler.error is None
    with (tmp_path / "s.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) > 1
    assert rows[0] == {"a": "1.0", "b": "2.0"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_a_sample_is_kept(tmp_path: Path) -> None:
    def fail() -> dict[str, float]:
        raise ValueError("no sample")

    with Sampler(tmp_path / "s.csv", 0.01, fail) as sampler:
        time.sleep(0.05)
    assert str(sampler.error) == "no sample"


@pytest.mark.parametrize("minutes", [10, 120])
def test_each_interference_happens_more_than_once(minutes: int) -> None:
    moments = list(schedule(minutes * 60))
    assert moments == sorted(moments)
    assert moments[-1][0] < minutes * 60
    names = [name for _, name in moments]
    for name in ("kill", "purge", "takeover", "outage", "stop", "copy", "gc"):
        assert names.count(name) >= 2, name
