"""A rekey that is interrupted or fails: which files stay, and how a later run continues."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statestore import StateStore
from statestore.errors import (
    CommitConflictError,
    CorruptionError,
    InvalidArgumentError,
    StorageError,
)
from statestore.maintenance import rekey as command
from statestore.maintenance import rekey_spill
from statestore.maintenance.derive import Draft
from statestore.parquet.writer import ParquetOptions
from statestore.rows.sorting import sorted_pieces
from tests.maintenance.test_rekey import data
from tests.support.stores import rows_in

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> StateStore:
    """A store with a small memory budget for a rekey.

    The file of 200 rows has more than 1 KiB, and rows take about four times the bytes of their
    file. A rekey therefore uses at least 5 ranges, and a run that ends before its fourth range
    leaves some work.
    """
    parquet = ParquetOptions(rekey_bytes=1024)
    url = str(tmp_path / "s")
    return StateStore.open(url, table_format="parquet", parquet=parquet, compaction=None)


def put(store: StateStore, rows: Rows) -> None:
    with store.snapshot(parallelism=2) as checkpoint:
        checkpoint.write_keyed("u", "s", rows, key="k", max_parallelism=8)
    [entry] = store.checkpoint().manifest.keyed
    assert len(rows) < 200 or entry.size_bytes > 1024


def plain(rows: Rows) -> list[str]:
    return sorted(repr((row["k"], row["v"])) for row in rows)


class Ended(BaseException):
    """An exception that ends the process and is not a StateStoreError."""


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Let a run end before it writes its n-th range; return the ranges that were written."""
    real = rekey_spill.write_range

    def set_to(left: int) -> list[int]:
        written: list[int] = []

        def ended(folder: Path, number: int, *rest: Any) -> Any:
            if len(written) == left:
                raise Ended
            written.append(number)
            return real(folder, number, *rest)

        monkeypatch.setattr(command, "write_range", ended)
        return written

    return set_to


def test_an_interrupted_run_continues(
    store: StateStore, tmp_path: Path, ending: Callable[[int], list[int]]
) -> None:
    rows = [{"k": f"k{i}", "v": i} for i in range(200)]
    put(store, rows)
    work, wanted = tmp_path / "work", {"max_parallelism": 40}
    seen: list[int] = []
    ends = 0
    for left in (0, 1, 2, 100):
        written = ending(left)
        try:
            done = store.maintenance.rekey("u", work=work, **wanted)  # type: ignore[arg-type]
        except Ended:
            ends += 1
            assert store.checkpoints() == (1,)
        seen += written
    assert ends == 3
    assert seen == sorted(set(seen))  # no range was written twice
    assert len(seen) > 4
    assert list(work.iterdir()) == []
    assert store.checkpoints() == (1, done.new_checkpoint_id)
    assert plain(rows_in(store)) == plain(rows)
    store.maintenance.gc(minimum_age="0")  # deletes the names of interrupted runs
    report = store.maintenance.verify("all", deep=True)
    assert (report.is_intact, report.strays) == (True, ())


def test_adopted_files_have_names_of_the_committing_run(
    store: StateStore, tmp_path: Path, ending: Callable[[int], list[int]]
) -> None:
    """A garbage collection, or the run that wrote them, may delete the old names at any time."""
    rows = [{"k": f"k{i}", "v": i} for i in range(200)]
    put(store, rows)
    before = data(store)
    ending(3)
    with pytest.raises(Ended):
        store.maintenance.rekey("u", max_parallelism=40, work=tmp_path / "work")
    left = data(store) - before
    assert left
    for path in Path(store.url).rglob("*.parquet"):
        os.utime(path, (0, 0))
    written = ending(100)
    store.maintenance.rekey("u", max_parallelism=40, work=tmp_path / "work")
    assert min(written) == 3
    named = [Path(h.path) for part in store.checkpoint().manifest.parts for h in part.handles]
    assert not left & {path.name for path in named}
    table = Path(store.url, store.checkpoint().manifest.keyed[0].table.path)
    assert min((table / path).stat().st_mtime for path in named) > time.time() - 3600
    for path in Path(store.url).rglob("*.parquet"):
        if path.name in left:
            path.unlink()
    assert store.maintenance.verify("latest", deep=True).is_intact
    assert plain(rows_in(store)) == plain(rows)


