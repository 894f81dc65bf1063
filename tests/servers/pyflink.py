"""Run real PyFlink, for its golden files and for a restore test, in an environment of its own.

It needs older packages than this project.

::

    python3.11 -m venv /tmp/pyflink
    /tmp/pyflink/bin/pip install apache-flink==2.3.0
    PYFLINK_PYTHON=/tmp/pyflink/bin/python python -m tests.golden.make_pyflink
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from statestore.errors import MissingDependencyError, StorageError
from statestore.spark.session import java_home

__all__ = ["python_of_pyflink", "run_pyflink"]

JOB = Path(__file__).parents[1] / "interop" / "flink" / "python" / "job.py"
JOB_SECONDS = 300


def python_of_pyflink() -> str | None:
    """Return the Python that has apache-flink, from $PYFLINK_PYTHON; None if it is not set."""
    return os.environ.get("PYFLINK_PYTHON")


def run_pyflink(what: str, savepoint: Path, rows: Path, max_parallelism: int = 128) -> None:
    """Make the job ``write`` or ``read`` a savepoint; see its docstring."""
    python = python_of_pyflink()
    if python is None:
        raise MissingDependencyError(f"$PYFLINK_PYTHON is not set: {__doc__}")
    environment = os.environ | {"JAVA_HOME": str(java_home()), "PYTHONPATH": ""}
    command = [python, str(JOB), what, str(savepoint), str(rows), str(max_parallelism)]
    said = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
        env=environment,
        cwd=rows.parent,
    )
    if said.returncode:
        end = "\n".join(said.stderr.splitlines()[-40:])
        raise StorageError(f"the job of PyFlink failed:\n{end}")
