"""Damage files, and read each with one reader, in processes with limited memory and time.

    python -m tests.damages.run --count 10000
    python -m tests.damages.run --count 1000 --subject unsealed

A seed selects the file, the reader and the damage, which changes, removes, repeats, overwrites or
swaps bytes. There are three subjects:

* ``footers``: the footer of a data file of a store, and every reader of data files.
* ``unsealed``: the same, but the manifests look like those from older releases, without checksums
  of footers. Arrow then parses damaged bytes, and a crash is not a failure. Runs only if named.
* ``savepoints``: a file of a golden snapshot of real Flink. The reader is ``show``, ``repack``,
  ``import``, or a scan of all rows by column.

These outcomes are allowed:

* ``found``: an error of corruption. For a savepoint, any typed error or a refused operator, and the
  message names the file or the operator.
* ``same``: the result equals the original, because the damaged bytes are not needed.
* ``changed``, only for savepoints: a value or a name differs, and each state has its original
  number of rows. This cannot be detected where Flink's files have no checksums.
* ``moved``, only for savepoints: rows belong to another state of the same types, because a state
  number before the rows or a state name in a header changed.

Every other outcome is a failure: wrong, lost or added rows without an error, an untyped error, more
than two gigabytes, more than a minute, or a process that a signal ended. It makes the exit code 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import count as numbered
from pathlib import Path

from tests.damages.worker import SUBJECTS

__all__ = ["Result", "main", "run_damages"]

_BATCH = 1000


@dataclass
class Result:
    """The results of some attempts: a count per outcome, the changed values by snapshot, and the
    failures.
    """

    allowed: frozenset[str]
    outcomes: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, tried: str, outcome: str) -> None:
        """Count one outcome."""
        kind = "crash" if outcome.startswith("signal ") else outcome
        if kind not in self.allowed:
            self.outcomes["bad"] += 1
            self.bad.append(f"{tried}: {outcome}")
            return
        self.outcomes[kind] += 1
        if kind == "changed":
            self.changed[tried.split(", ")[1].partition("/")[0]] += 1

    @property
    def total(self) -> int:
        """The number of attempts."""
        return self.outcomes.total()


def run_damages(subject: str, count: int, seed: int, *, batch: int = _BATCH) -> Result:
    """Run attempts in processes, at most ``batch`` in each. A process that dies loses only one."""
    result = Result(SUBJECTS[subject].allowed)
    with tempfile.TemporaryDirectory(prefix="statestore-damages-") as folder:
        first = 0
        for number in numbered():
            if first >= count:
                return result
            words = [subject, str(Path(folder, str(number))), str(seed)]
            first += _batch(words, range(first, min(first + batch, count)), result)
    return result


def _batch(words: list[str], numbers: range, result: Result) -> int:
    """Run attempts in one process; return how many are done."""
    words = ["-m", "tests.damages.worker", *words, str(numbers[0]), str(len(numbers))]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    # Each attempt has two lines: the attempt and its outcome.
    for tried, outcome in zip(lines[::2], lines[1::2], strict=False):
        result.add(tried, outcome)
    if done.returncode == 0:
        return len(numbers)
    if done.returncode > 0 or len(lines) % 2 == 0:
        raise RuntimeError(f"a process ended with {done.returncode}: {done.stderr[-2000:]}")
    result.add(lines[-1], f"signal {-done.returncode}")
    return len(lines) // 2 + 1


def main() -> int:
    """Run the attempts on each subject, print their outcomes, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subject", action="append", choices=[*SUBJECTS], help="again for more")
    parser.add_argument("--count", type=int, default=10_000, help="per subject")
    parser.add_argument("--seed", type=int, default=2026)
    given = parser.parse_args()
    failures = 0
    for subject in given.subject or ("footers", "savepoints"):
        result = run_damages(subject, given.count, given.seed)
        for line in result.bad[:50]:
            print(line)
        counted = ", ".join(f"{number} {what}" for what, number in result.outcomes.most_common())
        print(f"{result.total} damages to {subject}: {counted}", flush=True)
        for name, number in result.changed.most_common():
            print(f"  changed, {name}: {number}")
        failures += len(result.bad)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
