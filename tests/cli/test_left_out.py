"""Every command on a partial checkpoint reports the missing state, in text and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console

from statestore import StateStore
from statestore.cli.output import document_text, page
from statestore.cli.verbs.list import (
    LiveScreen,
    TextLines,
    followed,
)
from statestore.format.left_out import LeftOutState

Run = Callable[..., Result]

KINDS = LeftOutState(operator="kinds", state=None, reason="not read", command="flink import")
LOST = LeftOutState(
    operator="totals",
    state="sums",
    reason="9 rows were damaged",
    command="salvage",
    first=0,
    last=3,
)
HALF = [f"u{i}" for i in range(40)]
SUMS = ("--state", "totals/sums")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the store ``partial``, which no test changes."""
    folder = tmp_path_factory.mktemp("made") / "partial"
    store = StateStore.open(str(folder), compaction=None)
    with store.snapshot(parallelism=2) as checkpoint:
        rows = [{"k": key, "n": 1} for key in HALF]
        checkpoint.write_keyed("totals", "sums", rows, key="k", max_parallelism=8)
        checkpoint.write_keyed("totals", "others", rows, key="k", max_parallelism=8)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("totals", "sums", [{"k": "u1", "n": 2}])
        checkpoint.collected.record(left_out=[KINDS, LOST])
        checkpoint.carry_rest()
    return folder


@pytest.fixture
def partial(made: Path, tmp_path: Path) -> StateStore:
    """A store whose checkpoint 1 is complete. Checkpoint 2 lacks an operator and half of a state's
    key groups.
    """
    folder = shutil.copytree(made, tmp_path / "partial")
    return StateStore.open(str(folder), compaction=None)


COMMANDS = {
    "rekey": ("rekey", "--state", "totals", "--max-parallelism", "16"),
    "rekey, dry run": ("rekey", "--state", "totals", "--max-parallelism", "16", "--dry-run"),
    "edit": ("edit", *SUMS, "--delete", "u1"),
    "edit, nothing": ("edit", *SUMS, "--delete", "nobody"),
    "edit, all rows": ("edit", *SUMS, "--sql", "SELECT * FROM state WHERE n > 0"),
    "forget": ("forget", "2", *SUMS, "--key", "u1"),
    "compact": ("compact", "--everything"),
    "compact, dry run": ("compact", "--everything", "--dry-run"),
    "copy": ("copy", "copied"),
    "copy, linked": ("copy", "forked", "--linked"),
    "repair": ("repair", "latest"),
    "restore": ("restore", "--parallelism", "1", "--to", "restored"),
    "plan": ("plan", "--parallelism", "3"),
    "skew": ("show", "--skew", "bytes"),
    "get, all states": ("get", "--key", "u1"),
    "query": ("query", "SELECT count(*) FROM sums"),
    "query, tables": ("query", "--tables"),
    "diff": ("diff", "1", "2"),
    "show": ("show",),
    "list": ("list",),
    "verify": ("verify",),
}


