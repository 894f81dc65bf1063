"""Change one operator or constant at a time, and report which changes no covering test notices.

    python -m tests.mutants.run --count 300 --seed 7
    python -m tests.mutants.run --count 30 --only statestore/catalog --json build/mutants.jsonl

A seed selects modules and changes. The covering tests come from a recording of coverage, in which
each test has its own context. A change that a test notices is killed; the others survive. A
survivor needs a test, or an entry in ``equivalent.toml`` that says why it changes nothing. Changes
without a covering test are not tried.

A change is tried in a copy of the project. The tests run in forks of one process.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random

from tests.mutants.changes import Change, changes_of
from tests.mutants.covering import Recording
from tests.mutants.project import Outcome, ProjectCopy
from tests.support.module_tests import RECORDING

__all__ = [
    "EQUIVALENT",
    "PACKAGES",
    "ROOT",
    "Mutant",
    "Mutants",
    "draw_changes",
    "equivalent_changes",
    "main",
    "report",
    "sources_of",
]

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.toml")
PACKAGES = ("statestore", "jobs")
FIRST_SECONDS = 6.0
"""The recorded seconds of the tests that run first: most changes fail one of them."""
MOST_TESTS = 300
LONGEST_SECONDS = 15.0
"""How long each test may take on a busy machine, in addition to five times its recorded seconds."""


@dataclass(frozen=True)
class Mutant:
    """A change that was tried.

    Attributes:
        file: the path of the module.
        line: the number of the changed line.
        before: the line as it is.
        after: the changed line.
        outcome: ``killed`` or ``survived``, or ``untested`` if all covering tests fail without it.
        test: the test that noticed it.
        ran: the number of tests that ran.
        covering: the number of tests that cover the line.
        tests: the selected tests of a survivor.
        seconds: how long it took.
    """

    file: str
    line: int
    before: str
    after: str
    outcome: str
    test: str | None
    ran: int
    covering: int
    tests: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        ran = f"{self.ran} of {self.covering} covering tests ran"
        return f"{self.file}:{self.line}: {self.outcome}; {ran}\n- {self.before}\n+ {self.after}"


def draw_changes(
    recording: Recording,
    sources: Mapping[str, str],
    seed: int,
    known: set[tuple[str, str, str | None]],
) -> Iterator[Change]:
    """Yield changes with covering tests, each once, except the known ones.

    Args:
        recording: the covering tests.
        sources: the modules by path.
        seed: selects the module of each change, and the change.
        known: equivalent changes: path, line before, and line after, or None for all changes.
    """
    random = Random(seed)
    changes = cache(lambda file: changes_of(file, sources[file]))
    left = sorted(sources)
    tried: set[Change] = set()
    while left:
        file = random.choice(left)
        new = [one for one in changes(file) if one not in tried and known.isdisjoint(_names(one))]
        if not new:
            left.remove(file)
            continue
        change = random.choice(new)
        tried.add(change)
        if recording.tests(change):
            yield change


class Mutants:
    """Tries changes.

    Args:
        project: the copy in which they are tried.
        recording: the covering tests.
        cap: the recorded seconds of the tests that run for a change.
    """

    def __init__(self, project: ProjectCopy, recording: Recording, cap: float = 60.0) -> None:
        self._cap = cap
        self._project = project
        self._recording = recording
        self._right: set[str] = set()
        self._broken: set[str] = set()

    def attempt(self, change: Change) -> Mutant:
        """Run the covering tests with a change. Tests that fail without it do not count."""
        began = time.monotonic()
        covering = self._recording.tests(change)
        done: list[str] = []
        for tests in self._batches(covering):
            while tests := [test for test in tests if test not in self._broken]:
                with self._project.changed(change.file, change.text):
                    found = self._project.run(tests, self._limit(tests))
                if found.outcome == "passed":
                    done += tests[: found.ran]
                    self._right.update(tests)
                    break
                self._right.update(tests[: max(found.ran - 1, 0)])
                if self._is_right(found, tests):
                    ran = len(done) + found.ran
                    return _mutant(change, "killed", found.test, ran, covering, (), began)
        outcome = "survived" if done else "untested"
        return _mutant(change, outcome, None, len(done), covering, tuple(done), began)

    def _batches(self, covering: Sequence[str]) -> Iterator[list[str]]:
        """Yield the tests that run first, and the others until the limit."""
        first: list[str] = []
        more: list[str] = []
        total = 0.0
        for test in covering[:MOST_TESTS]:
            total += self._recording.seconds(test)
            if total > self._cap and first:
                break
            (first if total <= FIRST_SECONDS or not first else more).append(test)
        yield first
        if more:
            yield more

    def _limit(self, tests: Sequence[str]) -> float:
        return LONGEST_SECONDS + 5 * max(map(self._recording.seconds, tests))

    def _is_right(self, found: Outcome, tests: Sequence[str]) -> bool:
        """Say whether the tests that noticed a change pass without it; otherwise drop them."""
        noticed = [test for test in tests if test == found.test] or tests
        if not self._right.issuperset(noticed):
            without = self._project.run(noticed, self._limit(noticed))
            if without.outcome != "passed":
                self._broken.update([test for test in noticed if test == without.test] or noticed)
                return False
            self._right.update(noticed)
        return True


def _mutant(
    change: Change,
    outcome: str,
    test: str | None,
    ran: int,
    covering: Sequence[str],
    tests: tuple[str, ...],
    began: float,
) -> Mutant:
    return Mutant(
        change.file,
        change.line,
        change.before,
        change.after,
        outcome,
        test,
        ran,
        len(covering),
        tests,
        round(time.monotonic() - began, 1),
    )


def sources_of(root: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the modules below some folders, by their path from the root."""
    paths = [path for package in packages for path in sorted((root / package).rglob("*.py"))]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def _names(change: Change) -> set[tuple[str, str, str | None]]:
    """Return the entries of ``equivalent.toml`` that cover a change."""
    return {(change.file, change.before, after) for after in (change.after, None)}


