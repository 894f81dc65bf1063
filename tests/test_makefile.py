"""What make does on a machine that others have used, and when a step of the set-up fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.syntax import ROOT

STEPS = (
    ".delta",
    ".s3",
    ".azurite",
    ".hdfs",
    ".iceberg",
    ".s3proxy",
    ".go-programs",
    ".grafana",
    ".prometheus",
    ".ceph",
    ".kafka",
    ".flink",
)
SHELL = (
    *("HADOOP_CONF_DIR", "PYSPARK_DRIVER_PYTHON", "PYSPARK_HADOOP_VERSION", "PYSPARK_PYTHON"),
    *("PYSPARK_SUBMIT_ARGS", "PYTHONPATH", "SPARK_CONF_DIR", "SPARK_HOME", "YARN_CONF_DIR"),
)


def make(
    *arguments: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run make in the project, as a shell does and not as make itself."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=clean | dict(environ or {}), capture_output=True, text=True
    )


def test_another_sparks_variables_reach_no_command() -> None:
    shell = dict.fromkeys(SHELL, "/another/spark")
    done = make("--eval", "shown: ; @env", "shown", environ=shell)
    assert done.returncode == 0, done.stderr
    assert "PATH=" in done.stdout
    assert "/another/spark" not in done.stdout


@pytest.fixture
def broken(tmp_path: Path) -> list[str]:
    """Variables of make: an environment whose Python fails at whatever it should run."""
    python, command = tmp_path / "bin" / "python", tmp_path / "bin" / "statestore"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 'no network here; check the cable' >&2\nexit 16\n")
    command.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    for program in (python, command):
        program.chmod(0o755)
    (tmp_path / ".ready").touch()
    return [f"VENV={tmp_path}"]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_is_not_done(step: str, broken: list[str], tmp_path: Path) -> None:
    done = make(*broken, f"{tmp_path}/{step}")
    assert done.returncode != 0
    assert "no network here; check the cable" in done.stderr
    assert not (tmp_path / step).exists()


def test_a_step_that_fails_stops_the_demo(broken: list[str], tmp_path: Path) -> None:
    done = make(*broken, "demo")
    assert done.returncode != 0
    assert done.stderr.startswith("no network here; check the cable\nmake: ***")
    assert not (tmp_path / "ran").exists()


def test_a_failure_of_pip_is_one_sentence(broken: list[str], tmp_path: Path) -> None:
    """No test and no demo runs after it. pip's own message, which has the reason, is kept."""
    (tmp_path / ".ready").unlink()
    # A Python that makes no environment: the broken one stays.
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    for command in ("demo", "test"):
        done = make(*broken, f"PYTHON={python}", command)
        assert done.returncode != 0
        reason, sentence, stopped = done.stderr.splitlines()
        assert reason == "no network here; check the cable"
        assert sentence.startswith("pip could not install the packages, for the reason above; ")
        assert stopped.startswith("make: ***")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / ".ready").exists()


@pytest.mark.parametrize(("home", "cache"), [("/nonexistent", False), ("/tmp", True)])
def test_pip_keeps_no_cache_in_a_home_that_cannot_be_written(home: str, cache: bool) -> None:
    shell = {"HOME": home, "XDG_CACHE_HOME": "", "PIP_CACHE_DIR": ""}
    done = make("--eval", "shown: ; @env", "shown", environ=shell)
    assert done.returncode == 0, done.stderr
    for setting in ("PIP_NO_CACHE_DIR=1", "UV_NO_CACHE=1"):
        assert (setting not in done.stdout.splitlines()) == cache


def test_uv_is_told_what_pip_is_told(tmp_path: Path) -> None:
    """A variable counts more than a file, unless it is empty, and the section for installs more
    than the global one.
    """
    file = tmp_path / "pip.conf"
    file.write_text(
        "[install]\nindex-url = http://b/\ncert = /c\n[global]\nindex-url = http://a/\n"
    )
    shell = {"PIP_CONFIG_FILE": str(file), "PIP_FIND_LINKS": "/wheels", "PIP_CERT": ""}
    for more, index in (({}, "http://b/"), ({"PIP_INDEX_URL": "http://v/"}, "http://v/")):
        done = make("--eval", "shown: ; @$(PIP_SETTINGS); env", "shown", environ=shell | more)
        assert done.returncode == 0, done.stderr
        told = {f"UV_DEFAULT_INDEX={index}", "UV_FIND_LINKS=/wheels", "SSL_CERT_FILE=/c"}
        assert told <= {*done.stdout.splitlines()}
