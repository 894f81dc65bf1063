"""Attempts: a job that failed runs again, as long as its restart strategy says so.

Between two attempts the job waits, and then reads its settings file again: who repairs the cause
may change the parallelism, a path or anything else there, and the next attempt goes on with that.
It opens the store anew and so sees the newest checkpoint. The strategy alone stays the one that the
job began with, because it counts the failures.

Follows Flink's ``ExecutionFailureHandler``: an error that no restart can cure ends the job without
the strategy being asked.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, Final, TypeVar

from jobs.places import JobSettings
from statestore import errors
from statestore.errors import (
    CommitConflictError,
    SettingsError,
    StateStoreError,
    StorageError,
)
from statestore.model.graph_toml import close_match
from statestore.model.restart_options import strategy_of

__all__ = ["Clock", "is_recoverable", "run_attempts", "with_strategy"]

R = TypeVar("R")
S = TypeVar("S", bound=JobSettings)

_SECTION: Final = "restart-strategy"
_FIELD: Final = "restart_strategy"  # what a dataclass can call it
_TRANSIENT: Final = (StorageError, CommitConflictError)
# How a traceback names an error of ours that a Spark worker raised.
_OF_A_WORKER: Final = re.compile(r"\bstatestore\.errors\.(\w+)(?=:|\s|$)")
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class Clock:
    """The time that attempts go by, and chance; replaced as a whole where nobody should wait.

    ``now_ms`` does not run backwards, ``sleep`` takes seconds, and ``between(low, high)`` draws an
    int, both ends included.
    """

    now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000
    sleep: Callable[[float], None] = time.sleep
    between: Callable[[int, int], int] = random.Random().randint


def is_recoverable(error: BaseException) -> bool:
    """Say whether another attempt may succeed where this error ended one.

    Of the package's own errors only StorageError (the store could not be read or written) and
    CommitConflictError (another writer was first) pass by themselves. All others stay as they are
    until somebody changes the call, the state or the installation: wrong settings and arguments,
    not found, incompatible, corruption, format version, missing dependency. The same holds where
    a Spark worker raised one of them, and Spark reports it as its own error.

    Everything else that is an Exception is the world's, of Spark, its JVM, the network or a file
    system, and may pass; not so a missing module, or what ends a process (KeyboardInterrupt).
    """
    if isinstance(error, StateStoreError):
        return isinstance(error, _TRANSIENT)
    if not isinstance(error, Exception) or isinstance(error, ImportError):
        return False
    named = [getattr(errors, name, None) for name in _OF_A_WORKER.findall(str(error))]
    return all(issubclass(kind, _TRANSIENT) for kind in named if isinstance(kind, type))


def run_attempts(
    load: Callable[[], S], work: Callable[[S], R], say: Callable[[str], None], clock: Clock
) -> tuple[R, int]:
    """Return what the work returns, and how many attempts that took.

    ``load`` reads the settings, before each attempt; ``say`` hears of each restart. Raises what
    ``load`` raises, and the work's error when it is not recoverable or the strategy allows no
    restart.
    """
    settings = load()
    state = settings.restart_strategy.begin()
    for attempt in count(1):
        try:
            return work(settings), attempt
        except Exception as error:
            if not is_recoverable(error):
                raise
            now = clock.now_ms()
            state, is_new = state.notify(now, clock.between)
            if not state.can_restart(now):
                if attempt > 1:
                    error.add_note(f"in attempt {attempt}; the restart strategy allows no other")
                raise
            # Not a new attempt: a failure in the millisecond of the restart, which is to pass.
            wait = state.backoff_ms(now) if is_new else 1
            say(
                f"attempt {attempt} failed: {_brief(error)}\n"
                f"attempt {attempt + 1} begins in {wait / 1000:g} s: the settings file is read "
                "again then, and the store is opened anew"
            )
        _wait_until(now + wait, clock)
        settings = load()
    raise AssertionError("attempts are not counted to an end")


def with_strategy(table: Mapping[str, Any], kind: type[Any], where: str) -> dict[str, Any]:
    """Return settings for ``from_table``: ``[restart-strategy]`` read, and all names known.

    The table's keys are Flink's options, without their prefix; nested tables and dotted names say
    the same. Raises SettingsError for an unknown name (the message names one that is close), an
    option that does not fit, and options without a type: they would be without effect.
    """
    known = {_SECTION if field.name == _FIELD else field.name for field in fields(kind)}
    for name in table:
        if name not in known:
            raise SettingsError(f"{where}: no setting {name!r}; {close_match(name, sorted(known))}")
    rest = {name: value for name, value in table.items() if name != _SECTION}
    if _SECTION not in table:
        return rest
    options = {key: _text(value) for key, value in _flat(_SECTION, table[_SECTION])}
    try:
        strategy = strategy_of(options, checkpointing=False)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    if not options.keys() & {_SECTION, f"{_SECTION}.type"}:
        raise SettingsError(f"{where}: '{_SECTION}.type' is missing, such as fixed-delay")
    return {**rest, _FIELD: strategy}


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield key, value
        return
    for name, inner in value.items():
        yield from _flat(f"{key}.{name}", inner)


def _text(value: Any) -> Any:
    """Return a number as the text that Flink reads; what is no option's value is refused there."""
    return str(value) if type(value) in (int, float) else value


def _wait_until(due_ms: int, clock: Clock) -> None:
    # A sleep may end early, and the longest waits are longer than a sleep can be.
    while (left := due_ms - clock.now_ms()) > 0:
        clock.sleep(min(left, _DAY_MS) / 1000)


def _brief(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    if len(lines) > 1 and lines[1].startswith(": "):  # py4j: first which call, then Java's error
        return lines[1].removeprefix(": ")
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
