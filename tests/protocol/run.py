"""Explore every order of requests: visit all states of the protocol's model, and check each.

    python -m tests.protocol.run

Explores two writers, a collector, a copier and a holder over three checkpoints, and then fewer
actors for more rounds. Then it explores writers that claim the store, and a collector that deletes
their claims. Prints the number of visited states. If an invariant is violated, it prints the steps
that lead there, and the exit code is 1. ``--fault NAME`` restores a defect of the design.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from types import ModuleType
from typing import Any

from tests.protocol import claims, model
from tests.protocol.model import State, begin

__all__ = ["CLAIMS", "CLAIMS_WHOLE", "SMALL", "WHOLE", "explore", "main"]

FAULTS = (*model.FAULTS, *claims.FAULTS)

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
CLAIMS = (claims.begin(1, 4), claims.begin(2, 3))
CLAIMS_WHOLE = (claims.begin(1, 1, 3), claims.begin(2, 4, collections=2))


def explore(
    first: State | claims.State, faults: frozenset[str] = frozenset()
) -> tuple[int, str | None, list[str]]:
    """Return the number of states, the first violation or None, and the steps that lead to it.

    States are stored as hashes, each with the hash of the previous state, so that millions fit into
    memory.
    """
    rules = _rules(first)
    known = {hash(first): 0}
    waiting: deque[Any] = deque([first])
    while waiting:
        state = waiting.popleft()
        here = hash(state)
        for _, after in rules.steps(state, faults):
            there = hash(after)
            if there in known:
                continue
            known[there] = here
            broken = rules.wrong(state, after)
            if broken is not None:
                return len(known), broken, _way(first, known, there, faults)
            waiting.append(after)
    return len(known), None, []


def _rules(first: State | claims.State) -> ModuleType:
    return model if isinstance(first, State) else claims


def _way(
    first: State | claims.State, known: dict[int, int], last: int, faults: frozenset[str]
) -> list[str]:
    """Return the steps from the first state to the last, by taking them again."""
    places = [last]
    while places[-1] != hash(first):
        places.append(known[places[-1]])
    way: list[str] = []
    state: Any = first
    for place in places[-2::-1]:
        said, state = next(
            step for step in _rules(first).steps(state, faults) if hash(step[1]) == place
        )
        way.append(said)
    return way


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--fault", choices=FAULTS, action="append", default=[])
    parser.add_argument("--small", action="store_true", help="fewer actors at once, in seconds")
    asked = parser.parse_args(arguments)
    total, found = 0, False
    for first in (*SMALL, *CLAIMS) if asked.small else (*WHOLE, *CLAIMS_WHOLE):
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
