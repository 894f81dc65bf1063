from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


def test_a_result_as_text(run: Run, fraud: Path) -> None:
    done = run(
        "query", "SELECT user_id, n FROM per_country WHERE n < 2 ORDER BY n", "--store", fraud
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["user_id", "n"],
        ["u0", "0"],
        ["u1", "1"],
    ]


def test_a_result_as_json(run: Run, fraud: Path) -> None:
    sql = 'SELECT card, total FROM "totals-by-card".totals ORDER BY card LIMIT 2'
    done = run("query", sql, "--checkpoint", "1", "--store", fraud, "--output", "json")
    document = json.loads(done.stdout)
    assert document["columns"] == [
        {"name": "card", "type": "int64"},
        {"name": "total", "type": "double"},
    ]
    assert (document["checkpoint_id"], document["rows"], document["is_cut"]) == (
        1,
        [[-5, 1.5], [0, "NaN"]],
        False,
    )


@pytest.mark.parametrize(
    ("limit", "count", "cut"), [("3", 3, True), ("200", 200, False), ("0", 200, False)]
)
def test_rows_are_limited(run: Run, fraud: Path, limit: str, count: int, cut: bool) -> None:
    arguments = ("query", "SELECT * FROM per_country", "--limit", limit, "--store", fraud)
    document = json.loads(run(*arguments, "--output", "json").stdout)
    assert (len(document["rows"]), document["is_cut"]) == (count, cut)
    assert ("rows are shown; --limit 0 shows all" in run(*arguments).stdout) is cut


def test_the_views_are_listed(run: Run, fraud: Path) -> None:
    done = run("query", "--tables", "--store", fraud, "--output", "json")
    views = json.loads(done.stdout)["views"]
    assert [
        (view["view"], view["rows"]) for view in views if view["operator"] != "orders-source"
    ] == [
        ('"totals-by-card"."totals"', 3),
        ('"totals-by-shop"."totals"', 3),
        ('"totals-by-user"."totals"', 200),
        ('"per_country"', 200),
    ]
    lines = run("query", "--tables", "--store", fraud).stdout.splitlines()
    assert any(line.split()[:2] == ['"per_country"', "200"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "pass one SQL statement, or --tables"),
        (("SELECT 1", "--tables"), "pass one SQL statement, or --tables"),
        (("SELECT * FROM nobody",), 'nobody does not exist!; the views are "offsets", "files"'),
        (("DROP VIEW per_country",), "a query must be a SELECT"),
    ],
)
def test_an_invalid_query_is_refused(
    run: Run, fraud: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = run("query", *arguments, "--store", fraud)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.slow
def test_a_process_prints_only_the_error(fraud: Path, damaged: Path) -> None:
    """DuckDB and Arrow print nothing to stderr, whether the query succeeds or fails."""
    for path in damaged.rglob("0000000002-*.parquet"):
        path.unlink()
    for folder, code in ((fraud, 0), (damaged, 13)):
        words = ["query", "SELECT sum(n) AS s FROM per_country", "--store", str(folder)]
        command = [sys.executable, "-m", "statestore", *words]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == (1 if code else 0)


def test_a_key_in_all_states(run: Run, fraud: Path) -> None:
    done = run("get", "u17", "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["operator", "state", "row"]
    assert ["totals-by-user", "totals", "user_id", "u17,", "total", "17"] in lines
    assert any(line[1] == "per_country" for line in lines)
    assert "skipped state 'totals' of operator 'totals-by-card' because its key is (card long)" in (
        done.stdout
    )


def test_a_key_in_all_states_as_json(run: Run, fraud: Path) -> None:
    done = run("get", "--store", fraud, "--output", "json", "--state", "totals", "--", "-5", "1")
    document = json.loads(done.stdout)
    assert [(s["operator"], s["rows"]) for s in document["found"]["states"]] == [
        ("totals-by-card", [{"card": -5, "total": 1.5}]),
        ("totals-by-user", []),
    ]
    assert [s["operator"] for s in document["found"]["skipped"]] == ["totals-by-shop"]
    assert (document["found"]["checkpoint_id"], document["key"]) == (1, "-5")


ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


def test_a_query_has_limits(run: Run, fraud: Path) -> None:
    done = run("query", ENDLESS, "--time-limit", "500ms", "--store", fraud)
    assert done.exit_code == 19
    assert "exceeded its time limit of 0.5 s" in done.stderr
    sql = "SELECT count(DISTINCT (a.range, b.range)) FROM range(100000) a, range(100000) b"
    done = run("query", sql, "--memory-limit", "100MB", "--store", fraud)
    assert done.exit_code == 19
    assert "the query exceeds its memory limit" in done.stderr
    within = ("--time-limit", "1h", "--memory-limit", "512MiB")
    assert run("query", "SELECT 1", *within, "--store", fraud).exit_code == 0
    for wrong in (("--time-limit", "soon"), ("--memory-limit", "0")):
        assert run("query", "SELECT 1", *wrong, "--store", fraud).exit_code == 2


@pytest.mark.slow
def test_ctrl_c_ends_a_query(fraud: Path) -> None:
    """The signal arrives while DuckDB runs in its own thread."""
    command = (
        "import os, signal, threading; from statestore.cli.main import main\n"
        "def stop():\n"
        "    while not any(one.name.startswith('ThreadPool') for one in threading.enumerate()):\n"
        "        stopped.wait(0.01)\n"
        "    stopped.wait(0.5)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "stopped = threading.Event()\n"
        "threading.Thread(target=stop, daemon=True).start()\n"
        "raise SystemExit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, "query", ENDLESS, "--store", fraud],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr.strip()) == (130, "interrupted")


def test_values_of_every_type_are_printed(run: Run, fraud: Path) -> None:
    sql = "SELECT time_tz, uhugeint, bit, interval, time, * FROM test_all_types() LIMIT 2"
    done = run("query", sql, "--store", fraud)
    assert done.exit_code == 0, done.stderr
    for text in ("24:00:00-15:59:59", str(2**128 - 1), "83 years 3 months 999 days"):
        assert text in done.stdout
    done = run("query", sql, "--store", fraud, "--output", "json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["rows"][1][:5] == [
        "24:00:00-15:59:59",
        str(2**128 - 1),
        "10101",
        "83 years 3 months 999 days 00:16:39.999999",
        "24:00:00",
    ]
