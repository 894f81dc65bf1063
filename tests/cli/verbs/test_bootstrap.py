"""``statestore bootstrap``: types first, then a state or an error with all that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result

from statestore import StateStore
from statestore.rows.digests import rows_digest

Run = Callable[..., Result]

STATE = ("--state", "u/totals", "--key-column", "user_id", "--store", "s")


def write_rows(**columns: list[Any]) -> None:
    pq.write_table(pa.table(columns), "t.parquet")


def test_the_types_come_first(run: Run) -> None:
    write_rows(user_id=["a", "b"], total=[1, 2])
    done = run("bootstrap", "t.parquet", *STATE)
    assert (done.exit_code, done.stderr) == (0, "")
    first, *columns, wrote, rows, _, _ = done.stdout.splitlines()
    assert first == "t.parquet, 2 rows, as state 'totals' of operator 'u':"
    assert [line.split() for line in columns] == [
        ["column", "type", "role", "hashed", "as"],
        ["user_id", "string", "key", "String"],
        ["total", "long", "value"],
    ]
    assert wrote.startswith("wrote state totals of operator u in ")
    assert rows == "  rows         2"
    assert StateStore.open("s").checkpoint().manifest.keyed_entry("u", "totals").rows == 2
    assert run("list", "--store", "s").stdout.splitlines()[1].endswith("  bootstrap")
    (listed,) = json.loads(run("list", "--store", "s", "--output", "json").stdout)["checkpoints"]
    assert (listed["command"], listed["origin"]) == ("bootstrap", None)


def test_a_dry_run_checks_all_rows_and_writes_nothing(run: Run) -> None:
    write_rows(user_id=["a", "b", "b", None], total=[1, 2, 3, 4])
    done = run("bootstrap", "t.parquet", *STATE, "--dry-run", "--output", "json")
    assert done.exit_code == 2
    document = json.loads(done.stdout)
    assert document["checked"] == {
        "rows": 4,
        "null_keys": 1,
        "null_key_examples": ["{'user_id': None, 'total': 4}"],
        "duplicates": 1,
        "duplicate_examples": ["{'user_id': 'b'}"],
    }
    assert (document["dry_run"], document["new_checkpoint_id"]) == (True, None)
    assert not Path("s").exists()


def test_a_write_names_all_that_is_wrong(run: Run) -> None:
    """Not only the first duplicate: the rows are read again to count them."""
    write_rows(user_id=["a", "b", "b", "a", "c", "a"], total=[1, 2, 3, 4, 5, 6])
    done = run("bootstrap", "t.parquet", *STATE)
    assert done.exit_code == 2
    assert "3 rows with the key of another row, such as" in done.stderr
    assert StateStore.open("s").checkpoints() == ()
    sql = "SELECT user_id, sum(total)::BIGINT AS total FROM 't.parquet' GROUP BY user_id"
    assert run("bootstrap", "--sql", sql, *STATE).exit_code == 0


def test_the_options_describe_the_state(run: Run) -> None:
    Path("t.csv").write_text("user_id,shop,at,total\n1,x,5,7\n1,y,5,8\n")
    types = [word for column in ("user_id", "at", "total") for word in ("--type", f"{column}=long")]
    done = run(
        *(
            "bootstrap",
            "t.csv",
            "--state",
            "u/totals",
            "--store",
            "s",
            *types,
            "--kind",
            "map",
            "--entry",
            "shop",
        ),
        *("--ttl", "at=7d", "--max-parallelism", "12"),
        *("--key-column", "user_id=Integer", "--output", "json"),
    )
    assert (done.exit_code, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    columns = [(c["name"], c["role"], c["hashed_as"]) for c in document["columns"]]
    assert columns == [
        ("user_id", "key", "Integer"),
        ("shop", "entry", None),
        ("at", "time", None),
        ("total", "value", None),
    ]
    assert (document["kind"], document["max_parallelism"], document["rows"]) == ("map", 12, 2)


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_timers_have_a_time_domain(run: Run, domain: str) -> None:
    Path("t.csv").write_text("user_id,at\na,5\n")
    done = run(
        *("bootstrap", "t.csv", *STATE, "--type", "at=long", "--kind", f"{domain}-timers"),
        *("--entry", "at", "--output", "json"),
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["kind"] == "timers"
    stored = StateStore.open("s").checkpoint().manifest.keyed_entry("u", "totals").state
    assert stored.time_domain == domain


def test_a_stored_state_needs_replace(run: Run) -> None:
    write_rows(user_id=["a", "b"], total=[1, 2])
    assert run("bootstrap", "t.parquet", *STATE).exit_code == 0
    refused = run("bootstrap", "t.parquet", *STATE)
    assert refused.exit_code == 2
    assert "already has state 'totals'" in refused.stderr
    done = run("bootstrap", "t.parquet", *STATE, "--replace")
    assert "  rows         2, in place of 2\n" in done.stdout


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"user_id,total\na,1\nb\n", "line 3, column 1 of t.csv"),
        (b'user_id,total\na,"1\n', "line 2, column 2 of t.csv opens a quote"),
        ("user_id,total\né,1\n".encode("latin-1"), "line 2, column 1 of t.csv is not UTF-8"),
        (b"", "t.csv is empty"),
        (b"user_id,total\na,0x10\n", "row 1 of t.csv has '0x10'"),
    ],
)
def test_a_file_that_is_not_csv_is_a_wrong_argument(run: Run, data: bytes, problem: str) -> None:
    Path("t.csv").write_bytes(data)
    done = run("bootstrap", "t.csv", *STATE, "--type", "total=long")
    assert (done.exit_code, problem in done.stderr) == (2, True)
    assert not Path("s").exists() or StateStore.open("s").checkpoints() == ()


def test_the_csv_of_a_query_becomes_an_equal_state(run: Run) -> None:
    """Also if a CRLF in a value is where Arrow's reader ends a block."""
    texts = ["z" * (2**20 - 20 - shift) + "\r\n" * 20 for shift in range(2)]
    rows = pa.table(
        {
            "user_id": [*texts, "", '"', "null", " \t", "\ufeff\0"],
            "total": [-(2**63), 2**63 - 1, None, 0, 1, 2, 3],
            "score": [float("nan"), float("-inf"), -0.0, 0.1 + 0.2, None, 5e-324, 1e22],
            "day": pa.array([-(2**31) + 1, 2**31 - 1, 0, -719529, 2932897, None, -800000])
            .cast(pa.int32())
            .view(pa.date32()),
            "note": ["", None, "\r", "\n", ",", "''", '""'],
        }
    )
    with StateStore.open("a").snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "totals", rows, key="user_id", max_parallelism=8)
    sql = "SELECT user_id, total, score, day, note FROM totals"
    assert run("query", sql, "--to", "t.csv", "--store", "a").exit_code == 0
    types = ("--type", "total=long", "--type", "score=double", "--type", "day=date")
    done = run("bootstrap", "t.csv", *STATE, *types, "--max-parallelism", "8")
    assert (done.exit_code, done.stderr) == (0, "")
    a, b = (StateStore.open(url).restore().keyed("u", "totals").to_arrow() for url in "as")
    assert a.column_names == b.column_names
    assert rows_digest(a) == rows_digest(b)


