"""The text and JSON output of ``show --graph``, ``plan --graph`` and ``--parallelism auto``."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statestore import StateStore
from statestore.storage.local_cache import CacheOptions
from tests.cli.conftest import JOB

Run = Callable[..., Result]


@pytest.fixture
def other_job(tmp_path: Path) -> Path:
    """A job in which the users' totals have another uid, and ``clean`` has another position."""
    path = tmp_path / "other.toml"
    text = JOB.replace('uid = "totals-by-user"', 'uid = "user-totals"')
    path.write_text(text + '\n[[operator]]\nname = "new"\ninputs = ["by shop"]\n')
    return path


def test_a_graph_is_drawn_by_chains(run: Run, fraud: Path) -> None:
    done = run("show", "--job-graph", "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"job graph of checkpoint 2 of {fraud}"
    assert "job vertex 1  orders → clean  (parallelism 4)" in lines
    assert "  └ HASH to job vertex 2" in lines
    (orders,) = [line for line in lines if line.startswith("  orders")]
    assert "uid orders-source" in orders
    assert "offsets: 4 elements" in orders
    (clean,) = [line for line in lines if line.startswith("  clean")]
    assert clean.endswith("no state")
    assert any(line.endswith("(parallelism 4, max parallelism 16)") for line in lines)


def test_a_graph_as_json(run: Run, fraud: Path) -> None:
    document = json.loads(run("show", "--job-graph", "--store", fraud, "--output", "json").stdout)
    assert document["checkpoint_id"] == 2
    first = document["vertices"][0]
    assert [operator["name"] for operator in first["operators"]] == ["orders", "clean"]
    assert first["id"] == first["operators"][0]["operator_id"]
    assert first["operators"][0]["states"] == ["offsets", "files", "rules"]
    assert document["edges"][0] == {
        "source": "orders",
        "target": "clean",
        "partitioner": "FORWARD",
    }
    assert len(document["edges"]) == 4


def test_a_checkpoint_without_a_graph_explains_how_to_record_one(run: Run, fraud: Path) -> None:
    done = run("show", "1", "--job-graph", "--store", fraud)
    assert done.exit_code == 2
    assert "checkpoint 1 has no job graph; pass one when a snapshot is taken" in done.stderr


def test_a_plan_shows_the_state_that_a_new_job_gets(run: Run, fraud: Path, other_job: Path) -> None:
    done = run("plan", "--graph", other_job, "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    text = done.stdout
    assert "by shop  finds stored operator 'totals-by-shop' by uid: totals; 3 rows" in text
    assert "by user  starts empty" in text
    assert "dropped: stored operator 'totals-by-user': totals, per_country; 400 rows" in text
    assert "hint: set uid = 'totals-by-user' on operator 'by user'" in text
    assert "a restore does not drop state unless --allow-non-restored-state is passed" in text
    done = run("plan", "--graph", other_job, "--store", fraud, "--output", "json")
    matching = json.loads(done.stdout)["plan"]["matching"]
    outcomes = {found["node"]["name"]: found["outcome"] for found in matching["nodes"]}
    assert outcomes["by user"] == outcomes["new"] == "empty"
    assert [stored["uid"] for stored in matching["dropped"]] == ["totals-by-user"]
    assert matching["hints"][0]["uid"] == "totals-by-user"


def test_a_restore_drops_state_only_on_request(
    run: Run, fraud: Path, other_job: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    refused = run("restore", "--graph", other_job, "--to", out, "--store", fraud)
    assert refused.exit_code == 12
    assert "'totals-by-user' with 400 rows" in refused.stderr
    assert not out.exists()
    arguments = ("restore", "--graph", other_job, "--to", out, "--store", fraud)
    assert run(*arguments, "--allow-non-restored-state").exit_code == 0
    assert {path.name for path in out.iterdir()} == {
        *("orders-source", "totals-by-shop", "totals-by-card")
    }


@pytest.mark.slow
def test_a_chosen_parallelism_is_explained(run: Run, fraud: Path, tmp_path: Path) -> None:
    options = ("--parallelism", "2kB", "--store", fraud)
    done = run("plan", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "is chosen from the stored bytes:" in done.stdout
    assert "totals-by-user: " in done.stdout
    document = json.loads(run("plan", *options, "--output", "json").stdout)["plan"]
    wishes = {
        choice["operator"]: choice["decision"]["parallelism"] for choice in document["choices"]
    }
    assert document["parallelism"] == max(wishes.values()) > 1
    done = run("restore", *options, "--to", tmp_path / "out", "--output", "json")
    assert json.loads(done.stdout)["exported"]["parallelism"] == document["parallelism"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--parallelism", "many"), "'many' is neither a number, nor 'auto', nor a size"),
        (("--parallelism", "1_0"), "'1_0' is neither a number, nor 'auto', nor a size"),
        (("--parallelism", "2,x"), "'x' is not an integer"),
        (("--graph", "none.toml"), "the job graph none.toml does not exist; check the path"),
        (("--graph", "bad.toml"), "cycle: 'a' -> 'b' -> 'a'"),
    ],
)
def test_arguments_that_a_plan_refuses(
    run: Run, fraud: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "bad.toml").write_text(
        '[[operator]]\nname = "a"\ninputs = ["b"]\n[[operator]]\nname = "b"\ninputs = ["a"]\n'
    )
    done = run("plan", *arguments, "--store", fraud)
    assert done.exit_code == 2
    assert message in done.stderr


def test_subtasks_are_assigned_to_hosts(run: Run, tmp_path: Path) -> None:
    store = StateStore.open(
        str(tmp_path / "store"),
        table_format="parquet",
        layout="partitioned",
        cache=CacheOptions(tmp_path / "cache"),
    )
    rows = [{"user": f"u{i}", "n": i} for i in range(40)]
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("users", "totals", rows, key="user", max_parallelism=4)
    here = socket.gethostname()
    options = ("--parallelism", "2", "--hosts", f"other=1,{here}=2", "--store", store.url)
    done = run("plan", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    size = store.checkpoint().manifest.size_bytes
    assert "on hosts, locality: " in done.stdout
    assert f"      0  {here}" in done.stdout
    document = json.loads(run("plan", *options, "--output", "json").stdout)
    (placement,) = document["placements"]
    assert [one["host"] for one in placement["subtasks"]] == [here, here]
    assert sum(one["local_bytes"] for one in placement["subtasks"]) == size


@pytest.mark.parametrize("hosts", ["a", "a=x", "a=1,a=2", "=1", ""])
def test_invalid_hosts(run: Run, fraud: Path, hosts: str) -> None:
    done = run("plan", "--hosts", hosts, "--store", fraud)
    assert done.exit_code == 2
    assert "must have the form HOST=SLOTS,HOST=SLOTS" in done.stderr


def test_a_host_with_a_negative_number_of_slots(run: Run, fraud: Path) -> None:
    done = run("plan", "--hosts", "a=-1", "--store", fraud)
    assert done.exit_code == 2
    assert "host 'a' offers -1 slots" in done.stderr
