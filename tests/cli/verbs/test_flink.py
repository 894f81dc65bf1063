"""``statestore flink``: change a savepoint's number of key groups."""

from __future__ import annotations

import json
import shlex
import shutil
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
    golden = Golden("2.3_heap_canonical")
    for name in ("savepoint", "chk-7"):
        golden.unpack(Path(name))
    return Path.cwd()


@pytest.mark.long
def test_examples_work(here: Path, run: Run) -> None:
    verb = verbs.flink.get_command(click.Context(cli), "repack")
    assert isinstance(verb, Verb)
    for example in (*verbs.flink.examples, *verb.examples):
        for place in ("larger", "small"):
            shutil.rmtree(place, ignore_errors=True)
        done = run(*shlex.split(example)[1:])
        assert (done.exit_code, done.stderr) == (0, ""), example
        assert "kinds" in done.stdout


@pytest.mark.long
def test_as_json(here: Path, run: Run) -> None:
    options = ("--max-parallelism", "720", "--parallelism", "3", "--output", "json")
    done = run("flink", "repack", "savepoint", "to", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["savepoint"], said["max_parallelism"]) == ("to", 720)
    (kinds,) = (one for one in said["operators"] if one["operator"] == "kinds")
    assert (kinds["parallelism"], kinds["max_parallelism_before"]) == (3, 128)
    assert kinds["entries"]["opaque"] == 20
    assert (here / "to" / "_metadata").exists()


def test_a_folder_without_a_savepoint_is_an_error(here: Path, run: Run) -> None:
    done = run("flink", "repack", "nowhere", "to", "--max-parallelism", "720")
    assert done.exit_code == 2
    assert "nowhere is not a Flink savepoint" in done.stderr


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("/flink=./copy", {"/flink": "./copy"}),
        ("/day=1/flink=/day=2/copy", {"/day=1/flink": "/day=2/copy"}),
        ("hdfs://a/x=s3://b/day=2", {"hdfs://a/x": "s3://b/day=2"}),
        ("/flink=..", {"/flink": ".."}),
        ("s3://b/day=2/x", {}),
        ("day=2", {}),
        ("=/x", {}),
    ],
)
def test_an_allowed_place_may_have_moved(text: str, moved: dict[str, str]) -> None:
    access = verbs.savepoint_access((text,))
    assert (access.moved, [*access.allow]) == (moved, [] if moved else [text])


@pytest.mark.long
def test_a_file_outside_the_savepoint_is_read_only_with_permission(here: Path, run: Run) -> None:
    folder = Golden("2.3_rocksdb_canonical").unpack(here / "rocksdb")
    file = max((one for one in folder.iterdir() if "_" not in one.name), key=lambda one: one.name)
    file.rename("elsewhere")
    file.symlink_to(here / "elsewhere")
    outside = f"a link to {here}/elsewhere, which is outside of its folder"
    for name, *options in (
        ["show"],
        ["repack", "to", "--max-parallelism", "9"],
        ["import", "--store", "store"],
    ):
        refused = run("flink", name, "rocksdb", *options)
        assert outside in refused.stdout + refused.stderr
        shutil.rmtree("store", ignore_errors=True)
        done = run("flink", name, "rocksdb", *options, "--allow", "elsewhere")
        assert done.exit_code in (0, 18), done.stderr
        assert outside not in done.stdout + done.stderr
