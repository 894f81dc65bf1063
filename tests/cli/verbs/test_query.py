from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from statestore import StateStore
from statestore.cli.drawing import UNICODE
from statestore.cli.output import Page, write_rows
from statestore.restore.duck import run_interruptibly

Run = Callable[..., Result]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert any(line.split()[1:4] == ["per_country", '"per_country"', "200"] for line in lines)
    assert any(line.endswith("key_group integer, card long, total double") for line in lines)


def test_show_tables_lists_operators_and_states(run: Run, fraud: Path) -> None:
    lines = run("query", "SHOW TABLES;", "--store", fraud).stdout.splitlines()
    assert lines[0].split() == ["operator", "state", "view", "columns"]
    assert any(
        line.split()[:3] == ["totals-by-shop", "totals", '"totals-by-shop"."totals"']
        for line in lines
    )
    assert any(line.endswith("key_group integer, card long, total double") for line in lines)
    assert "files of state" not in "".join(lines)


SQL = (
    "SELECT user_id, n, n + 9007199254740993 AS big, "
    "CASE WHEN n = 1 THEN NULL ELSE 'a,\"b' END AS t FROM per_country WHERE n < 3 ORDER BY n"
)


@pytest.mark.slow
def test_rows_in_each_format(run: Run, fraud: Path, tmp_path: Path) -> None:
    big = 9007199254740993
    expected = [
        {"user_id": "u0", "n": 0, "big": big, "t": 'a,"b'},
        {"user_id": "u1", "n": 1, "big": big + 1, "t": None},
        {"user_id": "u2", "n": 2, "big": big + 2, "t": 'a,"b'},
    ]
    done = run("query", SQL, "--format", "json", "--store", fraud)
    assert json.loads(done.stdout) == expected
    done = run("query", SQL, "--format", "csv", "--store", fraud)
    assert done.stdout.splitlines() == [
        "user_id,n,big,t",
        f'u0,0,{big},"a,""b"',
        f"u1,1,{big + 1},",
        f'u2,2,{big + 2},"a,""b"',
    ]
    for name, read in (("r.parquet", pq.read_table), ("r.arrow", read_stream)):
        done = run("query", SQL, "--to", tmp_path / name, "--store", fraud)
        assert done.stdout == f"wrote 3 rows to {tmp_path / name}\n"
        assert read(tmp_path / name).to_pylist() == expected
    done = run("query", SQL, "--limit", "2", "--to", tmp_path / "r.csv", "--store", fraud)
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 3
    assert sorted(path.name for path in tmp_path.glob("*r.*")) == ["r.arrow", "r.csv", "r.parquet"]


def read_stream(path: Path) -> pa.Table:
    with pa.ipc.open_stream(path) as reader:
        return reader.read_all()


def test_all_rows_are_written_unless_a_limit_is_given(run: Run, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("u", "n", pa.table({"k": [*range(1500)]}), key="k")
    words = ("query", "SELECT k FROM n", "--store", tmp_path / "store")
    assert len(json.loads(run(*words, "--format", "json").stdout)) == 1500
    assert "only the first 1,000 rows" in run(*words).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--to", "rows.xlsx"), "the suffix does not name a format"),
        (
            ("--to", "rows.txt", "--format", "table"),
            "--to writes csv, json, parquet, arrow; redirect a table with >",
        ),
        (("--to", "there.csv"), "there.csv exists; remove it, or choose another name"),
        (("--to", "no/folder.csv"), "cannot write no/folder.csv: there is no folder no;"),
    ],
)
def test_an_impossible_file_is_refused(
    run: Run, fraud: Path, options: tuple[str, ...], message: str
) -> None:
    Path("there.csv").write_text("mine")
    done = run("query", "SELECT 1 AS a", *options, "--store", fraud)
    assert done.exit_code != 0
    assert message in done.stderr
    assert Path("there.csv").read_text() == "mine"


