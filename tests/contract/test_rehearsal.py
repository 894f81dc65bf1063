"""A new version of a job runs on a copy of its state, and what it computes is compared by key."""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from statestore import StateStore
from tests.contract.rehearsed_job import USERS, Job

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_DAC_OVERRIDE, _DROP_CAPABILITY = 1, 24


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    """A job that has run for three micro-batches, and has events for two more."""
    job = Job(spark, tmp_path)
    job.add(3)
    job.run(job.version("old"))
    job.add(2)
    return job


def changes(document: Any) -> dict[str, tuple[int, int, int]]:
    """Return the rows that were added, removed and changed, of the states with differences."""
    return {
        state["state"]: (state["added"], state["removed"], state["changed"])
        for state in document["difference"]["states"]
        if state["differs"]
    }


def test_versions_that_compute_the_same_are_equal(job: Job) -> None:
    """Nothing of the job changes: not a byte, not a name, not a time."""
    before = job.tree()
    new = job.version("new", "rows = rows.select('total', 'user', 'n')")
    document = job.document(new, "--old", job.version("old"))
    assert changes(document) == {}
    assert (document["batches"], document["output_unknown"]) == ([3, 4], None)
    compared = {state["state"] for state in document["difference"]["states"]}
    assert compared >= {"per-user", "progress", "positions", "rows"}
    assert job.tree() == before
    fork = job.folder / "rehearsal" / "new" / "store"
    shared = {status[0] for path, status in before.items() if path.endswith(".parquet")}
    assert shared & {path.stat().st_ino for path in fork.rglob("*.parquet")}


def test_keys_that_differ_and_keys_of_one_version_are_told(job: Job) -> None:
    change = (
        "rows = rows.where(\"user <> 'u1'\").withColumn('n', F.expr(\"IF(user = 'u2', -n, n)\"))"
        ".unionByName(rows.where(\"user = 'u3'\").withColumn('user', F.lit('x')))"
    )
    words = (job.version("new", change), "--old", job.version("old"))
    document = job.document(*words, status=1)
    assert changes(document)["per-user"] == (1, 0, 2)  # u1 is stored, and not updated any more
    states = {state["state"]: state for state in document["difference"]["states"]}
    shown = {(e["change"], e["identity"]["user"]) for e in states["per-user"]["examples"]}
    assert shown == {("changed", "u1"), ("changed", "u2"), ("added", "x")}
    output = states["rows"]
    assert (output["added"], output["removed"], output["changed"]) == (2, 2, 2)
    assert (output["sort"], output["rows_a"]) == ("output", 2 * USERS)
    done = job.rehearse(*words, "--where", "user = 'u5'", "--state", "totals/per-user")
    assert done.exit_code == 0, done.output
    assert "not compared: only some states are compared" in done.output
    report = job.folder / "report.html"
    done = job.rehearse(*words, "--page", str(report))
    assert done.exit_code == 1
    assert "they differ" in done.output
    html = report.read_text()
    for text in ("Rehearsal of a new version", "micro-batches 3 to 4", "output.rows", "u2"):
        assert text in html


def test_small_and_ignored_differences_do_not_count(job: Job) -> None:
    change = "rows = rows.withColumn('total', F.col('total') + 1e-12).withColumn('n', -F.col('n'))"
    words = (job.version("new", change), "--old", job.version("old"))
    assert changes(job.document(*words, "--ignore", "n", status=1))["per-user"] == (0, 0, USERS)
    assert changes(job.document(*words, "--ignore", "n", "--tolerance", "total=1e-9")) == {}
    for option, problem in (
        (("--ignore", "m"), "no compared state has a column 'm'"),
        (("--tolerance", "user=1"), "'user' identifies the rows"),
        (("--tolerance", "total=much"), "--tolerance total=much: not a number"),
        (("--where", "m > 1", "--state", "totals/per-user"), "cannot evaluate 'm > 1'"),
    ):
        done = job.rehearse(*words, *option)
        assert done.exit_code == 2
        assert problem in done.stderr


