"""``statestore copy``, ``purge`` and ``edit``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result

from statestore import StateStore

Run = Callable[..., Result]

TOTALS = ("--state", "totals-by-user/totals")


def document(done: Result) -> dict[str, object]:
    assert (done.exit_code, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_a_copy_reports_the_files_that_the_target_lacked(run: Run, fraud: Path) -> None:
    planned = run("copy", "backup", "--dry-run", "--store", fraud)
    assert planned.stdout.startswith(f"would copy checkpoint 2 of {fraud} to ")
    assert not Path("backup").exists()
    done = run("copy", "backup", "1", "--as-savepoint", "old", "--store", fraud)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.endswith("  savepoint old\n")
    assert StateStore.open("backup").maintenance.savepoints()[0].name == "old"
    again = run("copy", "backup", "1", "--store", fraud)
    assert "was already copied: it is checkpoint 1 of" in again.stdout
    found = document(run("copy", "backup", "--store", fraud, "--output", "json"))
    first, manifest = (StateStore.open(str(fraud)).checkpoint(number).manifest for number in (1, 2))
    assert (found["checkpoint_id"], found["new_checkpoint_id"], found["found"]) == (2, 2, False)
    there = {handle.sha256 for part in first.parts for handle in part.handles}
    lacked = [h for part in manifest.parts for h in part.handles if h.sha256 not in there]
    assert found["copied_bytes"] == sum(handle.size_bytes for handle in lacked)
    assert found["size_bytes"] == manifest.size_bytes
    assert run("verify", "all", "--deep", "--store", "backup").exit_code == 0


@pytest.mark.slow
def test_a_purge_names_replaced_checkpoints_and_the_check_names_remaining_ones(
    run: Run, damaged: Path
) -> None:
    store = ("--store", damaged)
    key = ("forget", "--state", "totals-by-user", "--key", "u117")
    planned = document(run(*key, "--dry-run", *store, "--output", "json"))
    assert [one["new_checkpoint_id"] for one in planned["replaced"]] == [None, None]  # type: ignore[attr-defined]
    done = run(*key, *store)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("removed the key of operator totals-by-user from 2 checkpoints")
    assert StateStore.open(str(damaged)).checkpoints() == (4, 5)
    left = run(*key, "--check", *store)
    assert left.exit_code == 1
    assert left.stderr.startswith("error: the key is still in 4 files")
    assert run("gc", "--minimum-age", "0", *store).exit_code == 0
    gone = run(*key, "--check", *store)
    assert (gone.exit_code, gone.stderr) == (0, "")
    assert gone.stdout.startswith("the key is gone from")
    search = document(run(*key, "--check", *store, "--output", "json"))
    assert (search["is_gone"], search["found"], search["unsearched"]) == (True, [], [])
    nothing = run(*key, *store)
    assert nothing.stdout.startswith("no kept checkpoint of")


@pytest.mark.long
@pytest.mark.slow
def test_a_subject_is_forgotten_in_all_operators(run: Run, damaged: Path) -> None:
    words = ("forget", "--column", "country=DE", "--store", damaged)
    planned: Any = document(run(*words, "--dry-run", "--output", "json"))
    assert [one["new_checkpoint_id"] for one in planned["replaced"]] == [None, None]
    purged = run(*words)
    assert (purged.exit_code, purged.stdout.split(" from ")[0]) == (
        1,
        "removed the subject (country)",
    )
    done = run(*words, "--gc")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "the key is gone from" in done.stdout
    assert run(*words, "--check").exit_code == 0
    store = StateStore.open(str(damaged)).restore(parallelism=1)
    shops = store.keyed("totals-by-shop", "totals").to_arrow(0)
    assert shops.column("country").to_pylist() == ["FR"]
    countries = store.keyed("totals-by-user", "per_country").to_arrow(0)
    assert set(countries.column("country").to_pylist()) == {"FR"}


def test_a_search_reports_the_searched_files(run: Run, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"))
    for _ in range(2):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", [{"k": "a"}], key="k")
            checkpoint.write_keyed("u", "t", [{"other": "a"}], key="other", max_parallelism=128)
    words = ("forget", "--column", "k=nobody", "--check", "--store", tmp_path / "store")
    lines = [line.strip() for line in run(*words).stdout.splitlines()[1:]]
    assert lines == [
        "2 data files",
        "2 unrelated data files",
        "4 documents",
        "4 Delta log files",
    ]


@pytest.mark.slow
def test_a_subject_of_several_columns(run: Run, damaged: Path) -> None:
    words = (
        "forget",
        "--column",
        "country=DE",
        "--column",
        "shop=17.0",
        "--gc",
        "--store",
        damaged,
    )
    found: Any = document(run(*words, "--output", "json"))
    states = [state for one in found["replaced"] for state in one["states"]]
    assert [(state["operator"], state["rows"]) for state in states] == [("totals-by-shop", 1)] * 2
    assert found["search"]["is_gone"]
    others = {one["state"] for one in found["others"]}
    assert others == {"per_country"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--column", "card"], "must have the form COLUMN=VALUE"),
        (["--column", "card=1", "--column", "card=2"], "passed twice"),
        (["--column", "card=1", "--gc", "--dry-run"], "at most one of"),
        (["--column", "client=1"], "no keyed state has 'client'"),
    ],
)
def test_an_invalid_subject_is_refused(
    run: Run, fraud: Path, options: list[str], said: str
) -> None:
    done = run("forget", *options, "--store", fraud)
    assert (done.exit_code != 0, done.stdout) == (True, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "pass --column COLUMN=VALUE, or --key KEY and --state OPERATOR"),
        (["--key", "u1"], "--key is of one operator: pass --state OPERATOR"),
        (["--key", "u1", "--column", "user_id=u1"], "--column and --key exclude each other"),
        (["--column", "user_id=u1", "--state", "u"], "remove --state: it needs --key"),
        (["1", "--key", "u1", "--state", "u", "--check"], "--check searches the whole store"),
    ],
)
def test_a_key_and_a_subject_are_not_confused(
    run: Run, fraud: Path, options: list[str], message: str
) -> None:
    done = run("forget", *options, "--store", fraud)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.slow
def test_a_key_of_several_columns(run: Run, damaged: Path) -> None:
    words = ("forget", "--state", "totals-by-shop", "--key", '["DE", 17]')
    done = document(run(*words, "--store", damaged, "--output", "json"))
    (state,) = done["replaced"][0]["states"]  # type: ignore[index]
    assert (state["state"], state["rows"]) == ("totals", 1)
    left = run("get", "--key", '["DE", 17]', "--state", "totals-by-shop/totals")
    assert left.exit_code == 2
    get = ("get", "--key", '["DE", 17]', "--state", "totals-by-shop/totals")
    assert run(*get, "--store", damaged).stdout.startswith("no rows have key")
    edit = ("edit", "--state", "totals-by-shop/totals")
    keys = ("--delete", '["DE", 18]', "--delete", '["FR", 1]')
    assert '1 key to delete has no row: ["FR", 1]\n' in (
        run(*edit, *keys, "--dry-run", "--store", damaged).stdout
    )
    done = document(run(*edit, *keys, "--store", damaged, "--output", "json"))
    assert done["missing_keys"] == [{"country": "FR", "shop": 1}]
    assert (done["rows_before"], done["rows_after"], done["deleted"]) == (2, 1, 1)


@pytest.mark.long
@pytest.mark.slow
def test_an_edit_reports_the_changes(run: Run, damaged: Path) -> None:
    row = '{"user_id": "u3", "total": 0}'
    words = ("edit", *TOTALS, "--delete", "u17", "--put", row, "--store", damaged)
    planned = run(*words, "--dry-run")
    assert planned.stdout.startswith("would edit state totals of operator totals-by-user")
    done = document(run(*words, "--output", "json"))
    assert (done["checkpoint_id"], done["new_checkpoint_id"], done["operator"]) == (
        2,
        3,
        "totals-by-user",
    )
    assert (done["rows_before"], done["rows_after"]) == (200, 199)
    assert (done["missing"], done["missing_keys"]) == (0, [])
    again = run("edit", *TOTALS, "--delete", "u17", "--store", damaged)
    assert again.stdout.startswith("nothing to change in state totals")
    assert (
        again.exit_code,
        '  missing      1 key to delete has no row: "u17"\n' in again.stdout,
    ) == (
        0,
        True,
    )
    keys = [word for number in range(7) for word in ("--delete", f"nobody{number}")]
    some = run("edit", *TOTALS, "--delete", "u18", *keys, "--dry-run", "--store", damaged)
    assert '  missing      7 keys to delete have no row: "nobody0", ' in some.stdout
    assert '"nobody4", …\n' in some.stdout
    sql = run("edit", *TOTALS, "--sql", "SELECT * FROM state LIMIT 7", "--store", damaged)
    assert "199 before, 7 after" in sql.stdout
    empty = ("edit", *TOTALS, "--sql", "SELECT * FROM state WHERE false", "--store", damaged)
    refused = run(*empty)
    assert refused.exit_code == 2
    assert "remove all 7 rows of state 'totals' of operator 'totals-by-user'" in refused.stderr
    assert refused.stderr.endswith(", or pass --yes: then the state has no rows\n")
    assert "7 before, 0 after" in run(*empty, "--yes").stdout


def test_an_edit_tells_merged_changes_from_deleted_rows(run: Run, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "s"), compaction=None)
    with store.snapshot(parallelism=1) as checkpoint:
        rows = [{"k": number, "v": 0} for number in range(9)]
        checkpoint.write_keyed("u", "n", rows, key="k", max_parallelism=1)
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_changes("u", "n", [{"k": 1, "v": 1}, {"k": 2, "v": 1}])
    words = ("edit", "--state", "u/n", "--key", "3", "--set", "v=5")
    done = run(*words, "--store", store.url)
    assert "rows         11 before, 9 after" in done.stdout
    assert "2 of the rows before were changes, which rewritten files have merged" in done.stdout


def test_set_changes_one_column_and_shows_the_row(run: Run, damaged: Path) -> None:
    words = ("edit", *TOTALS, "--key", "u3", "--set", "total=9007199254740993", "--store", damaged)
    before = document(run("get", "--key", "u3", *TOTALS, "--store", damaged, "--output", "json"))
    planned = run(*words, "--dry-run").stdout
    assert isinstance(before["rows"], list)
    old: dict[str, object] = before["rows"][0]
    line = f'  ~ {{"user_id": "u3"}}  total: {old["total"]} → 9007199254740993  (key group '
    assert line in planned
    assert line in run(*words).stdout
    after = document(run("get", "--key", "u3", *TOTALS, "--store", damaged, "--output", "json"))
    assert after["rows"] == [old | {"total": 9007199254740993}]


def test_put_asks_before_columns_become_null(run: Run, tmp_path: Path) -> None:
    store = StateStore.open(str(tmp_path / "store"), table_format="parquet")
    with store.snapshot(parallelism=1) as checkpoint:
        rows = pa.table({"k": ["a"], "x": [1], "y": ["text"]})
        checkpoint.write_keyed("u", "n", rows, key="k")
    words = ("edit", "--state", "u/n", "--store", tmp_path / "store")
    put = (*words, "--put", '{"k": "a", "x": 2}')
    refused = run(*put)
    assert refused.exit_code == 2
    assert "--put sets columns to null that it does not name: y. Pass --yes" in refused.stderr
    assert store.checkpoints() == (1,)
    assert run(*put, "--dry-run").exit_code == 0
    confirmed = run(*put, "--yes")
    assert '~ {"k": "a"}  x: 1 → 2  y: "text" → null' in confirmed.stdout
    texts = run(*words, "--key", "a", "--set", "x=null", "--set", 'y="null"').stdout
    assert '~ {"k": "a"}  x: 2 → null  y: null → "null"' in texts


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ([], 2, "nothing to change: pass --key KEY --set COLUMN=VALUE, --delete KEY, --put JSON"),
        (["--key", "u3"], 2, "nothing to change"),
        (["--set", "total=1"], 2, "--key selects rows and --set changes them: pass both"),
        (["--key", "u3", "--set", "total"], 2, "'total' must have the form COLUMN=VALUE"),
        (["--key", "u3", "--set", "sum=1"], 2, "--set sum: state 'totals' of operator"),
        (["--key", "u3", "--set", "total=x"], 2, "--set total=x: "),
        (["--key", "nobody", "--set", "total=1"], 2, "has no row of the key 'nobody'"),
        (["--key", "u3", "--set", "total="], 2, """an empty text is --set 'total=""'"""),
        (["--put", "{"], 2, "'{' is not a row of state 'totals'"),
        (["--put", "total=1"], 2, "it is not JSON: Expecting value"),
        (["--put", "[1]"], 2, "'[1]' is not a row of state 'totals'"),
        (["--put", '{"user": "u3"}'], 2, "is not a row of state 'totals'"),
        (["--put", '{"total": 3}'], 2, "1 row of state 'totals' of operator"),
        (["--sql", "SELECT 1 AS a"], 12, "state 'totals' of operator 'totals-by-user' has the"),
        (["--delete", "u1", "--sql", "SELECT 1"], 2, "an edit takes exactly one of these"),
        (["9", "--delete", "u1"], 10, "no checkpoint 9"),
    ],
)
def test_an_error_is_one_sentence(
    run: Run, fraud: Path, change: list[str], code: int, message: str
) -> None:
    done = run("edit", *TOTALS, *change, "--store", fraud)
    assert (done.exit_code, done.stdout) == (code, "")
    assert message in done.stderr


def test_purge_names_the_columns_if_the_key_had_others(store: StateStore, run: Run) -> None:
    """After a rekey the key may contain a column that is no longer a key column."""
    rows = pa.table({"customer": [4711, 12], "account": [1, 2], "v": [1, 2]})
    with store.snapshot(parallelism=1) as checkpoint:
        checkpoint.write_keyed("o", "s", rows, key="customer")
    words = (
        "forget",
        "--state",
        "o",
        "--key",
        "4711",
        "--dry-run",
        "--store",
        store.url,
    )
    assert "had other key columns before" not in run(*words).stdout
    store.maintenance.rekey("o", state="s", key="account")
    said = run(*words).stdout
    assert (
        said.count("o/s had other key columns before: the key is compared with customer or ") == 1
    )
    document = json.loads(run(*words, "--output", "json").stdout)
    keys = [state["keys"] for one in document["replaced"] for state in one["states"]]
    assert keys == [[["customer"], ["account"]]] * 2
