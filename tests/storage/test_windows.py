"""A local store works on a system like Windows, which tests/support/like_windows.py imitates.

No test runs on Windows itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from statestore.storage import local

ROOT = Path(__file__).parents[2]
LIKE_WINDOWS = """
from tests.support.like_windows import be_like_windows
be_like_windows()
"""
WITHOUT_LOCKS = """
import sys
sys.modules["fcntl"] = sys.modules["msvcrt"] = None
"""
STORE = """
import pyarrow as pa
from pathlib import Path
from statestore import Changes, ParquetOptions, StateStore
from statestore.cli.main import main

count = 20_000
rows = pa.table({"k": [f"{i * 7919 % count:09}" for i in range(count)], "v": ["x" * 90] * count})
options = ParquetOptions(memory_bytes=2**20)  # so that a sort needs a temporary folder
for form in ("delta", "parquet"):
    store = StateStore.open(f"{form}/s", table_format=form, parquet=options)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("op", "st", rows.to_reader(1000), key="k", max_parallelism=2)
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_changes("op", "st", Changes(upserts=[{"k": "new", "v": "y"}]))
    again = StateStore.open(f"{form}/s")
    assert again.restore(parallelism=1).keyed("op", "st").to_arrow().num_rows == count + 1
    assert again.checkpoints() == (1, 2)
    Path("t.csv").write_bytes(b"k,v\\r\\na,1\\r\\n")
    state = ("--state", "op/st")
    for words in (
        ("list",),
        ("verify", "--deep"),
        ("get", *state, "--key", "new"),
        ("query", "SELECT count(*) FROM st", "--to", f"{form}/count.csv"),
        ("bootstrap", "t.csv", "--state", "o/t", "--key-column", "k"),
        ("edit", *state, "--sql", "SELECT k, 'z' AS v FROM state WHERE k > '1'"),
        ("restore", "--to", f"{form}/out"),
        ("rekey", "--state", "op", "--max-parallelism", "16", "--work", f"{form}/work"),
        ("copy", f"{form}/copy"),
        ("expire", "--retain", "1"),
        ("gc",),
    ):
        assert main([*words, "--store", f"{form}/s"]) == 0, words
    assert Path(form, "count.csv").read_text().splitlines()[1] == str(count + 1)
    assert [*Path(form, "out").rglob("*.parquet")]
"""
HOLDER = """
from statestore.restore.row_files import publish_folder
from statestore.storage.locks import temporary_folder
from pathlib import Path
with temporary_folder("sort") as folder, publish_folder(Path("out")):
    (folder / "0.arrow").write_text("rows")
    print(folder, flush=True)
    input()
"""
SECOND = """
from statestore.errors import InvalidArgumentError
from statestore.restore.row_files import publish_folder
from statestore.storage.locks import temporary_folder
from pathlib import Path
with temporary_folder("sort"):
    try:
        with publish_folder(Path("out")):
            print("free")
    except InvalidArgumentError as error:
        print(error)
"""


def start(code: str, folder: Path) -> subprocess.Popen[str]:
    temporary = folder / "temporary"
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("system", [LIKE_WINDOWS, WITHOUT_LOCKS], ids=["Windows", "no locks"])
def test_a_store_is_written_restored_listed_and_changed(system: str, tmp_path: Path) -> None:
    process = start(system + STORE, tmp_path)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert [*(tmp_path / "temporary").iterdir()] == []


@pytest.mark.slow
def test_processes_lock_folders_by_files(tmp_path: Path) -> None:
    """The file with the lock is deleted with the folder, also by the process after a kill."""
    first = start(LIKE_WINDOWS + HOLDER, tmp_path)
    assert first.stdout is not None
    used = Path(first.stdout.readline().strip())
    second, _ = start(LIKE_WINDOWS + SECOND, tmp_path).communicate()
    assert second == "another process is writing to out; choose another directory\n"
    assert (used / "0.arrow").exists()
    first.kill()
    first.communicate()
    third, _ = start(LIKE_WINDOWS + SECOND, tmp_path).communicate()
    assert third == "free\n"
    assert [*(tmp_path / "temporary").iterdir()] == []
    assert {path.name for path in tmp_path.iterdir()} == {"out", "temporary"}


@pytest.mark.parametrize("name", ["operators/a./keyed", "operators/con/keyed", "operators/Nul.x"])
def test_names_that_windows_changes_are_recognized(name: str) -> None:
    assert local._NOT_ON_WINDOWS.search(name.lower())
    assert not local._NOT_ON_WINDOWS.search("operators/a.b/keyed/console/0.parquet")
