"""A progress bar for the states of a job, on a terminal.

It shows the state that Spark works on, and its progress. Spark reports the tasks of a state, so the
bar counts tasks: the number of rows is known only after they are written.
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
    """The progress of a job: the finished states, and the share of finished tasks of the next."""

    def __init__(self, total: int, draw: _Draw, tasks: Callable[[], tuple[int, int]]) -> None:
        """Begin before the first of ``total`` states.

        ``tasks`` returns the number of finished tasks of the active stages, and of all their tasks.
        """
        self._total, self._draw, self._tasks = total, draw, tasks
        self._begun, self._title = 0, ""

    def begin(self, title: str) -> None:
        """Draw the end of the previous step and the start of the next one."""
        self._begun += 1
        self._title = title
        self._draw(min(self._begun - 1, self._total), self._total, title)

    def look(self) -> None:
        """Draw the progress of the current step."""
        done, tasks = self._tasks()
        if tasks and 0 < self._begun <= self._total:
            text = f"{self._title}: {done} of {tasks} tasks"
            self._draw(self._begun - 1 + done / tasks, self._total, text)


@contextmanager
def bar_of(spark: SparkSession, total: int) -> Iterator[StatesBar]:
    """Yield the progress bar of a job that works on ``total`` states, one after another.

    If the output is not a terminal, nothing is drawn and Spark is not queried.
    """
    with progress_bar("starting") as drawn:
        bar = StatesBar(total, drawn, lambda: tasks_of(spark))
        if not drawn.is_drawn:
            yield bar
            return
        over = threading.Event()

        def look() -> None:
            while not over.wait(EVERY_S):
                with suppress(Exception):  # if Spark does not answer, the bar does not change
                    bar.look()

        looking = threading.Thread(target=look, name="progress", daemon=True)
        looking.start()
        try:
            yield bar
        finally:
            over.set()
            looking.join()


def tasks_of(spark: SparkSession) -> tuple[int, int]:
    """Return the number of finished tasks of the active stages, and of all their tasks."""
    tracker = spark.sparkContext.statusTracker()
    known = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    stages = [stage for stage in known if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