def records(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of missing state from anywhere in a document."""
    if isinstance(document, dict):
        for name, value in document.items():
            if name == "left_out":
                # A verification has the records by checkpoint.
                yield from value if isinstance(value, list) else chain(*value.values())
            else:
                yield from records(value)
    elif isinstance(document, list):
        for value in document:
            yield from records(value)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_command_repeats_the_missing_state(
    command: tuple[str, ...], partial: StateStore, run: Run
) -> None:
    said = run(*command, "--store", partial.url)
    assert (said.exit_code, said.stderr) == (0, "")
    if command[0] == "list":  # one line per checkpoint
        assert "lacks 2" in said.stdout
    else:
        assert "kinds (not read)" in said.stdout
        # After a rekey the lost rows can belong to any key group.
        groups = "0-15" if command[0] == "rekey" else "0-3"
        assert f"totals/sums:{groups} (9 rows were damaged)" in said.stdout


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_json_output_has_the_records(
    command: tuple[str, ...], partial: StateStore, run: Run
) -> None:
    said = run(*command, "--store", partial.url, "--output", "json")
    assert (said.exit_code, said.stderr) == (0, "")
    found = [(record["operator"], record["command"]) for record in records(json.loads(said.stdout))]
    assert found == [("kinds", "flink import"), ("totals", "salvage")]


def test_a_complete_checkpoint_is_not_called_partial(partial: StateStore, run: Run) -> None:
    for command in (
        ("restore", "1", "--parallelism", "1", "--to", "r"),
        ("get", "1", "--key", "u1"),
    ):
        assert "left out" not in run(*command, "--store", partial.url).stdout


@pytest.mark.slow
def test_a_key_is_missing_only_if_its_key_group_is(partial: StateStore, run: Run) -> None:
    """Rows of a key can be lost only if its key group is lost."""
    groups = partial.restore(parallelism=1).keyed("totals", "sums").to_arrow(0)
    for row in groups.to_pylist():
        said = run("get", "--key", row["k"], *SUMS, "--store", partial.url)
        assert said.exit_code == 0
        assert ("left out  totals/sums:0-3" in said.stdout) == (row["key_group"] <= 3)
        assert "kinds" not in said.stdout
    others = run("get", "--key", "u1", "--state", "totals/others", "--store", partial.url)
    assert "left out" not in others.stdout


def test_sides_and_states_are_distinguished(partial: StateStore, run: Run) -> None:
    compared = run("diff", "1", "2", "--store", partial.url).stdout
    assert "  b: left out  kinds (not read)" in compared
    assert "a: left out" not in compared
    narrow = run("diff", "1", "2", *SUMS, "--store", partial.url).stdout
    assert "kinds" not in narrow
    assert "  b: left out  totals/sums:0-3" in narrow
    joined = run("diff", "1", "2", "--rows", "all", *SUMS, "--store", partial.url)
    assert "  b: left out  totals/sums:0-3 (9 rows were damaged)" in joined.stdout
    assert "a: left out" not in joined.stdout
    document = json.loads(
        run(
            "diff", "1", "2", "--rows", "all", *SUMS, "--store", partial.url, "--output", "json"
        ).stdout
    )
    assert document["left_out_a"] == []
    assert [one["first"] for one in document["left_out_b"]] == [0]
    done = run(
        "restore", "--parallelism", "1", "--state", "totals", "--to", "r", "--store", partial.url
    )
    assert "kinds" not in done.stdout
    assert "left out  totals/sums:0-3" in done.stdout


def test_the_history_of_a_key_names_the_checkpoints_that_lack_rows(
    partial: StateStore, run: Run
) -> None:
    said = run("get", "--history", "--key", "u1", *SUMS, "--store", partial.url)
    assert "  2: left out  totals/sums:0-3 (9 rows were damaged)" in said.stdout
    assert said.stdout.count("left out") == 1
    document = json.loads(
        run(
            "get", "--history", "--key", "u1", *SUMS, "--store", partial.url, "--output", "json"
        ).stdout
    )
    assert [len(one["left_out"]) for one in document["history"]] == [0, 1]


@pytest.mark.parametrize("form", ["text", "json", "screen"])
def test_following_names_the_missing_state(
    partial: StateStore, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    forms = {"text": TextLines(), "screen": LiveScreen(page(), partial.url)}
    storage = partial.parts.storage
    found = next(
        followed(storage, interval_s=1, stop_after=None, on_wait=print, wait=lambda seconds: None)
    )
    if form == "json":
        said = document_text(found, indent=None, ascii_only=True)
        assert [record["operator"] for record in records(json.loads(said))] == ["kinds", "totals"]
        return
    screen = forms[form]
    screen.show(found)
    if isinstance(screen, LiveScreen):
        Console(width=200).print(screen._drawn())
    said = capsys.readouterr().out
    assert "kinds (not read)" in said
    assert "totals/sums:0-3 (9 rows were damaged)" in said


def test_skew_names_the_missing_state_of_the_states_that_it_measures(
    partial: StateStore, run: Run
) -> None:
    others = run("show", "--skew", "bytes", "--state", "totals/others", "--store", partial.url)
    assert (others.exit_code, "left out" in others.stdout) == (0, False)
    sums = run("show", "--skew", "bytes", *SUMS, "--store", partial.url)
    assert "left out  totals/sums:0-3" in sums.stdout
    assert "kinds" not in sums.stdout


def test_the_plan_of_a_batch_repeats_the_missing_state_from_a_table_description(
    partial: StateStore, run: Run
) -> None:
    """It needs no store, because the Delta log of the table contains the description."""
    with partial.snapshot(parallelism=2) as checkpoint:
        checkpoint.collected.record(left_out=[LOST])
        checkpoint.write_keyed("totals", "sums", [{"k": "u9", "n": 1}], key="k", max_parallelism=8)
        checkpoint.carry_rest()
    sums, others = (f"{partial.url}/operators/totals/keyed/{name}" for name in ("sums", "others"))
    said = run("plan", "--input", sums, "--input", others)
    assert said.exit_code == 0
    assert said.stdout.count("left out  totals/sums:0-3 (9 rows were damaged)\n") == 1
    document = json.loads(
        run("plan", "--input", sums, "--input", others, "--output", "json").stdout
    )
    missing = [one["missing"] for one in document["inputs"]]
    assert missing == ["totals/sums:0-3 (9 rows were damaged)", None]
