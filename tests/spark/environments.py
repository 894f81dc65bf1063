"""``python -m tests.spark.environments SPARK...`` repeats the tests of Spark with other Pythons.

Each combination of Python and pandas gets an environment in ``build/python-PYTHON-pandas-PANDAS``,
if this machine has that Python. ``make test-spark`` must have installed each version of Spark into
``build/spark-SPARK``: PySpark has no compiled code, so all environments use it from there.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.syntax import ROOT

__all__ = ["ENVIRONMENTS", "PythonEnvironment", "interpreters", "locked_lines"]

TESTS = "tests/spark/test_versions.py"
PANDAS = {"2": "2.3.3", "3": "3.0.0"}
# What the tests and their fixtures import, in the locked versions.
NAMES = (
    *("click", "deltalake", "duckdb", "fsspec", "hypothesis", "jsonschema", "msgspec", "numpy"),
    *("grpcio-status", "zstandard"),  # a client of Spark Connect
    *("polars", "protobuf", "py4j", "pyarrow", "pytest", "pytest-timeout", "pytest-xdist"),
    *("rich", "s3fs"),
)
# It asks for a PySpark of its own.
ALONE = ("delta-spark", "importlib-metadata")


@dataclass(frozen=True)
class PythonEnvironment:
    """A version of Python and a major version of pandas."""

    python: str
    pandas: str

    @property
    def folder(self) -> Path:
        """The folder of the environment."""
        return ROOT / "build" / f"python-{self.python}-pandas-{self.pandas}"

    def report(self, spark: str) -> Path:
        """Return the path of the report of the tests with a version of Spark."""
        return self.folder / f"spark-{spark}.xml"

    def make(self) -> bool:
        """Create the environment; return False if this machine does not have the Python."""
        ready = self.folder / ".ready"
        if ready.exists():
            return True
        interpreter = next(interpreters(self.python), None)
        if interpreter is None:
            return False
        shutil.rmtree(self.folder, ignore_errors=True)
        subprocess.run([interpreter, "-m", "venv", str(self.folder)], check=True)
        locked = [line for line in locked_lines() if not line.startswith(("pandas==", "pyspark=="))]
        constraints = self.folder / "constraints.txt"
        constraints.write_text("\n".join(locked))
        self._install("--constraint", str(constraints), *NAMES, f"pandas=={PANDAS[self.pandas]}")
        self._install("--constraint", str(constraints), "--no-deps", *ALONE)
        ready.touch()
        return True

    def run(self, spark: str) -> bool:
        """Run the tests with a version of Spark; return True if all passed."""
        [packages] = (ROOT / "build" / f"spark-{spark}" / "lib").glob("python*/site-packages")
        python = str(self.folder / "bin" / "python")
        done = subprocess.run(
            [
                *(python, "-m", "pytest", "--quiet", "-p", "no:unraisableexception"),
                *("-W", "ignore::ResourceWarning"),
                # PySpark warns about every pandas from 3.0 on.
                *("-W", "ignore:PySpark does not yet fully support pandas:FutureWarning"),
                *("--junitxml", str(self.report(spark)), TESTS),
            ],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{packages}"},
            check=False,
        )
        return done.returncode == 0

    def _install(self, *arguments: str) -> None:
        pip = (str(self.folder / "bin" / "python"), "-m", "pip", "install", "--quiet")
        subprocess.run([*pip, "--disable-pip-version-check", *arguments], check=True)


ENVIRONMENTS = tuple(
    PythonEnvironment(python, pandas)
    for python, pandas in itertools.product(("3.11", "3.12", "3.13", "3.14"), PANDAS)
)


def locked_lines() -> list[str]:
    """Return the lines of ``requirements.lock`` that each name a package and its version."""
    return [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]


def interpreters(python: str) -> Iterator[str]:
    """Yield the interpreters of a version of Python, in ``PATH`` and of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    named = shutil.which(f"python{python}")
    candidates = [*([named] if named else []), *root.glob(f"versions/{python}.*/bin/python")]
    for candidate in map(str, candidates):
        # pyenv has a script for each Python, which fails if that Python is not selected.
        works = subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False)
        if works.returncode == 0:
            yield candidate


def main(versions: Sequence[str]) -> int:
    """Run the tests in each environment with these versions of Spark; return the exit code."""
    results = []
    for environment in ENVIRONMENTS:
        if not environment.make():
            print(f"Python {environment.python} is not installed here: not tried")
            continue
        for version in versions:
            print(f"{environment.folder.name} with Spark {version}", flush=True)
            results.append(environment.run(version))
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
