"""``copy --linked``, ``rekey``, ``diff --rows`` and ``get --history`` on the command line."""

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


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    made = StateStore.open(str(tmp_path / "s"), table_format="parquet", compaction=None)
    for at, rows in enumerate(({"u1": 1, "u2": 2, "u3": 3}, {"u1": 1, "u2": 20, "u4": 4})):
        frame = [{"k": k, "at": 7, "v": v} for k, v in rows.items()]
        with made.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", frame, key="k", max_parallelism=4)
            if at:
                checkpoint.write_keyed("u", "late", frame, key="k", max_parallelism=4)
    return made


def document(done: Result) -> Any:
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_a_linked_copy_reports_the_shared_files(run: Run, store: StateStore) -> None:
    planned = document(
        run("copy", "f", "--linked", "--dry-run", "--output", "json", "--store", "s")
    )
    assert not Path("f").exists()
    text = run("copy", "f", "--linked", "--store", "s").stdout.splitlines()
    assert text[0].startswith("linked checkpoint 2 of ")
    assert text[0].endswith("/f as checkpoint 1")
    assert text[1].startswith("  shared  ")
    assert text[1].endswith(f" in {planned['files']} files")
    assert text[2].endswith(" in 0 files")
    assert (planned["new_checkpoint_id"], planned["copied_files"]) == (None, 0)
    again = run("copy", "f", "--linked", "--store", "s")
    assert again.exit_code == 2
    assert "is already a store, with checkpoints 1; choose a path that" in again.stderr
    assert "for the linked copy, or copy without links" in again.stderr


def test_a_command_on_an_older_checkpoint_says_what_it_undoes(run: Run, store: StateStore) -> None:
    arguments = ("rekey", "1", "--state", "u", "--max-parallelism", "7", "--store", "s")
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "undoes 1 newer checkpoint, up to checkpoint 2" in refused.stderr
    planned = run(*arguments, "--dry-run").stdout
    assert "would undo checkpoint 2: the next snapshot builds on the new checkpoint" in planned
    assert document(run(*arguments, "--from-older", "--output", "json"))["undone"] == [2]
    words = ("edit", "1", "--state", "u/s", "--delete", "u1", "--store", "s")
    again = run(*words, "--from-older")
    assert "undoes checkpoints 2 to 3: the next" in again.stdout


