"""Judge histories with Porcupine, a linearizability checker, as a program of Go.

``checker/main.go`` has three models: a register for each checkpoint id, the list of all commits,
and a register for each savepoint.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.linearizability.history import History
from tests.syntax import ROOT

__all__ = ["violations"]

SOURCE = Path(__file__).parent / "checker"
PROGRAMS = ROOT / "build" / "linearizability"


def violations(histories: Sequence[History]) -> list[list[str]]:
    """Return the violated models of each history; an empty list if it is linearizable."""
    lines = (json.dumps([each.to_json() for each in history]) for history in histories)
    done = subprocess.run(
        [_program()], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return [json.loads(line)["violated"] for line in done.stdout.splitlines()]


@cache
def _program() -> Path:
    """Build the program, unless it was built from the same source; other processes may build too.

    Each source has a program of its own, so that a process never runs the program of another one.
    """
    source = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir())))
    program = PROGRAMS / f"checker-{source.hexdigest()[:16]}"
    if not program.exists():
        PROGRAMS.mkdir(parents=True, exist_ok=True)
        built = program.with_name(f"{program.name}-{os.getpid()}")
        subprocess.run(["go", "build", "-o", str(built), "."], cwd=SOURCE, check=True)
        built.rename(program)
    return program
