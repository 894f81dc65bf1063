"""The metrics port of a job, read in Prometheus's way between two attempts of a real job."""

from __future__ import annotations

import re
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import jobs.job
from jobs import redistribute_offsets
from jobs.redistribute_offsets import redistribute_offsets as job
from statestore import StateStore
from statestore.errors import StorageError
from statestore.restarts import RestartClock
from statestore.restore.row_files import output_file as real_output_file
from tests.jobs.conftest import RunJob

pytestmark = pytest.mark.spark

OFFSETS = """
parallelism = 2
metrics_port = {port}
offsets = {operator = "source", state = "offsets"}
files.per_subtask = "{here}/offsets.json"
restart-strategy.type = "fixed-delay"
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> StateStore:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_split("source", "offsets", [[{"topic": "t", "partition": 0, "offset": 7}]])
    return store


def test_a_job_serves_its_metrics_while_it_runs(
    run_job: RunJob, tmp_path: Path, store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port is open during all attempts, and closed afterwards."""
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    url, seen, now_ms = f"http://127.0.0.1:{port}/metrics", [], 0

    def sleep(seconds: float) -> None:
        nonlocal now_ms
        now_ms += round(seconds * 1000)
        with urllib.request.urlopen(url) as answer:
            seen.append(answer.read().decode())

    monkeypatch.setattr(jobs.job, "RestartClock", lambda: RestartClock(lambda: now_ms, sleep))
    failures = [StorageError("no answer")]

    def output_file(path: Path, *, replace: bool) -> Any:
        if failures:
            raise failures.pop()
        return real_output_file(path, replace=replace)

    monkeypatch.setattr(redistribute_offsets, "output_file", output_file)
    done = run_job(job, OFFSETS.replace("{port}", str(port)))
    assert done.code == 0, done.err
    assert f"metrics: http://localhost:{port}/metrics\n" in done.err
    assert f'statestore_restore_seconds_count{{store="{store.url}"}} 1.0' in seen[0]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


def test_a_used_port_is_reported_before_anything_is_written(
    run_job: RunJob, tmp_path: Path
) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_job(job, OFFSETS.replace("{port}", str(port)))
    assert (done.code, done.out) == (2, "")
    assert re.search(f"metrics_port {port}: Address already in use; choose", done.err)
    assert not (tmp_path / "offsets.json").exists()


def test_a_missing_client_is_named(
    run_job: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "statestore.prometheus", raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = run_job(job, OFFSETS.replace("{port}", "0"))
    assert (done.code, done.out) == (16, "")
    assert "install the extra 'metrics': " in done.err
    assert not (tmp_path / "offsets.json").exists()
