"""The target of a job: a graph's operators, or a parallelism that is based on bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs import restore, snapshot
from statestore import StateStore
from tests.jobs.conftest import RunJob

GRAPH = """
[[operator]]
name = "orders"
uid = "orders-source"
parallelism = 2
[[operator]]
name = "totals"
uid = "totals-by-user"
parallelism = 3
max_parallelism = 16
inputs = [{ from = "orders", partitioner = "hash" }]
"""
SNAPSHOT = (
    'graph = "{here}/job.toml"'
    """
[[keyed]]
operator = "totals-by-user"
state = "totals"
key = ["user_id"]
source = {format = "json", path = "{here}/rows.json"}
[[operator_state]]
operator = "orders-source"
state = "offsets"
mode = "split"
source = {format = "json", path = "{here}/offsets.json"}
"""
)
KEYED = """
[[keyed]]
operator = "totals-by-user"
state = "totals"
sink = {format = "json", path = "{here}/totals", mode = "overwrite"}
"""
OPERATOR = """
[[operator_state]]
operator = "orders-source"
state = "offsets"
sink = {format = "json", path = "{here}/offsets", mode = "overwrite"}
"""

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.fixture
def report(run_job: RunJob, tmp_path: Path) -> Any:
    """The report of a snapshot job with a graph."""
    (tmp_path / "job.toml").write_text(GRAPH)
    users = [{"user_id": user, "total": user} for user in range(40)]
    offsets = [{"subtask": i % 2, "partition": i, "offset": i} for i in range(5)]
    for name, rows in (("rows", users), ("offsets", offsets)):
        (tmp_path / f"{name}.json").write_text("\n".join(map(json.dumps, rows)))
    done = run_job(snapshot.snapshot, SNAPSHOT, "--output", "json")
    assert done.code == 0
    return done.report


def subtasks(folder: Path) -> set[int]:
    """Return the subtasks whose rows a sink has."""
    lines = [line for file in folder.rglob("*.json") for line in file.read_text().splitlines()]
    named = {json.loads(line).get("subtask") for line in lines} - {None}
    return named or {int(each.name.partition("=")[2]) for each in folder.glob("subtask=*")}


def test_a_graph_determines_the_parallelism_of_each_operator(report: Any, tmp_path: Path) -> None:
    assert (report["parallelism"], report["states"][0]["max_parallelism"]) == (3, 16)
    manifest = StateStore.open(str(tmp_path / "store")).checkpoint().manifest
    assert manifest.graph is not None
    assert manifest.operators.parallelism_of("orders-source") == 2


def test_a_graph_of_the_job_that_takes_over(report: Any, run_job: RunJob, tmp_path: Path) -> None:
    new = GRAPH.replace("parallelism = 2", "parallelism = 4").replace("= 3", "= 7")
    (tmp_path / "new.toml").write_text(new)
    settings = 'graph = "{here}/new.toml"' + KEYED + OPERATOR
    done = run_job(restore.restore, settings, "--output", "json")
    assert (done.code, done.report["parallelism"]) == (0, 7)
    assert [state["parallelism"] for state in done.report["states"]] == [7, 4]
    assert subtasks(tmp_path / "totals") == set(range(7))
    assert subtasks(tmp_path / "offsets") == set(range(4))


def test_state_that_no_operator_claims(report: Any, run_job: RunJob, tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text(GRAPH.replace("orders-source", "other-source"))
    settings = 'graph = "{here}/new.toml"' + KEYED
    refused = run_job(restore.restore, settings)
    assert (refused.code, refused.out) == (12, "")
    assert "orders-source" in refused.err
    assert not (tmp_path / "totals").exists()
    allowed = run_job(restore.restore, settings, "--set", "allow_non_restored_state=true")
    assert allowed.code == 0
    assert allowed.out.splitlines()[0] == "checkpoint 1, parallelism 3 -> 3"


def test_by_default_each_operator_has_its_own_parallelism(
    report: Any, run_job: RunJob, tmp_path: Path
) -> None:
    done = run_job(restore.restore, OPERATOR, "--output", "json")
    assert (done.code, done.report["parallelism"]) == (0, 3)
    assert subtasks(tmp_path / "offsets") == {0, 1}


def test_a_parallelism_is_chosen_from_bytes(report: Any, run_job: RunJob, tmp_path: Path) -> None:
    size = report["states"][0]["bytes"] // 2
    settings = f'parallelism = "auto"\nbytes_per_task = {size}' + KEYED
    done = run_job(restore.restore, settings, "--output", "json")
    store = StateStore.open(str(tmp_path / "store"))
    plan = store.plan(parallelism="auto", bytes_per_task=size)
    assert (done.code, done.report["parallelism"]) == (0, plan.parallelism)
    assert 1 < plan.parallelism < 16
    whole = run_job(restore.restore, settings, "--set", "bytes_per_task='1GiB'", "--output", "json")
    assert whole.report["parallelism"] == 1


def test_copies_in_the_local_cache_replace_the_store(
    report: Any, run_job: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATESTORE_LOCAL_CACHE", str(tmp_path / "cache"))
    assert run_job(restore.restore, KEYED).code == 0
    assert list((tmp_path / "cache").rglob("*.parquet"))


def test_an_invalid_graph_names_its_file(run_job: RunJob, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text("[[operator]]\nnam = 1")
    done = run_job(snapshot.snapshot, SNAPSHOT)
    assert (done.code, done.err.count("error: ")) == (2, 1)
    assert f"  in {tmp_path}/job.toml" in done.err
