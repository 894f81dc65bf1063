"""Record programs on a real file system, and fail the power after each of their calls.

    python -m tests.power.run --draws 20 --seed 1
    python -m tests.power.run --subjects edit,purge

Each program runs under a recorder (``recorder.c``), which sees the real calls of all libraries and
processes. After each call the disk may have several contents (``disk.py``). All promises of the
program must hold for each of them (``check.py``). A broken promise makes the exit code 1.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.power.check import problems_of
from tests.power.content import Promises
from tests.power.disk import Disk, Tree, contents_of
from tests.power.recording import Recording, record
from tests.power.subjects import SUBJECTS

__all__ = ["PROGRAM", "Plan", "Result", "main", "replay"]

PROGRAM = "tests.power.subjects"
_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class Plan:
    """How many failures to try.

    Attributes:
        seed: of all draws.
        draws: random contents of each kind of file system after each call.
        share: the share of the calls after which the power fails.
        go_on: the share of the contents on which each store also goes on.
    """

    seed: int = 1
    draws: int = 2
    share: float = 1.0
    go_on: float = 0.2


@dataclass
class Result:
    """What was tried: calls, failures with different contents, and the broken promises."""

    calls: int = 0
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
    disk, promises, chance, result = Disk(recording), Promises(), Random(plan.seed), Result()
    real, known = contents_of(recording.root), set[tuple[bytes, int]]()
    for number, call in enumerate(recording.records):
        result.calls += 1
        if not disk.play(call):
            promises.read(call)
        elif chance.random() > plan.share:
            continue
        for how, tree in _contents(disk, plan.draws, chance):
            content = _hash(tree), promises.number
            if content in known:
                continue
            known.add(content)
            result.failures += 1
            found = problems_of(tree, promises, recording.root, go_on=chance.random() < plan.go_on)
            where = f"call {number} ({call.kind} {call.name or call.to_name}), {how}"
            result.problems += [f"{where}: {problem}" for problem in found]
        if len(result.problems) > _MOST_PROBLEMS:
            return result
    if disk.all_kept() != real:
        result.problems.append("the log does not explain the files that the program left")
    return result


def _contents(disk: Disk, draws: int, chance: Random) -> Iterator[tuple[str, Tree]]:
    yield "all unsynced changes lost", disk.all_lost()
    yield "nothing lost", disk.all_kept()
    yield "names without data", disk.names_only()
    for _ in range(draws):
        yield "an ordered file system", disk.ordered(chance)
        yield "a weak file system", disk.weak(chance)


def _hash(tree: Tree) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path, data in sorted(tree.items()):
        kind = b"folder" if data is None else hashlib.blake2b(data, digest_size=16).digest()
        digest.update(path.encode() + b"\0" + kind)
    return digest.digest()


def main() -> int:
    """Replay the subjects, print the results, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--go-on", type=float, default=0.2)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--subjects", default=",".join(SUBJECTS))
    parser.add_argument("--loses", choices=["", "files", "folders"], default="")
    given = parser.parse_args()
    plan = Plan(given.seed, given.draws, given.share, given.go_on)
    failed, place = False, os.environ.get("PYTEST_DEBUG_TEMPROOT")
    for name in given.subjects.split(","):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="statestore-power-", dir=place) as folder:
            recording = record(PROGRAM, (name,), Path(folder), given.loses)
            result = replay(recording, plan)
        for problem in result.problems:
            print(f"{name}: {problem}")
        failed = failed or bool(result.problems)
        seconds = time.monotonic() - began
        print(
            f"{name}: {result.calls} calls, {result.failures} contents, "
            f"{len(result.problems)} broken promises, {seconds:.0f} s",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
