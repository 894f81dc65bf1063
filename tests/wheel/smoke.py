"""The first steps of a user, in an environment that has only the wheel.

It runs with that environment's Python, in an empty folder: ``python smoke.py``. It stops at the
first failure.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq

ABSENT = ("delta", "duckdb", "pandas", "polars", "pyspark", "pytest", "s3fs")


def statestore(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    command = [str(Path(sys.prefix) / "bin" / "statestore"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def say(*arguments: str) -> str:
    """Run the installed command, which must succeed, and return its output."""
    done = statestore(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def run_readme() -> None:
    """Run the first Python example of the README, from the wheel's metadata."""
    text = metadata.distribution("statestore").read_text("METADATA") or ""
    example = re.search(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert example, "the metadata have no README with an example"
    exec(compile(example[1], "README.md", "exec"), {})


def check_commands(store: str) -> None:
    """Verify, plan and restore the README's store with the command."""
    say("verify", "--deep", "--store", store)
    assert "subtask" in say("plan", "--parallelism", "3", "--store", store)
    say("restore", "--parallelism", "3", "--to", "rows", "--store", store)
    files = [*Path("rows").rglob("*.parquet")]
    assert sum(pq.read_metadata(file).num_rows for file in files) == 3, files


def check_hint(store: str) -> None:
    """Run the command in the error of a missing extra, up to the point where pip would install."""
    done = statestore("query", "SELECT 1", "--store", store)
    assert done.returncode == 16, (done.stdout, done.stderr)
    command = shlex.split(done.stderr.partition("install the extra 'query': ")[2])
    pip = subprocess.run(
        [*command, "--dry-run", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert pip.returncode == 0, (command, pip.stderr)
    assert re.search(r"Would install.* duckdb-", pip.stdout), pip.stdout


def main() -> None:
    """Run all of these steps."""
    assert [name for name in ABSENT if find_spec(name)] == []
    run_readme()
    assert [name for name in ABSENT if name in sys.modules] == []
    check_commands("./visits")
    check_hint("./visits")


if __name__ == "__main__":
    main()