def equivalent_changes() -> set[tuple[str, str, str | None]]:
    """Return the changes that have no effect: path, line before, and line after or None."""
    entries = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("equivalent", [])
    return {(entry["file"], entry["before"], entry.get("after")) for entry in entries}


def changes_at(line: str, sources: Mapping[str, str]) -> list[Change]:
    """Return all changes of a line, which is given as ``statestore/catalog/fence.py:218``."""
    file, _, number = line.rpartition(":")
    return [change for change in changes_of(file, sources[file]) if change.line == int(number)]


def is_in(file: str, folders: Sequence[str] | None) -> bool:
    """Return whether a module is in one of some folders; without folders, each is."""
    return not folders or any(file.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def folder_of(file: str) -> str:
    """Return the package of a module, as in ``statestore/catalog``."""
    return "/".join(file.split("/")[:2]) if file.count("/") > 1 else file.split("/")[0]


def report(mutants: Sequence[Mutant]) -> str:
    """Return the survivors, and the number of each outcome by folder."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for mutant in mutants:
        counts[folder_of(mutant.file)][mutant.outcome] += 1
    lines = [str(mutant) for mutant in mutants if mutant.outcome != "killed"]
    for folder, count in sorted(counts.items()):
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))
        lines.append(f"{folder}: {count.total()} tried, {outcomes}")
    return "\n".join(lines)


def main() -> int:
    """Try changes, print the survivors, and return 1 if no change could be tried."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start none later")
    parser.add_argument("--cap", type=float, default=60.0, help="seconds of tests for a change")
    parser.add_argument("--only", action="append", help="a folder, such as statestore/catalog")
    parser.add_argument("--line", action="append", help="try all changes of a line: FILE:NUMBER")
    parser.add_argument("--json", type=Path, help="append a line of JSON for each change")
    parser.add_argument("--coverage", type=Path, default=RECORDING, help="recording with contexts")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the copy is removed
    sources = sources_of(ROOT, PACKAGES)
    recording = Recording(given.coverage, sources)
    with (
        tempfile.TemporaryDirectory(prefix="statestore-mutants-") as folder,
        ProjectCopy(ROOT, Path(folder)) as project,
    ):
        mutants = Mutants(project, recording, given.cap)
        if given.line:
            changes: Iterator[Change] = (
                one for line in given.line for one in changes_at(line, sources)
            )
        else:
            chosen = {file: text for file, text in sources.items() if is_in(file, given.only)}
            changes = draw_changes(recording, chosen, given.seed, equivalent_changes())
        results = list(_attempts(mutants, islice(changes, given.count), given.seconds, given.json))
    print(report(results))
    return 0 if results else 1


def _attempts(
    mutants: Mutants, changes: Iterator[Change], seconds: float, log: Path | None
) -> Iterator[Mutant]:
    until = time.monotonic() + seconds
    for change in changes:
        if time.monotonic() > until:
            return
        mutant = mutants.attempt(change)
        print(mutant, flush=True)
        if log is not None:
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(mutant)) + "\n")
        yield mutant


if __name__ == "__main__":
    sys.exit(main())
