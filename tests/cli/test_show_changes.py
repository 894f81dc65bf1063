"""What the command shows of states with changes, and does with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result

from tests.support.layered import GROUPS, Layered, entries_of, users

Run = Callable[..., Result]


@pytest.fixture
def state(tmp_path: Path) -> Layered:
    state = Layered(tmp_path / "store", compaction=None)
    state.full(users(40))
    state.change({("u001", 0): 100, ("new", 7): 1}, cleared=["u003"])
    state.change({("u001", 0): 101})
    return state


@pytest.fixture
def answer(run: Run, state: Layered) -> Callable[..., Any]:
    def ask(*arguments: object) -> Any:
        done = run(*arguments, "--store", state.storage.url, "--output", "json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    return ask


def test_show_tells_base_and_changes_apart(state: Layered, answer: Callable[..., Any]) -> None:
    (entry,) = state.store.manifest().keyed
    shown = answer("show", "latest")
    (told,) = shown["operators"][0]["states"]
    base = entry.parts[0]
    assert (told["rows"], told["files"], told["size_bytes"]) == (40, base.files, base.size_bytes)
    assert told["changes"] == [
        {
            "checkpoint": layer.checkpoint_id,
            "depth": 0,
            "rows": rows,
            "size_bytes": layer.entry.size_bytes,
            "files": len(layer.entry.handles),
            "live": [[0, GROUPS - 1]],
        }
        for layer, rows in zip(entry.layers, (3, 1), strict=True)
    ]
    assert (shown["rows"], shown["changed_rows"]) == (44, 4)
    assert [row.get("changed_rows") for row in answer("list")["checkpoints"]] == [None, 3, 4]
    assert "changes" not in answer("show", 1)["operators"][0]["states"][0]


def test_text_names_rows_of_changes_apart(run: Run, state: Layered) -> None:
    store = ("--store", state.storage.url)
    shown = run("show", "latest", *store).stdout
    assert "40 rows and 4 rows of changes" in shown
    assert "base" in shown
    assert "of 2 layers" in shown
    assert " 40 + 4 " in run("list", *store).stdout
    planned = run("plan", "--parallelism", "2", *store).stdout
    assert "rows read" in planned
    assert "1.10 rows are read for each of the base" in planned


def test_a_plan_tells_how_much_more_is_read(answer: Callable[..., Any]) -> None:
    plan = answer("plan", "--parallelism", "3")
    assert plan["read_amplification"] == plan["operators"][0]["read_amplification"] == 1.1
    subtasks = plan["operators"][0]["subtasks"]
    assert sum(subtask["rows"] for subtask in subtasks) == 44
    assert sum(subtask.get("changed_rows", 0) for subtask in subtasks) == 4
    assert "read_amplification" not in answer("plan", 1, "--parallelism", "3")


def test_views_do_not_say_how_many_rows_changes_leave(answer: Callable[..., Any]) -> None:
    assert [view["rows"] for view in answer("query", "--tables")["views"]] == [None]
    assert answer("query", "SELECT count(*) AS n FROM s")["rows"] == [[len(users(40))]]


def test_get_and_diff_see_merged_rows(answer: Callable[..., Any]) -> None:
    state = ("--operator", "u", "--state", "s")
    assert answer("get", "u001", *state)["rows"] == [{"k": "u001", "m": 0, "v": 101}]
    assert answer("get", "u003", *state)["rows"] == []
    (told,) = answer("diff", 1, 3)["states"]
    assert (told["rows_a"], told["rows_b"]) == (40, None)
    assert (told["added"], told["removed"], told["changed"]) == (1, 1, 1)


def test_an_export_has_the_merged_rows_and_proves_them(
    tmp_path: Path, state: Layered, answer: Callable[..., Any]
) -> None:
    done = answer("restore", "--to", tmp_path / "out", "--parallelism", "3")
    (told,) = done["states"]
    assert done["rows"] == told["proof"]["stored"]["rows"] == len(state.rows)
    files = (tmp_path / "out").rglob("*.parquet")
    assert (
        entries_of(row for file in files for row in pq.read_table(file).to_pylist()) == state.rows
    )
