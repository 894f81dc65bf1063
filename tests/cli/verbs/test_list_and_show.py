from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console

from statestore import StateStore
from statestore.api.inspection import StoreInspection
from statestore.catalog.catalog import Catalog, CheckpointRef
from statestore.cli.drawing import UNICODE
from statestore.cli.output import Page
from statestore.cli.summaries import CheckpointSummary
from statestore.cli.verbs.list import CheckpointList, write_list
from statestore.format.digest import digest_text
from statestore.format.documents import document_bytes
from statestore.jobgraph.operators import operator_id
from statestore.storage import LocalStorage
from tests.support.held import count_held

Run = Callable[..., Result]


def manifest_of(store: Path, checkpoint_id: int) -> Path:
    return store / "checkpoints" / f"{checkpoint_id:010}.json"


def test_list_as_text(run: Run, fraud: Path) -> None:
    done = run("list", "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    header, first, second = done.stdout.splitlines()
    columns = "id taken age extent parallelism operators states rows bytes files made by"
    assert header.split() == columns.split(" ")
    assert first.split()[0] == "1"
    assert second.split()[0] == "2"
    assert " full " in second
    assert second.endswith("  job")
    assert " 413 " in second  # 2 x 200 + 3 + 3 rows, and 4 + 2 + 1 elements
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]


def test_a_narrow_terminal_shows_each_checkpoint_on_one_line(fraud: Path) -> None:
    """The line includes the origin. Only columns that describe the content are omitted."""
    store = StateStore.open(str(fraud))
    first, latest = map(store.parts.catalog().summary, (1, 2))
    edited = replace(latest, origin={"command": "rekey", "checkpoint": 1})
    rows = tuple(CheckpointSummary.of(one, latest.created_at_ms) for one in (first, edited))
    file = StringIO()
    console = Console(file=file, width=80, force_terminal=True, no_color=True)
    shown = CheckpointList(store=store.url, checkpoints=rows)
    write_list(Page(file, 80, UNICODE, console), shown)
    header, *lines = file.getvalue().splitlines()
    assert "operators" not in header
    assert [line.split()[0] for line in lines] == ["1", "2"]
    assert lines[1].endswith("rekey of 1")