def test_a_file_inside_a_store_is_refused(run: Run, fraud: Path) -> None:
    """A garbage collection could delete it, and its name could be one of the store's."""
    done = run("query", "SELECT 1 AS a", "--to", str(fraud / "rows.csv"), "--store", fraud)
    assert (done.exit_code, "is inside the store" in done.stderr) == (2, True)
    assert not (fraud / "rows.csv").exists()


def test_a_failed_query_leaves_no_file(run: Run, fraud: Path) -> None:
    sql = "SELECT error('stop') FROM per_country"
    done = run("query", sql, "--to", "rows.json", "--store", fraud)
    assert done.exit_code != 0
    for form in ("json", "parquet", "arrow"):
        file = f"rows.{form}"
        twice = run("query", "SELECT 1 AS a, 2 AS a", "--to", file, "--store", fraud)
        assert twice.exit_code
        assert "two columns of the result have the name 'a'" in twice.stderr
        assert not Path(file).exists()
    assert [path for path in Path().iterdir() if "rows" in path.name] == []


@pytest.mark.parametrize(
    ("sql", "number", "marked"),
    [
        ("SELECT user_id,, n FROM per_country", 1, ","),
        ("SELECT nothing FROM per_country", 1, "nothing"),
        ("SELECT n,\n  nope(n)\nFROM per_country", 2, "nope(n)"),
        ("\n" * 8 + "SELECT nothing\nFROM per_country", 9, "nothing"),
        (f"SELECT nothing{', user_id' * 30} FROM per_country", 1, "nothing"),
        (f"SELECT {'user_id, ' * 30}nothing FROM per_country", 1, "nothing"),
        (f"SELECT {'n, ' * 30}nothing{', n' * 30} FROM per_country", 1, "nothing"),
        (f"SELECT{' ' * 60}nothing{' ' * 90}FROM per_country", 1, "nothing"),
    ],
)
def test_an_error_shows_its_place(
    run: Run, fraud: Path, sql: str, number: int, marked: str
) -> None:
    done = run("query", sql, "--store", fraud)
    error, line, carets = done.stderr.splitlines()
    assert error.startswith("error: DuckDB cannot run the query: ")
    assert line.startswith(f"  LINE {number}: ")
    first = carets.index("^")
    assert line[first : first + carets.count("^")] in (marked, marked.partition("(")[0])
    assert line[first:].startswith(marked)
    assert len(line) <= 80


def test_wide_rows_are_written_one_column_a_line() -> None:
    file = io.StringIO()
    console = Console(file=file, width=40, force_terminal=True, no_color=True, highlight=False)
    screen = Page(file, 40, UNICODE, console)
    write_rows(screen, ["name", "text"], [["a", "some words"], ["b", "x" * 50]], is_cut=False)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in file.getvalue().splitlines()]
    assert lines == [
        "row 1",
        "  name  a",
        "  text  some words",
        "row 2",
        "  name  b",
        f"  text  {'x' * 50}",
    ]
    file.truncate(0)
    write_rows(screen, ["name", "text"], [["a", "some words"]], is_cut=False)
    assert "row 1" not in file.getvalue()


