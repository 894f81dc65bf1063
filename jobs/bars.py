"""A progress bar for the states of a job, on a terminal: which one Spark works on, and how far.

Of a state Spark tells its tasks, so the bar goes by these: rows are known when they are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from statestore.cli.output import progress_bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StatesBar", "bar_of", "tasks_of"]

EVERY_S = 0.5


class _Draw(Protocol):
    def __call__(self, done: float, total: float, title: str | None = None) -> None: ...


class StatesBar:
    """How far a job is: states that are done, and of the one at hand the share of its tasks."""

    def __init__(self, total: int, draw: _Draw, tasks: Callable[[], tuple[int, int]]) -> None:
        """Begin before the first of ``total`` states; ``tasks`` says how many of the tasks under
        way have ended, and how many there are.
        """
        self._total, self._draw, self._tasks = total, draw, tasks
        self._begun, self._title = 0, ""

    def begin(self, title: str) -> None:
        """Draw that the step before has ended, and the next has begun."""
        self._begun += 1
        self._title = title
        self._draw(min(self._begun - 1, self._total), self._total, title)

    def look(self) -> None:
        """Draw how far the step at hand is."""
        done, tasks = self._tasks()
        if tasks and 0 < self._begun <= self._total:
            text = f"{self._title}: {done} of {tasks} tasks"
            self._draw(self._begun - 1 + done / tasks, self._total, text)


@contextmanager
def bar_of(spark: SparkSession, total: int) -> Iterator[StatesBar]:
    """Yield the bar of a job that works on ``total`` states, one after another.

    Elsewhere than on a terminal nothing is drawn, and Spark is not asked.
    """
    with progress_bar("starting") as drawn:
        bar = StatesBar(total, drawn, lambda: tasks_of(spark))
        if not drawn.is_drawn:
            yield bar
            return
        over = threading.Event()

        def look() -> None:
            while not over.wait(EVERY_S):
                with suppress(Exception):  # without an answer of Spark's the bar stays as it is
                    bar.look()

        looking = threading.Thread(target=look, name="progress", daemon=True)
        looking.start()
        try:
            yield bar
        finally:
            over.set()
            looking.join()


def tasks_of(spark: SparkSession) -> tuple[int, int]:
    """Return how many tasks of the stages under way have ended, and how many these have."""
    tracker = spark.sparkContext.statusTracker()
    known = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    stages = [stage for stage in known if stage is not None]
    return sum(one.numCompletedTasks for one in stages), sum(one.numTasks for one in stages)
