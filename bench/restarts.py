"""Predicted and real restarts of the demo's store: how often a known time is right.

The demo writes its store with Spark. Then the newest checkpoint is restored again and again at
changing parallelisms. The time of each restore is predicted from the ones before it, as
``statestore plan --restart`` does, and compared with the time that its slowest subtask takes. A
prediction is *right* within 25 %, *unknown* if it says that it cannot know, and otherwise wrong.

Other programs on the machine change the wall time of single restores, and a prediction then says
that it is unknown. The processor time of the same restores shows the model alone.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench.measure import Figure, output_of
from statestore import StateStore
from statestore.cli.restore_records import MOST_RESTORES, measured_restore
from statestore.restore import export
from statestore.restore.restart_time import TOLERANCE, Certainty, MeasuredRestore, predict

__all__ = ["figures"]

TARGET = "B36"
RESTARTS = 60
PARALLELISMS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LEAST_RIGHT = 0.9
_KNOWN = (Certainty.MEASURED, Certainty.DERIVED)


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the share of restarts whose time was right, or said to be unknown, by two clocks.

    ``rows`` and ``repeats`` have no effect here.
    """
    output_of([sys.executable, "-m", "statestore", "demo", str(folder / "demo")])
    stores = sorted(path.parent for path in (folder / "demo").rglob("statestore.json"))
    store = StateStore.open(str(stores[0]))
    found = []
    for name, clock in (("wall time", time.monotonic), ("processor time", time.process_time)):
        outcomes = _outcomes(store, folder / "restored", clock)
        counts = ", ".join(f"{outcomes[one]} {one}" for one in ("right", "unknown", "wrong"))
        share = 1 - outcomes["wrong"] / RESTARTS
        what = f"{name}: restarts within {TOLERANCE:.0%} or unknown ({counts})"
        found.append(Figure(TARGET, what, share, "", share, share, goal=LEAST_RIGHT, at_least=True))
    return found


def _outcomes(store: StateStore, folder: Path, clock: Callable[[], float]) -> Counter[str]:
    """Restore again and again, and compare each time with its prediction."""
    dice = random.Random(36)
    restores: tuple[MeasuredRestore, ...] = ()
    outcomes: Counter[str] = Counter()
    before, export.CLOCK = export.CLOCK, clock
    try:
        _restore(store, folder, 2, ())  # modules are imported now
        for _ in range(RESTARTS):
            parallelism = dice.choice(PARALLELISMS)
            subtasks = [*store.plan(parallelism=parallelism).subtasks]
            expected = predict(parallelism, subtasks, restores)
            real = _restore(store, folder, parallelism, restores)
            restores = (*restores, real)[-MOST_RESTORES:]
            outcomes[_outcome(expected.certainty, expected.seconds, real.seconds)] += 1
    finally:
        export.CLOCK = before
    return outcomes


def _outcome(certainty: Certainty, expected: float | None, real: float) -> str:
    if certainty not in _KNOWN or expected is None:
        return "unknown"
    return "right" if abs(real / expected - 1) <= TOLERANCE else "wrong"


def _restore(
    store: StateStore, folder: Path, parallelism: int, known: tuple[MeasuredRestore, ...]
) -> MeasuredRestore:
    plan = store.plan(parallelism=parallelism)
    exported = store.restore(parallelism=parallelism).export(folder)
    shutil.rmtree(folder)
    measured = measured_restore(plan, exported, known)
    assert measured is not None
    return measured