def test_a_list_reads_each_manifest_once_and_parses_no_file(
    run: Run, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore.open(str(damaged))  # not damaged yet
    for _ in range(4):
        with store.snapshot(parallelism=2) as checkpoint:
            checkpoint.carry_rest()
    held, asked = count_held(monkeypatch), list[str]()

    def counting(call: Callable[[LocalStorage, str], Any]) -> Callable[[LocalStorage, str], Any]:
        def counted(self: LocalStorage, name: str) -> Any:
            asked.append(name)
            return call(self, name)

        return counted

    for name in ("read", "list"):
        monkeypatch.setattr(LocalStorage, name, counting(getattr(LocalStorage, name)))
    assert run("list", "--store", damaged).exit_code == 0
    manifests = [f"checkpoints/{number:010}.json" for number in range(1, 7)]
    assert asked == ["statestore.json", "checkpoints", *manifests, "savepoints", "pins"]
    assert held == []


def test_a_list_imports_no_slow_modules(fraud: Path) -> None:
    code = (
        "import sys; from statestore.cli.main import main; main(['list', '--store', sys.argv[1]])\n"
        "slow = {'pyspark', 'pyarrow', 'numpy', 'deltalake', 'fsspec', 'rich'}\n"
        "print('loaded', *slow & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(fraud)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded"


def test_list_as_json(run: Run, fraud: Path) -> None:
    document = json.loads(run("list", "--store", fraud, "--output", "json").stdout)
    assert set(document) == {"store", "checkpoints", "savepoints", "pins"}
    assert (document["savepoints"], document["pins"]) == ([], [])
    assert document["store"] == str(fraud)
    manifest = StateStore.open(str(fraud)).checkpoint(2).manifest
    row = document["checkpoints"][1]
    assert row.pop("age_ms") >= 0
    assert row.pop("metrics")["written"]["files"] == manifest.files
    assert row == {
        "checkpoint_id": 2,
        "created_at_ms": manifest.created_at_ms,
        "took_ms": manifest.took_ms,
        "parallelism": 4,
        "operators": 4,
        "states": 7,
        "rows": manifest.rows,
        "changed_rows": 0,
        "size_bytes": manifest.size_bytes,
        "files": manifest.files,
        "layers": 0,
        "is_incremental": False,
        "command": None,
        "origin": None,
        "left_out": [],
        "error": None,
    }


def test_a_store_without_checkpoints_is_not_an_error(run: Run, damaged: Path) -> None:
    for name in (1, 2):
        manifest_of(damaged, name).unlink()
    done = run("list", "--store", damaged)
    assert (done.exit_code, done.stdout) == (0, f"{damaged} has no checkpoint yet\n")
    assert run("show", "--store", damaged).exit_code == 10


def test_list_shows_the_other_checkpoints_next_to_a_damaged_one(run: Run, damaged: Path) -> None:
    manifest_of(damaged, 1).write_text("{")
    done = run("list", "--store", damaged)
    assert done.exit_code == 13
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["id", "1", "2"]
    assert done.stdout.splitlines()[1].split() == ["1", "damaged"]
    sentence, note = done.stderr.splitlines()
    assert sentence == "error: 1 of 2 checkpoints cannot be read: 1; restore another checkpoint"
    assert "0000000001.json is damaged" in note


def test_list_as_json_names_damaged_checkpoints(run: Run, damaged: Path) -> None:
    manifest_of(damaged, 1).write_text("{}")
    done = run("list", "--store", damaged, "--output", "json")
    assert done.exit_code == 13
    broken, whole = json.loads(done.stdout)["checkpoints"]
    assert broken.keys() == whole.keys()
    assert broken["error"]["kind"] == "malformed-manifest"
    assert broken["rows"] is None
    assert whole["error"] is None


def test_a_manifest_of_a_newer_release_has_its_own_status(run: Run, damaged: Path) -> None:
    document = json.loads(manifest_of(damaged, 1).read_text())
    del document["sha256"]
    manifest_of(damaged, 1).write_bytes(document_bytes(document | {"format_version": 99}))
    done = run("list", "--store", damaged)
    assert done.exit_code == 14
    assert "Upgrade statestore as described in the section Install of its README" in done.stderr


def test_show_as_text(run: Run, fraud: Path) -> None:
    done = run("show", "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith(f"checkpoint 2 of {fraud}\n")
    entry = (
        StateStore.open(str(fraud)).checkpoint().manifest.keyed_entry("totals-by-user", "totals")
    )
    for text in (
        "[─────── 0–3 ───────]",
        operator_id("totals-by-user"),
        "max parallelism  16",
        digest_text(entry.digest),
        "key          user_id string",
        "values       total long",
        "operator state, split",
        "elements per subtask  2 0 0 0",
        "java (String, Long)",
        "parquet, operators/totals-by-user/keyed/totals",
    ):
        assert text in done.stdout


def test_show_as_json(run: Run, fraud: Path) -> None:
    document = json.loads(run("show", "1", "--store", fraud, "--output", "json").stdout)
    manifest = StateStore.open(str(fraud)).checkpoint(1).manifest
    assert (document["checkpoint_id"], document["rows"]) == (1, manifest.rows)
    assert document["writer"]["release"] == manifest.writer.release
    operators = {operator["operator"]: operator for operator in document["operators"]}
    shop = operators["totals-by-shop"]
    assert shop["operator_id"] == operator_id("totals-by-shop")
    assert shop["max_parallelism"] == 8
    (state,) = shop["states"]
    entry = manifest.keyed_entry("totals-by-shop", "totals")
    assert state == {
        "state": "totals",
        "sort": "keyed",
        "columns": [
            {"name": "country", "type": "string"},
            {"name": "shop", "type": "long"},
            {"name": "total", "type": "long"},
        ],
        "rows": 3,
        "size_bytes": entry.size_bytes,
        "files": len(entry.handles),
        "digest": digest_text(entry.digest),
        "table": {"format": "parquet", "path": entry.table.path, "version": None},
        "kind": "value",
        "key": ["country", "shop"],
        "key_types": ["String", "Long"],
        "namespace": [],
        "entry": [],
        "time_domain": None,
        "hash_scheme": "java",
        "layout": "partitioned",
        "ttl": None,
        "merged": None,
        "changes": [],
        "mode": None,
        "elements_per_subtask": None,
    }
    assert operators["orders-source"]["max_parallelism"] is None
    modes = {s["state"]: s for s in operators["orders-source"]["states"]}
    assert modes["files"]["mode"] == "split"
    assert modes["files"]["elements_per_subtask"] == [2, 0, 0, 0]
    assert modes["rules"]["elements_per_subtask"] == [1]


@pytest.mark.parametrize(
    ("options", "states"),
    [
        (["--state", "totals-by-user"], ["totals", "per_country"]),
        (["--state", "totals-by-user/totals"], ["totals"]),
        (["--state", "orders-source/rules"], ["rules"]),
    ],
)
def test_show_can_be_filtered(run: Run, fraud: Path, options: list[str], states: list[str]) -> None:
    document = json.loads(run("show", *options, "--store", fraud, "--output", "json").stdout)
    (operator,) = document["operators"]
    assert [state["state"] for state in operator["states"]] == states
    text = run("show", *options, "--store", fraud)
    assert text.exit_code == 0
    assert text.stdout.count("  state ") == len(states)


def test_names_from_the_store_cannot_control_the_terminal(run: Run, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        rows: list[dict[str, Any]] = [{"k": "a\x1b[31m\n[bold]b", "v": 1}]
        checkpoint.write_keyed("uid\x1b]0;title\x07", "[red]state", rows, key="k")
    done = run("show", "--store", tmp_path / "s")
    assert "uid\\x1b]0;title\\x07" in done.stdout
    assert "[red]state" in done.stdout
    assert "\x1b" not in done.stdout
    got = run(
        *("get", "--key", "a\x1b[31m\n[bold]b", "--state", "uid\x1b]0;title\x07/[red]state"),
        *("--store", tmp_path / "s"),
    )
    assert got.stdout.splitlines()[1].split() == ["a\\x1b[31m\\n[bold]b", "1"]


def test_the_command_that_made_a_checkpoint_is_shown(run: Run, fraud: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(fraud, tmp_path / "mine")
    edit = ("edit", "--state", "totals-by-user/totals", "--delete", "u1")
    assert run(*edit, "--store", mine).exit_code == 0
    listed = run("list", "--store", mine).stdout.splitlines()
    newest = StateStore.open(str(mine)).checkpoint().manifest
    assert newest.origin is not None
    assert listed[0].endswith("made by")
    assert [line.split()[6] for line in listed[1:]] == ["full", "full", "incremental"]
    assert [line for line in listed if line.endswith(f"edit of {newest.origin['checkpoint']}")]
    document = json.loads(run("list", "--store", mine, "--output", "json").stdout)
    made = [checkpoint["command"] for checkpoint in document["checkpoints"]]
    assert made == [None, None, "edit"]
    assert document["checkpoints"][-1]["origin"]["command"] == "edit"


@pytest.mark.parametrize(
    "arguments",
    [
        ("show", "kept"),
        ("show", "kept", "--state", "totals-by-user"),
        ("plan", "kept", "--parallelism", "2"),
        ("restore", "kept", "--parallelism", "2", "--to", "restored"),
        ("verify", "kept"),
        ("show", "kept", "--skew", "bytes"),
        ("get", "kept", "--key", "u7"),
        ("get", "kept", "--key", "u7", "--state", "totals-by-user/totals"),
        ("query", "SELECT count(*) FROM per_country", "--checkpoint", "kept"),
        ("query", "--tables", "--checkpoint", "kept"),
        ("diff", "kept", "latest"),
        ("diff", "kept", "latest", "--rows", "all", "--state", "totals-by-user/totals"),
        ("diff", "latest", "kept", "--rows", "all", "--state", "totals-by-user/totals"),
        ("ui", "kept", "--to", "report.html"),
        ("ui", "kept", "--against", "2", "--to", "report.html"),
        ("ui", "2", "--against", "kept", "--to", "report.html"),
    ],
    ids=" ".join,
)
def test_commands_read_a_checkpoint_that_only_a_savepoint_keeps(
    run: Run, damaged: Path, arguments: tuple[str, ...]
) -> None:
    store = StateStore.open(str(damaged))
    store.maintenance.savepoint("kept", checkpoint=1)
    store.parts.catalog().expire(1, b"tombstone")
    assert store.checkpoints() == (2,)
    result = run("--store", damaged, *arguments)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("show", "--skew", "bytes"),
        ("plan", "--balance", "bytes"),
        ("plan", "--hosts", "a=2,b=2"),
        ("plan", "--parallelism", "2,3"),
        ("restore", "--to", "out"),
        ("get", "--key", "u7"),
        ("query", "SELECT count(*) FROM per_country"),
        ("edit", "--state", "totals-by-user/totals", "--delete", "u7"),
        ("diff", "1"),
        ("diff", "1", "--rows", "all", "--state", "totals-by-user/totals"),
        ("ui", "--against", "1", "--to", "report.html"),
    ],
    ids=" ".join,
)
def test_commands_find_a_checkpoint_once(
    run: Run, damaged: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Found a second time, the latest checkpoint could be another one."""
    found: list[CheckpointRef] = []
    resolve = Catalog.resolve

    def recorded(catalog: Catalog, checkpoint: CheckpointRef) -> int:
        found.append(checkpoint)
        return resolve(catalog, checkpoint)

    monkeypatch.setattr(Catalog, "resolve", recorded)
    result = run("--store", damaged, *arguments)
    assert result.exit_code == 0, result.output
    assert found.count("latest") == 1


def test_diff_by_row_names_the_checkpoint_of_its_rows(
    run: Run, damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is committed while the rows are read."""
    read = StoreInspection.as_of

    def committed_meanwhile(*arguments: Any, **options: Any) -> Any:
        answer = read(*arguments, **options)
        with StateStore.open(str(damaged)).snapshot(parallelism=4) as checkpoint:
            checkpoint.carry_rest()
        return answer

    monkeypatch.setattr(StoreInspection, "as_of", committed_meanwhile)
    which = ("--state", "totals-by-user/totals")
    document = json.loads(
        run(
            "--store", damaged, "--output", "json", "diff", "1", "latest", "--rows", "all", *which
        ).stdout
    )
    assert (document["a"], document["b"]) == (1, 2)


def test_commands_show_who_made_a_checkpoint_and_what_was_deleted(
    run: Run, fraud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATESTORE_ACTOR", "ann")
    mine = shutil.copytree(fraud, tmp_path / "mine")
    assert "no deletion is recorded" in run("list", "--log", "--store", mine).stdout
    with StateStore.open(str(mine)).snapshot(parallelism=1, batch=("totals", 7)) as checkpoint:
        checkpoint.carry_rest()
    shown = run("show", "--store", mine).stdout
    assert "made by      job totals, after checkpoint 2\n" in shown
    assert "written by   ann, " in shown
    document = json.loads(run("show", "--store", mine, "--output", "json").stdout)
    assert (document["follows"], document["origin"]) == (2, None)
    assert document["writer"]["actor"] == "ann"
    assert run("expire", "--retain", "1", "--store", mine).exit_code == 0
    header, line = run("list", "--log", "--store", mine).stdout.splitlines()
    assert header.split() == ["when", "command", "by", "checkpoints", "files", "why"]
    assert "expire   ann  1 to 2 " in line
    log = json.loads(run("list", "--log", "--store", mine, "--output", "json").stdout)
    assert [deletion["why"] for deletion in log["deletions"]] == ["retain 1"]
