"""Whether a failed job restarts, and how long it waits first: four strategies, as values."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Final, NamedTuple

from statestore.errors import InvalidArgumentError, SettingsError

__all__ = [
    "OPTIONS",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "NoRestart",
    "Notified",
    "RestartState",
    "RestartStrategy",
    "duration_ms",
    "strategy_of",
]


# Whether a failed job restarts, and how long it waits first: four strategies, as values.
#
# Follows Flink 2.3's ``RestartBackoffTimeStrategy`` family: ``NoRestartBackoffTimeStrategy``,
# ``FixedDelayRestartBackoffTimeStrategy``, ``FailureRateRestartBackoffTimeStrategy`` and
# ``ExponentialDelayRestartBackoffTimeStrategy``. A strategy is a configuration and never changes;
# ``strategy.begin()`` is the state of a job before any failure; each failure gives a new one::
#
#     state, is_new_attempt = state.notify(now_ms)
#     if state.can_restart(now_ms):
#         ...  # wait state.backoff_ms(now_ms), then restart
#
# Count a restart only where ``is_new_attempt`` holds. A failure that no restart can cure fails the
# job without asking. Times are ints in milliseconds, by any clock that does not run backwards.
# Below a strategy is read from Flink's options.
#
# Differs on purpose: a backoff near 2**63 ms is capped, where Flink's arithmetic overflows; jitter
# is drawn by a function that the caller passes in, so that a test or a replay sees the same waits.


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


# Flink's options of the restart strategies, read from settings into values.
#
# :func:`strategy_of` does what Flink's ``RestartBackoffTimeStrategyFactoryLoader`` does, and
# :func:`duration_ms` what its ``TimeUtils`` does. Differs on purpose: an option that does not exist
# is an error, where Flink ignores it.


_PREFIX: Final = "restart-strategy"
_TYPE_KEYS: Final = (f"{_PREFIX}.type", _PREFIX)  # the second is the name of older releases

# Per strategy its names, Flink's own one first, and the field that each option sets.
_STRATEGIES: Final[tuple[tuple[Callable[..., RestartStrategy], str, dict[str, str]], ...]] = (
    (NoRestart, "disable none off", {}),
    (FixedDelay, "fixed-delay fixeddelay", {"attempts": "attempts", "delay": "delay_ms"}),
    (
        FailureRate,
        "failure-rate failurerate",
        {
            "max-failures-per-interval": "max_failures",
            "failure-rate-interval": "interval_ms",
            "delay": "delay_ms",
        },
    ),
    (
        ExponentialDelay,
        "exponential-delay exponentialdelay",
        {
            "initial-backoff": "initial_backoff_ms",
            "max-backoff": "max_backoff_ms",
            "backoff-multiplier": "multiplier",
            "reset-backoff-threshold": "reset_after_ms",
            "jitter-factor": "jitter",
            "attempts-before-reset-backoff": "attempts",
        },
    ),
)
_NAMED: Final = {name: row for row in _STRATEGIES for name in row[1].split()}
OPTIONS: Final = (
    *_TYPE_KEYS,
    *(f"{_PREFIX}.{row[1].split()[0]}.{option}" for row in _STRATEGIES for option in row[2]),
)
"""The names of all options that are read."""


def strategy_of(*layers: Mapping[str, str], checkpointing: bool = True) -> RestartStrategy:
    """Return the strategy that Flink's options ask for: a job's settings, then its cluster's.

    ``restart-strategy.type`` (or, if that is missing, the older ``restart-strategy``) names it, in
    any case; its own options lie under ``restart-strategy.`` and have Flink's defaults. The first
    mapping with a type decides alone. If none has one: exponential delay with its defaults if the
    job takes checkpoints, else no restart. Other options of Flink may be present.

    Raises SettingsError for an unknown strategy or option (the message names what is close), a
    value that cannot be read, and one that the strategy refuses.
    """
    for layer in layers:
        _check_keys(layer)
    for layer in layers:
        for key in _TYPE_KEYS:
            if key in layer:
                return _named(key, layer)
    return ExponentialDelay() if checkpointing else NoRestart()


def _check_keys(settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        # With one letter wrong in the prefix it would pass for an option of something else.
        ours = key.startswith(_PREFIX) or get_close_matches(key, OPTIONS, n=1, cutoff=0.95)
        if ours and key not in OPTIONS:
            raise SettingsError(f"there is no option {key!r}: {_hint(key, OPTIONS)}")
        if ours and not isinstance(value, str):
            raise SettingsError(f"{key} must be a string, not {value!r}")


def _named(type_key: str, settings: Mapping[str, str]) -> RestartStrategy:
    name = settings[type_key].strip().lower()
    if name not in _NAMED:
        raise SettingsError(f"{type_key}: there is no strategy {name!r}: {_hint(name, _NAMED)}")
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
    return f"did you mean {close[0]!r}?" if close else f"there is {', '.join(known)}"


def _value(field: str, text: str) -> float:
    if field.endswith("_ms"):
        return duration_ms(text)
    try:
        return float(text) if field in ("multiplier", "jitter") else int(text)
    except ValueError:
        raise SettingsError(f"{text!r} is not a number that fits") from None


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
    """Return a duration as Flink's options write it, in milliseconds; parts of one are dropped.

    Takes a number and a unit (``10 min``, ``500ms``, ``1 h``), a number alone, which is in
    milliseconds, and ISO-8601 (``PT10S``, ``P1DT2H``, ``PT0.5S``), as Flink's ``TimeUtils`` does,
    but no negative one: no option has a use for it.
    Raises SettingsError for anything else, and above 2**63 - 1 ms.
    """
    trimmed = text.strip()
    if length := _LENGTH.fullmatch(trimmed):
        label = length[2].strip().lower()
        if label and label not in _NANOS:
            raise SettingsError(f"{text!r} has no known unit: {_hint(label, _NANOS)}")
        nanos = int(length[1]) * _NANOS[label or "ms"]
    elif iso := _ISO.fullmatch(trimmed):
        days, hours, minutes, seconds = (int(part or 0) for part in iso.groups()[:4])
        whole = days * 86_400 + hours * 3_600 + minutes * 60 + seconds
        nanos = whole * 10**9 + int((iso[5] or "").ljust(9, "0"))
    else:
        raise SettingsError(
            f"{text!r} is not a duration of 0 or more: write '10 s', '500 ms', '1 h' or 'PT10S'"
        )
    if nanos // 10**6 > _LONGEST:
        raise SettingsError(f"{text!r} is longer than {_LONGEST} ms")
    return nanos // 10**6