def test_rekey_reports_each_state(run: Run, store: StateStore) -> None:
    arguments = ("rekey", "--state", "u", "--max-parallelism", "7", "--output", "json")
    planned = document(run(*arguments, "--dry-run", "--store", "s"))
    assert store.checkpoints() == (1, 2)
    done = document(run(*arguments, "--store", "s"))
    assert (planned["new_checkpoint_id"], done["new_checkpoint_id"]) == (None, 3)
    for before, after in zip(planned["states"], done["states"], strict=True):
        assert (before["digest"], before["files"]) == (None, None)
        assert (after["max_parallelism_before"], after["max_parallelism"]) == (4, 7)
        entry = store.checkpoint(2).manifest.keyed_entry("u", after["state"])
        assert after["digest"] == f"{entry.digest:016x}"
        assert after["rows"] == before["rows"] == 3
    text = run(
        "rekey",
        "--state",
        "u/s",
        "--key-column",
        "k",
        "--key-column",
        "at",
        "--store",
        "s",
    )
    assert "checkpoint 4" in text.stdout
    assert "k -> k, at" in text.stdout
    assert store.restore().keyed("u", "s").get(("u1", 7)) == [{"k": "u1", "at": 7, "v": 1}]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "nothing to change: pass --max-parallelism, --key-column or --hash-scheme"),
        (("--max-parallelism", "0"), 2, "configured max parallelism 0 is out of"),
        (("--key-column", "v"), 2, "--key-column is of one state"),
        (("--key-column", "x", "--state", "u/s"), 2, "state 's' of operator 'u' has no column 'x'"),
        (
            ("--key-column", "at", "--state", "u/s"),
            2,
            "two rows of state 's' of operator 'u' have the same identity",
        ),
        (("--max-parallelism", "8", "--state", "u/s"), 2, "state 'late' of operator 'u' has max"),
        (("--max-parallelism", "8", "--state", "u/x"), 10, "no state 'x' in operator 'u'"),
    ],
)
def test_an_invalid_rekey_is_one_sentence(
    run: Run, store: StateStore, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run("rekey", "--state", "u", *arguments, "--store", "s")
    assert done.stderr.startswith(f"error: {message}"), done.stderr
    assert (done.exit_code, done.stdout) == (code, "")
    assert store.checkpoints() == (1, 2)


def test_as_of_prints_a_table_of_both_checkpoints(run: Run, store: StateStore) -> None:
    where = ("diff", "1", "2", "--state", "u/s", "--store", "s")
    found = document(run(*where, "--rows", "all", "--output", "json"))
    assert [column["name"] for column in found["columns"]] == [
        "change",
        "k",
        "at_a",
        "v_a",
        "at_b",
        "v_b",
    ]
    rows = {row[1]: (row[0], row[3], row[5]) for row in found["rows"]}
    assert rows == {
        "u1": ("same", 1, 1),
        "u2": ("changed", 2, 20),
        "u3": ("removed", 3, None),
        "u4": ("added", None, 4),
    }
    assert found["rows"][-1][0] == "same"  # differences come first
    first = document(run(*where, "--rows", "all", "--limit", "3", "--output", "json"))
    assert (first["rows"], first["is_cut"]) == (found["rows"][:3], True)
    assert found["counts"] == {"same": 1, "changed": 1, "added": 1, "removed": 1}
    changed = document(run(*where, "--rows", "changed", "--output", "json"))
    assert {row[1] for row in changed["rows"]} == {"u2", "u3", "u4"}
    assert (changed["is_cut"], changed["counts"]) == (False, found["counts"])
    text = run(*where, "--rows", "changed", "--limit", "2").stdout
    assert "1 same, 1 changed, 1 added, 1 removed" in text
    assert text.splitlines()[-1].startswith("only the first 2 rows are shown")
    assert len(run(*where, "--rows", "all", "--limit", "0").stdout.splitlines()) == 2 + 1 + 4


def test_history_marks_where_a_key_changed(run: Run, store: StateStore) -> None:
    def marks(key: str, state: str = "s") -> list[tuple[bool, Any]]:
        done = run(
            *("get", "--history", "--state", f"u/{state}", "--key", key),
            *("--output", "json", "--store", "s"),
        )
        return [(one["is_changed"], one["rows"]) for one in document(done)["history"]]

    u2 = [{"k": "u2", "at": 7, "v": 2}], [{"k": "u2", "at": 7, "v": 20}]
    assert marks("u2") == [(True, u2[0]), (True, u2[1])]
    assert [changed for changed, _ in marks("u1")] == [True, False]
    assert marks("nobody") == [(False, []), (False, [])]
    assert marks("u2", "late") == [(False, None), (True, u2[1])]
    text = run("get", "--history", "--key", "u2", "--state", "u/s", "--store", "s").stdout
    assert [line[0] for line in text.splitlines()[2:]] == ["*", "*"]
    assert "at 7, v 20" in text
    late = run("get", "--history", "--key", "u2", "--state", "u/late", "--store", "s").stdout
    assert "no such state, or a different key type" in late
    gone = run("get", "--history", "--key", "u2", "--state", "u/x", "--store", "s")
    assert (gone.exit_code, gone.stdout) == (10, "")


def test_null_is_shown_alike_everywhere(run: Run, tmp_path: Path) -> None:
    """``get`` of one state and of all, with ``--history``, ``query`` and ``diff --rows``."""
    nulls = StateStore.open(str(tmp_path / "n"), table_format="parquet")
    table = pa.table({"k": ["a", "b"], "v": pa.array([None, None], pa.int64()), "w": ["", "x"]})
    for rows in (1, 2):
        with nulls.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_keyed("u", "s", table[:rows], key="k", max_parallelism=4)
    state = ("--state", "u/s", "--store", "n")

    def last(*words: str) -> str:
        done = run(*words)
        assert (done.exit_code, done.stderr) == (0, "")
        return str(done.stdout.splitlines()[-1])

    assert last("get", "--key", "b", *state).split() == ["b", "null", "x"]
    assert last("get", "--key", "b", "--store", "n").endswith("k b, v null, w x")
    assert last("get", "--history", "--key", "b", *state).endswith("v null, w x")
    assert last("query", "SELECT * FROM s WHERE k = 'b'", "--store", "n").split()[-3:] == [
        *("b", "null", "x")
    ]
    joined = [
        line.split()
        for line in run("diff", "1", "2", "--rows", "all", *state).stdout.splitlines()[3:]
    ]
    # An empty value, a null, and nothing in the columns of a checkpoint without the row.
    assert joined == [["added", "b", "null", "x"], ["same", "a", "null", "null"]]


def test_an_older_checkpoint_is_changed_only_on_request(run: Run, store: StateStore) -> None:
    """The error names the option, and what would be undone."""
    verbs = {
        "edit": ("--state", "u/s", "--delete", "u1"),
        "rekey": ("--state", "u", "--max-parallelism", "7"),
    }
    for verb, options in verbs.items():
        newest = store.checkpoints()[-1]
        done = run(verb, "1", *options, "--store", "s")
        assert done.exit_code == 2
        assert f"up to checkpoint {newest}, because" in done.stderr
        assert "(--from-older)" in done.stderr
        assert store.checkpoints()[-1] == newest
        planned = run(verb, "1", *options, "--dry-run", "--store", "s")
        assert planned.exit_code == 0
        done = run(verb, "1", *options, "--from-older", "--store", "s")
        assert (done.exit_code, store.checkpoints()[-1]) == (0, newest + 1)
