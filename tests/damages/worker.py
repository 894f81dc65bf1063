"""Damage files in one process, which prints each attempt before it runs because it can die."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from pathlib import Path
from random import Random
from typing import Any

from tests.damages.damage import Subject
from tests.damages.footers import Footers, UnsealedFooters
from tests.damages.savepoints import Savepoints

__all__ = ["SUBJECTS", "main"]

MEMORY = 2 << 30
SECONDS = 60
SUBJECTS: dict[str, type[Subject]] = {
    "footers": Footers,
    "savepoints": Savepoints,
    "unsealed": UnsealedFooters,
}


def main() -> int:
    """Damage some files, and print two lines for each: the attempt and its outcome."""
    parser = argparse.ArgumentParser()
    parser.add_argument("subject", choices=SUBJECTS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, _too_long)
    given.folder.mkdir()
    subject = SUBJECTS[given.subject](given.folder)
    for number in range(given.first, given.first + given.count):
        attempt = subject.draw(Random(f"{given.seed} {number}"))
        print(f"{number}: {attempt.description}", flush=True)
        raw = attempt.file.read_bytes()
        attempt.file.write_bytes(attempt.damaged)
        signal.alarm(SECONDS)
        try:
            outcome = attempt.read()
        except Exception as error:  # noqa: BLE001 - the search looks for every untyped error
            outcome = f"{type(error).__name__}: {error}".replace("\n", " ")
        signal.alarm(0)
        print(outcome, flush=True)
        attempt.file.write_bytes(raw)
    return 0


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"it takes more than {SECONDS} s")


if __name__ == "__main__":
    sys.exit(main())