def test_a_second_run_learns_who_holds_the_folder(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, [{"k": 1, "v": 1}])
    real, work = rekey_spill.write_range, tmp_path / "work"
    told: list[str] = []

    def meanwhile(*given: Any) -> Any:
        with pytest.raises(InvalidArgumentError, match="another rekey is running") as raised:
            store.maintenance.rekey("u", max_parallelism=5, work=work)
        told.append(str(raised.value))
        return real(*given)

    monkeypatch.setattr(command, "write_range", meanwhile)
    done = store.maintenance.rekey("u", max_parallelism=5, work=work)
    assert all(f":{os.getpid()}" in text for text in told)
    assert told
    assert store.checkpoints() == (1, done.new_checkpoint_id)
    assert list(work.iterdir()) == []


def test_two_runs_without_a_lock_lose_nothing(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks of two hosts may not be visible to each other. The first run stalls and fails late."""
    rows = [{"k": f"k{i}", "v": i} for i in range(20)]
    put(store, rows)
    monkeypatch.setattr(rekey_spill, "_lock", lambda path, held: path.touch())
    work, other = tmp_path / "work", StateStore.open(store.url, table_format="parquet")
    runs: list[int] = []

    carry_rest = Draft.carry_rest

    def stalls(draft: Draft) -> None:
        runs.append(1)
        if len(runs) == 1:  # all files of the first run are written
            other.maintenance.rekey("u", max_parallelism=5, work=work)
        carry_rest(draft)

    monkeypatch.setattr(Draft, "carry_rest", stalls)
    with pytest.raises(CommitConflictError):
        store.maintenance.rekey("u", max_parallelism=5, work=work)
    assert store.checkpoints() == (1, 2)
    assert store.maintenance.verify("latest", deep=True).is_intact
    assert plain(rows_in(store)) == plain(rows)


KILLED = """
import os, signal, sys
from pathlib import Path
from statestore import StateStore
from statestore.maintenance import rekey
rekey.write_range = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
store = StateStore.open(sys.argv[1], table_format="parquet")
store.maintenance.rekey("u", max_parallelism=5, work=Path(sys.argv[2]))
"""


@pytest.mark.long
def test_the_folder_of_a_killed_run_is_available(store: StateStore, tmp_path: Path) -> None:
    put(store, [{"k": 1, "v": 1}])
    work = tmp_path / "work"
    words = [sys.executable, "-c", KILLED, store.url, str(work)]
    assert subprocess.run(words, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert (work / "rekey.lock").exists()
    again = StateStore.open(store.url, table_format="parquet", compaction=None)
    again.maintenance.rekey("u", max_parallelism=5, work=work)
    assert list(work.iterdir()) == []
    assert plain(rows_in(store)) == plain([{"k": 1, "v": 1}])


def test_a_deleted_lock_file_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The previous run can end after this run opens the lock file and before it locks the file."""
    real, path = fcntl.flock, tmp_path / "rekey.lock"
    ended: list[int] = []

    def late(file: Any, how: int) -> None:
        if not ended:
            ended.append(1)
            path.unlink()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with ExitStack() as held, ExitStack() as other:
        rekey_spill._lock(path, held)
        with pytest.raises(InvalidArgumentError, match="another rekey is running"):
            rekey_spill._lock(path, other)


def test_a_file_system_without_locks_is_refused(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, [{"k": 1, "v": 1}])

    def unknown(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unknown)
    with pytest.raises(StorageError, match="a file system that supports locks"):
        store.maintenance.rekey("u", max_parallelism=5, work=tmp_path / "work")
    assert store.checkpoints() == (1,)


@pytest.mark.parametrize("name", ["rekey.json", "0/spread.json", "0/00001.arrow"])
def test_a_file_truncated_by_a_power_failure_is_named(
    store: StateStore, tmp_path: Path, ending: Callable[[int], list[int]], name: str
) -> None:
    put(store, [{"k": 1, "v": 1}])
    work = tmp_path / "work"
    ending(0)
    with pytest.raises(Ended):
        store.maintenance.rekey("u", max_parallelism=5, work=work)
    (work / name).write_bytes((work / name).read_bytes()[:9])
    ending(9)
    with pytest.raises(CorruptionError, match=f"{name} is incomplete.*empty working"):
        store.maintenance.rekey("u", max_parallelism=5, work=work)
    assert store.checkpoints() == (1,)


def test_a_deleted_folder_is_a_typed_error(
    store: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, [{"k": 1, "v": 1}])
    real, work = rekey_spill.write_range, tmp_path / "work"

    def without(*given: Any) -> Any:
        shutil.rmtree(work)
        return real(*given)

    monkeypatch.setattr(command, "write_range", without)
    with pytest.raises(StorageError, match="cannot use the working folder"):
        store.maintenance.rekey("u", max_parallelism=5, work=work)
    assert store.checkpoints() == (1,)


def test_files_that_were_collected_meanwhile_are_rewritten(
    store: StateStore, tmp_path: Path, ending: Callable[[int], list[int]]
) -> None:
    rows = [{"k": f"k{i}", "v": i} for i in range(200)]
    put(store, rows)
    ending(3)
    with pytest.raises(Ended):
        store.maintenance.rekey("u", max_parallelism=40, work=tmp_path / "work")
    store.maintenance.gc(minimum_age="0")
    ending(100)
    store.maintenance.rekey("u", max_parallelism=40, work=tmp_path / "work")
    assert plain(rows_in(store)) == plain(rows)
    assert store.maintenance.verify("latest", deep=True).is_intact


def test_without_a_working_folder_an_interrupted_run_leaves_no_file(
    store: StateStore, ending: Callable[[int], list[int]]
) -> None:
    put(store, [{"k": f"k{i}", "v": i} for i in range(200)])
    files = data(store)
    ending(3)
    with pytest.raises(Ended):
        store.maintenance.rekey("u", max_parallelism=40)
    assert data(store) == files


def test_a_working_folder_belongs_to_one_run(
    store: StateStore, tmp_path: Path, ending: Callable[[int], list[int]]
) -> None:
    put(store, [{"k": 1, "v": 1}])
    work = tmp_path / "work"
    ending(0)
    with pytest.raises(Ended):
        store.maintenance.rekey("u", max_parallelism=40, work=work)
    with pytest.raises(InvalidArgumentError, match="working folder of another rekey"):
        store.maintenance.rekey("u", max_parallelism=41, work=work)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    with pytest.raises(InvalidArgumentError, match="is not empty"):
        store.maintenance.rekey("u", max_parallelism=41, work=tmp_path / "mine")
    assert (tmp_path / "mine" / "notes").read_text() == "mine"


def test_rows_that_differ_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = StateStore.open(str(tmp_path / "s"), table_format="parquet")  # in one range
    put(store, [{"k": i, "v": i} for i in range(50)])
    files = data(store)
    real = sorted_pieces

    def losing(*arguments: Any) -> Iterator[pa.Table]:
        return (piece.slice(1) for piece in real(*arguments))

    monkeypatch.setattr(rekey_spill, "sorted_pieces", losing)
    with pytest.raises(CorruptionError, match=r"50 rows with digest .*, then 49 rows with digest"):
        store.maintenance.rekey("u", max_parallelism=5)
    assert (store.checkpoints(), data(store)) == ((1,), files)


def test_a_replaced_writer_commits_nothing(
    store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, [{"k": 1, "v": 1}])
    real = rekey_spill.write_range

    def meanwhile(*given: Any) -> Any:
        put(StateStore.open(store.url, table_format="parquet", compaction=None), [{"k": 2, "v": 2}])
        return real(*given)

    monkeypatch.setattr(command, "write_range", meanwhile)
    with pytest.raises(CommitConflictError):
        store.maintenance.rekey("u", max_parallelism=5)
    assert [row["k"] for row in rows_in(store)] == [2]
    assert store.maintenance.verify("all").strays == ()