def test_wrong_calls_are_usage_errors(run: Run) -> None:
    write_rows(user_id=["a"], total=[1])
    cases: tuple[tuple[tuple[str, ...], str], ...] = (
        ((), "name either a SOURCE or --sql SELECT"),
        (("t.parquet", "--sql", "SELECT 1"), "name either a SOURCE or --sql SELECT"),
        (("t.parquet", "--ttl", "soon"), "--ttl: "),
        (("t.parquet", "--ttl", "at="), "--ttl: "),
        (("t.parquet", "--key-column", "total="), "must have the form COLUMN[=TYPE]"),
        (("t.parquet", "--key-column", "user_id=Long"), "--key-column is passed twice for user_id"),
        (("t.parquet", "--type", "total"), "must have the form COLUMN=TYPE"),
        (("t.parquet", "--type", "a=long", "--type", "a=date"), "--type is passed twice for a"),
    )
    for words, said in cases:
        done = run("bootstrap", *words, *STATE)
        assert (done.exit_code, said in done.stderr) == (2, True), words


def test_a_table_becomes_an_operator_state(run: Run) -> None:
    write_rows(rule=["a", "b"], limit=[1, 2])
    state = ("--state", "u/rules", "--store", "s", "--kind", "broadcast")
    done = run("bootstrap", "t.parquet", *state, "--dry-run", "--output", "json")
    document = json.loads(done.stdout)
    assert (done.exit_code, document["rows"], document["checked"]["duplicates"]) == (0, 2, 0)
    assert (document["kind"], document["hash_scheme"], document["max_parallelism"]) == (
        "broadcast",
        None,
        None,
    )
    assert not Path("s").exists()
    done = run("bootstrap", "t.parquet", *state)
    assert (done.exit_code, done.stderr) == (0, "")
    first, _, rule, limit, wrote, rows, written = done.stdout.splitlines()
    assert first == "t.parquet, 2 rows, as broadcast state 'rules' of operator 'u':"
    assert (rule.split(), limit.split()) == (
        ["rule", "string", "value"],
        ["limit", "long", "value"],
    )
    assert wrote.startswith("wrote state rules of operator u in ")
    assert (rows, written.split()[0]) == ("  rows         2", "written")
    elements = StateStore.open("s").restore().operator_state("u", "rules").subtask(0)
    assert elements == [{"rule": "a", "limit": 1}, {"rule": "b", "limit": 2}]


def test_operator_state_has_no_keys_and_keyed_state_has(run: Run) -> None:
    write_rows(rule=["a"], limit=[1])
    state = ("--state", "u/rules", "--store", "s")
    done = run("bootstrap", "t.parquet", *state)
    assert (done.exit_code, "name the key columns with --key" in done.stderr) == (2, True)
    for option in (("--key-column", "rule"), ("--ttl", "7d"), ("--max-parallelism", "12")):
        done = run("bootstrap", "t.parquet", *state, "--kind", "union", *option)
        assert done.exit_code == 2
        assert "--kind union is operator state, which has no keys" in done.stderr
    assert not Path("s").exists()
