"""Real jobs that fail for a real reason, are repaired during the wait, and recover."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import jobs.job
from jobs import redistribute_offsets, restore, snapshot
from statestore import StateStore
from statestore.catalog.catalog import Catalog
from statestore.errors import StorageError
from statestore.restarts import RestartClock
from tests.jobs.conftest import RunJob
from tests.syntax import ROOT

pytestmark = pytest.mark.spark

RESTARTS = """
[restart-strategy]
type = "fixed-delay"
fixed-delay.attempts = 2
fixed-delay.delay = "100 ms"
"""
SNAPSHOT = (
    """parallelism = 4
others = "carry"
[[keyed]]
operator = "totals-by-user"
state = "totals"
key = ["user_id"]
max_parallelism = 8
source = {format = "parquet", path = "{here}/rows"}
"""
    + RESTARTS
)
RESTORE = (
    """parallelism = 4
[[keyed]]
operator = "totals-by-user"
state = "totals"
sink = {format = "parquet", path = "{here}/totals"}
[[operator_state]]
operator = "orders-source"
state = "offsets"
sink = {format = "json", path = "{here}/sinks/offsets"}
"""
    + RESTARTS
)
OFFSETS = (
    """parallelism = 4
[offsets]
operator = "orders-source"
state = "offsets"
"""
    + RESTARTS
)

WhileItWaits = Callable[..., None]


@pytest.fixture
def while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WhileItWaits:
    """Start a thread that repairs something while the job waits for its second attempt, and changes
    the parallelism in its settings file. The job's own wait is real and does not end before the
    repair.
    """
    waits, repaired = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        waits.set()
        assert repaired.wait(300)
        time.sleep(seconds)

    def start(repair: Callable[[], object], parallelism: int = 4) -> None:
        def run() -> None:
            if waits.wait(300):
                repair()
                file = tmp_path / "settings.toml"
                text = file.read_text(encoding="utf-8")
                changed = file.with_suffix(".new")
                changed.write_text(text.replace("parallelism = 4", f"parallelism = {parallelism}"))
                changed.replace(file)
                repaired.set()

        threading.Thread(target=run, daemon=True).start()

    monkeypatch.setattr(jobs.job, "RestartClock", lambda: RestartClock(sleep=sleep))
    return start


def take(here: Path, users: int, parallelism: int = 2) -> StateStore:
    """Commit a checkpoint like another process."""
    store = StateStore.open(str(here / "store"), table_format="parquet")
    rows = [{"user_id": user, "total": user * users} for user in range(users)]
    with store.snapshot(parallelism=parallelism) as checkpoint:
        checkpoint.write_keyed("totals-by-user", "totals", rows, key="user_id", max_parallelism=8)
        elements = [{"topic": "t", "partition": i, "offset": users + i} for i in range(4)]
        checkpoint.write_split("orders-source", "offsets", [elements[:2], elements[2:]])
    return store


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Path:
    spark.range(20).selectExpr("id AS user_id", "id * 10 AS total").coalesce(1).write.parquet(
        str(tmp_path / "rows")
    )
    return tmp_path / "rows"


def failure(err: str) -> str:
    """Return the reason why attempt 1 failed, from stderr, which also contains Spark's log."""
    said = re.search(
        r"^attempt 1 failed: (.*)\nattempt 2 begins in 100 ms: "
        r"the job then reads the settings file again",
        err,
        re.MULTILINE,
    )
    assert said is not None
    return said[1]


# --- Snapshot -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("rows")
def test_a_snapshot_recovers_at_another_parallelism_after_the_store_is_writable(
    run_job: RunJob, while_it_waits: WhileItWaits, tmp_path: Path
) -> None:
    store = take(tmp_path, users=3)
    operators = tmp_path / "store" / "operators"
    operators.rename(tmp_path / "moved")
    operators.write_text("in the way")

    def repair() -> None:
        operators.unlink()
        (tmp_path / "moved").rename(operators)

    while_it_waits(repair, parallelism=3)
    done = run_job(snapshot.snapshot, SNAPSHOT, "--output", "json")
    assert failure(done.err).startswith("StorageError: cannot write ")
    report = done.report
    assert (done.code, report["checkpoint"], report["parallelism"]) == (0, 2, 3)
    assert (report["attempts"], report["rows"], report["already_committed"]) == (2, 24, False)
    assert store.checkpoints() == (1, 2)
    assert store.checkpoint().manifest.parallelism == 3
    state = store.restore(parallelism=1).keyed("totals-by-user", "totals")
    totals = state.to_arrow(0).column("total").to_pylist()
    assert sorted(totals) == [user * 10 for user in range(20)]


