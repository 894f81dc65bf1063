"""The output and exit status of ``statestore compact``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statestore import StateStore
from tests.support.stores import uncompacted

Run = Callable[..., Result]


@pytest.fixture
def layered(filled: Path, tmp_path: Path) -> Path:
    """A copy of the store with a third checkpoint, which changes one total."""
    folder = Path(shutil.copytree(filled, tmp_path / "layered"))
    store = StateStore.open(str(folder), table_format="parquet", compaction=None)
    second = store.checkpoint(2).manifest
    with store.snapshot(parallelism=4, graph=second.graph) as checkpoint:
        checkpoint.write_changes(
            "totals-by-user", "totals", [{"user_id": "u3", "total": 7}], key="user_id"
        )
        checkpoint.carry_rest()
    return folder


@pytest.mark.slow
def test_all_changes_are_folded_into_a_new_checkpoint(run: Run, layered: Path) -> None:
    done = run("compact", "--everything", "--dry-run", "--store", layered)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"would compact checkpoint 3 of {layered}\n")
    done = run("compact", "latest", "--everything", "--store", layered)
    lines = done.stdout.splitlines()
    assert lines[0] == f"compacted checkpoint 3 of {layered}: checkpoint 4"
    (line,) = (line for line in lines if "totals-by-user" in line)
    assert "1 -> 0" in line
    assert "1 span " in line
    store = StateStore.open(str(layered))
    assert store.checkpoint().manifest.keyed_entry("totals-by-user", "totals").layers == ()
    keyed = store.restore(parallelism=2).keyed("totals-by-user", "totals")
    assert [row["total"] for row in keyed.get("u3")] == [7]
    done = run("compact", "--everything", "--store", layered)
    assert "no state has layers of changes" in done.stdout
    assert store.checkpoints() == (1, 2, 3, 4)


@pytest.mark.slow
def test_as_json(run: Run, layered: Path) -> None:
    arguments = (
        "compact",
        "--everything",
        "--state",
        "/totals",
        "--store",
        layered,
        "--output",
        "json",
    )
    document = json.loads(run(*arguments, "--dry-run").stdout)
    assert (document["checkpoint_id"], document["new_checkpoint_id"], document["dry_run"]) == (
        3,
        None,
        True,
    )
    assert (document["is_compact"], document["states"][0]["files_after"]) == (False, None)
    document = json.loads(run(*arguments).stdout)
    (state,) = document["states"]
    assert (document["checkpoint_id"], document["new_checkpoint_id"], document["everything"]) == (
        3,
        4,
        True,
    )
    assert (state["operator"], state["state"]) == ("totals-by-user", "totals")
    assert (state["layers_before"], state["layers_after"], state["merged_layers"]) == (1, 0, 0)
    (span,) = state["spans"]
    assert span["first"] <= span["last"]
    assert state["files_before"] == state["files_after"] + 1
    document = json.loads(run(*arguments).stdout)
    assert (document["is_compact"], document["new_checkpoint_id"], document["states"]) == (
        True,
        None,
        [],
    )


def test_the_list_does_not_call_a_compacted_checkpoint_incremental(
    run: Run, layered: Path, tmp_path: Path
) -> None:
    """It is full if it has only files of its own, and compacted if it also has others."""
    single = uncompacted(tmp_path / "single")
    with single.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "s", [{"k": "a", "v": 1}], key="k", max_parallelism=8)
    with single.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "s", [{"k": "a", "v": 2}])
    for store, extents in (
        (layered, ["full", "full", "incremental", "compacted"]),
        (single.url, ["full", "incremental", "full"]),
    ):
        assert run("compact", "--everything", "--store", store).exit_code == 0
        lines = run("list", "--store", store).stdout.splitlines()[1 : 1 + len(extents)]
        assert [line.split()[6] for line in lines] == extents


def test_errors_of_compact(run: Run, layered: Path) -> None:
    assert run("compact", "9", "--store", layered).exit_code == 10
    assert run("compact", "--state", "nobody", "--store", layered).exit_code == 10
    done = run("compact", "--key-groups", "7-x", "--store", layered)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'7-x' is not a range of key groups" in done.stderr
