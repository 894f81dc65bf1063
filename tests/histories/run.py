"""Run histories of a store up to a number of steps, and check that no live file goes and no dead
one stays.

    python -m tests.histories.run --steps 10000

It prints a line with counts. On a failure, Hypothesis prints the shortest failing history that it
found, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test

from tests.histories.machine import Histories

__all__ = ["main", "run_histories"]

STEPS = 50  # the length of the longest history
MOST_AT_ONCE = 20  # histories per seed
PHASES = (Phase.generate, Phase.shrink)


def run_histories(steps: int, *, seed: int) -> tuple[Counter[str], int]:
    """Run this many steps; return their counts, and the number of histories.

    It raises the error of a history after Hypothesis has shortened and printed the history.
    """
    Histories.steps.clear()
    Histories.histories = 0
    plan = settings(
        max_examples=max(1, min(MOST_AT_ONCE, steps // STEPS)),
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=False,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),
    )
    while Histories.steps.total() < steps:
        machine = seeded(seed)(type("Drawn", (Histories,), {}))
        run_state_machine_as_test(machine, settings=plan)
        seed += 1
    return Histories.steps, Histories.histories


def main(arguments: list[str] | None = None) -> int:
    """Run the histories that the arguments request; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=10_000, help="at least so many; 10,000")
    parser.add_argument("--seed", type=int, default=1, help="draws other histories; 1")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    try:
        steps, histories = run_histories(asked.steps, seed=asked.seed)
    except Exception as error:  # noqa: BLE001 - whatever it is, it was printed as a history
        for one in getattr(error, "exceptions", (error,)):
            print(*getattr(one, "__notes__", ()), repr(one), sep="\n")
        print(f"a problem after {Histories.steps.total():,} steps, with seed {asked.seed}")
        return 1
    kinds = ", ".join(f"{number} {what}" for what, number in steps.most_common())
    seconds = time.monotonic() - began
    print(
        f"{steps.total():,} steps in {histories:,} histories, in {seconds:.0f} s, 0 problems: "
        f"{kinds}"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
