"""Shell completion, requested in the way that shells do it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from statestore import StateStore
from statestore.cli.main import cli
from tests.syntax import ROOT


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with two checkpoints and a savepoint. The second checkpoint has one more operator."""
    store = StateStore.open(str(tmp_path_factory.mktemp("completion") / "store"))
    rows = pa.table({"k": [1, 2], "v": [3, 4]})
    for states in (("clicks/last", "clicks/total"), ("clicks/last", "clicks/total", "users/name")):
        with store.snapshot(parallelism=2) as checkpoint:
            for state in states:
                uid, name = state.split("/")
                checkpoint.write_keyed(uid, name, rows, key=["k"])
    store.maintenance.savepoint("before-upgrade", 1)
    return store.url


def completions(line: str, **environ: str) -> list[str]:
    """Return the completions of a line's last word, which may be empty."""
    words = line.split(" ")
    asked = {
        "_STATESTORE_COMPLETE": "bash_complete",
        "COMP_WORDS": shlex.join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = CliRunner().invoke(cli, [], prog_name="statestore", env=asked | environ)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return [text.partition(",")[2] for text in done.stdout.splitlines() if text]


ALL = ["latest", "before-upgrade", "2", "1"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("statestore show --store {url} ", ALL),
        ("statestore --store {url} show ", ALL),
        ("statestore show --store {url} be", ["before-upgrade"]),
        ("statestore diff --store {url} 1 ", ALL),
        ("statestore query --store {url} --checkpoint ", ALL),
        ("statestore edit --store {url} ", ALL),
        ("statestore repair --store {url} ", ALL),
        ("statestore compact --store {url} ", ALL),
        ("statestore ui --store {url} --to x --against ", ALL),
        ("statestore spark export x --store {url} ", ALL),
        ("statestore savepoint --store {url} kept ", ALL),
        ("statestore savepoint --store {url} --remove ", ["before-upgrade"]),
        (
            "statestore show --store {url} --state ",
            ["clicks", "clicks/last", "clicks/total", "users", "users/name"],
        ),
        ("statestore flink export x --store {url} ", ALL),
        ("statestore flink export x --store {url} --operator ", ["clicks", "users"]),
        ("statestore flink export x --store {url} --operator u", ["users"]),
        ("statestore get --store {url} --state clicks/l", ["clicks/last"]),
        ("statestore forget --store {url} --state u", ["users", "users/name"]),
        ("statestore edit --store {url} --state ", ["clicks/last", "clicks/total", "users/name"]),
    ],
)
def test_names_come_from_the_store(line: str, expected: list[str], url: str) -> None:
    assert completions(line.replace("{url}", url)) == expected


def test_the_environment_names_the_store(url: str) -> None:
    assert completions("statestore show --state users/", STATESTORE_URI=url) == ["users/name"]


def test_verbs_and_choices_are_completed() -> None:
    assert completions("statestore sho") == ["show"]
    assert completions("statestore flink imp") == ["import"]
    assert "show" in completions("statestore no-such-verb ")
    assert completions("statestore list --output ") == ["text", "json"]


@pytest.mark.parametrize(
    "line",
    [
        "statestore show ",
        "statestore show --state ",
        "statestore show --store /no/such/store --state ",
        "statestore show --parallelism wrong --state ",
    ],
)
def test_nothing_is_completed_where_nothing_can_be_read(line: str) -> None:
    assert completions(line) == []


def test_completing_creates_no_store(tmp_path: Path) -> None:
    assert completions(f"statestore show --store {tmp_path}/new ") == []
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_bash_completes(url: str) -> None:
    """Runs the line from the documentation in a real shell."""
    asked = f"statestore show --store {url} --state users/".split()
    script = f"""
        eval "$(_STATESTORE_COMPLETE=bash_source statestore)"
        COMP_WORDS=({shlex.join(asked)}) COMP_CWORD={len(asked) - 1}
        _statestore_completion statestore
        echo "${{COMPREPLY[@]}}"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.split() == ["users/name"], done.stderr
