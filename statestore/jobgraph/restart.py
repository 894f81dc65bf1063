"""Restart strategies, and Flink's options for them: if and when a failed job restarts.

They follow Flink 2.3's ``RestartBackoffTimeStrategy`` family: ``NoRestartBackoffTimeStrategy``,
``FixedDelayRestartBackoffTimeStrategy``, ``FailureRateRestartBackoffTimeStrategy`` and
``ExponentialDelayRestartBackoffTimeStrategy``. A strategy is a configuration and never changes.
``strategy.begin()`` is the state of a job before any failure; each failure returns a new state::

    state, is_new_attempt = state.notify(now_ms)
    if state.can_restart(now_ms):
        ...  # wait state.backoff_ms(now_ms), then restart

Count a restart only if ``is_new_attempt`` is true. A failure that a restart cannot fix should
fail the job without asking the strategy. Times are ints in milliseconds of a monotonic clock.

Deliberate differences: a backoff near 2**63 ms is capped, where Flink's arithmetic overflows. The
caller passes the function that draws the jitter, so that a test or a replay gets the same delays.

The last part reads Flink's options: :func:`strategy_of` corresponds to
``RestartBackoffTimeStrategyFactoryLoader``, and :func:`duration_ms` to ``TimeUtils``. A deliberate
difference: an unknown option is an error, where Flink ignores it.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from typing import Final, NamedTuple

from statestore.durations import Duration, duration_text, milliseconds_of
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.keys.groups import check_int

Between = Callable[[int, int], int]

LONGEST_MS: Final = 2**63 - 1


class Notified(NamedTuple):
    """The result of a failure: the state after it, and whether it starts a new attempt."""

    state: RestartState
    is_new_attempt: bool


@dataclass(frozen=True, slots=True)
class RestartState:
    """A job's relevant failures so far; start with ``strategy.begin()``.

    ``attempts`` counts new attempts, since the last reset if the strategy has one. ``failures_ms``
    are the latest failures, used only by :class:`FailureRate`. ``restart_at_ms`` is the planned
    restart, used only by :class:`ExponentialDelay`.
    """

    strategy: RestartStrategy
    attempts: int = 0
    failures_ms: tuple[int, ...] = ()
    restart_at_ms: int | None = None

    def notify(self, now_ms: int, between: Between | None = None) -> Notified:
        """Return the state after a failure at ``now_ms``, and whether it is a new attempt.

        ``between(low, high)`` draws the jitter uniformly from the ints from ``low`` to ``high``,
        both included, as ``random.Random().randint`` does. Raises InvalidArgumentError if the
        strategy has jitter and ``between`` is missing.
        """
        return self.strategy._state_after(self, check_int("now_ms", now_ms), between)

    def can_restart(self, now_ms: int) -> bool:
        """Return whether the job may restart after the failures so far."""
        return self.strategy._allows_restart(self, check_int("now_ms", now_ms))

    def backoff_ms(self, now_ms: int) -> int:
        """Return the delay from ``now_ms``, in milliseconds; never below 0.

        Raises InvalidArgumentError if an exponential delay had no failure yet.
        """
        return self.strategy._wait_ms(self, check_int("now_ms", now_ms))


class RestartStrategy(ABC):
    """The base class of the four strategies; callers only need :meth:`begin`."""

    __slots__ = ()

    def begin(self) -> RestartState:
        """Return the state of a job without failures."""
        return RestartState(self)

    def _state_after(self, state: RestartState, now_ms: int, between: Between | None) -> Notified:
        return Notified(replace(state, attempts=state.attempts + 1), is_new_attempt=True)

    @abstractmethod
    def _allows_restart(self, state: RestartState, now_ms: int) -> bool: ...

    @abstractmethod
    def _wait_ms(self, state: RestartState, now_ms: int) -> int: ...


@dataclass(frozen=True, slots=True)
class NoRestart(RestartStrategy):
    """The first failure fails the job."""

    def _allows_restart(self, state: RestartState, now_ms: int) -> bool:
        return False

    def _wait_ms(self, state: RestartState, now_ms: int) -> int:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay(RestartStrategy):
    """Restarts up to ``attempts`` times in the life of the job, each after ``delay``.

    The count is never reset. Raises InvalidArgumentError if one of the values is negative.
    """

    attempts: int = 1
    delay: Duration = "1s"

    def __post_init__(self) -> None:
        _check_int("attempts", self.attempts, 0)
        _normalize(self, "delay", 0)

    def _allows_restart(self, state: RestartState, now_ms: int) -> bool:
        return state.attempts <= self.attempts

    def _wait_ms(self, state: RestartState, now_ms: int) -> int:
        return milliseconds_of(self.delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate(RestartStrategy):
    """Restarts after ``delay`` while at most ``max_failures`` occur within ``interval``.

    One more failure is fatal unless more than the interval has passed since the first of them;
    exactly the interval is still fatal. Raises InvalidArgumentError if ``max_failures`` or
    ``interval`` is not positive, or the delay is negative.
    """

    max_failures: int = 1
    interval: Duration = "1m"
    delay: Duration = "1s"

    def __post_init__(self) -> None:
        _check_int("max_failures", self.max_failures, 1)
        _normalize(self, "interval", 1)
        _normalize(self, "delay", 0)

    def _state_after(self, state: RestartState, now_ms: int, between: Between | None) -> Notified:
        failures = (*state.failures_ms[-self.max_failures :], now_ms)
        return Notified(replace(state, attempts=state.attempts + 1, failures_ms=failures), True)

    def _allows_restart(self, state: RestartState, now_ms: int) -> bool:
        failures = state.failures_ms
        interval_ms = milliseconds_of(self.interval)
        return len(failures) <= self.max_failures or now_ms - failures[0] > interval_ms

    def _wait_ms(self, state: RestartState, now_ms: int) -> int:
        return milliseconds_of(self.delay)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay(RestartStrategy):
    """Restarts after a delay that grows by ``multiplier`` with each attempt.

    The n-th delay is ``initial_backoff * multiplier ** (n - 1)``, truncated to milliseconds,
    plus or minus up to ``jitter`` of it, then limited to ``initial_backoff .. max_backoff``.
    Failures up to the planned restart belong to the attempt that planned it. A failure
    ``reset_after`` or more after the planned restart resets both delay and attempts.
    ``attempts`` None means unlimited.

    Raises InvalidArgumentError if the initial backoff, the reset time or ``attempts`` is below 1,
    or if the maximum is below the initial backoff. It is also raised if the multiplier is not above
    1, or jitter is not in 0..1.
    """

    initial_backoff: Duration = "1s"
    max_backoff: Duration = "1m"
    multiplier: float = 1.5
    reset_after: Duration = "1h"
    jitter: float = 0.1
    attempts: int | None = None

    def __post_init__(self) -> None:
        _normalize(self, "initial_backoff", 1)
        _normalize(self, "max_backoff", milliseconds_of(self.initial_backoff))
        _normalize(self, "reset_after", 1)
        if not _finite_number("multiplier", self.multiplier) > 1:
            raise InvalidArgumentError(f"multiplier must be above 1, not {self.multiplier}")
        if not 0 <= _finite_number("jitter", self.jitter) <= 1:
            raise InvalidArgumentError(f"jitter must be in 0..1, not {self.jitter}")
        if self.attempts is not None:
            _check_int("attempts", self.attempts, 1)

    def _state_after(self, state: RestartState, now_ms: int, between: Between | None) -> Notified:
        planned = state.restart_at_ms
        if planned is not None and now_ms <= planned:
            return Notified(state, is_new_attempt=False)
        quiet = planned is None or now_ms - planned >= milliseconds_of(self.reset_after)
        before = 0 if quiet else state.attempts
        restart_at = now_ms + self._backoff_ms(before, between)
        return Notified(replace(state, attempts=before + 1, restart_at_ms=restart_at), True)

    def _allows_restart(self, state: RestartState, now_ms: int) -> bool:
        return self.attempts is None or state.attempts <= self.attempts

    def _wait_ms(self, state: RestartState, now_ms: int) -> int:
        if state.restart_at_ms is None:
            raise InvalidArgumentError(
                "an exponential delay has no backoff before the first failure: call notify first"
            )
        return max(0, state.restart_at_ms - now_ms)

    def _backoff_ms(self, before: int, between: Between | None) -> int:
        try:
            grown = milliseconds_of(self.initial_backoff) * self.multiplier**before
        except OverflowError:  # Java's pow returns infinity, and the maximum applies
            grown = math.inf
        backoff = int(grown) if grown < LONGEST_MS else LONGEST_MS
        if self.jitter:
            if between is None:
                raise InvalidArgumentError(
                    f"jitter {self.jitter} requires a random number source: pass "
                    "random.Random().randint to notify, or set jitter to 0"
                )
            offset = int(backoff * self.jitter)
            backoff += between(-offset, offset)
        lowest, highest = map(milliseconds_of, (self.initial_backoff, self.max_backoff))
        return max(lowest, min(backoff, highest))


def _normalize(strategy: RestartStrategy, field: str, low: int) -> None:
    """Store a duration in its shortest form, so that equal strategies compare equal."""
    duration: object = getattr(strategy, field)
    if not isinstance(duration, timedelta | str):
        raise InvalidArgumentError(
            f"{field} must be a timedelta or text such as '10s', not {duration!r}"
        )
    milliseconds = milliseconds_of(duration)
    if milliseconds < low:
        raise InvalidArgumentError(f"{field} must be at least {low}ms, not {milliseconds}ms")
    object.__setattr__(strategy, field, duration_text(milliseconds))


def _check_int(name: str, value: object, low: int) -> None:
    if not low <= check_int(name, value) <= LONGEST_MS:
        raise InvalidArgumentError(f"{name} must be in {low}..{LONGEST_MS}, not {value}")


def _finite_number(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    raise InvalidArgumentError(f"{name} must be a finite number, not {value!r}")


_PREFIX: Final = "restart-strategy"
_TYPE_KEYS: Final = (f"{_PREFIX}.type", _PREFIX)  # the second is the name in older releases

# Per strategy: its names with Flink's own first, and the field that each option sets.
_STRATEGIES: Final[tuple[tuple[Callable[..., RestartStrategy], str, dict[str, str]], ...]] = (
    (NoRestart, "disable none off", {}),
    (FixedDelay, "fixed-delay fixeddelay", {"attempts": "attempts", "delay": "delay"}),
    (
        FailureRate,
        "failure-rate failurerate",
        {
            "max-failures-per-interval": "max_failures",
            "failure-rate-interval": "interval",
            "delay": "delay",
        },
    ),
    (
        ExponentialDelay,
        "exponential-delay exponentialdelay",
        {
            "initial-backoff": "initial_backoff",
            "max-backoff": "max_backoff",
            "backoff-multiplier": "multiplier",
            "reset-backoff-threshold": "reset_after",
            "jitter-factor": "jitter",
            "attempts-before-reset-backoff": "attempts",
        },
    ),
)
_DURATIONS: Final = ("delay", "interval", "initial_backoff", "max_backoff", "reset_after")
_NAMED: Final = {name: row for row in _STRATEGIES for name in row[1].split()}
OPTIONS: Final = (
    *_TYPE_KEYS,
    *(f"{_PREFIX}.{row[1].split()[0]}.{option}" for row in _STRATEGIES for option in row[2]),
)
"""The names of all supported options."""


def strategy_of(*layers: Mapping[str, str], checkpointing: bool = True) -> RestartStrategy:
    """Parse the strategy from Flink's options: a job's settings, then its cluster's.

    ``restart-strategy.type`` (or the older ``restart-strategy`` without it) names the strategy, in
    any case. The strategy's options start with ``restart-strategy.`` and have Flink's defaults.
    Only the first mapping with a type is used. If no mapping has a type, the default is exponential
    delay for a job with checkpoints, and no restart otherwise. Other options of Flink are ignored.

    Raises SettingsError for an unknown strategy or option (the message suggests a similar name), an
    unreadable value, and a value that the strategy refuses.
    """
    for layer in layers:
        _check_keys(layer)
    for layer in layers:
        for key in _TYPE_KEYS:
            if key in layer:
                return _strategy_of_name(key, layer)
    return ExponentialDelay() if checkpointing else NoRestart()


def _check_keys(settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        # An option with a typo in the prefix would be ignored as an option of something else.
        ours = key.startswith(_PREFIX) or get_close_matches(key, OPTIONS, n=1, cutoff=0.95)
        if ours and key not in OPTIONS:
            raise SettingsError(f"unknown option {key!r}: {_hint(key, OPTIONS)}")
        if ours and not isinstance(value, str):
            raise SettingsError(f"{key} must be a string, not {value!r}")


def _strategy_of_name(type_key: str, settings: Mapping[str, str]) -> RestartStrategy:
    name = settings[type_key].strip().lower()
    if name not in _NAMED:
        raise SettingsError(f"{type_key}: unknown strategy {name!r}: {_hint(name, _NAMED)}")
    strategy, names, options = _NAMED[name]
    prefix = f"{_PREFIX}.{names.split()[0]}"
    values = {}
    for option, field in options.items():
        if (key := f"{prefix}.{option}") in settings:
            try:
                values[field] = _value(field, settings[key].strip())
            except SettingsError as error:
                raise SettingsError(f"{key}: {error}") from error
    try:
        return strategy(**values)
    except InvalidArgumentError as error:
        raise SettingsError(f"{prefix}: {error}") from error


def _hint(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else f"known names are {', '.join(known)}"


def _value(field: str, text: str) -> float | str:
    if field in _DURATIONS:
        return f"{duration_ms(text)}ms"
    try:
        return float(text) if field in ("multiplier", "jitter") else int(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a number in the allowed range") from None


_UNITS: Final = {
    "d day days": 86_400 * 10**9,
    "h hour hours": 3_600 * 10**9,
    "m min minute minutes": 60 * 10**9,
    "s sec secs second seconds": 10**9,
    "ms milli millis millisecond milliseconds": 10**6,
    "µs micro micros microsecond microseconds": 10**3,
    "ns nano nanos nanosecond nanoseconds": 1,
}
_NANOS: Final = {label: nanos for labels, nanos in _UNITS.items() for label in labels.split()}
_LENGTH: Final = re.compile(r"([0-9]+)\s*(\D*)")
_ISO: Final = re.compile(
    r"P(?=.)(?:(\d+)D)?(?:T(?=.)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)


def duration_ms(text: str) -> int:
    """Parse a duration in the syntax of Flink's options, in milliseconds; fractions are dropped.

    Like Flink's ``TimeUtils``, it accepts a number and a unit (``10 min``, ``500ms``, ``1 h``), a
    number alone, which is in milliseconds, and ISO-8601 (``PT10S``, ``P1DT2H``, ``PT0.5S``).
    Negative durations are refused, because no option can use them. Raises SettingsError for
    anything else, and above 2**63 - 1 ms.
    """
    trimmed = text.strip()
    if length := _LENGTH.fullmatch(trimmed):
        label = length[2].strip().lower()
        if label and label not in _NANOS:
            raise SettingsError(f"{text!r} has an unknown unit: {_hint(label, _NANOS)}")
        nanos = int(length[1]) * _NANOS[label or "ms"]
    elif iso := _ISO.fullmatch(trimmed):
        days, hours, minutes, seconds = (int(part or 0) for part in iso.groups()[:4])
        whole = days * 86_400 + hours * 3_600 + minutes * 60 + seconds
        nanos = whole * 10**9 + int((iso[5] or "").ljust(9, "0"))
    else:
        raise SettingsError(
            f"{text!r} is not a duration of 0 or more: write '10 s', '500 ms', '1 h' or 'PT10S'"
        )
    if nanos // 10**6 > LONGEST_MS:
        raise SettingsError(
            f"{text!r} is longer than {duration_text(LONGEST_MS)}; use a shorter duration"
        )
    return nanos // 10**6
