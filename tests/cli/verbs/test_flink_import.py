"""``statestore flink import``: import a savepoint's state as a checkpoint, and report omitted
state.
"""

from __future__ import annotations

import io
import json
import lzma
import shlex
import shutil
import tarfile
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
from statestore.interop.flink.types.java_types import Scalar
from statestore.interop.flink.types.key_recipes import recipe_hash_codes
from statestore.interop.flink.types.pojos import PojoField, PojoType
from statestore.jobgraph.operators import operator_id
from statestore.keys.arrow import key_groups_of_hashes
from tests.interop.flink.goldens import Golden
from tests.interop.flink.written import written_savepoint

pytestmark = pytest.mark.slow

Run = Callable[..., Result]

PYFLINK = Path(__file__).parents[2] / "golden" / "pyflink"
COLUMNS = """
[by_tuple]
key = ["user", "item"]

[by_tuple.states.last]
value = "amount"
"""


@pytest.fixture
def here(run: Run) -> Path:
    """A working folder with savepoints in ``savepoint`` and ``chk-7`` and a file of columns."""
    golden = Golden("2.3_heap_canonical")
    for name in ("savepoint", "chk-7"):
        golden.unpack(Path(name))
    Path("columns.toml").write_text(COLUMNS)
    return Path.cwd()


@pytest.mark.long
def test_examples_work(here: Path, run: Run) -> None:
    verb = verbs.flink.get_command(click.Context(cli), "import")
    assert isinstance(verb, Verb)
    assert len(verb.examples) == 4
    for example in verb.examples:
        shutil.rmtree("orders", ignore_errors=True)
        done = run(*shlex.split(example)[1:])
        assert (done.exit_code, done.stderr) == (0, ""), example
        assert "as checkpoint 1 of " in done.stdout
        assert "opaque of kinds has values that are kept as bytes: " in done.stdout


def test_as_json_and_read_back(here: Path, run: Run) -> None:
    arguments = ("flink", "import", "savepoint", "--operator", "by_tuple", "--store", "o")
    done = run(*arguments, "--columns", "columns.toml", "--output", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["checkpoint_id"], said["flink_checkpoint_id"]) == (1, 2)
    assert (said["found"], said["is_incremental"]) == (False, False)
    (last,) = (one for one in said["states"] if one["state"] == "last")
    assert last == {
        "operator": "by_tuple",
        "state": "last",
        "sort": "keyed",
        "kind": "value",
        "rows": 122,
        "form": "columns",
        "key": ["user", "item"],
        "kept_as_bytes": None,
    }
    assert {one["reason"] for one in said["left_out"]} == {"the import did not select it"}
    assert "by_tuple" not in {one["operator"] for one in said["left_out"]}
    assert "was already imported: it is checkpoint 1 of " in run(*arguments).stdout
    shown = run("query", 'select "user", amount from "by_tuple"."last" limit 3', "--store", "o")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "amount" in shown.stdout


def test_pyflink_types_are_declared(run: Run) -> None:
    packed = lzma.decompress((PYFLINK / "savepoint.tar.xz").read_bytes())
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        tar.extractall(".", filter="data")
    Path("types.toml").write_text('[by_long.states.python-state-row]\ntype = "ValueState<LONG>"\n')
    arguments = ("flink", "import", "savepoint", "--operator", "by_long", "--store", "o")
    done = run(*arguments, "--columns", "types.toml")
    assert done.exit_code != 0
    assert "python-state-row' of operator by_long is not of the declared type" in done.stderr
    row = "ValueState<ROW<STRING, INT, ROW<DOUBLE, BIG_DEC>>>"
    Path("types.toml").write_text(f'[by_long.states.python-state-row]\ntype = "{row}"\n')
    done = run(*arguments, "--columns", "types.toml")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "python-state-row of by_long" not in done.stdout
    kept = "python-state-long of by_long has values that are kept as bytes: PyFlink stores no types"
    assert kept in " ".join(done.stdout.split())


@pytest.mark.long
def test_times_are_read(here: Path, run: Run) -> None:
    times = ("--state-ttl", "ttl_value=36500d", "--state-ttl", "kinds/ttl_map=90min")
    done = run("flink", "import", "savepoint", "--store", "o", "--operator", "kinds", *times)
    assert (done.exit_code, done.stderr) == (0, "")
    restored = StateStore.open("o").restore()
    found = [restored.keyed("kinds", name).entry.state.ttl for name in ("ttl_value", "ttl_map")]
    assert [one and one.duration_ms for one in found] == [36_500 * 86_400_000, 5_400_000]
    assert "  flink import  " in run("list", "--store", "o").stdout


