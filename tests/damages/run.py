"""Corrupt files of Flink savepoints and read them in processes with limited memory and time.

    python -m tests.damages.run --count 10000

A seed selects a golden snapshot of real Flink, one of its files, the corruption and the reader. A
corruption changes, removes, repeats, overwrites or swaps bytes. The reader is ``show``, ``repack``,
``import``, or a scan of all rows by column. These outcomes are allowed:

* ``found``: a typed error or a refused operator, and the message names the file or the operator.
* ``same``: the result equals the original, because the corrupted bytes are not needed.
* ``changed``: a value or a name differs, and each state has its original number of rows. This
  cannot be detected where Flink's files have no checksums.
* ``moved``: rows belong to another state of the same types, because a state number before the rows
  or a state name in a header changed.

Every other outcome is a failure: an untyped error, lost or added rows without an error, more than
two gigabytes, more than a minute, or a process that a signal ended.
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
    """The outcomes of some corruptions: a count per outcome and per reader, and the failures."""

    outcomes: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, tried: str, outcome: str) -> None:
        """Count one outcome."""
        self.outcomes[outcome if outcome in ALLOWED else "bad"] += 1
        if outcome == "changed":
            self.changed[tried.split(", ")[1].partition("/")[0]] += 1
        if outcome not in ALLOWED:
            self.bad.append(f"{tried}: {outcome}")

    @property
    def total(self) -> int:
        """The number of corruptions."""
        return self.outcomes.total()


def run_damages(damages: int, seed: int, *, batch: int = _BATCH) -> Result:
    """Run corruptions in processes, at most ``batch`` in each. A process that dies loses
    only one.
    """
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
    """Run corruptions in one process; return how many are done."""
    words = ["-m", "tests.damages.worker", str(folder), str(seed), str(numbers[0])]
    words.append(str(len(numbers)))
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    # Each corruption has two lines: the attempt and its outcome.
    for tried, outcome in zip(lines[::2], lines[1::2], strict=False):
        result.add(tried, outcome)
    if done.returncode == 0:
        return len(numbers)
    if done.returncode > 0 or len(lines) % 2 == 0:
        raise RuntimeError(f"a process ended with {done.returncode}: {done.stderr[-2000:]}")
    result.add(lines[-1], f"signal {-done.returncode}")
    return len(lines) // 2 + 1


def main() -> int:
    """Run the corruptions, print their outcomes, and return the exit code."""
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
