"""``statestore flink plan``, and ``bootstrap --flink-plan``: a table becomes a plan's state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from statestore import StateStore
from tests.interop.flink.goldens import FOLDER

Run = Callable[..., Result]

STATE = ("--state", "3_group-aggregate/accState", "--store", "s")
PLAN = ("--flink-plan", "job.json")


@pytest.fixture(autouse=True)
def files(run: Run) -> None:
    """Write the plan and a table of totals into the folder in which commands run."""
    assert run is not None
    shutil.copy(FOLDER / "2.3_plan.json", "job.json")
    Path("totals.csv").write_text("user_id,purchases,total\nann,2,3.50\n,1,\n")


def test_the_states_of_a_plan_are_shown(run: Run) -> None:
    done = run("flink", "plan", "job.json")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "job.json, compiled by Flink 2.3"
    begin = lines.index("  state left-records: map")
    assert [line.split() for line in lines[begin + 1 : begin + 6]] == [
        ["column", "type", "role", "nulls"],
        ["user_id", "STRING", "key", "yes"],
        ["amount", "DECIMAL(10,", "2)", "entry", "yes"],
        ["row_count", "INT", "value", "no"],
        ["match_count", "INT", "value", "no"],
    ]


def test_the_states_of_a_plan_as_json(run: Run) -> None:
    text = Path("job.json").read_text().replace('"0 ms"', '"1 d"')
    text = text.replace('"$SUM$1"', '"$LISTAGG$1"')
    Path("job.json").write_text(text)
    document = json.loads(run("flink", "plan", "job.json", "--output", "json").stdout)
    assert (document["plan"], document["version"]) == ("job.json", "2.3")
    totals, join = document["operators"]
    assert (totals["operator"], totals["states"]) == ("3_group-aggregate", [])
    assert totals["problem"].startswith("the accumulator of the function $LISTAGG$1")
    assert join["operator_id"] == "7c2e2faa042538c9c6536014ee065870"
    left, right = join["states"]
    assert (left["state"], left["kind"], left["ttl_ms"]) == ("left-records", "map", 86_400_000)
    assert (left["optional"], left["has_one_key_group"]) == (["last_access"], False)
    assert right["columns"] == [
        {"name": "user_id", "type": "STRING", "role": "key", "is_required": True},
        {"name": "city", "type": "STRING", "role": "value", "is_required": False},
    ]


def test_a_table_becomes_a_state_and_a_savepoint(run: Run) -> None:
    """Columns of a CSV file get the types of the plan."""
    done = run("bootstrap", "totals.csv", *PLAN, *STATE)
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()[1:5]] == [
        ["column", "type", "role", "hashed", "as"],
        ["user_id", "string", "key", "STRING"],
        ["purchases", "long", "value"],
        ["total", "decimal(38,2)", "value"],
    ]
    done = run("flink", "export", "to", "--store", "s")
    assert done.exit_code == 12
    assert "7_join/left-records (no table was given for it)" in done.stderr
    assert "--carry" not in done.stderr
    done = run("flink", "export", "to", "--store", "s", "--leave-out", "7_join", "--output", "json")
    assert (done.exit_code, done.stderr) == (0, "")
    (operator,) = json.loads(done.stdout)["operators"]
    assert operator["states"][0]["value_type"] == "RowData<BIGINT, DECIMAL(38, 2)>"
    assert operator["states"][0]["rows"] == 2


def test_a_dry_run_checks_the_rows_and_writes_nothing(run: Run) -> None:
    rows = pa.table({"user_id": ["a", "a"], "purchases": [1, 2], "total": [1, 2]})
    pq.write_table(rows, "totals.parquet")
    done = run("bootstrap", "totals.parquet", *PLAN, *STATE, "--dry-run")
    assert done.exit_code == 2
    assert "1 row with the key of another row, such as {'user_id': 'a'}" in done.stderr
    assert not Path("s").exists()
    done = run("bootstrap", "totals.parquet", *PLAN, *STATE)
    assert done.exit_code == 2
    assert "1 row with the key of another row, such as {'user_id': 'a'}" in done.stderr
    assert StateStore.open("s").checkpoints() == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user_id,purchases,total\na,x,1\n", "row 1 of totals.csv has 'x' in the column 'purchase"),
        ("user_id,purchases,total\na,,1\n", "row 1 of totals.csv has a value in the column 'purch"),
        ("user_id,total\na,1\n", "the column 'purchases' (BIGINT NOT NULL) is missing"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(text: str, message: str, run: Run) -> None:
    Path("totals.csv").write_text(text)
    done = run("bootstrap", "totals.csv", *PLAN, *STATE)
    assert done.exit_code in (2, 12)
    assert message in done.stderr
    assert not Path("s").exists() or StateStore.open("s").checkpoints() == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((*PLAN, "--key-column", "user_id"), "--key-column follows from the plan"),
        ((*PLAN, "--ttl", "7d"), "--ttl follows from the plan"),
        ((*PLAN, "--kind", "list"), "--kind follows from the plan"),
        ((), "name the key columns with --key"),
    ],
)
def test_options_that_the_plan_replaces_are_refused(
    options: tuple[str, ...], message: str, run: Run
) -> None:
    done = run("bootstrap", "totals.csv", *STATE, *options)
    assert done.exit_code == 2
    assert message in done.stderr


def test_uids_follow_the_format(run: Run) -> None:
    uids = {"STATESTORE_FLINK_UID_FORMAT": "mine-<id>"}
    done = run("flink", "plan", "job.json", env=uids)
    assert "operator mine-3, id " in done.stdout
    state = ("--state", "mine-3/accState", "--store", "s")
    done = run("bootstrap", "totals.csv", *PLAN, *state, env=uids)
    assert (done.exit_code, done.stderr) == (0, "")
    done = run("flink", "export", "to", "--store", "s", "--leave-out", "mine-7", "--output", "json")
    assert [operator["operator"] for operator in json.loads(done.stdout)["operators"]] == ["mine-3"]
