"""The two ways to start a job, each in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from statestore import StateStore
from statestore.spark.jars import resolver_settings
from statestore.spark.session import java_home
from tests.syntax import ROOT

pytestmark = pytest.mark.spark

SETTINGS = """
parallelism = 2
[spark]
master = "local[1]"
[[keyed]]
operator = "u"
state = "totals"
key = ["user_id"]
source = {format = "json", path = "{here}/rows.json"}
"""


def arguments(here: Path) -> tuple[str, ...]:
    """Return the arguments of a job with these settings."""
    (here / "rows.json").write_text('{"user_id": 1, "total": 2}\n{"user_id": 3, "total": 4}\n')
    (here / "settings.toml").write_text(SETTINGS.replace("{here}", str(here)))
    return (str(here / "settings.toml"), "--store", str(here / "store"), "--output", "json")


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=cwd,
        env=os.environ | environment,
    )


def spark_submit(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run(
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]", *arguments),
        cwd=cwd,  # not the project's folder, so that no file is found because of the working folder
        JAVA_HOME=str(java_home()),
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=str(ROOT),  # has the effect of an installed package for the workers
        SPARK_LOCAL_IP="127.0.0.1",
    )


@pytest.mark.long
def test_a_job_runs_by_spark_submit_with_packages(tmp_path: Path) -> None:
    delta = f"io.delta:delta-spark_4.2_2.13:{version('delta-spark')}"
    done = spark_submit(
        *("--packages", delta),
        *(
            part
            for name, value in resolver_settings().items()
            for part in ("--conf", f"{name}={value}")
        ),
        *("--properties-file", str(ROOT / "conf" / "spark-defaults.conf")),
        *(str(ROOT / "jobs" / "snapshot.py"), *arguments(tmp_path)),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout[done.stdout.index("{") :]  # the resolver names its settings before
    assert json.loads(printed)["rows"] == 2
    store = StateStore.open(str(tmp_path / "store"))
    (entry,) = store.checkpoint().manifest.keyed
    assert (entry.table.format, entry.table.version is not None) == ("delta", True)


@pytest.mark.long
def test_spark_submit_keeps_the_exit_code(tmp_path: Path) -> None:
    job = str(ROOT / "jobs" / "redistribute_offsets.py")
    name = str(tmp_path / "f.toml")
    (tmp_path / "f.toml").write_text('parallelism = 2\noffsets = {operator = "u", state = "n"}')
    done = spark_submit(job, name, "--store", "nowhere", cwd=tmp_path)
    assert done.returncode == 10
    assert done.stdout.startswith("error: no store at")


@pytest.mark.long
def test_a_job_runs_as_a_module(tmp_path: Path) -> None:
    done = run(
        *(sys.executable, "-m", "jobs.snapshot", *arguments(tmp_path)),
        cwd=ROOT,
        STATESTORE_TABLE_FORMAT="parquet",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == 2
    state = StateStore.open(str(tmp_path / "store")).restore(parallelism=1).keyed("u", "totals")
    assert state.get(3)[0]["total"] == 4
