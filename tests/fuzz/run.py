"""Random histories of a state, in which every reader is compared with a dictionary.

    python -m tests.fuzz.run --histories 10000 --seed 1

The number of a history determines it: first the seed, and then the following numbers. A failing
history is shortened as far as possible and printed as Python that runs it again. The exit code is
then 1.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.comparing import COMPARING
from tests.fuzz.draws import draw_history
from tests.fuzz.history import History, code
from tests.fuzz.outside import OUTSIDE
from tests.fuzz.readers import READERS, Reader
from tests.fuzz.shrink import shrunk
from tests.fuzz.world import World

__all__ = ["Failure", "Runner", "main", "run_again"]

ALL: dict[str, Reader] = {**READERS, **COMPARING, **OUTSIDE}
MEMORY = Path("/dev/shm")
LOOKS = 3
"""The number of readers after each step. After the last step all of them read."""


@dataclass(frozen=True)
class Failure:
    """The failure of a history. ``what`` names the error and its origin, and is the same for the
    same defect.
    """

    what: str
    text: str
    reader: str | None = None


@dataclass
class Runner:
    """Runs histories, and counts the steps and reads."""

    spark: Any = None
    readers: Mapping[str, Reader] = field(default_factory=lambda: dict(ALL))
    steps: Counter[str] = field(default_factory=Counter)
    reads: Counter[str] = field(default_factory=Counter)
    histories: int = 0
    reading: str | None = None
    """The current reader. After a failure it is the reader that found it."""

    def failure(self, history: History) -> Failure | None:
        """Return the failure of a history, or None if it succeeds."""
        self.histories += 1
        self.reading = None
        folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
        try:
            self.run(history, folder)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown as a history
            return _failure(error, self.reading)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return None

    def run(self, history: History, folder: Path) -> None:
        """Run a history; raise its error."""
        world = World(history.shape, folder, self.spark)
        for step in history.steps:
            self.steps[type(step).__name__] += 1
            world.take(step)
            self._look(world, Random(step.look), LOOKS)
        self._look(world, Random(len(history.steps)), len(self.readers))
        if world.model.known:
            report = world.store.maintenance.verify("all", deep=True)
            assert report.is_intact, f"verify: {report.broken}"

    def _look(self, world: World, draw: Random, count: int) -> None:
        numbers = sorted(world.model.known)
        if not numbers:
            return
        assert list(world.store.checkpoints()) == numbers, "the checkpoints that there are"
        for name in draw.sample(sorted(self.readers), min(count, len(self.readers))):
            number = draw.choice([numbers[-1], draw.choice(numbers)])
            self.reads[name] += 1
            self.reading = name
            self.readers[name](world, number, draw)
            self.reading = None


def _failure(error: Exception, reader: str | None) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/statestore/" in frame.filename]
    last = (ours or frames)[-1]
    at = f"{Path(last.filename).name}:{last.name}"
    if isinstance(error, AssertionError):
        at = str(error).partition(":")[0].partition("(")[0] or at
        at = "".join(letter for letter in at if not letter.isdigit())
    text = "".join(traceback.format_exception(error))
    return Failure(f"{type(error).__name__} {at}", text, reader)


def shortest(
    history: History,
    failure: Failure,
    spark: Any = None,
    readers: Mapping[str, Reader] = ALL,
) -> History:
    """Return a shorter history with the same failure. If possible, only the reader that found it
    runs.
    """
    few = {name: reader for name, reader in readers.items() if name == failure.reader}
    alone = Runner(spark, few)
    found = alone.failure(history)
    same = found is not None and found.what == failure.what
    return shrunk(history, failure.what, (alone if same else Runner(spark, readers)).failure)


def run_again(history: History, runner: Runner | None = None) -> None:
    """Run one history as it was printed; raise its error."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        (runner or Runner()).run(history, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def failures(
    runner: Runner,
    numbers: Iterable[int],
    draw: Callable[[int], History] = draw_history,
    most: int = 1,
) -> dict[str, tuple[int, History, Failure]]:
    """Run the histories of some numbers until this many different failures occurred. Return the
    first history of each failure.
    """
    found: dict[str, tuple[int, History, Failure]] = {}
    for number in numbers:
        history = draw(number)
        failure = runner.failure(history)
        if failure is not None:
            found.setdefault(failure.what, (number, history, failure))
        if len(found) >= most:
            break
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the histories that the arguments request; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--histories", type=int, default=10_000, help="so many; 10,000")
    parser.add_argument("--seed", type=int, default=1, help="the number of the first; 1")
    parser.add_argument("--problems", type=int, default=1, help="stop after so many; 1")
    asked = parser.parse_args(arguments)
    runner, began = Runner(), time.monotonic()
    numbers = range(asked.seed, asked.seed + asked.histories)
    found = failures(runner, numbers, most=asked.problems)
    for number, history, failure in found.values():
        print(f"history {number} goes wrong; as short as it gets:\n", flush=True)
        print(code(shortest(history, failure)))
        print(failure.text)
        print(f"{failure.what}: --histories 1 --seed {number} draws it again\n", flush=True)
    seconds = time.monotonic() - began
    steps = ", ".join(f"{count:,} {what}" for what, count in runner.steps.most_common())
    reads = ", ".join(f"{count:,} {what}" for what, count in runner.reads.most_common())
    print(
        f"{runner.histories:,} histories, {runner.steps.total():,} steps, "
        f"{runner.reads.total():,} readings, in {seconds:.0f} s, {len(found)} problems\n"
        f"steps: {steps}\nreadings: {reads}"
    )
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
