"""``statestore flink show``: the content of a real Flink savepoint, as text and as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from statestore.cli.command import Verb
from statestore.cli.main import cli
from statestore.cli.verbs import flink as verbs
from tests.interop.flink.goldens import Golden

pytestmark = pytest.mark.slow

Run = Callable[..., Result]


@pytest.fixture
def here(run: Run) -> Path:
    """A working folder with savepoints in ``savepoint`` and ``chk-7``."""
    for name, golden in (("savepoint", "2.3_heap_canonical"), ("chk-7", "2.3_heap_native")):
        Golden(golden).unpack(Path(name))
    return Path.cwd()


def test_examples_work(here: Path, run: Run) -> None:
    verb = verbs.flink.get_command(click.Context(cli), "show")
    assert isinstance(verb, Verb)
    for example in verb.examples:
        done = run(*shlex.split(example)[1:])
        assert (done.exit_code, done.stderr) == (0, ""), example
        assert "kinds" in done.stdout


def test_as_text(here: Path, run: Run) -> None:
    done = run("flink", "show", "savepoint")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "checkpoint 2 in savepoint" or lines[0].endswith("/savepoint")
    assert "operator by_long" in lines
    assert "parallelism 2 (max parallelism 300)" in lines
    assert any(line.startswith("last 109 95 123: 3 ") for line in lines)
    assert any(line.endswith(" map Long Map<Integer, Double>") for line in lines)
    assert (
        "opaque has no columns: values of Kryo<golden.Shapes$Opaque> can only be read as bytes"
        in (lines)
    )
    assert any(line.startswith("seen split Long 7, 18 ") for line in lines)


def test_as_json(here: Path, run: Run) -> None:
    done = run("flink", "show", "savepoint", "--output", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["version"], said["checkpoint_id"]) == (6, 2)
    operators = {one["uid"]: one for one in said["operators"]}
    by_long = operators["by_long"]
    assert (by_long["problem"], by_long["max_parallelism"]) == (None, 300)
    states = {one["state"]: one for one in by_long["keyed"]}
    assert sum(states["last"]["entries"].values()) == 109
    assert states["_timer_state/event_user-timers"]["kind"] == "timers"
    modes = {one["state"]: one["mode"] for one in operators["parts"]["operator"]}
    assert modes == {"split": "split", "union": "union", "rules": "broadcast"}
    assert operators["numbers"]["operator"][0]["splits"] is None
    assert {one["has_ttl"] for one in operators["kinds"]["keyed"] if "ttl" in one["state"]} == {
        True
    }


def test_unreadable_state_is_reported_and_hides_nothing_else(here: Path, run: Run) -> None:
    said = json.loads(run("flink", "show", "chk-7", "--output", "json").stdout)
    problems = {one["uid"]: one["problem"] for one in said["operators"] if one["problem"]}
    assert list(problems) == ["kinds"]
    assert "take a canonical savepoint" in problems["kinds"]
    assert "so its end is unknown" in " ".join(run("flink", "show", "chk-7").stdout.split())


def test_a_truncated_file_is_an_error(here: Path, run: Run) -> None:
    path = here / "savepoint" / "_metadata"
    path.write_bytes(path.read_bytes()[:-1000])
    done = run("flink", "show", "savepoint")
    assert (done.exit_code, done.stdout) == (13, "")
    assert "_metadata is damaged at byte" in done.stderr


def test_a_folder_without_a_savepoint_is_an_error(here: Path, run: Run) -> None:
    done = run("flink", "show", "nowhere")
    assert done.exit_code == 2
    assert "is not a Flink savepoint" in done.stderr