def test_a_snapshot_recovers_after_its_source_is_readable(
    rows: Path, run_job: RunJob, while_it_waits: WhileItWaits, tmp_path: Path
) -> None:
    (file,) = rows.glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])
    file.with_name(f".{file.name}.crc").unlink()
    while_it_waits(lambda: file.write_bytes(whole), parallelism=2)
    done = run_job(snapshot.snapshot, SNAPSHOT, "--output", "json")
    assert f"{file.name} is not a Parquet file" in failure(done.err)
    assert (done.code, done.report["attempts"], done.report["parallelism"]) == (0, 2, 2)
    manifest = StateStore.open(str(tmp_path / "store")).checkpoint().manifest
    assert (manifest.checkpoint_id, manifest.parallelism, manifest.rows) == (1, 2, 20)


@pytest.mark.usefixtures("rows")
def test_a_commit_whose_response_is_lost_is_not_repeated(
    run_job: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, lost = Catalog.commit, [True]

    def commit_and_lose_the_answer(self: Catalog, manifest: Any) -> None:
        commit(self, manifest)
        if lost.pop():
            raise StorageError("no answer")

    monkeypatch.setattr(Catalog, "commit", commit_and_lose_the_answer)
    done = run_job(snapshot.snapshot, SNAPSHOT, "--output", "json")
    assert failure(done.err) == "StorageError: no answer"
    assert (done.code, done.report["checkpoint"], done.report["attempts"]) == (0, 1, 2)
    assert done.report["already_committed"] is True
    assert StateStore.open(str(tmp_path / "store")).checkpoints() == (1,)


@pytest.mark.usefixtures("rows")
def test_a_retry_does_not_mistake_another_writers_checkpoint_for_its_own(
    run_job: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, failures = Catalog.commit, [True]

    def fail_while_another_commits(self: Catalog, manifest: Any) -> None:
        if failures and failures.pop():
            monkeypatch.setattr(Catalog, "commit", commit)
            take(tmp_path, users=3)
            raise StorageError("no answer")

    monkeypatch.setattr(Catalog, "commit", fail_while_another_commits)
    done = run_job(snapshot.snapshot, SNAPSHOT, "--output", "json")
    assert failure(done.err) == "StorageError: no answer"
    assert "attempt 2 failed: CommitConflictError: checkpoint 1 of " in done.err
    assert "was taking, was meanwhile committed by writer " in done.err
    assert (done.code, done.report["checkpoint"], done.report["attempts"]) == (0, 2, 3)
    store = StateStore.open(str(tmp_path / "store"))
    assert [store.checkpoint(number).manifest.rows for number in store.checkpoints()] == [7, 24]


@pytest.mark.usefixtures("rows")
def test_a_writer_that_lost_the_race_takes_the_next_number(
    run_job: RunJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Catalog.commit

    def let_another_be_first(self: Catalog, manifest: Any) -> None:
        monkeypatch.setattr(Catalog, "commit", commit)
        take(tmp_path, users=3)
        commit(self, manifest)

    monkeypatch.setattr(Catalog, "commit", let_another_be_first)
    done = run_job(snapshot.snapshot, SNAPSHOT, "--output", "json")
    assert failure(done.err).startswith("CommitConflictError: checkpoint 1 of ")
    assert (done.code, done.report["checkpoint"], done.report["attempts"]) == (0, 2, 2)


END_SPARK = """
import os, signal, sys
from jobs.frames import Source
from jobs.snapshot import snapshot

known = {
    "killed": lambda spark: os.kill(
        spark._jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL
    ),
    "stopped": lambda spark: spark._jsc.sc().stop(),
}
ends = [known[sys.argv.pop(1)]]
read = Source.read

def read_after_the_end(source, spark):
    if ends:
        ends.pop()(spark)
    return read(source, spark)

Source.read = read_after_the_end
snapshot()
"""


@pytest.mark.long_cases("killed")
@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("end", ["killed", pytest.param("stopped", marks=pytest.mark.long)])
def test_a_stopped_spark_is_started_again(tmp_path: Path, end: str) -> None:
    """It is killed with its JVM in the first attempt, or stopped from inside."""
    (tmp_path / "f.toml").write_text(SNAPSHOT.replace("{here}", str(tmp_path)))
    command = [sys.executable, "-c", END_SPARK, end, str(tmp_path / "f.toml")]
    local = ("--set", "spark.master='local[1]'", "--set", "parallelism=2", "--output", "json")
    store = ("--store", str(tmp_path / "store"))
    done = subprocess.run(
        [*command, *local, *store],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["attempts"], report["checkpoint"], report["rows"]) == (2, 1, 20)


# --- Restore --------------------------------------------------------------------------------------


def users_of(folder: Path) -> dict[str, int]:
    """Return the rows in each directory that a sink has."""
    import pyarrow.parquet as pq

    found: dict[str, int] = {}
    for file in folder.rglob("*.parquet"):
        found[file.parent.name] = found.get(file.parent.name, 0) + pq.read_metadata(file).num_rows
    return found


@pytest.mark.usefixtures("spark")
def test_a_restore_recovers_from_the_newest_checkpoint_after_its_sink_failed(
    run_job: RunJob, while_it_waits: WhileItWaits, tmp_path: Path
) -> None:
    store = take(tmp_path, users=30)
    (tmp_path / "sinks").write_text("in the way")

    def repair() -> None:
        assert len(users_of(tmp_path / "totals")) == 4  # the first sink is already written
        (tmp_path / "sinks").unlink()
        take(tmp_path, users=50)

    while_it_waits(repair, parallelism=3)
    done = run_job(restore.restore, RESTORE, "--output", "json")
    assert failure(done.err)
    assert (done.code, done.report["attempts"], done.report["checkpoint"]) == (0, 2, 2)
    assert done.report["parallelism"] == 3
    # With mode error, the second attempt replaces the first one's output, and none of its four
    # subtasks' files remain.
    found = users_of(tmp_path / "totals")
    state = store.restore(parallelism=3).keyed("totals-by-user", "totals")
    counts = [state.to_arrow(subtask).num_rows for subtask in range(3)]
    assert found == {f"subtask={subtask}": rows for subtask, rows in enumerate(counts)}
    assert sum(counts) == 50
    lines = [p.read_text() for p in (tmp_path / "sinks" / "offsets").rglob("*.json")]
    assert sum(text.count('"offset":5') for text in lines) == 4


@pytest.mark.usefixtures("spark")
def test_a_foreign_file_at_the_sinks_location_is_kept(
    run_job: RunJob, while_it_waits: WhileItWaits, tmp_path: Path
) -> None:
    take(tmp_path, users=3)
    (tmp_path / "sinks").write_text("in the way")
    precious = tmp_path / "sinks" / "offsets" / "precious"

    def repair() -> None:
        (tmp_path / "sinks").unlink()
        precious.parent.mkdir(parents=True)
        precious.write_text("1")

    while_it_waits(repair)
    done = run_job(restore.restore, RESTORE)
    assert (done.code, done.out) == (2, "")
    assert f"{precious.parent} already exists; choose another path" in done.err
    assert precious.read_text() == "1"


@pytest.mark.usefixtures("spark")
def test_a_damaged_file_found_by_a_spark_worker_ends_the_job(
    run_job: RunJob, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    take(tmp_path, users=3)
    for file in (tmp_path / "store" / "operators" / "totals-by-user").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(Exception, match="MissingFileError"):
        run_job(restore.restore, RESTORE)
    assert re.search(r"^attempt \d", capfd.readouterr().err, re.MULTILINE) is None


# --- Redistribute offsets -------------------------------------------------------------------------


def test_offsets_recover_after_the_store_is_readable(
    run_job: RunJob, while_it_waits: WhileItWaits, tmp_path: Path
) -> None:
    take(tmp_path, users=3)
    marker = tmp_path / "store" / "statestore.json"
    marker.rename(tmp_path / "moved")
    marker.mkdir()

    def repair() -> None:
        marker.rmdir()
        shutil.move(tmp_path / "moved", marker)
        take(tmp_path, users=100)

    while_it_waits(repair, parallelism=2)
    done = run_job(redistribute_offsets.redistribute_offsets, OFFSETS, "--output", "json")
    assert failure(done.err).startswith("StorageError: cannot read ")
    assert (done.code, done.report["attempts"], done.report["parallelism"]) == (0, 2, 2)
    assert done.report["checkpoint"] == 2
    offsets = [[each["offset"] for each in one["offsets"]] for one in done.report["subtasks"]]
    assert offsets == [[100, 101], [102, 103]]


def test_a_missing_store_ends_the_job_immediately(run_job: RunJob) -> None:
    done = run_job(redistribute_offsets.redistribute_offsets, OFFSETS)
    assert (done.code, done.err.count("\n")) == (10, 1)
