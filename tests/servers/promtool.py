"""Run promtool, which checks and tests the rules of Prometheus.

It is the program of this machine, or that of Debian's or Ubuntu's package, which ``python -m
tests.servers.promtool`` unpacks into a folder of this Python environment. Nothing is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from statestore.errors import MissingDependencyError

__all__ = ["run_promtool"]

_PACKAGE = "prometheus"
_PROGRAM = Path(sys.prefix) / "share" / "statestore" / "promtool" / "promtool"


def run_promtool(*arguments: str, folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool in a folder, with a text as its input; return its output and exit code.

    Raises MissingDependencyError without the program.
    """
    return subprocess.run(
        [_program(), *arguments],
        cwd=folder,
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def _program() -> str:
    program = shutil.which("promtool") or (str(_PROGRAM) if _PROGRAM.exists() else None)
    if program is None:
        raise MissingDependencyError("promtool is missing; fetch it with: make .venv/.promtool")
    return program


def main() -> int:
    """Fetch and unpack the program unless this machine has it; return the exit code."""
    if shutil.which("promtool") or _PROGRAM.exists():
        return 0
    if not all(map(shutil.which, ("apt-get", "dpkg"))):
        print("promtool is missing; install Prometheus, which includes it", file=sys.stderr)
        return MissingDependencyError.exit_code
    with TemporaryDirectory() as folder:
        try:
            for command in (["apt-get", "download", _PACKAGE], ["dpkg", "-x", "package", "."]):
                subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
                for package in Path(folder).glob("*.deb"):
                    package.rename(Path(folder) / "package")
        except subprocess.CalledProcessError as error:
            reason = " ".join(error.stderr.split())[-300:]
            print(f"promtool could not be fetched ({reason}); run apt-get update", file=sys.stderr)
            return error.returncode
        _PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(folder) / "usr" / "bin" / "promtool", _PROGRAM)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
