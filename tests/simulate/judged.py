"""Judge the histories of simulated runs with a linearizability checker.

The checker is the program of ``tests/linearizability``, which knows nothing of stores. Only reads
can contradict a history, so its plans are drawn with ``watched``.

A run in which a store went back in time, by a power loss or a backup, is not judged. An actor may
have read a checkpoint that was lost before its writer was told of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.linearizability.judge import violations
from tests.simulate.simulation import Chance, Outcome, Plan, simulate

__all__ = ["KIND", "Judged", "judged", "simulate_judged"]

KIND = "not linearizable"


@dataclass
class Judged:
    """The number of judged histories and of their operations, and of runs that were not judged."""

    histories: int = 0
    operations: int = 0
    left_out: int = 0

    def __str__(self) -> str:
        """Return the counts as one sentence."""
        return (
            f"{self.histories:,} histories of {self.operations:,} operations judged, "
            f"{self.left_out:,} runs left out"
        )


def judged(outcomes: Sequence[Outcome], counts: Judged | None = None) -> list[Outcome]:
    """Return the outcomes; one with a violated model is wrong, unless it was before."""
    counts = counts or Judged()
    named = [
        (place, store, history)
        for place, outcome in enumerate(outcomes)
        for store, history in sorted(outcome.histories.items())
    ]
    counts.histories += len(named)
    counts.operations += sum(len(history) for _, _, history in named)
    counts.left_out += sum(not outcome.histories for outcome in outcomes)
    found = [*outcomes]
    verdicts = violations([history for *_, history in named])
    for (place, store, _), violated in zip(named, verdicts, strict=True):
        if violated and found[place].wrong is None:
            text = f"{store} is not linearizable as a {', nor as a '.join(violated)}"
            found[place] = replace(found[place], wrong=(KIND, text))
    return found


def simulate_judged(plan: Plan, chance: Chance | None = None) -> Outcome:
    """Run a plan as :func:`simulate` does, and judge its histories."""
    [outcome] = judged([simulate(plan, chance)])
    return outcome
