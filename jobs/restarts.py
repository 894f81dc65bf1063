"""Attempts of a job: how its settings define a restart strategy, and how each attempt starts.

Between two attempts the job waits, and then reads its settings file again. Users who fix the cause
may change the parallelism, a path or any other setting, and the next attempt uses the new values.
It opens the store again and therefore sees the newest checkpoint. Only two settings keep their
first values: the strategy, which counts the failures, and the port of the metrics.
:func:`statestore.restarts.run_with_restarts` decides when an attempt is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

from jobs.metrics import Listeners, serve_metrics
from jobs.places import JobSettings
from statestore.errors import SettingsError
from statestore.jobgraph.graph_toml import close_match
from statestore.jobgraph.restart_options import strategy_of
from statestore.restarts import RestartClock, run_with_restarts

__all__ = ["run_attempts", "with_strategy"]

R = TypeVar("R")
S = TypeVar("S", bound=JobSettings)

_SECTION: Final = "restart-strategy"
_FIELD: Final = "restart_strategy"  # the section's name as a Python identifier


def run_attempts(
    load: Callable[[], S],
    work: Callable[[S, Listeners], R],
    say: Callable[[str], None],
    clock: RestartClock,
) -> tuple[R, int]:
    """Return the result of the work, and the number of attempts.

    ``load`` reads the settings before each attempt. ``say`` receives a message about each restart,
    and the address of the metrics. Raises the errors of ``load`` and of
    :func:`~jobs.metrics.serve_metrics`, and the work's error when it is not recoverable or the
    strategy allows no restart.
    """
    read = [load()]
    with serve_metrics(read[0].metrics_port, say) as listeners:
        done = run_with_restarts(
            read[0].restart_strategy,
            lambda: work(read[-1], listeners),
            prepare=lambda: read.append(load()),
            say=lambda text: say(
                f"{text}: the job then reads the settings file again and reopens the store"
            ),
            clock=clock,
        )
    return done, len(read)


def with_strategy(table: Mapping[str, Any], settings_type: type[Any], where: str) -> dict[str, Any]:
    """Return settings for ``from_table``: with ``[restart-strategy]`` parsed, all names known.

    The table's keys are Flink's options without their prefix. Nested tables and dotted names are
    equivalent. Raises SettingsError for an unknown name (the message suggests a similar one), an
    option that does not fit, and options without a type, which would have no effect.
    """
    known = {_SECTION if field.name == _FIELD else field.name for field in fields(settings_type)}
    for name in table:
        if name not in known:
            raise SettingsError(
                f"{where}: unknown setting {name!r}; {close_match(name, sorted(known))}"
            )
    rest = {name: value for name, value in table.items() if name != _SECTION}
    if _SECTION not in table:
        return rest
    options = {key: _text(value) for key, value in _flatten(_SECTION, table[_SECTION])}
    try:
        strategy = strategy_of(options, checkpointing=False)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error
    if not options.keys() & {_SECTION, f"{_SECTION}.type"}:
        raise SettingsError(
            f"{where}: '{_SECTION}.type' is missing; set it, for example to fixed-delay"
        )
    return {**rest, _FIELD: strategy}


def _flatten(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        yield key, value
        return
    for name, inner in value.items():
        yield from _flatten(f"{key}.{name}", inner)


def _text(value: Any) -> Any:
    """Return a number as the text that Flink parses; Flink's parser refuses other wrong values."""
    return str(value) if type(value) in (int, float) else value
