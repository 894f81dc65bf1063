"""Damage footers of data files, and read each with one reader, in processes that can crash.

    python -m tests.flips.run --count 10000
    python -m tests.flips.run --count 1000 --unsealed

A seed selects the layout, the file, the reader and the damage: a bit, a byte, a truncation, or
extra bytes. A reader that does not need the file must return the right result. Other readers must
raise an error of corruption. Another result means wrong rows, any other error is a failure, and a
process that ends by a signal is a crash. Each of these makes the exit code 1.

With ``--unsealed`` the manifests look like those from older releases, without checksums of footers.
Arrow then parses damaged bytes, and its crashes are counted without being failures.
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

__all__ = ["Result", "main", "run_flips"]

_BATCH = 250


@dataclass
class Result:
    """The results of some flips: a count per outcome, and every failure."""

    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of flips."""
        return self.outcomes.total()


def run_flips(flips: int, seed: int, *, unsealed: bool, batch: int = _BATCH) -> Result:
    """Run flips in processes, at most ``batch`` in each. A process that dies loses only
    one flip.
    """
    result = Result()
    with tempfile.TemporaryDirectory(prefix="statestore-flips-") as folder:
        first = 0
        for number in count():
            if first >= flips:
                return result
            more = min(batch, flips - first)
            first += _batch(
                Path(folder, str(number)), range(first, first + more), seed, unsealed, result
            )
    return result


def _batch(folder: Path, numbers: range, seed: int, unsealed: bool, result: Result) -> int:
    """Run flips in one process; return how many are done."""
    words = ["-m", "tests.flips.worker", str(folder), str(seed), str(numbers[0]), str(len(numbers))]
    words += ["--unsealed"] if unsealed else []
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    # Each flip has two lines: the attempt and its outcome.
    for tried, outcome in zip(lines[::2], lines[1::2], strict=False):
        result.outcomes[outcome] += 1
        if outcome not in ("right", "found"):
            result.bad.append(f"{tried}: {outcome}")
    if done.returncode == 0:
        return len(numbers)
    if done.returncode > 0 or len(lines) % 2 == 0:
        raise RuntimeError(f"a process ended with {done.returncode}: {done.stderr[-2000:]}")
    result.outcomes["crash"] += 1
    result.bad.append(f"{lines[-1]}: signal {-done.returncode}")
    return len(lines) // 2 + 1


def main() -> int:
    """Run the flips, print their outcomes, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--unsealed", action="store_true")
    given = parser.parse_args()
    result = run_flips(given.count, given.seed, unsealed=given.unsealed)
    bad = [line for line in result.bad if not (given.unsealed and ": signal " in line)]
    for line in result.bad[:50]:
        print(line)
    counted = ", ".join(f"{number} {what}" for what, number in result.outcomes.most_common())
    print(f"{result.total} flips of footers: {counted}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
