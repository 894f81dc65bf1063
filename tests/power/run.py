"""Record programs on a real file system, and fail the power after each of their calls.

    python -m tests.power.run --draws 20 --seed 1
    python -m tests.power.run --subjects edit,purge

Each program runs under a recorder (``recorder.c``), which sees the real calls of all libraries and
processes. After each call the disk may have several contents (``disk.py``). All promises of the
program must hold for each of them (``check.py``). A broken promise makes the exit code 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.power import spark_subjects, subjects
from tests.power.check import Checker
from tests.power.content import Promises
from tests.power.disk import Disk, Tree, contents_of, hash_of
from tests.power.recording import Recording, record

__all__ = ["SUBJECTS", "Plan", "Result", "main", "replay"]

SUBJECTS: dict[str, str] = {
    name: program.__name__ for program in (subjects, spark_subjects) for name in program.SUBJECTS
}
"""The module of each program, by its name."""

_MOST_PROBLEMS = 20
_WHOLE = "nothing lost"


@dataclass(frozen=True)
class Plan:
    """How many failures to try.

    Attributes:
        seed: of all draws.
        draws: random contents of each kind of file system after each call.
        share: the share of the calls after which the power fails.
        go_on: the share of the contents on which each store also goes on.
        losses: False if only processes die, and the disk loses nothing.
    """

    seed: int = 1
    draws: int = 2
    share: float = 1.0
    go_on: float = 0.2
    losses: bool = True


@dataclass
class Result:
    """What was tried.

    Attributes:
        calls: the calls that can have changed the disk.
        cuts: the calls after which the power failed.
        failures: the different contents that were checked.
        problems: the broken promises.
    """

    calls: int = 0
    cuts: int = 0
    failures: int = 0
    problems: list[str] = field(default_factory=list)


def replay(recording: Recording, plan: Plan) -> Result:
    """Fail the power after the calls of a recording, and check what is left.

    Args:
        recording: the calls of one program.
        plan: how many failures to try. The contents replace the program's files, because some of
            them contain their absolute path.

    Returns:
        The result. It also has a problem if the log is not what the program did to its folder.
    """
    disk, chance, result = Disk(recording), Random(plan.seed), Result()
    promises, checker = Promises(recording.records), Checker(recording.root)
    real, known = contents_of(recording.root), set[tuple[bytes, int]]()
    for number, call in enumerate(recording.records):
        if not disk.play(call):
            promises.read(call)
        else:
            result.calls += 1
            if chance.random() > plan.share:
                continue
            result.cuts += 1
        for how, tree in _contents(disk, plan, chance):
            content = hash_of(tree), promises.number
            if content in known:
                continue
            known.add(content)
            result.failures += 1
            go_on = chance.random() < plan.go_on
            found = checker.problems(tree, promises, go_on=go_on, is_whole=how == _WHOLE)
            where = f"call {number} ({call.kind} {call.name or call.to_name}), {how}"
            result.problems += [f"{where}: {problem}" for problem in found]
        if len(result.problems) > _MOST_PROBLEMS:
            return result
    if disk.all_kept() != real:
        result.problems.append("the log does not explain the files that the program left")
    return result


def _contents(disk: Disk, plan: Plan, chance: Random) -> Iterator[tuple[str, Tree]]:
    yield _WHOLE, disk.all_kept()
    if not plan.losses:
        return
    yield "all unsynced changes lost", disk.all_lost()
    yield "names without data", disk.names_only()
    for tree in disk.journals():
        yield "an ordered file system, cut in its journal", tree
    for _ in range(plan.draws):
        yield "an ordered file system", disk.ordered(chance)
        yield "a weak file system", disk.weak(chance)


def main() -> int:
    """Replay the subjects, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--go-on", type=float, default=0.2)
    parser.add_argument("--only-processes", action="store_true", help="lose nothing of the disk")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--loses", choices=["", "files", "folders"], default="")
    given = parser.parse_args()
    losses = not given.only_processes
    plan = Plan(given.seed, given.draws, given.share, given.go_on, losses)
    failed, place = False, os.environ.get("PYTEST_DEBUG_TEMPROOT")
    for name in given.subjects.split(","):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="statestore-power-", dir=place) as folder:
            recording = record(SUBJECTS[name], (name,), Path(folder), given.loses)
            result = replay(recording, plan)
        for problem in result.problems:
            print(f"{name}: {problem}")
        failed = failed or bool(result.problems)
        seconds = time.monotonic() - began
        print(
            f"{name}: {result.calls} calls, {result.cuts} cuts, {result.failures} contents, "
            f"{len(result.problems)} broken promises, {seconds:.0f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
