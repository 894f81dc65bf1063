"""A fresh environment with one wheel: create it, test it, measure it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.wheel.bill import Package

SMOKE = Path(__file__).with_name("smoke.py")
MB = 1_000_000

# The sizes of the recorded files of each installed distribution, without compiled Python.
_SIZES = """
import json
from importlib.metadata import distributions
print(json.dumps({
    one.name.lower(): sum(
        file.locate().stat().st_size
        for file in one.files or ()
        if file.suffix != ".pyc" and file.locate().is_file()
    )
    for one in distributions()
}))
"""
_PACKAGES = """
import json
from importlib.metadata import distributions
print(json.dumps([
    [one.name.lower(), one.version, one.metadata["License-Expression"] or one.metadata["License"]]
    for one in distributions()
]))
"""
OF_DELTALAKE = frozenset({"arro3-core", "deltalake", "deprecated", "wrapt"})
OF_THE_ENVIRONMENT = frozenset({"pip", "setuptools"})


@dataclass(frozen=True)
class Sizes:
    """The size of an installation in bytes, by distribution."""

    by_name: dict[str, int]

    @property
    def total(self) -> int:
        """The total size."""
        return sum(self.by_name.values())

    @property
    def small(self) -> int:
        """The size without pyarrow, numpy, and deltalake with its dependencies."""
        large = {"numpy", "pyarrow", *OF_DELTALAKE}
        return sum(size for name, size in self.by_name.items() if name not in large)

    def __str__(self) -> str:
        largest = sorted(self.by_name.items(), key=lambda item: -item[1])[:6]
        names = ", ".join(f"{name} {size / MB:.1f}" for name, size in largest)
        rest = f"all but pyarrow, numpy and deltalake {self.small / MB:.1f}"
        return f"{self.total / MB:.0f} MB installed ({names}; {rest})"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel and its dependencies."""

    folder: Path

    @classmethod
    def with_wheel(cls, wheel: Path, folder: Path) -> Environment:
        """Create it, with packages from the index that pip is configured for."""
        made = cls._empty(folder)
        made._install(str(wheel.resolve()))
        return made

    @classmethod
    def with_spark(cls, wheel: Path, folder: Path, pyspark: str) -> Environment:
        """Create an environment with one version of PySpark, and add the wheel to it."""
        made = cls._empty(folder)
        made._install(f"pyspark=={pyspark}")
        made._install(f"{wheel.resolve()}[spark]")
        return made

    @classmethod
    def _empty(cls, folder: Path) -> Environment:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        return cls(folder)

    def _install(self, requirement: str) -> None:
        quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
        self._python("-m", "pip", "install", *quiet, requirement)

    def try_out(self, folder: Path) -> None:
        """Run the smoke test in an empty folder."""
        self._python(str(SMOKE), cwd=folder)

    def run(self, code: str, folder: Path) -> str:
        """Run Python code in a folder; return its output."""
        return self._python("-c", code, cwd=folder)

    def packages(self) -> list[Package]:
        """Return the installed packages, without the ones that every environment has."""
        found = [Package(*each) for each in json.loads(self._python("-P", "-c", _PACKAGES))]
        return [package for package in found if package.name not in OF_THE_ENVIRONMENT]

    def sizes(self) -> Sizes:
        """Measure the installed packages, without the ones that every environment has."""
        found: dict[str, int] = json.loads(self._python("-P", "-c", _SIZES))
        return Sizes({name: found[name] for name in found.keys() - OF_THE_ENVIRONMENT})

    def _python(self, *arguments: str, cwd: Path | None = None) -> str:
        # Exclude the packages of the tests' environment.
        environ = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [str(self.folder / "bin" / "python"), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd,
            env=environ,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout
