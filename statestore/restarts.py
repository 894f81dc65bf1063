"""Run a function again after a failure, as long as its restart strategy allows.

Follows Flink's ``ExecutionFailureHandler``: an error that no restart can cure ends the run without
asking the strategy. The strategies are in :mod:`statestore.jobgraph.restart`.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Final, TypeVar

from statestore import errors
from statestore.display import duration
from statestore.errors import (
    CommitConflictError,
    InvalidArgumentError,
    StateStoreError,
    StorageError,
)
from statestore.jobgraph.restart import RestartStrategy

R = TypeVar("R")

_TRANSIENT: Final = (StorageError, CommitConflictError)
# The name of one of this package's errors in a traceback from a Spark worker.
_OF_A_WORKER: Final = re.compile(r"\bstatestore\.errors\.(\w+)(?=:|\s|$)")
_CAUSE: Final = "Caused by: "
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class RestartClock:
    """The clock and the source of randomness for restarts; tests can replace it to avoid waiting.

    ``now_ms`` never runs backwards, ``sleep`` takes seconds, and ``between(low, high)`` draws an
    int, both ends included.
    """

    now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep
    between: Callable[[int, int], int] = random.Random().randint


def is_recoverable(error: BaseException) -> bool:
    """Return whether another attempt may succeed after this error.

    Only two of the package's own errors are transient: StorageError (the store could not be read or
    written) and CommitConflictError (another writer was first). All others stay until the call, the
    state or the installation is changed: wrong settings and arguments, not found, incompatible,
    corruption, format version, missing dependency. The same holds if a Spark worker raised one of
    them, and Spark reports it as its own error.

    Any other Exception comes from Spark, its JVM, the network or a file system, and may be
    transient. Exceptions to this are a missing module, and errors that end a process
    (KeyboardInterrupt).
    """
    if isinstance(error, StateStoreError):
        return isinstance(error, _TRANSIENT)
    if not isinstance(error, Exception) or isinstance(error, ImportError):
        return False
    named = [getattr(errors, name, None) for name in _OF_A_WORKER.findall(str(error))]
    return all(
        issubclass(error_type, _TRANSIENT) for error_type in named if isinstance(error_type, type)
    )


def run_with_restarts(
    strategy: RestartStrategy,
    run: Callable[[], R],
    *,
    prepare: Callable[[], None] | None = None,
    on_restart: Callable[[str], None] | None = None,
    clock: RestartClock | None = None,
) -> R:
    """Return the result of ``run``; after a failure, wait as ``strategy`` says, and run it again.

    Args:
        strategy: the restart strategy.
        run: should open the store again and restore its latest checkpoint.
        prepare: called before each attempt except the first. An exception in it ends the run.
        on_restart: receives a text for each restart; by default the logger ``statestore``, as a
            warning.
        clock: the clock for the delays; by default this machine's.

    Returns:
        The result of the attempt that succeeded.

    Raises:
        InvalidArgumentError: if ``strategy`` is not a restart strategy.
        Exception: the error of the last attempt, if it is not recoverable (:func:`is_recoverable`)
            or the strategy allows no restart.
    """
    if not isinstance(strategy, RestartStrategy):
        raise InvalidArgumentError(
            "strategy must be a restart strategy, for example FixedDelay(attempts=3), not "
            f"{strategy!r}"
        )
    clock = clock or RestartClock()
    on_restart = on_restart or logging.getLogger("statestore").warning
    state = strategy.begin()
    for attempt in count(1):
        try:
            return run()
        except Exception as error:
            if not is_recoverable(error):
                raise
            now = clock.now_ms()
            state, is_new = state.notify(now, clock.between)
            if not state.can_restart(now):
                if attempt > 1:
                    error.add_note(
                        f"in attempt {attempt}; the restart strategy allows no further attempt"
                    )
                raise
            # A failure in the same millisecond as the restart is not a new attempt; wait until it
            # has passed.
            wait = state.backoff_ms(now) if is_new else 1
            on_restart(
                f"attempt {attempt} failed: {brief(error)}\n"
                f"attempt {attempt + 1} begins in {duration(wait)}"
            )
        _wait_until(now + wait, clock)
        if prepare is not None:
            prepare()
    raise AssertionError("the loop over attempts must not end")


def _wait_until(due_ms: int, clock: RestartClock) -> None:
    # A sleep may end early, and the longest delays exceed the maximum of one sleep.
    while (left := due_ms - clock.now_ms()) > 0:
        clock.sleep(min(left, _DAY_MS) / 1000)


def brief(error: BaseException) -> str:
    """Return an error in one line: its type, and the first line of its message.

    For an error of the JVM, use the innermost cause, because the outer ones only show where it
    passed.
    """
    lines = str(error).strip().splitlines()
    # py4j: first the failed call, then Java's error
    if len(lines) > 1 and lines[1].startswith(": "):
        causes = [line for line in lines if line.startswith(_CAUSE)]
        return causes[-1].removeprefix(_CAUSE) if causes else lines[1].removeprefix(": ")
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