def test_the_new_version_is_compared_with_the_job_itself(job: Job) -> None:
    job.run(job.version("old"))
    new = job.version("new")
    document = job.document(new, "3")
    assert changes(document) == {}
    assert document["batches"] == [3, 4]
    assert "pass --old" in document["output_unknown"]
    changed = job.version("new", "rows = rows.withColumn('n', F.col('n') * 2)")
    assert changes(job.document(changed, "3", status=1))["per-user"] == (0, 0, USERS)
    words = (job.version("new"), "3", "--old", job.version("old"), "--against", "4")
    document = job.document(*words, to="both")
    assert changes(document) == {}
    assert (document["batches"], document["output_unknown"]) == ([3, 3], None)
    done = job.rehearse(new, "latest", to="other")
    assert done.exit_code == 2
    assert "no micro-batch follows 4: name an earlier CHECKPOINT" in done.stderr


def test_both_versions_run_up_to_the_given_offsets(job: Job) -> None:
    """A source of numbers has 3 events a second; one micro-batch has those of 4 seconds."""
    rate = (
        "rows = spark.readStream.format('rate').option('rowsPerSecond', 3).load(); return query, "
        "rows.selectExpr(\"concat('u', value % 9) AS user\", 'value / 8.0D AS total')"
    )
    job = Job(job.spark, job.folder / "rate")
    (job.folder / "job" / "in").mkdir(parents=True)
    old = job.version("old", source=rate)
    job.run(old)
    *_, end = (job.folder / "job" / "progress" / "offsets" / "0").read_text().split("\n")
    words = (old, "--old", old, "--until", f"0={int(end) + 4}")
    document = job.document(*words)
    assert (changes(document), document["batches"]) == ({}, [1, 1])
    assert document["plan"]["old"].endswith(f", until 0={int(end) + 4}")
    store = StateStore.open(str(job.folder / "rehearsal" / "new" / "store"))
    rows = store.restore(parallelism=1).keyed("totals", "per-user").to_arrow().to_pylist()
    assert sum(row["n"] for row in rows) == 3 * (int(end) + 4)
    for until, problem in (
        ("0=-1", "is before"),
        ("0=x", "is not an offset in Spark's JSON"),
        ('0={"topic":{"0":1}}', "it is not of the form"),
        ("1=3", "the query has no such source, but 0"),
    ):
        done = job.rehearse(*words[:-1], until, to="other")
        assert done.exit_code == 2
        assert problem in done.stderr
        job.document("--discard", to="other")


def test_a_version_that_fails_continues_when_it_is_mended(job: Job) -> None:
    """The old version does not run again, and a limit of micro-batches holds for both."""
    job.add(3)
    old = job.version("old")
    failing = job.version("new", "if batch.number > 4: raise ValueError('no such rate')")
    words = ("--old", old, "--batches", "3")
    done = job.rehearse(failing, *words)
    assert done.exit_code == 2
    assert "the new version failed: " in done.stderr
    assert "no such rate" in done.stderr
    ran = (job.folder / "rehearsal" / "old" / "done").stat().st_mtime_ns
    document = job.document(job.version("new"), *words)
    assert (changes(document), document["batches"]) == ({}, [3, 5])
    assert (job.folder / "rehearsal" / "old" / "done").stat().st_mtime_ns == ran
    done = job.rehearse(job.version("new"), "--old", old)
    assert done.exit_code == 2
    assert "has another rehearsal: batches 3, not None" in done.stderr


def test_the_new_state_becomes_the_next_checkpoint(job: Job) -> None:
    new = job.version("new", "rows = rows.withColumn('n', F.col('n') + 100)")
    job.rehearse(new, "--old", job.version("old"))
    kept = job.store.checkpoint().manifest
    for found in (False, True):
        promoted = job.document("--promote")
        assert (promoted["new_checkpoint_id"], promoted["found"]) == (4, found)
    assert promoted["output_files"] == 2
    assert kept == job.store.checkpoint(3).manifest
    rows = job.store.restore(parallelism=1).keyed("totals", "per-user").to_arrow(0).to_pylist()
    assert {row["n"] > 200 for row in rows} == {True}
    shutil.rmtree(job.folder / "job" / "progress")
    shutil.copytree(promoted["location"], job.folder / "job" / "progress")
    job.document("--discard")
    assert not (job.folder / "rehearsal").exists()
    job.add()
    job.run(new)
    assert job.store.checkpoints() == (1, 2, 3, 4, 5)
    assert job.store.maintenance.verify("all", deep=True).is_intact


