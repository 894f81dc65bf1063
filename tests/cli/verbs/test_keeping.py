"""``savepoint``, ``expire`` and ``gc`` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from statestore import StateStore
from statestore.display import size
from statestore.format.names import pin_path, savepoint_path

Run = Callable[..., Result]


@pytest.mark.slow
def test_a_savepoint_is_created_listed_used_and_deleted(run: Run, damaged: Path) -> None:
    made = run("savepoint", "before-upgrade", 1, "--store", damaged)
    assert made.stdout == f"savepoint before-upgrade of {damaged} keeps checkpoint 1\n"
    done = run("expire", "--retain", 1, "--store", damaged)
    assert "checkpoint 1 is held by savepoint 'before-upgrade'" in done.stdout
    (listed,) = json.loads(run("list", "--store", damaged, "--output", "json").stdout)["savepoints"]
    assert (listed["name"], listed["checkpoint_id"], listed["is_expired"]) == (
        "before-upgrade",
        1,
        False,
    )
    assert "before-upgrade   1" in run("list", "--store", damaged).stdout
    for verb in (["show"], ["verify"], ["plan", "--parallelism", 2]):
        assert run(*verb, "before-upgrade", "--store", damaged).exit_code == 0
    found = run(
        *(
            "get",
            "before-upgrade",
            "--key",
            "u17",
            "--state",
            "totals-by-user/totals",
        ),
        *("--store", damaged, "--output", "json"),
    )
    assert json.loads(found.stdout)["checkpoint_id"] == 1
    wrong = run("show", "befor-upgrade", "--store", damaged)
    assert wrong.exit_code == 10
    assert "no savepoint 'befor-upgrade' in" in wrong.stderr
    assert "existing savepoints: 'before-upgrade'" in wrong.stderr
    assert run("savepoint", "--remove", "x", 1, "--store", damaged).exit_code == 2
    gone = run("savepoint", "--remove", "before-upgrade", "--store", damaged, "--output", "json")
    assert json.loads(gone.stdout)["deleted"] is True
    assert StateStore.open(str(damaged)).maintenance.savepoints() == ()


def test_a_pin_prints_only_its_token(run: Run, damaged: Path) -> None:
    token = run("savepoint", "me", "--lease", "2h", "--store", damaged).stdout.strip()
    (pin,) = json.loads(run("list", "--store", damaged, "--output", "json").stdout)["pins"]
    assert (pin["token"], pin["checkpoint_id"], pin["holder"], pin["is_over"]) == (
        token,
        2,
        "me",
        False,
    )
    wrong = run("savepoint", "--remove", "x", "--store", damaged)
    assert (wrong.exit_code, token in wrong.stderr) == (10, True)
    assert run("savepoint", "--remove", token, "--store", damaged).exit_code == 0
    assert run("savepoint", "--lease", "2", "--store", damaged).exit_code == 2
    assert run("savepoint", "--lease", "0", "--store", damaged).exit_code == 2


@pytest.mark.slow
def test_gc_reports_removed_files_and_why_the_others_stay(run: Run, damaged: Path) -> None:
    run("expire", "--retain", 1, "--store", damaged)
    first = json.loads(run("gc", "--store", damaged, "--output", "json").stdout)
    assert first["removed"] == {"files": 0, "size_bytes": 0}
    assert first["young"]["files"] == first["live"]["files"] == 41
    planned = run("gc", "--minimum-age", 0, "--dry-run", "--store", damaged)
    assert planned.stdout.startswith("would remove ")
    done = json.loads(run("gc", "--minimum-age", 0, "--store", damaged, "--output", "json").stdout)
    assert (done["removed"], done["manifests"], done["held"]) == (first["young"], [1], [])
    assert run("verify", "all", "--deep", "--store", damaged).exit_code == 0


@pytest.mark.slow
def test_gc_reports_what_expire_and_verify_reported(run: Run, damaged: Path) -> None:
    """The checkpoint numbers, files and bytes of expire, and the stray files of verify."""

    def answer(*words: object) -> Any:
        return json.loads(run(*words, "--store", damaged, "--output", "json").stdout)

    entry = (
        StateStore.open(str(damaged)).checkpoint(2).manifest.keyed_entry("totals-by-shop", "totals")
    )
    folder = (damaged / entry.table.path / entry.handles[0].path).parent
    for number in range(11, 18):
        name = f"00000000{number}-00000-{number:016x}.parquet"
        (folder / name).write_bytes(b"half a file")
    strays = answer("verify", "all")["strays"]
    young = answer("gc")
    assert (young["stray"], young["strays"]) == ({"files": 0, "size_bytes": 0}, [])
    assert young["young_stray"] == {"files": 7, "size_bytes": 77}
    text = run("gc", "--store", damaged).stdout
    assert "77 B in 7 files (unused, for less than 1 d; 7 stray files of these)" in text
    expired = answer("expire", "--retain", 1)
    run("savepoint", "reader", 2, "--lease", "1ms", "--store", damaged)
    (pin,) = answer("list")["pins"]
    planned = answer("gc", "--minimum-age", 0, "--dry-run")
    assert (planned["expired"], planned["kept"]) == (expired["expired"], expired["kept"])
    assert planned["strays"] == strays
    assert planned["stray"] == {"files": len(strays), "size_bytes": 77}
    for member in ("files", "size_bytes"):
        assert planned["removed"][member] - planned["stray"][member] == expired[member]
    (listed,) = answer("list")["checkpoints"]
    assert planned["live"] == {name: listed[name] for name in ("files", "size_bytes")}
    lines = run("gc", "--minimum-age", 0, "--store", damaged).stdout.splitlines()
    released = f"{size(expired['size_bytes'])} in 41 files"
    assert lines[1:3] == [
        f"  expired          {released} of checkpoint 1",
        "  stray            77 B in 7 files that no manifest references:",
    ]
    assert lines[3:9] == [*(f"    {name}" for name in strays[:5]), "    and 2 more"]
    assert f"  kept, in use     {size(listed['size_bytes'])} in 41 files of checkpoint 2" in lines
    assert f"  removed 1 pin whose lease is over: {pin['token']}" in lines
    assert "  removed documents that nothing needs: the manifests of checkpoint 1" in lines
    assert answer("verify", "all")["strays"] == []


@pytest.mark.slow
def test_consecutive_checkpoints_are_shown_as_a_range(run: Run, damaged: Path) -> None:
    store = StateStore.open(str(damaged))
    for _ in range(4):
        with store.snapshot(parallelism=4) as checkpoint:
            checkpoint.carry_rest()
    store.maintenance.savepoint("kept", 4)
    lines = run("expire", "--retain", 1, "--store", damaged).stdout.splitlines()
    assert lines[1:3] == ["  expired     1–3 5", "  kept        4 6"]
    lines = run("gc", "--minimum-age", 0, "--store", damaged).stdout.splitlines()
    assert any(line.endswith(" of checkpoints 4 6") for line in lines)
    assert "  removed documents that nothing needs: the manifests of checkpoints 1–3 5" in lines


def test_a_damaged_hold_is_named_and_can_be_released(run: Run, damaged: Path) -> None:
    """While the damaged hold exists, nothing expires and no file is deleted."""
    for name in (savepoint_path("audit"), pin_path("00")):
        (damaged / name).parent.mkdir(exist_ok=True)
        (damaged / name).write_text("{")
    for verb in (["list"], ["expire", "--retain", 1], ["gc"]):
        done = run(*verb, "--store", damaged)
        assert (done.exit_code, "is damaged" in done.stderr) == (13, True)
    assert run("savepoint", "--remove", "00", "--store", damaged).exit_code == 0
    gone = run("savepoint", "--remove", "audit", "--store", damaged)
    assert (gone.exit_code, "was damaged" in gone.stdout) == (0, True)
    assert run("gc", "--store", damaged).exit_code == 0


def test_expire_requires_a_number_or_an_age(run: Run, damaged: Path) -> None:
    assert run("expire", "--store", damaged).exit_code == 2
    done = run("expire", "--older-than", "1ms", "--store", damaged, "--output", "json")
    assert json.loads(done.stdout)["expired"] == [1]


@pytest.mark.parametrize("text", ["", "5", "2 hours", "1.0001ms"])
def test_an_invalid_duration_is_a_usage_error(run: Run, damaged: Path, text: str) -> None:
    done = run("expire", "--older-than", text, "--store", damaged)
    assert done.exit_code == 2
    assert "duration" in done.stderr
