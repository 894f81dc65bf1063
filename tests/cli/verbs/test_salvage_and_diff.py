"""The output and exit status of ``statestore repair`` of a checkpoint and ``statestore diff``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from statestore import StateStore

pytestmark = pytest.mark.slow

Run = Callable[..., Result]


@pytest.fixture
def changed(filled: Path, tmp_path: Path) -> Path:
    """A copy of the store with a third checkpoint: one total changed, one was added, one was
    deleted.
    """
    folder = Path(shutil.copytree(filled, tmp_path / "changed"))
    store = StateStore.open(str(folder), table_format="parquet")
    second = store.checkpoint(2).manifest
    rows = [{"user_id": f"u{i}", "total": 7 if i == 3 else i} for i in range(1, 201)]
    with store.snapshot(parallelism=4, graph=second.graph) as checkpoint:
        checkpoint.write_keyed("totals-by-user", "totals", rows, key="user_id", max_parallelism=16)
        offsets = [[{"partition": p, "offset": 10 * p + (p == 2)}] for p in range(4)]
        checkpoint.write_union("orders-source", "offsets", offsets)
        checkpoint.drop("orders-source", "files")
        checkpoint.carry_rest()
    return folder


def lose_a_file(folder: Path, uid: str, name: str) -> Path:
    entry = StateStore.open(str(folder)).checkpoint(2).manifest.find(uid, name)
    file = folder / entry.table.path / entry.handles[0].path
    file.unlink()
    return file


# --- salvage --------------------------------------------------------------------------------------


def test_salvage_reports_lost_rows_and_where_copies_exist(run: Run, damaged: Path) -> None:
    file = lose_a_file(damaged, "totals-by-shop", "totals")
    lose_a_file(damaged, "orders-source", "offsets")
    done = run("repair", 2, "--dry-run", "--store", damaged)
    assert done.exit_code == 0
    assert "2 files of 41 damaged; dry run: nothing was written" in done.stdout
    done = run("repair", 2, "--store", damaged)
    lines = done.stdout.splitlines()
    assert lines[0].endswith("2 files of 41 damaged; the readable part is checkpoint 3")
    assert any(file.name in line and "is missing" in line for line in lines)
    assert "state totals of operator totals-by-shop: 1 of 3 rows lost; 2 rows are left" in lines
    lost = "4 of 4 elements lost; the state is kept without elements"
    assert f"state offsets of operator orders-source: {lost}" in lines
    (keys,) = (line for line in lines if line.startswith("  the lost rows had 1 key: "))
    assert json.loads(keys.partition(": ")[2])["country"] in ("DE", "FR")


def test_salvage_as_json(run: Run, damaged: Path) -> None:
    file = lose_a_file(damaged, "totals-by-shop", "totals")
    arguments = ("repair", "latest", "--from-older", "--store", damaged, "--output", "json")
    document = json.loads(run(*arguments).stdout)
    assert (document["checkpoint_id"], document["new_checkpoint_id"], document["is_intact"]) == (
        2,
        3,
        False,
    )
    (broken,) = document["damaged"]
    assert damaged / broken["file"] == file
    (state,) = document["states"]
    (part,) = state["lost"]
    assert (part["known_in"], part["keys"], part["filled_from"]) == (1, 1, 1)
    assert (state["rows_before"], state["rows_after"], len(state["keys"])) == (3, 3, 1)
    again = json.loads(run(*arguments).stdout)
    assert (again["is_intact"], again["new_checkpoint_id"], again["states"]) == (True, None, [])
    origin = StateStore.open(str(damaged)).checkpoint(3).manifest.origin
    assert origin is not None
    assert origin["filled"] == [
        {
            "operator": "totals-by-shop",
            "state": "totals",
            "first": part["first"],
            "last": part["last"],
            "checkpoint": 1,
        }
    ]


def test_salvage_of_an_intact_or_missing_checkpoint(run: Run, fraud: Path) -> None:
    done = run("repair", 2, "--store", fraud)
    assert done.exit_code == 0
    assert "no damage in 41 files; nothing was written" in done.stdout
    assert run("repair", 7, "--store", fraud).exit_code == 10


def test_salvage_without_a_manifest_ends_with_13(run: Run, damaged: Path) -> None:
    name = damaged / "checkpoints/0000000002.json"
    name.write_bytes(name.read_bytes().replace(b"-", b"_", 1))
    done = run("repair", 2, "--store", damaged)
    assert done.exit_code == 13
    assert "another checkpoint: 1" in done.stderr


# --- diff -----------------------------------------------------------------------------------------


def test_diff_as_text(run: Run, changed: Path) -> None:
    done = run("diff", 2, 3, "--store", changed)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith(": they differ")
    (row,) = (line.split() for line in lines if line.startswith("totals-by-user  totals "))
    assert row == ["totals-by-user", "totals", "200", "200", "1", "1", "1", "2"]
    assert "state files of operator orders-source, only in a" in lines
    assert '  ~ {"partition": 2}  offset: 20 → 21' in lines
    assert any(line.startswith('  + {"user_id": "u200", "total": 200}') for line in lines)
    assert not any("per_country of operator" in line for line in lines)


def test_diff_as_json(run: Run, changed: Path) -> None:
    arguments = ("diff", 2, 3, "--store", changed, "--output", "json")
    document = json.loads(run(*arguments).stdout)
    assert (
        document["a"]["checkpoint_id"],
        document["b"]["checkpoint_id"],
        document["differs"],
    ) == (2, 3, True)
    for side in (document["a"], document["b"]):
        assert 0 < side["read_bytes"] < side["size_bytes"] / 10
    states = {(s["operator"], s["state"]): s for s in document["states"]}
    assert len(states) == 7
    totals = states["totals-by-user", "totals"]
    assert (totals["added"], totals["removed"], totals["changed"]) == (1, 1, 1)
    assert len(totals["key_groups"]) == totals["key_groups_differing"] == 2
    (one,) = (e for e in totals["examples"] if e["change"] == "changed")
    assert one["identity"] == {"user_id": "u3"}
    assert (one["a"]["total"], one["b"]["total"]) == (3, 7)
    assert [key for key, state in states.items() if state["differs"]] == [
        ("orders-source", "files"),
        ("orders-source", "offsets"),
        ("totals-by-user", "totals"),
    ]
    narrowed = json.loads(run(*arguments, "--state", "totals-by-user", "--examples", 1).stdout)
    assert [len(state["examples"]) for state in narrowed["states"]] == [0, 1]


def test_the_exit_status_reports_differences_on_request(
    run: Run, changed: Path, filled: Path
) -> None:
    """B is the latest checkpoint unless it is named. It can be in another store."""
    assert run("diff", 2, "--store", changed).exit_code == 0
    assert run("diff", 2, "--exit-code", "--store", changed).exit_code == 1
    other = ("--other-store", filled, "--exit-code", "--store", changed)
    done = run("diff", 2, *other)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "they are the same" in done.stdout
    assert run("diff", 3, *other).exit_code == 1


def test_missing_names(run: Run, changed: Path, tmp_path: Path) -> None:
    done = run("diff", 2, 3, "--state", "/total", "--store", changed)
    assert done.exit_code == 10
    assert "'totals-by-user' 'totals'" in done.stderr
    assert run("diff", 2, 9, "--store", changed).exit_code == 10
    done = run("diff", 2, "--other-store", tmp_path / "none", "--store", changed)
    assert done.exit_code == 10