def test_a_hash_of_the_job_moves_keys_to_other_key_groups(run: Run) -> None:
    fields = ("a", "String"), ("b", "Integer")
    key = PojoType("a.Key", tuple(PojoField(name, "a.Key", Scalar(kind)) for name, kind in fields))
    column = pa.array([{"a": "x", "b": 3}, {"a": "y", "b": 5}], key.arrow_type())
    codes = recipe_hash_codes("lombok(b, a)", key, column)
    groups = key_groups_of_hashes(codes, 128).tolist()
    written_savepoint(Path("by_class").absolute(), key, column, [1, 2], groups=groups)
    recipe = f"{operator_id('big')}=lombok(b, a)"
    plain = run("flink", "repack", "by_class", "no", "--max-parallelism", "300")
    assert "pass it with --key-hash" in plain.stderr
    options = ("--key-hash", recipe)
    packed = run("flink", "repack", "by_class", "packed", "--max-parallelism", "300", *options)
    assert (packed.exit_code, packed.stderr) == (0, "")
    done = run("flink", "import", "by_class", "--store", "o", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    exported = run("flink", "export", "more", "--store", "o", "--max-parallelism", "300")
    assert (exported.exit_code, exported.stderr) == (0, "")
    for folder in ("packed", "more"):
        (operator,) = open_savepoint(folder).operators
        found = {part.key_group for part in operator.entries()}
        assert found == set(key_groups_of_hashes(codes, 300).tolist())
    wrong = run(
        "flink", "import", "by_class", "--store", "p", "--key-hash", recipe.replace("b, a", "a")
    )
    assert wrong.exit_code == 2
    assert "does not hold: it puts the key {'a': " in wrong.stderr


@pytest.mark.long
def test_omitted_state_is_reported(run: Run) -> None:
    Golden("2.3_heap_native").unpack(Path("native"))
    done = run("flink", "import", "native", "--store", "o")
    assert done.exit_code == 18
    assert done.stdout.startswith("kinds is left out: state 'opaque': ")
    assert "checkpoint 1 of " in done.stderr
    assert "is only part of " in done.stderr
    again = run("flink", "import", "native", "--store", "o", "--output", "json")
    said = json.loads(again.stdout)
    assert (again.exit_code, said["found"]) == (18, True)
    (left,) = said["left_out"]
    assert (left["operator"], left["state"]) == ("kinds", None)
    assert "lacks 1" in run("list", "--store", "o").stdout
    assert "kinds (state 'opaque': " in run("show", "--store", "o").stdout
    assert "intact, but some state of its source is missing" in run("verify", "--store", "o").stdout
    assert "left out  kinds" in run("copy", "copied", "--store", "o").stdout
    assert "left out  kinds" in run("copy", "forked", "--linked", "--store", "o").stdout
    refused = run("flink", "export", "to", "--store", "copied")
    assert (refused.exit_code, refused.stdout) == (12, "")
    assert "--leave-out 'kinds'" in refused.stderr
    carried = run("flink", "export", "whole", "--store", "copied", "--carry", "kinds")
    assert (carried.exit_code, carried.stderr) == (0, "")
    assert "exported checkpoint 1 of " in carried.stdout
    assert "carried unchanged: kinds" in carried.stdout
    exported = run("flink", "export", "to", "--store", "copied", "--leave-out", "kinds")
    assert (exported.exit_code, exported.stderr) == (0, "")
    assert "exported part of checkpoint 1 of " in exported.stdout
    assert "left out: kinds, state 'opaque': " in exported.stdout


def test_excluded_operators_are_reported(here: Path, run: Run) -> None:
    done = run("flink", "import", "savepoint", "--store", "o", "--operator", "kinds")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "by_long is left out: the import did not select it" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--state-ttl", "ttl_value"), "--state-ttl 'ttl_value' must have the form STATE=TIME"),
        (("--state-ttl", "ttl_value=soon"), "'soon' is not a duration"),
        (("--state-ttl", "a=1d", "--state-ttl", "a=2d"), "--state-ttl is passed twice for a"),
        (("--uid", "a", "--uid", "a"), "--uid is passed twice for"),
        (
            ("--key-hash", "a=scala", "--key-hash", "a=record(x)"),
            "--key-hash is passed twice for a",
        ),
        (("--columns", "bad.toml"), "bad.toml is not valid TOML"),
        (("--columns", "flat.toml"), "'by_long' in flat.toml must be a table"),
        (("--strict",), "state without a column form, which --strict"),
        (("--uid", "nobody"), "no operator with the id"),
        (("--operator", "nobody"), "no operator 'nobody'"),
        (("--key-hash", "by_long"), "'by_long' must have the form OPERATOR=RECIPE"),
        (("--key-hash", "by_long=record(x)"), "are Long, whose hash is known: remove the recipe"),
        (("--key-hash", "nobody=scala"), "no operator 'nobody'"),
    ],
)
def test_errors_of_an_import(options: tuple[str, ...], why: str, here: Path, run: Run) -> None:
    Path("bad.toml").write_text("[")
    Path("flat.toml").write_text("by_long = 7")
    done = run("flink", "import", "savepoint", "--store", "o", *options)
    assert done.exit_code != 0
    assert why in done.stderr
    assert not Path("o").exists()


def test_the_number_of_threads_is_configurable(here: Path, run: Run) -> None:
    arguments = ("flink", "import", "savepoint", "--operator", "by_long", "--store", "o")
    done = run(*arguments, env={"STATESTORE_IMPORT_THREADS": "0"})
    assert done.exit_code == 2
    assert "import_threads must be an integer >= 1" in done.stderr
    assert run(*arguments, env={"STATESTORE_IMPORT_THREADS": "2"}).exit_code == 0
