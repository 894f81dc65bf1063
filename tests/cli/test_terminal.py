"""What the commands show in a real terminal of 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.cli.main import main
from tests.support.terminal import command_on_terminal

pytestmark = pytest.mark.slow

STATE = ("--state", "u/s")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StateStore:
    """A full checkpoint, one with changes, and one of ``edit``; and six stray files."""
    folder = tmp_path_factory.mktemp("terminal") / "s"
    made = StateStore.open(str(folder), table_format="parquet", compaction=None)
    keys = [f"k{number:02}" for number in range(60)]
    rows = pa.table({"k": keys, "v": pa.array([*range(59), None], pa.int64())})
    with made.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=16)
    with made.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("u", "s", [{"k": key, "v": 7} for key in keys[::2]], key="k")
    made.maintenance.edit("u", "s", delete=["k01"])
    table = folder / made.checkpoint(1).manifest.keyed[0].table.path
    for number in range(11, 17):
        (table / f"00000000{number}-00000-{number:016x}.parquet").write_bytes(b"half a file")
    return made


def shown(store: StateStore, *arguments: str) -> list[str]:
    status, lines = command_on_terminal(*arguments, "--store", store.url, columns=80)
    assert status == 0, lines
    return lines


def test_a_list_has_one_line_for_each_checkpoint(store: StateStore) -> None:
    header, *lines = shown(store, "list")
    assert header.split() == ["id", "age", "extent", "parallelism", "rows", "bytes", "made", "by"]
    assert all(len(line) <= 80 for line in lines[:3])
    assert [line.split()[0] for line in lines[:3]] == ["1", "2", "3"]
    assert [" full " in line for line in lines[:2]] == [True, False]
    assert "  60 + 30  " in lines[1]
    assert lines[1].endswith("  job")
    assert lines[2].endswith("  edit of 2")
    assert " changed or deleted rows that a restore applies to them" in lines[3]
    assert len(lines) == 4


@pytest.mark.parametrize("columns", [104, 140])
def test_a_list_has_as_many_columns_as_fit(store: StateStore, columns: int) -> None:
    status, lines = command_on_terminal("list", "--store", store.url, columns=columns)
    assert (status, len(lines)) == (0, 5)
    names = lines[0].split()
    assert ("operators" in names) == (columns == 140)
    assert {"taken", "files"} <= {*names}
    assert all(len(line) <= columns for line in lines[:4])


def test_stray_files_are_counted(store: StateStore) -> None:
    assert any("  holds  60 + 30 rows, " in line for line in shown(store, "verify", "2"))
    lines = shown(store, "verify", "all")
    assert lines[-7].startswith("6 stray files that no manifest references;")
    assert lines[-1] == "  and 1 more"
    gc = shown(store, "gc", "--dry-run")
    assert [line for line in gc if line.endswith("; 6 stray files of these)")]


def test_a_null_is_shown(store: StateStore) -> None:
    assert shown(store, "get", "--key", "k59", *STATE)[1].split() == ["k59", "null"]
    assert shown(store, "get", "--history", "--key", "k59", *STATE)[2].endswith("v null")
    answer = shown(store, "query", "SELECT k, v FROM s WHERE v IS NULL")
    assert answer[-1].split() == ["k59", "null"]


def test_a_difference_has_the_rows_of_both_sides_and_examples_of_all_key_groups(
    store: StateStore,
) -> None:
    lines = shown(store, "diff", "1", "2", "--examples", "16")
    (row,) = (line.split() for line in lines if line.startswith("u  "))
    assert row[:7] == ["u", "s", "60", "60", "0", "0", "30"]
    examples = [line for line in lines if line.startswith("  ~ ")]
    groups = {line.rpartition("(key group ")[2] for line in examples}
    assert (len(examples), len(groups)) == (16, int(row[7]))
    assert all("  v: " in line and line.count(" → 7") == 1 for line in examples)
    same = shown(store, "diff", "2", "2")
    assert "  60 + 30  " in next(line for line in same if line.startswith("u  "))
    assert same[-1].startswith("rows 60 + 30: 60 in base files, and 30 changed or deleted rows")


def test_names_of_views_and_long_texts_are_not_broken(tmp_path: Path) -> None:
    operator, state = "orders-by-customer-and-country", "last_orders_of_customer"
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")
    text = "a text of many words " * 8
    rows = pa.table({"customer": ["a"], "product_description": [text], "average": [1.5]})
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed(operator, state, rows, key="customer", max_parallelism=16)
    for arguments in (("query", "--tables"), ("query", "SHOW TABLES")):
        lines = shown(store, *arguments)
        assert all(len(line) <= 80 for line in lines)
        words = " ".join(lines).split()
        assert {operator, state, f'"{state}"', "product_description"} <= {*words}
    lines = shown(store, "query", f"SELECT * FROM {state}")
    assert all(len(line) <= 80 for line in lines)
    place = next(n for n, line in enumerate(lines) if "product_description" in line)
    indent = lines[place].index("a text")
    shown_text = [line[indent:] for line in lines[place:-1]]
    assert " ".join(shown_text).split() == text.split()


@pytest.mark.parametrize(
    "arguments",
    [
        ("list",),
        ("show",),
        ("show", "--skew", "bytes"),
        ("get", "--key", "k59"),
        ("get", "--history", "--key", "k02", *STATE),
        ("plan", "--parallelism", "3"),
        ("plan", "--parallelism", "2,3"),
        ("diff", "1", "2"),
        ("trend",),
        ("verify",),
        ("query", "--tables"),
        ("config",),
    ],
)
def test_at_60_columns_no_word_is_broken(store: StateStore, arguments: tuple[str, ...]) -> None:
    """Each word is one of a wide terminal, except bars and ages."""
    narrow, wide = (
        {
            word
            for line in command_on_terminal(*arguments, "--store", store.url, columns=columns)[1]
            if "\x1b" not in line
            for word in re.findall(r"[A-Za-z_][\w./=-]+", line)
        }
        for columns in (60, 400)
    )
    # A row that is written one column a line has a number, and a shorter ruler other ranges.
    assert narrow - wide <= {"row"}
    assert narrow


@pytest.mark.parametrize("arguments", [[], ["--help"], ["plan", "--help"], ["query", "--help"]])
def test_help_at_60_columns_breaks_no_word_and_is_no_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for columns in (60, 100):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(arguments) == (0 if arguments else 2)
        shown = capsys.readouterr()
        texts.append(shown.out + shown.err)
    narrow, wide = texts
    assert narrow.startswith("Usage: statestore ")
    assert "\nerror" not in narrow
    assert {*narrow.split()} == {*wide.split()}
