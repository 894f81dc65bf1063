"""``statestore verify``, and the verification that ``restore`` prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statestore import StateStore
from statestore.cli.main import cli
from statestore.format.digest import digest_text
from tests.support.damage import change_unread_byte

pytestmark = pytest.mark.slow

Run = Callable[..., Result]


def a_file(store: Path) -> Path:
    """Return a data file of checkpoint 2."""
    entry = (
        StateStore.open(str(store)).checkpoint(2).manifest.keyed_entry("totals-by-shop", "totals")
    )
    return store / entry.table.path / entry.handles[0].path


def test_an_intact_checkpoint_exits_with_0(run: Run, fraud: Path) -> None:
    """I5: the output counts the bytes that were read."""
    for options, read in (([], "no data"), (["--deep"], "every byte and every row")):
        done = run("verify", *options, "--store", fraud)
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout.startswith(f"checkpoint 2 of {fraud}: intact\n")
        assert read in done.stdout
    done = run("verify", "all", "--store", fraud, "--output", "json")
    document = json.loads(done.stdout)
    assert (document["checkpoints"], document["is_intact"], document["deep"]) == (
        [1, 2],
        True,
        False,
    )
    assert (document["broken"], document["strays"]) == ([], [])


def test_a_damaged_file_is_named_with_its_owner(run: Run, damaged: Path) -> None:
    """I5: as text and as JSON, with exit code 13 and the error at the end."""
    file = a_file(damaged)
    change_unread_byte(file)
    assert run("verify", "--store", damaged).exit_code == 0
    done = run("verify", "--deep", "--store", damaged)
    assert done.exit_code == 13
    (line,) = (line for line in done.stdout.splitlines() if file.name in line)
    assert line.startswith("totals-by-shop  totals")
    assert "has changed since it was written" in line
    assert done.stderr.startswith(f"error: 1 file is broken in {damaged}, first operators/")

    done = run("verify", "2", "--deep", "--store", damaged, "--output", "json")
    assert done.exit_code == 13
    document = json.loads(done.stdout)
    (broken,) = document["broken"]
    assert not document["is_intact"]
    assert (damaged / broken["file"]) == file
    assert (broken["kind"], broken["checkpoint_id"]) == ("damaged-file", 2)
    assert (broken["operator"], broken["state"]) == ("totals-by-shop", "totals")
    assert broken["key_groups"]["first"] == broken["key_groups"]["last"]


def test_a_shared_file_is_reported_once(run: Run, tmp_path: Path) -> None:
    """I5: with all states that reference it. Its path has the key groups, and one field has the
    defect.
    """
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")
    rows = [{"k": f"k{i}", "v": i} for i in range(20)]
    for changed in (rows, rows[:1]):
        with store.snapshot(parallelism=1) as checkpoint:
            checkpoint.write_changes(
                "u", "s", changed, key="k", max_parallelism=4, layout="partitioned"
            )
    entry = store.checkpoint(1).manifest.keyed_entry("u", "s")
    for handle in entry.handles:
        change_unread_byte(tmp_path / "s" / entry.table.path / handle.path)
    done = run("verify", "all", "--deep", "--store", tmp_path / "s")
    files = len(entry.handles)
    assert f": {files} broken files\n" in done.stdout
    assert done.stdout.count("has changed since it was written") == files
    assert "1, 2" in done.stdout
    assert "key groups" not in done.stdout.partition("\n\n")[2]
    assert "SHA-256" not in done.stderr
    assert done.stderr.startswith(f"error: {files} files are broken in {store.url}, ")
    assert f"statestore --store {store.url} salvage 2" in done.stderr


def test_an_orphan_file_is_listed_and_is_not_damage(run: Run, damaged: Path) -> None:
    """I5: the exit code is 0."""
    file = a_file(damaged)
    stray = file.with_name("0000000003-00000-0000000000000000.parquet")
    stray.write_bytes(b"half a file")
    done = run("verify", "--deep", "--store", damaged)
    assert done.exit_code == 0
    told = "1 stray file that no manifest references; 'statestore gc' deletes old ones:"
    assert done.stdout.splitlines()[-2:] == [told, f"  {stray.relative_to(damaged).as_posix()}"]


def test_the_first_five_of_many_stray_files_are_shown(run: Run, damaged: Path) -> None:
    """JSON has all of them, also the files of a table that no checkpoint has."""
    folder = a_file(damaged).parent
    other = Path(str(folder).replace("totals-by-shop", "new"))
    other.mkdir(parents=True)
    files = [folder / f"00000000{n:02}-00000-{n:016x}.parquet" for n in range(11, 17)]
    files.append(other / "0000000017-00000-0000000000000017.parquet")
    for file in (*files, folder / "notes.txt"):
        file.write_bytes(b"half a file")
    names = sorted(file.relative_to(damaged).as_posix() for file in files)
    done = run("verify", "all", "--store", damaged)
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert lines[-7].startswith("7 stray files that no manifest references;")
    assert lines[-6:] == [*(f"  {name}" for name in names[:5]), "  and 2 more"]
    document = json.loads(run("verify", "all", "--store", damaged, "--output=json").stdout)
    assert document["strays"] == names
    one = json.loads(run("verify", "2", "--store", damaged, "--output=json").stdout)
    assert one["strays"] == [name for name in names if "/new/" not in name]


@pytest.mark.parametrize("damage", ["manifest", "store file"])
def test_damaged_documents_are_listed(run: Run, damaged: Path, damage: str) -> None:
    """I4: they are listed like any other damaged file."""
    name = "checkpoints/0000000002.json" if damage == "manifest" else "statestore.json"
    (damaged / name).write_bytes((damaged / name).read_bytes().replace(b"-", b"_", 1))
    done = run("verify", "--store", damaged)
    assert done.exit_code == 13
    assert any(line.strip().startswith(name) for line in done.stdout.splitlines())
    assert "is damaged" in done.stdout


def test_a_missing_checkpoint_is_not_found(run: Run, fraud: Path) -> None:
    assert run("verify", "7", "--store", fraud).exit_code == 10


def test_restore_can_verify(run: Run, damaged: Path) -> None:
    """I7: on request it finds a damaged byte that no reader uses, and it leaves no output."""
    file = a_file(damaged)
    change_unread_byte(file)
    assert run("restore", "--to", "plain", "--store", damaged).exit_code == 0
    done = run(
        "restore", "--to", "out", "--store", damaged, env={"STATESTORE_VERIFY_FILES": "true"}
    )
    assert done.exit_code == 13
    assert file.name in done.stderr
    assert list(Path("out").iterdir()) == []


def test_queries_can_verify(damaged: Path) -> None:
    """I7: also each statement of the shell."""
    change_unread_byte(a_file(damaged))
    sql = 'SELECT * FROM "totals-by-shop".totals'
    for verify, code in (("false", 0), ("true", 13)):
        variables = {"STATESTORE_VERIFY_FILES": verify, "STATESTORE_URI": str(damaged)}
        assert CliRunner().invoke(cli, ["query", sql], env=variables).exit_code == code
        assert CliRunner().invoke(cli, ["query"], input=sql, env=variables).exit_code == code


@pytest.mark.parametrize(
    "parallelism", [3, *(pytest.param(other, marks=pytest.mark.long) for other in (1, 7))]
)
def test_a_restore_prints_the_verification(run: Run, fraud: Path, parallelism: int) -> None:
    """I7: rows and digest of each subtask, per state, and that they equal the stored ones."""
    arguments = ("restore", "--parallelism", parallelism, "--store", fraud)
    document = json.loads(run(*arguments, "--to", "out", "--output", "json").stdout)
    states = document["exported"]["states"]
    manifest = StateStore.open(str(fraud)).checkpoint().manifest
    assert len(states) == len(manifest.entries)
    for state in states:
        stored, subtasks = state["proof"]["stored"], state["proof"]["subtasks"]
        entry = manifest.find(state["operator"], state["state"])
        assert (stored["rows"], len(subtasks)) == (entry.rows, parallelism)
        if entry in manifest.keyed:
            assert stored["digest"] == digest_text(entry.digest)
        if state["proof"]["copies"]:
            assert all(subtask == stored for subtask in subtasks)
            continue
        assert sum(subtask["rows"] for subtask in subtasks) == stored["rows"]
        total = sum(int(subtask["digest"], 16) for subtask in subtasks) % 2**64
        assert digest_text(total) == stored["digest"]
    text = run(*arguments, "--to", "again").stdout
    for state in states:
        part = text.partition(f"state {state['state']} of operator {state['operator']}\n")[2]
        lines = [line.split() for line in part.splitlines()[1 : parallelism + 3]]
        last = ["each" if state["proof"]["copies"] else "sum", *lines[-1][1:]]
        assert lines[-2:] == [last, ["stored", *lines[-1][1:]]]
        assert lines[-1][2] == state["proof"]["stored"]["digest"]
