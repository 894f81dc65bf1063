"""Compare the simulator's schedules in each Python of this machine: the same calls and bytes.

    python -m tests.simulate.pythons

``--fetch`` only creates the environments in ``build/simulate-python-PYTHON``, which needs the
network. They contain the locked versions of the packages that the core needs. PySpark has no
compiled code, so they use the one of this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path

from tests.spark.environments import interpreters, locked_lines
from tests.syntax import ROOT

__all__ = ["PYTHONS", "differences", "environment", "main", "printed"]

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SHARED = ("pyspark", "py4j")


def environment(python: str) -> Path | None:
    """Return the interpreter of an environment with this version of Python.

    The environment is created if it does not exist or has other packages than the lock file.
    Returns None if this machine does not have that Python.
    """
    folder = ROOT / "build" / f"simulate-python-{python}"
    ready, made = folder / ".ready", folder / "bin" / "python"
    locked = "\n".join(locked_lines())
    if ready.exists() and ready.read_text() == locked:
        return made
    interpreter = next(interpreters(python), None)
    if interpreter is None:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(locked)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip = (str(made), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([*pip, "--constraint", str(constraints), *needed], check=True)
    [packages] = (folder / "lib").glob("python*/site-packages")
    for name in SHARED:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        (packages / name).symlink_to(Path(spec.origin).parent)
    ready.write_text(locked)
    return made


def differences(python: Path, expected: str) -> list[str]:
    """Return the lines of digests that an interpreter prints differently."""
    found = printed(python).splitlines()
    return [
        *unified_diff(expected.splitlines(), found, "this Python", str(python), n=0, lineterm="")
    ]


def printed(python: Path) -> str:
    """Return the digests of stores and of schedules that an interpreter prints."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    commands = (("tests.simulate.same_bytes", "stores"), ("tests.simulate.digests",))
    return "".join(
        subprocess.run(
            [str(python), "-m", *command],
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        for command in commands
    )


def _others() -> Iterator[str]:
    own = "{}.{}".format(*sys.version_info)
    return (python for python in PYTHONS if python != own)


def main(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; return 1 if a Python gives other digests."""
    fetched = {python: environment(python) for python in _others()}
    if "--fetch" in arguments:
        return 0
    expected = printed(Path(sys.executable))
    differ = False
    for python, made in fetched.items():
        if made is None:
            print(f"Python {python} is not installed here: not compared")
            continue
        lines = differences(made, expected)
        differ |= bool(lines)
        print(f"Python {python}:", "other calls or files" if lines else "the same calls and files")
        print(*lines, sep="\n", end="\n" * bool(lines))
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
