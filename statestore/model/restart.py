"""Whether a failed job restarts, and how long it waits first: four strategies, as values.

Follows Flink 2.3's ``RestartBackoffTimeStrategy`` family: ``NoRestartBackoffTimeStrategy``,
``FixedDelayRestartBackoffTimeStrategy``, ``FailureRateRestartBackoffTimeStrategy`` and
``ExponentialDelayRestartBackoffTimeStrategy``. A strategy is a configuration and never changes;
``strategy.begin()`` is the state of a job before any failure; each failure gives a new one::

    state, is_new_attempt = state.notify(now_ms)
    if state.can_restart(now_ms):
        ...  # wait state.backoff_ms(now_ms), then restart

Count a restart only where ``is_new_attempt`` holds. A failure that no restart can cure fails the
job without asking. Times are ints in milliseconds, by any clock that does not run backwards.
``restart_options.py`` reads a strategy from Flink's options.

Differs on purpose: a backoff near 2**63 ms is capped, where Flink's arithmetic overflows; jitter is
drawn by a function that the caller passes in, so that a test or a replay sees the same waits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from statestore.errors import InvalidArgumentError

__all__ = [
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "Notified",
    "RestartState",
    "RestartStrategy",
]

Between = Callable[[int, int], int]

_LONGEST: Final = 2**63 - 1


class Notified(NamedTuple):
    """What a failure leads to: the state after it, and whether it begins a new attempt."""

    state: RestartState
    is_new_attempt: bool


@dataclass(frozen=True, slots=True)
class RestartState:
    """A job's failures so far, as far as its strategy looks at them; from ``strategy.begin()``.

    ``attempts`` counts new attempts, since the last reset where the strategy has one.
    ``failures_ms`` are the latest failures, kept by :class:`FailureRate` alone, and
    ``restart_at_ms`` is the planned restart, kept by :class:`ExponentialDelay` alone.
    """

    strategy: RestartStrategy
    attempts: int = 0
    failures_ms: tuple[int, ...] = ()
    restart_at_ms: int | None = None

    def notify(self, now_ms: int, between: Between | None = None) -> Notified:
        """Return the state after a failure at ``now_ms``, and whether it is a new attempt.

        ``between(low, high)`` draws the jitter, both ends included and each int equally likely:
        ``random.Random().randint``. Raises InvalidArgumentError if jitter lacks it.
        """
        return self.strategy._after(self, _int("now_ms", now_ms), between)

    def can_restart(self, now_ms: int) -> bool:
        """Say whether the job may restart after the failures so far."""
        return self.strategy._allows(self, _int("now_ms", now_ms))

    def backoff_ms(self, now_ms: int) -> int:
        """Return how long to wait from ``now_ms`` on, in milliseconds; never below 0.

        Raises InvalidArgumentError if nothing failed yet and the delay is an exponential one.
        """
        return self.strategy._wait_ms(self, _int("now_ms", now_ms))


class RestartStrategy(ABC):
    """One of the four strategies; all that a caller needs of it is :meth:`begin`."""

    __slots__ = ()

    def begin(self) -> RestartState:
        """Return the state of a job that has not failed."""
        return RestartState(self)

    def _after(self, state: RestartState, now_ms: int, between: Between | None) -> Notified:
        return Notified(replace(state, attempts=state.attempts + 1), is_new_attempt=True)

    @abstractmethod
    def _allows(self, state: RestartState, now_ms: int) -> bool: ...

    @abstractmethod
    def _wait_ms(self, state: RestartState, now_ms: int) -> int: ...


@dataclass(frozen=True, slots=True)
class NoRestart(RestartStrategy):
    """The first failure fails the job."""

    def _allows(self, state: RestartState, now_ms: int) -> bool:
        return False

    def _wait_ms(self, state: RestartState, now_ms: int) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay(RestartStrategy):
    """``attempts`` restarts in the life of the job, each after ``delay_ms``; never reset.

    Raises InvalidArgumentError if one of them is negative.
    """

    attempts: int = 1
    delay_ms: int = 1_000

    def __post_init__(self) -> None:
        _check_int("attempts", self.attempts, 0)
        _check_int("delay_ms", self.delay_ms, 0)

    def _allows(self, state: RestartState, now_ms: int) -> bool:
        return state.attempts <= self.attempts

    def _wait_ms(self, state: RestartState, now_ms: int) -> int:
        return self.delay_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate(RestartStrategy):
    """Restarts after ``delay_ms`` while at most ``max_failures`` lie in ``interval_ms``.

    One more is fatal unless more than the interval lies between it and the first: exactly the
    interval is still fatal. Raises InvalidArgumentError if ``max_failures`` or ``interval_ms`` is
    not positive, or the delay negative.
    """

    max_failures: int = 1
    interval_ms: int = 60_000
    delay_ms: int = 1_000

    def __post_init__(self) -> None:
        _check_int("max_failures", self.max_failures, 1)
        _check_int("interval_ms", self.interval_ms, 1)
        _check_int("delay_ms", self.delay_ms, 0)

    def _after(self, state: RestartState, now_ms: int, between: Between | None) -> Notified:
        failures = (*state.failures_ms[-self.max_failures :], now_ms)
        return Notified(replace(state, attempts=state.attempts + 1, failures_ms=failures), True)

    def _allows(self, state: RestartState, now_ms: int) -> bool:
        failures = state.failures_ms
        return len(failures) <= self.max_failures or now_ms - failures[0] > self.interval_ms

    def _wait_ms(self, state: RestartState, now_ms: int) -> int:
        return self.delay_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay(RestartStrategy):
    """Restarts after a wait that grows by ``multiplier`` from attempt to attempt.

    The n-th wait is ``initial_backoff_ms * multiplier ** (n - 1)``, cut to whole milliseconds, plus
    or minus up to ``jitter`` of it, then brought into ``initial_backoff_ms .. max_backoff_ms``.
    Failures up to and at the planned restart belong to the attempt that planned it. A failure
    ``reset_after_ms`` or more after the planned restart starts over, waits and attempts alike.
    ``attempts`` None means without end.

    Raises InvalidArgumentError if the initial backoff, the reset time or ``attempts`` is below 1,
    the maximum below the initial backoff, the multiplier not above 1, or jitter not in 0..1.
    """

    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    multiplier: float = 1.5
    reset_after_ms: int = 3_600_000
    jitter: float = 0.1
    attempts: int | None = None

    def __post_init__(self) -> None:
        _check_int("initial_backoff_ms", self.initial_backoff_ms, 1)
        _check_int("max_backoff_ms", self.max_backoff_ms, self.initial_backoff_ms)
        _check_int("reset_after_ms", self.reset_after_ms, 1)
        if not _finite("multiplier", self.multiplier) > 1:
            raise InvalidArgumentError(f"multiplier must be above 1, not {self.multiplier}")
        if not 0 <= _finite("jitter", self.jitter) <= 1:
            raise InvalidArgumentError(f"jitter must be in 0..1, not {self.jitter}")
        if self.attempts is not None:
            _check_int("attempts", self.attempts, 1)

    def _after(self, state: RestartState, now_ms: int, between: Between | None) -> Notified:
        planned = state.restart_at_ms
        if planned is not None and now_ms <= planned:
            return Notified(state, is_new_attempt=False)
        quiet = planned is None or now_ms - planned >= self.reset_after_ms
        before = 0 if quiet else state.attempts
        restart_at = now_ms + self._backoff_ms(before, between)
        return Notified(replace(state, attempts=before + 1, restart_at_ms=restart_at), True)

    def _allows(self, state: RestartState, now_ms: int) -> bool:
        return self.attempts is None or state.attempts <= self.attempts

    def _wait_ms(self, state: RestartState, now_ms: int) -> int:
        if state.restart_at_ms is None:
            raise InvalidArgumentError(
                "an exponential delay has no backoff before the first failure: call notify first"
            )
        return max(0, state.restart_at_ms - now_ms)

    def _backoff_ms(self, before: int, between: Between | None) -> int:
        try:
            grown = self.initial_backoff_ms * self.multiplier**before
        except OverflowError:  # Java's pow is infinite there, and the maximum holds
            grown = math.inf
        backoff = int(grown) if grown < _LONGEST else _LONGEST
        if self.jitter:
            if between is None:
                raise InvalidArgumentError(
                    f"jitter {self.jitter} needs a source of chance: pass random.Random().randint "
                    "to notify, or set jitter to 0"
                )
            offset = int(backoff * self.jitter)
            backoff += between(-offset, offset)
        return max(self.initial_backoff_ms, min(backoff, self.max_backoff_ms))


def _int(name: str, value: object) -> int:
    # bool is an int to Python; as a count or a time it is always a mistake.
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be an int, not {value!r}")
    return value


def _check_int(name: str, value: object, low: int) -> None:
    if not low <= _int(name, value) <= _LONGEST:
        raise InvalidArgumentError(f"{name} must be in {low}..{_LONGEST}, not {value}")


def _finite(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise InvalidArgumentError(f"{name} must be a finite number, not {value!r}")
