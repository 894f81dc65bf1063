"""Run one actor at a time: actors are threads that pass a baton, and any storage call may pass it.

Nothing depends on chance: time is a number that each call advances a little, and that jumps when
all actors wait. A run is therefore a function of its plan and of the events at its calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

__all__ = ["EPOCH_MS", "HOUR_MS", "Event", "Killed", "Scheduler", "Stopped", "Task"]

EPOCH_MS = 4_102_444_800_000  # 2100: a file without an assigned time is old and not in the future
HOUR_MS = 3_600_000
CALL_MS = 5  # the duration of a call
MOST_CALLS = 4000  # per actor: more calls mean an endless loop


class Killed(BaseException):
    """The process is dead: nothing that it still does has an effect."""


class Stopped(BaseException):
    """The run has ended because a violation was recorded."""


@dataclass(frozen=True, order=True)
class Event:
    """An event that happens to an actor at its call number ``at``.

    * ``wait``: the actor stalls for ``minutes``; 0 lets the actors that are ready go first.
    * ``kill``: the actor dies before the call.
    * ``lost``: the call is executed and reports a failure.
    * ``again``: the call is executed twice, as by a client that lost the first response.
    * ``fail``: the call is not executed.
    * ``stale``: a listing is ``minutes`` old.
    * ``power``: the machine loses power, and with it all data that were not synced; ``draw`` may
      keep some.
    """

    task: str
    at: int
    kind: str
    minutes: int = 0
    draw: int = 0

    def __str__(self) -> str:
        times = {"wait": f" for {self.minutes} min" if self.minutes else "", "stale": ""}
        drawn = f" (draw {self.draw})" if self.draw else ""
        return f"{self.task}: {self.kind}{times.get(self.kind, '')}{drawn} at its call {self.at}"


@dataclass(eq=False)
class Task:
    """An actor: a process of its own, whose clock has the skew ``skew_ms``."""

    name: str
    run: Callable[[], None]
    wake_ms: int
    skew_ms: int = 0
    calls: int = 0
    started: bool = False
    began_ms: int = 0
    ended: bool = False
    dead: bool = False
    doing: str = ""  # a description of its current step
    met: set[str] = field(default_factory=set)  # the kinds of events that it met
    waited: int = 0  # minutes of stalls by events
    changed: bool = False  # its last call changed a file
    # entered while it runs
    entering: Callable[[], AbstractContextManager[None]] = nullcontext
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None

    @property
    def writes(self) -> bool:
        """Return True if it creates a checkpoint or a store."""
        reading = ("gc ", "expire ", "savepoint ", "unsave ", "reader ", "watch ")
        return not self.doing.startswith(reading)


class Scheduler:
    """All actors of one run, and the time."""

    def __init__(self, decide: Callable[[Task, str, str], Event | None]) -> None:
        """Take ``decide``, which returns the event at a call of an actor."""
        self.now_ms = EPOCH_MS
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.trace: list[str] | None = None
        self.power_is_lost: Callable[[Event], None] = lambda event: None
        self.time_passes: Callable[[int], None] = lambda minutes: None
        self.crashed: BaseException | None = None
        self.stopped = False
        self._decide = decide
        self._main = threading.Semaphore(0)
        self._queue: list[Task] = []
        self._power: Event | None = None
        self._quiet = 0

    def spawn(
        self,
        name: str,
        run: Callable[[], None],
        *,
        at_ms: int,
        skew_ms: int = 0,
        entering: Callable[[], AbstractContextManager[None]] | None = None,
    ) -> Task:
        """Add an actor that starts at a time; it is by default of its creator's release."""
        task = Task(name, run, at_ms, skew_ms)
        if entering is not None or self.current is not None:
            task.entering = entering or self.current.entering  # type: ignore[union-attr]
        self.tasks.append(task)
        self._queue.append(task)
        return task

    def mine(self) -> Task | None:
        """Return the actor of the current thread; None for an observer."""
        task = self.current
        if task is None or self._quiet or task.thread is not threading.current_thread():
            return None
        return task

    def host_ms(self) -> int:
        """Return the time on the clock of the current actor."""
        return self.now_ms + (self.current.skew_ms if self.current else 0)

    def quietly(self) -> _Quietly:
        """Return a block in which calls are not scheduling points."""
        return _Quietly(self)

    def run(self) -> None:
        """Run until every actor has ended; ``crashed`` gets unexpected errors of actors."""
        while self._queue and not self.stopped:
            ready = [task for task in self._queue if task.wake_ms <= self.now_ms]
            if not ready:
                next_ms = min(task.wake_ms for task in self._queue)
                self.time_passes((next_ms - self.now_ms) // 60_000)
                self.now_ms = next_ms
                continue
            self._go(ready[0])
            if self._power is not None:
                event, self._power = self._power, None
                for task in [one for one in self._queue if one.started]:
                    self._end(task)
                with suppress(Stopped):  # the violation has been recorded
                    self.power_is_lost(event)
        for task in list(self._queue):
            self._end(task)

    def _go(self, task: Task) -> None:
        self._queue.remove(task)
        self.current = task
        with task.entering():
            if task.thread is None:
                task.started, task.began_ms = True, self.now_ms
                task.thread = threading.Thread(target=self._body, args=(task,), daemon=True)
                task.thread.start()
            else:
                task.baton.release()
            self._main.acquire()
        self.current = None
        if not task.ended:
            self._queue.append(task)

    def _end(self, task: Task) -> None:
        """Let an actor unwind its stack, without any effect."""
        task.dead = True
        if task.started and not task.ended:
            self._go(task)
        if task in self._queue:
            self._queue.remove(task)

    def _body(self, task: Task) -> None:
        try:
            task.run()
        except (Killed, Stopped):
            task.dead = True
        except BaseException as error:  # noqa: BLE001 - looked at by whoever runs it
            self.crashed, self.stopped = self.crashed or error, True
        finally:
            task.ended = True
            self._main.release()

    def point(self, operation: str, name: str) -> Event | None:
        """Decide about the event at a call; return the part that the call itself must execute."""
        task = self.mine()
        if task is None:
            return None
        if task.dead or self.stopped:
            raise Killed
        task.calls += 1
        self.now_ms += CALL_MS
        if task.calls > MOST_CALLS:
            raise AssertionError(f"{task.name} has made {MOST_CALLS} calls, and makes more")
        event = self._decide(task, operation, name)
        if self.trace is not None:
            said = f"  << {event}" if event else ""
            self.trace.append(f"{task.name} #{task.calls}: {operation} {name}{said}")
        if event is None:
            return None
        task.met.add(event.kind)
        if event.kind == "wait":
            self.wait(event.minutes)
        elif event.kind == "kill":
            task.dead = True
            raise Killed
        elif event.kind == "power":
            self._power = event
            task.dead = True
            raise Killed
        else:
            return event
        return None

    def wait(self, minutes: float) -> None:
        """Let other actors run; return when the time has passed."""
        task = self.current
        assert task is not None
        task.wake_ms = self.now_ms + int(minutes * 60_000)
        self._main.release()
        task.baton.acquire()
        if task.dead or self.stopped:
            raise Killed


class _Quietly:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def __enter__(self) -> None:
        self._scheduler._quiet += 1

    def __exit__(self, *error: object) -> None:
        self._scheduler._quiet -= 1
