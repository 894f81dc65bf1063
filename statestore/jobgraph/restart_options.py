"""Parse Flink's options of the restart strategies.

:func:`strategy_of` corresponds to Flink's ``RestartBackoffTimeStrategyFactoryLoader``, and
:func:`duration_ms` to its ``TimeUtils``. A deliberate difference: an unknown option is an error,
where Flink ignores it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from statestore.durations import duration_text
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.jobgraph.restart import (
    LONGEST_MS,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)

__all__ = ["OPTIONS", "duration_ms", "strategy_of"]


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
