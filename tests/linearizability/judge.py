"""Judge histories with Porcupine, a linearizability checker, as a program of Go.

``checker/main.go`` has two models: a register for each checkpoint id, and the list of all commits.
"""

from __future__ import annotations

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
PROGRAM = ROOT / "build" / "linearizability" / "checker"


def violations(histories: Sequence[History]) -> list[list[str]]:
    """Return the violated models of each history; an empty list if it is linearizable."""
    lines = (json.dumps([each.to_json() for each in history]) for history in histories)
    done = subprocess.run(
        [_program()], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return [json.loads(line)["violated"] for line in done.stdout.splitlines()]


@cache
def _program() -> Path:
    """Build the program, which takes some seconds the first time; other processes may build too."""
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    built = PROGRAM.with_name(f"{PROGRAM.name}-{os.getpid()}")
    subprocess.run(["go", "build", "-o", str(built), "."], cwd=SOURCE, check=True)
    built.rename(PROGRAM)
    return PROGRAM
