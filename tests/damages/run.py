"""Damage to the files of Flink's savepoints, in processes that have little memory and time.

    python -m tests.damages.run --count 10000

A seed draws a golden snapshot of real Flink, one of its files, the damage (a bit, a byte, a cut,
bytes less, twice, swapped or others) and who reads it: ``show``, ``repack``, ``import``, or all of
its rows by column. What may come of it:

* ``found``: a typed error, or an operator that is refused; the message names file or operator;
* ``same``: what is read is what was there, as after damage to bytes that nobody needs;
* ``changed``: a value, or a name, is another, and each state has as many rows as it had. Where
  Flink's files have no checksums nobody can see it;
* ``moved``: rows are those of another state of the same types, whose number stands before them,
  or whose name is another in one of the headers.

All else is a failure: an error that is not typed, rows that are lost or added without one, more
than two gigabytes, a minute, or a process that ends by a signal.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

__all__ = ["Result", "main", "run_damages"]

ALLOWED = ("found", "same", "changed", "moved")
_BATCH = 2500


@dataclass
class Result:
    """What came of some damages: how many had which outcome, by reader, and what never may be."""

    outcomes: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, tried: str, outcome: str) -> None:
        """Count one."""
        self.outcomes[outcome if outcome in ALLOWED else "bad"] += 1
        if outcome == "changed":
            self.changed[tried.split(", ")[1].partition("/")[0]] += 1
        if outcome not in ALLOWED:
            self.bad.append(f"{tried}: {outcome}")

    @property
    def total(self) -> int:
        """How many there were."""
        return self.outcomes.total()


def run_damages(damages: int, seed: int, *, batch: int = _BATCH) -> Result:
    """Run damages in processes, each of at most ``batch``; one that dies costs the one at hand."""
    result = Result()
    with tempfile.TemporaryDirectory(prefix="statestore-damages-") as folder:
        first = 0
        for number in count():
            if first >= damages:
                return result
            more = min(batch, damages - first)
            first += _batch(Path(folder, str(number)), range(first, first + more), seed, result)
    return result


def _batch(folder: Path, numbers: range, seed: int, result: Result) -> int:
    """Run damages in one process; return how many of them are done."""
    words = ["-m", "tests.damages.worker", str(folder), str(seed), str(numbers[0])]
    words.append(str(len(numbers)))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    # Each has two lines: what is tried, and what came of it.
    for tried, outcome in zip(lines[::2], lines[1::2], strict=False):
        result.add(tried, outcome)
    if done.returncode == 0:
        return len(numbers)
    if done.returncode > 0 or len(lines) % 2 == 0:
        raise RuntimeError(f"a process ended with {done.returncode}: {done.stderr[-2000:]}")
    result.add(lines[-1], f"signal {-done.returncode}")
    return len(lines) // 2 + 1


def main() -> int:
    """Run them, print what came of them, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=2026)
    given = parser.parse_args()
    result = run_damages(given.count, given.seed)
    for line in result.bad[:50]:
        print(line)
    counted = ", ".join(f"{number} {what}" for what, number in result.outcomes.most_common())
    print(f"{result.total} damages to savepoints: {counted}")
    for name, number in result.changed.most_common():
        print(f"  changed, {name}: {number}")
    return 1 if result.bad else 0


if __name__ == "__main__":
    sys.exit(main())
