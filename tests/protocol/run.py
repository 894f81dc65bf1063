"""Every order of requests: all states of the protocol's model, and nothing is wrong in any.

    python -m tests.protocol.run

Explores two writers, a collector, a copier and a holder over three checkpoints, and then fewer of
them for longer. Prints the states that were visited; where a promise is broken the steps that lead
there, and the exit code is 1. ``--fault NAME`` puts a defect of the design back.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

from tests.protocol.model import FAULTS, State, begin, steps, wrong

__all__ = ["SMALL", "WHOLE", "explore", "main"]

WHOLE = (
    begin(("writer", "writer", "collector", "copier", "holder")),
    begin(("writer", "writer", "collector"), rounds=2),
    begin(("copier", "copier", "collector", "holder")),
    begin(("writer", "expirer", "collector", "holder")),
    begin(("writer", "writer", "expirer", "cleaner", "holder"), ages=2),
)
SMALL = (
    begin(("writer", "writer", "collector")),
    begin(("writer", "writer"), rounds=2),
    begin(("writer", "expirer", "collector", "holder"), ages=0),
    begin(("copier", "writer", "collector")),
    begin(("copier", "copier", "collector")),
    begin(("latecomer", "expirer", "cleaner", "writer"), ages=2),
    begin(("latecomer", "expirer", "cleaner", "holder"), ages=2),
)


def explore(
    first: State, faults: frozenset[str] = frozenset()
) -> tuple[int, str | None, list[str]]:
    """Return how many states there are, what is wrong in the first one that is, and how to get
    there.

    States are known by their hash, each with the step that led to it and the one before.
    """
    known: dict[int, tuple[int, str]] = {hash(first): (0, "")}
    waiting = deque([first])
    while waiting:
        state = waiting.popleft()
        for said, after in steps(state, faults):
            place = hash(after)
            if place in known:
                continue
            known[place] = (hash(state), said)
            broken = wrong(state, after)
            if broken is not None:
                return len(known), broken, _way(known, place)
            waiting.append(after)
    return len(known), None, []


def _way(known: dict[int, tuple[int, str]], place: int) -> list[str]:
    way = []
    while known[place][1]:
        place, said = known[place]
        way.append(said)
    return way[::-1]


def main(arguments: list[str] | None = None) -> int:
    """Run what the arguments say; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--fault", choices=[*FAULTS], action="append", default=[])
    parser.add_argument("--small", action="store_true", help="fewer actors at once, in seconds")
    asked = parser.parse_args(arguments)
    total, found = 0, False
    for first in SMALL if asked.small else WHOLE:
        began = time.monotonic()
        count, broken, way = explore(first, frozenset(asked.fault))
        seconds = time.monotonic() - began
        who = ", ".join(actor.kind for actor in first.actors)
        print(f"{count:,} states of {who}, in {seconds:.0f} s: {broken or 'nothing is wrong'}")
        print(*(f"  {step}" for step in way), sep="\n", end="\n" if way else "")
        total, found = total + count, found or broken is not None
    print(f"{total:,} states in all")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
