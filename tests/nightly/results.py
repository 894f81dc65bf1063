"""What shards gave, as lines of JSON, and the hash of the tree that they ran with."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import msgspec

FOLDER = Path("build/nightly")
RESULTS = FOLDER / "results.jsonl"


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run of a shard: its seconds, its seed, and the seconds of its slowest tests."""

    shard: str
    tree: str
    result: Literal["passed", "failed", "not run"]
    started: datetime
    seconds: float
    seed: int
    reason: str = ""
    times: dict[str, float] = {}

    def age(self, now: datetime) -> timedelta:
        """Return the time since the run began."""
        return now - self.started


def read(file: Path = RESULTS) -> list[Result]:
    """Return the results of all runs, the oldest first."""
    if not file.exists():
        return []
    return [msgspec.json.decode(line, type=Result) for line in file.read_bytes().splitlines()]


def append(result: Result, file: Path = RESULTS) -> None:
    """Add a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lines:
        lines.write(msgspec.json.encode(result) + b"\n")


def newest(results: Iterable[Result]) -> dict[str, Result]:
    """Return the last result of each shard."""
    return {result.shard: result for result in sorted(results, key=lambda result: result.started)}


def seconds_of_tests(results: Iterable[Result]) -> dict[str, float]:
    """Return the last recorded seconds of each test."""
    times: dict[str, float] = {}
    for result in results:
        times |= result.times
    return times


def tree_hash() -> str:
    """Return Git's hash of the working tree, with all changes that are not committed."""
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | {"GIT_INDEX_FILE": f"{folder}/index"}
        subprocess.run(["git", "add", "--all"], env=environ, check=True)
        written = subprocess.run(
            ["git", "write-tree"], env=environ, check=True, capture_output=True, text=True
        )
    return written.stdout.strip()[:16]


def now() -> datetime:
    """Return the time in UTC, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)