def test_a_job_that_has_moved_keeps_its_state(job: Job) -> None:
    old = job.version("old")
    job.rehearse(job.version("new"), "--old", old)
    job.run(old)
    before = job.tree()
    done = job.rehearse("--promote")
    assert done.exit_code == 2
    assert "its newest checkpoint is 5, and the rehearsal began with 3" in done.stderr
    assert job.tree() == before


def test_what_cannot_be_rehearsed_is_refused(job: Job) -> None:
    old = job.version("old")
    archive = job.version("new", source="events = events.option('cleanSource', 'delete')")
    kafka = "return query, spark.readStream.format('rate').option('kafka.group.id', 'g').load()"
    group = job.version("group", source=kafka)
    (job.folder / "full").mkdir()
    (job.folder / "full" / "file").touch()
    (job.folder / "wrong.py").write_text("def build(spark):\n    return 3\n")
    for words, to, problem in (
        ((archive, "--old", old), "r", "cleanSource=delete, by which it removes the files"),
        ((group, "--old", old), "r", "kafka.group.id=g, by which its readers join"),
        ((old, "--old", old), "full", "full is not empty and has no rehearsal"),
        ((old, "--old", old), "job/store/r", "is inside the store"),
        ((old, "--old", old), "job/progress/r", "is inside the location"),
        ((f"{job.folder / 'wrong.py'}:build", "--old", old), "r", "not int"),
        (
            (old, "--old", old, "--page", old.removesuffix(":build")),
            "r",
            "job.py exists; remove it",
        ),
        ((old,), "r", "pass --old to run the old version, too"),
        ((old, "3", "--batches", "1"), "r", "remove --batches"),
        ((old, "3", "--until", "0=1"), "r", "remove --until"),
        ((old, "--old", old, "--until", "0=1", "--batches", "1"), "r", "remove --batches"),
        (("--promote",), "r", "r has no rehearsal"),
        (("--discard",), "job", "job has no rehearsal"),
    ):
        done = job.rehearse(*words, to=to)
        assert done.exit_code == 2, done.output
        assert problem in done.stderr
        assert not (job.folder / "r").exists()


COMMAND = "import sys; from statestore.cli.main import main; sys.exit(main(sys.argv[1:]))"


def in_process(job: Job, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    place = ("--to", str(job.folder / "rehearsal"), "--store", str(job.folder / "job" / "store"))
    location = ("--location", str(job.folder / "job" / "progress"))
    command = [sys.executable, "-c", COMMAND, "rehearse", *words, *location, *place]
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


@pytest.mark.long
def test_a_job_that_is_read_only_can_be_rehearsed(job: Job) -> None:
    """Not even root can write there, in Python or in the JVM, without the right to override."""
    for path in [job.folder / "job", *(job.folder / "job").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = job.tree()
    try:
        done = in_process(
            job,
            *(job.version("new"), "--old", job.version("old")),
            preexec_fn=lambda: ctypes.CDLL(None).prctl(_DROP_CAPABILITY, _DAC_OVERRIDE),
        )
        assert done.returncode == 0, done.stderr
        assert "they are the same" in done.stdout
        assert job.tree() == before
    finally:
        for path in [job.folder / "job", *(job.folder / "job").rglob("*")]:
            path.chmod(0o755)


@pytest.mark.long
@pytest.mark.parametrize("side", ["old", "new"])
def test_a_killed_rehearsal_continues(job: Job, side: str) -> None:
    """It is killed between the state and the record of a micro-batch, and before a state."""
    kill = (
        "import os, signal, pathlib; mark = pathlib.Path({mark!r}); "
        "batch.number == 4 and not mark.exists() and (mark.touch(), os.kill(os.getpid(), 9))"
    )
    text = kill.format(mark=str(job.folder / "killed"))
    versions = {name: job.version(name, text if name == side else "") for name in ("old", "new")}
    done = in_process(job, versions["new"], "--old", versions["old"])
    assert done.returncode == -signal.SIGKILL, done.stderr
    document = job.document(versions["new"], "--old", versions["old"])
    assert (changes(document), document["batches"]) == ({}, [3, 4])
