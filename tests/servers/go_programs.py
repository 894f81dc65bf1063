"""Build servers that are Go modules with the machine's Go, for tests.

Each program is built once and kept in a folder of this Python environment.
``python -m tests.servers.go_programs`` builds all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from statestore.errors import MissingDependencyError

__all__ = ["MINIO", "VERSITY", "GoProgram", "program_of"]


@dataclass(frozen=True)
class GoProgram:
    """A program: its name, the path of its package, and the version of its module."""

    name: str
    package: str
    version: str

    @property
    def path(self) -> Path:
        """The path of the program, once it is built."""
        folder = f"{self.name}-{self.version}"
        return Path(sys.prefix) / "share" / "statestore" / folder / self.name


VERSITY = GoProgram("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
# The module has no tagged versions that Go accepts: the version names a commit.
MINIO = GoProgram("minio", "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")


def program_of(program: GoProgram) -> str:
    """Return the path of a program, built before; MissingDependencyError without it."""
    if not program.path.exists():
        raise MissingDependencyError(
            f"{program.path} does not exist; build it with: make .venv/.go-programs"
        )
    return str(program.path)


def main() -> int:
    """Build all programs; return the exit code, and print an error if Go is missing or fails."""
    go = shutil.which("go")
    if go is None:
        print("some S3 servers of the tests need Go 1.25 or newer; install Go", file=sys.stderr)
        return MissingDependencyError.exit_code
    for program in (VERSITY, MINIO):
        if program.path.exists():
            continue
        source = f"{program.package}@{program.version}"
        done = subprocess.run(
            [go, "install", source],
            env=os.environ | {"GOBIN": str(program.path.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            # The lines before the last ones name downloads.
            reason = " ".join(done.stderr.strip().splitlines()[-3:])
            print(f"{source} could not be built ({reason}); check the network", file=sys.stderr)
            return done.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
