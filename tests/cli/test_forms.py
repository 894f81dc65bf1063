"""The command's output for states in every form: equal rows, with changes counted apart from the
base.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result

from tests.support.forms import GROUPS, Checkpoints, entries_of, users

Run = Callable[..., Result]


Answer = Callable[..., Any]


@pytest.fixture
def state(tmp_path: Path) -> Checkpoints:
    state = Checkpoints(tmp_path / "store")
    state.full(users(40))
    state.change({("u001", 0): 100, ("new", 7): 1}, cleared=["u003"])
    state.change({("u001", 0): 101})
    return state


def answer_of(run: Run, state: Checkpoints) -> Answer:
    def ask(*arguments: object) -> Any:
        done = run(*arguments, "--store", state.storage.url, "--output", "json")
        assert done.exit_code == 0, done.stderr
        return json.loads(done.stdout)

    return ask


def test_list_explains_the_rows_of_changes(run: Run, state: Checkpoints) -> None:
    done = run("list", "--store", state.storage.url)
    header, *lines = done.stdout.splitlines()
    assert "extent" in header
    assert ["full" in line for line in lines[:3]] == [True, False, False]
    assert [" incremental " in line for line in lines[:3]] == [False, True, True]
    assert "  40 + 3  " in lines[1]
    assert lines[3] == (
        "rows 40 + 4: 40 in base files, and 4 changed or deleted rows that a restore applies to "
        "them"
    )
    listed = answer_of(run, state)("list")["checkpoints"]
    assert [one["is_incremental"] for one in listed] == [False, True, True]
    assert [one["rows"] - one["changed_rows"] for one in listed] == [40, 40, 40]


def test_show_separates_base_and_changes(run: Run, state: Checkpoints) -> None:
    answer = answer_of(run, state)
    (entry,) = state.store.checkpoint().manifest.keyed
    shown = answer("show", "latest")
    (told,) = shown["operators"][0]["states"]
    base = entry.parts[0]
    assert (told["rows"], told["files"], told["size_bytes"]) == (40, base.files, base.size_bytes)
    assert told["changes"] == [
        {
            "checkpoint_id": layer.checkpoint_id,
            "depth": 0,
            "rows": rows,
            "size_bytes": layer.entry.size_bytes,
            "files": len(layer.entry.handles),
            "live": [{"first": 0, "last": GROUPS - 1}],
        }
        for layer, rows in zip(entry.layers, (3, 1), strict=True)
    ]
    assert (shown["rows"], shown["changed_rows"]) == (44, 4)
    assert [row["changed_rows"] for row in answer("list")["checkpoints"]] == [0, 3, 4]
    assert answer("show", 1)["operators"][0]["states"][0]["changes"] == []


def test_text_counts_rows_of_changes_separately(run: Run, state: Checkpoints) -> None:
    store = ("--store", state.storage.url)
    shown = run("show", "latest", *store).stdout
    assert "40 rows and 4 rows of changes" in shown
    assert "base" in shown
    assert "of 2 layers" in shown
    assert " 40 + 4 " in run("list", *store).stdout
    planned = run("plan", "--parallelism", "2", *store).stdout
    assert "rows read" in planned
    assert "1.10 rows are read for each row of the base" in planned


def test_a_plan_shows_the_read_amplification(run: Run, state: Checkpoints) -> None:
    answer = answer_of(run, state)
    plan = answer("plan", "--parallelism", "3")["plan"]
    assert plan["read_amplification"] == plan["operators"][0]["read_amplification"] == 1.1
    subtasks = plan["operators"][0]["subtasks"]
    assert sum(subtask["rows"] for subtask in subtasks) == 44
    assert sum(subtask["changed_rows"] for subtask in subtasks) == 4
    assert answer("plan", 1, "--parallelism", "3")["plan"]["read_amplification"] is None


@pytest.mark.slow
def test_views_show_the_row_count_unless_changes_make_it_unknown(
    run: Run, taken: Checkpoints
) -> None:
    answer, rows = answer_of(run, taken), len(taken.rows)
    told = rows if taken.form == "plain" else None
    (view,) = answer("query", "--tables")["views"]
    assert view["rows"] == told
    (entry,) = taken.store.checkpoint().manifest.keyed
    assert (view["file_rows"], view["changed_rows"]) == (entry.rows, entry.changed_rows)
    assert (told is None) == bool(view["changed_rows"])
    text = run("query", "--tables", "--store", taken.storage.url).stdout
    shown = f"{view['file_rows'] - view['changed_rows']} + {view['changed_rows']}"
    assert (f"  {shown}  " in text) == (f"rows {shown}: " in text) == (told is None)
    assert answer("query", "SELECT count(*) AS n FROM s")["rows"] == [[rows]]


def test_get_returns_the_rows_of_every_form(run: Run, taken: Checkpoints) -> None:
    answer = answer_of(run, taken)
    gone = {user for user, _ in taken.taken[1]} - {user for user, _ in taken.rows}
    assert gone
    for user in ("u001", "new-4", min(gone), "nobody"):
        rows = [{"k": k, "m": m, "v": v} for (k, m), v in sorted(taken.rows.items()) if k == user]
        assert bool(rows) == (user in ("u001", "new-4"))
        assert answer("get", "--key", user, "--state", "u/s")["rows"] == rows


def test_diff_compares_checkpoints_in_every_form(run: Run, taken: Checkpoints) -> None:
    old, new = taken.taken[1], taken.rows
    (told,) = answer_of(run, taken)("diff", 1, 5)["states"]
    assert (told["rows_a"], told["rows_b"]) == (len(old), len(new))
    assert (told["added"], told["removed"]) == (len(new.keys() - old), len(old.keys() - new))
    assert told["changed"] == sum(old[entry] != new[entry] for entry in old.keys() & new)


def test_an_export_contains_and_verifies_the_rows_of_every_form(
    run: Run, tmp_path: Path, taken: Checkpoints
) -> None:
    done = answer_of(run, taken)("restore", "--to", tmp_path / "out", "--parallelism", "3")
    exported = done["exported"]
    (told,) = exported["states"]
    assert exported["rows"] == told["proof"]["stored"]["rows"] == len(taken.rows)
    files = (tmp_path / "out").rglob("*.parquet")
    assert (
        entries_of(row for file in files for row in pq.read_table(file).to_pylist()) == taken.rows
    )