@given(text=st.text(st.sampled_from("ab  客\\"), max_size=120), name=st.text("n", max_size=40))
def test_no_word_of_a_wide_row_is_broken(text: str, name: str) -> None:
    file = io.StringIO()
    console = Console(file=file, width=40, force_terminal=True, no_color=True, highlight=False)
    write_rows(Page(file, 40, UNICODE, console), [name, "wide"], [[text, "w " * 30]])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in file.getvalue().splitlines()]
    assert lines[0] == "row 1"
    wide = next(place for place, line in enumerate(lines) if line.startswith("  wide  "))
    assert " ".join(lines[1:wide]).split() == [*name.split(), *text.split()]
    assert " ".join(lines[wide:]).split() == ["wide", *["w"] * 30]
    words = {*text.split(), name}
    assert all(cell_len(line) <= 40 or line.strip() in words for line in lines[1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("SELECT 1", "--tables"), "--tables and SQL exclude each other: pass one"),
        (("--tables", "--limit", "1"), "remove --limit: it needs SQL"),
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
        root = Path(__file__).parents[3]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == (1 if code else 0)


def test_a_key_in_all_states(run: Run, fraud: Path) -> None:
    done = run("get", "--key", "u17", "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["operator", "state", "row"]
    assert ["totals-by-user", "totals", "user_id", "u17,", "total", "17"] in lines
    assert any(line[1] == "per_country" for line in lines)
    reason = "whose key is (card long): 'card' is long: 'u17' is not a number"
    assert "skipped state 'totals' of operator 'totals-by-card': 'u17' is not" in done.stdout
    assert reason in " ".join(done.stdout.split())


def test_a_key_in_all_states_as_json(run: Run, fraud: Path) -> None:
    state = ("--state", "/totals", "--key", "-5")
    done = run("get", "1", *state, "--store", fraud, "--output", "json")
    document = json.loads(done.stdout)
    assert [(s["operator"], s["rows"]) for s in document["found"]["states"]] == [
        ("totals-by-card", [{"card": -5, "total": 1.5}]),
        ("totals-by-user", []),
    ]
    assert [s["operator"] for s in document["found"]["skipped"]] == ["totals-by-shop"]
    assert (document["found"]["checkpoint_id"], document["key"]) == (1, "-5")


ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"


@pytest.mark.slow
def test_a_query_has_limits(run: Run, fraud: Path) -> None:
    limit = {"STATESTORE_QUERY_TIME_LIMIT": "500ms"}
    done = run("query", ENDLESS, "--store", fraud, env=limit)
    assert done.exit_code == 19
    assert "exceeded its time limit of 500 ms" in done.stderr
    sql = "SELECT count(DISTINCT (a.range, b.range)) FROM range(100000) a, range(100000) b"
    done = run("query", sql, "--store", fraud, env={"STATESTORE_QUERY_MEMORY_BYTES": "100000000"})
    assert done.exit_code == 19
    assert "the query exceeds its memory limit" in done.stderr
    for limit in ({"STATESTORE_QUERY_TIME_LIMIT": "1h"}, {"STATESTORE_QUERY_TIME_LIMIT": "0"}):
        assert run("query", "SELECT 1", "--store", fraud, env=limit).exit_code == 0


STATE = ("--state", "totals-by-user/totals")
NEW_STATE = ("--state", "totals-by-user/new", "--key-column", "k")


@pytest.mark.long_cases("bootstrap", "edit")
@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("query", ENDLESS),
        ("edit", *STATE, "--sql", ENDLESS),
        ("bootstrap", "--sql", f"SELECT 1 AS k, ({ENDLESS}) AS v", *NEW_STATE),
    ],
    ids=lambda arguments: arguments[0],
)
def test_ctrl_c_ends_a_query(damaged: Path, arguments: Sequence[str]) -> None:
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
        [sys.executable, "-c", command, *arguments, "--store", damaged],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "interrupted")
    assert "Traceback" not in done.stderr
    assert StateStore.open(str(damaged)).checkpoints() == (1, 2)


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


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_ends_a_query_at_any_moment() -> None:
    """Threads switch often, so the signals arrive at many places of the waiting thread."""

    def answer(cancelled: threading.Event) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return cancelled.wait(60)

    usual, handler = sys.getswitchinterval(), signal.getsignal(signal.SIGINT)
    begun = time.monotonic()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            cancelled = threading.Event()
            with pytest.raises(KeyboardInterrupt):
                run_interruptibly(partial(answer, cancelled), cancelled.set)
    finally:
        sys.setswitchinterval(usual)
    assert time.monotonic() - begun < 50
    assert signal.getsignal(signal.SIGINT) is handler
