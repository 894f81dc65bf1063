"""Run many schedules of actors over one simulated store.

    python -m tests.simulate.run --steps 100000

Prints one line with counts. For each violation it prints the seed, the violation and the shortest
plan that reproduces it, and the exit code is 1. ``--seed N --steps 1`` runs one schedule again.

* With ``--trace`` it prints the calls and the operations of a violation too.
* With ``--release 0.1.0`` some actors are of it; ``make build/release-0.1.0/.ready`` builds it.
* With ``--judge`` other actors read the stores meanwhile, and a linearizability checker judges all
  operations.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from tests.linearizability.history import History
from tests.simulate.judged import KIND, Judged, judged, simulate_judged
from tests.simulate.plans import MIXES, drawn
from tests.simulate.shrink import shrunk
from tests.simulate.simulation import Outcome, simulate
from tests.versions.releases import RELEASES

__all__ = ["main", "run_schedules"]

BATCH = 100  # schedules whose histories are judged together


def run_schedules(
    seeds: range,
    mixes: tuple[str, ...],
    *,
    most_wrong: int = 1,
    releases: tuple[str, ...] = (),
    judging: Judged | None = None,
) -> tuple[Counter[str], int, list[tuple[int, str, Outcome]]]:
    """Return the number of schedules of each mix, the number of calls, and the violations.

    With ``judging``, which counts the histories, a linearizability checker judges them too.
    """
    counts: Counter[str] = Counter()
    calls = 0
    wrong: list[tuple[int, str, Outcome]] = []
    for first in range(0, len(seeds), BATCH):
        if sys.stderr.isatty():
            print(f"\r{first:,} of {len(seeds):,} schedules", end="", file=sys.stderr, flush=True)
        batch = []
        for seed in seeds[first : first + BATCH]:
            mix, plan, chance = drawn(seed, mixes, releases, watched=judging is not None)
            outcome = simulate(plan, chance)
            counts[mix] += 1
            calls += outcome.calls
            batch.append((seed, mix, outcome))
            if outcome.wrong is not None and most_wrong == 1:
                break
        outcomes = [outcome for *_, outcome in batch]
        if judging is not None:
            outcomes = judged(outcomes, judging)
        for (seed, mix, _), outcome in zip(batch, outcomes, strict=True):
            if outcome.wrong is not None and len(wrong) < most_wrong:
                wrong.append((seed, mix, outcome))
        if len(wrong) == most_wrong:
            break
    if sys.stderr.isatty():
        print(end="\r", file=sys.stderr)
    return counts, calls, wrong


def _told(history: History) -> list[str]:
    """Return one line for each operation, in the order of the calls."""
    return [
        f"{each.called}-{each.returned} client {each.client}: {each.kind} "
        f"{each.name or each.number or ''}{[*each.numbers] or ''} {each.value} {each.outcome}"
        for each in sorted(history, key=lambda each: each.called)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.run", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--steps", type=int, default=10_000, help="how many schedules; 10,000")
    parser.add_argument("--seed", type=int, default=1, help="of the first one; 1")
    parser.add_argument(
        "--mix", action="append", choices=[*MIXES], help="only such; again for more"
    )
    parser.add_argument(
        "--release",
        action="append",
        default=[],
        choices=[release.version for release in RELEASES],
        help="some actors are of it; again for more",
    )
    parser.add_argument(
        "--judge", action="store_true", help="other actors read, and all operations are judged"
    )
    parser.add_argument("--most", type=int, default=1, help="stop after so many that are wrong; 1")
    parser.add_argument("--no-shrink", action="store_true", help="print what was drawn as it is")
    parser.add_argument("--trace", action="store_true", help="print the calls of what is wrong")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    seeds = range(asked.seed, asked.seed + asked.steps)
    mixes = tuple(asked.mix or MIXES)
    judging = Judged() if asked.judge else None
    counts, calls, wrong = run_schedules(
        seeds, mixes, most_wrong=asked.most, releases=tuple(asked.release), judging=judging
    )
    for seed, mix, outcome in wrong:
        assert outcome.wrong is not None
        run = simulate_judged if outcome.wrong[0] == KIND else simulate
        short = outcome if asked.no_shrink else shrunk(outcome, run=run)
        assert short.wrong is not None
        print(f"seed {seed} ({mix}): {short.wrong[0]}: {short.wrong[1]}\n{short.plan}")
        if asked.trace:
            print(*simulate(short.plan, trace=True).trace, sep="\n")
            for store, history in sorted(short.histories.items()):
                print(f"operations on {store}:", *_told(history), sep="\n  ")
        print(*(f"  told: {error}" for error in short.errors), sep="\n")
    seconds = time.monotonic() - began
    kinds = ", ".join(f"{number} {what}" for what, number in counts.most_common())
    print(
        f"{counts.total():,} schedules, {calls:,} calls, in {seconds:.0f} s "
        f"({counts.total() / seconds:.0f}/s, {counts.total() / time.process_time():.0f} per second "
        f"of a processor), {len(wrong)} wrong: {kinds}"
    )
    if judging is not None:
        print(judging)
    return 1 if wrong else 0


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # without thousands of messages about replaced writers
    raise SystemExit(main())
