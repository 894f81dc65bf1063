"""``statestore flink export``: write a checkpoint of a store as a savepoint."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pyarrow as pa
import pytest
from click.testing import Result

from statestore import StateStore
from statestore.cli.command import Verb
from statestore.cli.main import cli
from statestore.cli.verbs import flink as verbs
from statestore.interop.flink import open_savepoint
from tests.interop.flink.golden_store import write_golden_store
from tests.interop.flink.goldens import Golden

pytestmark = pytest.mark.slow

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the golden job, which no test changes."""
    folder = tmp_path_factory.mktemp("golden") / "orders"
    write_golden_store(str(folder), Golden("2.3_heap_canonical").rows())
    return folder


@pytest.fixture
def here(run: Run, orders: Path) -> Path:
    """A working folder with a copy of the store in ``orders``."""
    shutil.copytree(orders, "orders")
    return Path.cwd()


def test_examples_work(here: Path, run: Run) -> None:
    verb = verbs.flink.get_command(click.Context(cli), "export")
    assert isinstance(verb, Verb)
    said = {}
    for example in verb.examples:
        if (here / "savepoint").exists():
            (here / "savepoint").rename(here / "old")
        done = run(*shlex.split(example)[1:])
        assert (done.exit_code, done.stderr) == (0, ""), example
        assert "operator by_long" in done.stdout
        said[example] = done.stdout
    *_, some, less = said.values()
    assert "left out: by_long/texts, as requested" in some
    assert "left out: kinds/" in less
    assert not (here / "savepoint").exists()
    assert len(open_savepoint("old").operators) == 6
    assert len(open_savepoint("less").operators) == 4
    (only,) = open_savepoint("some").operators
    assert [state.name for state in only.states] == [
        "last",
        "sums",
        "_timer_state/event_user-timers",
    ]


def test_as_json(here: Path, run: Run) -> None:
    options = ("--max-parallelism", "720", "--parallelism", "3", "--output", "json")
    more = ("--operator", "parts", "--java-type", "parts/union=List<Tuple>")
    done = run("flink", "export", "to", "--store", "orders", *options, *more)
    assert (done.exit_code, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (Path(said["savepoint"]), said["checkpoint_id"], said["dry_run"]) == (
        here / "to",
        1,
        False,
    )
    (parts,) = said["operators"]
    assert (parts["parallelism"], parts["max_parallelism"]) == (3, 720)
    (union,) = (part for part in parts["states"] if part["state"] == "union")
    assert union == {
        "state": "union",
        "flink_name": "union",
        "kind": "union",
        "key_type": None,
        "value_type": "Tuple2<Integer, Long>",
        "columns": ["small", "number"],
        "rows": 19,
        "key_hash": None,
        "key_example": None,
    }
    assert [len(parts[name]) for name in ("rows", "size_bytes")] == [3, 3]
    assert {one["reason"] for one in said["left_out"]} == {"not selected"}


def test_the_types_of_the_job_are_shown_before_anything_is_written(run: Run) -> None:
    rows = pa.table({"name": ["a"], "zone": pa.array([1], pa.int32()), "total": [5]})
    StateStore.open("spots").bootstrap("spots", "last", rows, key=["name", "zone"])
    Path("classes.toml").write_text(
        '["com.acme.Spot"]\nfields = {name = "String", zone = "int"}\nhash = "record(name, zone)"\n'
    )
    export = ("flink", "export", "to", "--store", "spots", "--classes", "classes.toml", "--dry-run")
    done = run(
        *export, "--java-type", "spots=com.acme.Spot", "--java-type", "spots/last=Tuple1<Long>"
    )
    assert (done.exit_code, done.stderr) == (0, "")
    keys = "  keys         Spot(name String, zone Integer), hashed by record(name, zone)"
    assert keys in done.stdout.splitlines()
    assert "  check        {'name': 'a', 'zone': 1} has the hashCode() 3008\n" in done.stdout
    assert "Tuple1<Long>" in done.stdout
    done = run(
        *export, "--java-type", "spots=com.acme.Spot", "--java-type", "spots/last=com.acme.Spot"
    )
    assert done.exit_code == 12
    assert "error: 3 columns do not fit the types of the job" in done.stderr
    assert "the column 'total' is no field; the fields are name, zone" in done.stderr
    assert not Path("to").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("to", "--store", "orders", "--leave-out", "nothing"), "'nothing' cannot be left out"),
        (("to", "--store", "orders", "--leave-out", "no~2Fnothing/x"), "'no/nothing/x' cannot be"),
        (("to", "--store", "orders", "--java-type", "no~2Fnothing=int"), "'no/nothing'"),
        (
            ("to", "--store", "orders", "--java-type", "parts/union"),
            "--java-type 'parts/union' must have the form OPERATOR[/STATE]=TYPE",
        ),
        (
            ("to", "--store", "orders", "--java-type", "a=int", "--java-type", "a=long"),
            "--java-type is passed twice for a",
        ),
        (
            ("to", "--store", "orders", "--allow", "a=./b", "--allow", "a=./c"),
            "--allow is passed twice for a",
        ),
        (("orders/to", "--store", "orders"), "is inside"),
        (
            ("to", "--store", "orders", "--flink", "3"),
            "'3', which is not a version of Flink 1 or 2",
        ),
        (
            ("to", "--store", "orders", "--flink", "2.3", "--classes", "orders/statestore.json"),
            "not valid TOML",
        ),
        (
            ("to", "--store", "orders", "--operator", "nobody"),
            "the checkpoint has no operator 'nobody'",
        ),
    ],
)
def test_errors_of_an_export(here: Path, run: Run, words: tuple[str, ...], said: str) -> None:
    done = run("flink", "export", *words)
    assert done.exit_code == (10 if "nobody" in said or "nothing" in said else 2)
    assert said in done.stderr
    assert not (here / "to").exists()
