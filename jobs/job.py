"""The common part of the jobs: a command with a settings file, metrics, and attempts.

A job is a command like those of ``statestore``: ``--store``, ``--config`` and ``--output`` mean the
same, and so do exit codes. Its FILE names the states, and where their rows come from or go to.

If an attempt fails, the job's restart strategy decides whether another one follows. Between two
attempts the job waits, and then reads FILE again and opens the store again. Users who fix the cause
may change a path, the parallelism or any other setting meanwhile. Only the restart strategy, which
counts the failures, and the port of the metrics keep their first values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import click
from msgspec import Meta, field

from statestore import StateStore
from statestore.cli.command import Invocation, Verb
from statestore.cli.main import Program
from statestore.cli.output import Page, page
from statestore.errors import InvalidArgumentError, SettingsError
from statestore.format.manifest import Manifest
from statestore.jobgraph.restart import NoRestart, RestartStrategy, strategy_of
from statestore.listeners import CheckpointListener
from statestore.parsing import parse_toml
from statestore.restarts import RestartClock, run_with_restarts
from statestore.settings import SettingsTable, from_table, read_toml

__all__ = [
    "MOST_KEY_GROUPS",
    "Attempt",
    "Job",
    "JobSettings",
    "StateName",
    "job_options",
    "load_settings",
    "refuse_repeated",
    "run_attempts",
]

MOST_KEY_GROUPS = 32_768
F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound="JobSettings")


class Job(Program, Verb):
    """A command that runs as a program of its own, with the options and the help of a verb."""


class JobSettings(SettingsTable, frozen=True, kw_only=True):
    """The settings of every job: its restart strategy, by default none, and its metrics' port.

    Without a port, no metrics are served. Port 0 stands for any free port.
    """

    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    restart_options: Any = field(default=None, name="restart-strategy")

    def __post_init__(self) -> None:
        """Refuse a restart strategy that Flink would refuse."""
        _ = self.restart_strategy

    @property
    def restart_strategy(self) -> RestartStrategy:
        """The restart strategy. Raises SettingsError for an option that does not fit."""
        if self.restart_options is None:
            return NoRestart()
        options = dict(_flatten("restart-strategy", self.restart_options))
        strategy = strategy_of(options, checkpointing=False)
        if not options.keys() & {"restart-strategy", "restart-strategy.type"}:
            raise SettingsError(
                "'restart-strategy.type' is missing; set it, for example to fixed-delay"
            )
        return strategy


class StateName(SettingsTable, frozen=True, kw_only=True):
    """An operator, and the name of one of its states."""

    operator: str
    state: str

    @property
    def label(self) -> str:
        """The name for messages."""
        return f"state {self.state!r} of operator {self.operator!r}"

    def left_out(self, manifest: Manifest) -> list[str]:
        """Return the parts of the state that a checkpoint lacks, with the reasons, as text."""
        return [
            str(record) for record in manifest.left_out if record.lacks(self.operator, self.state)
        ]


@dataclass(frozen=True)
class Attempt(Generic[S]):
    """One attempt of a job: the settings that it has read, and the listeners of its store."""

    invocation: Invocation
    settings: S
    listeners: Sequence[CheckpointListener]

    def store(self, spark: Any = None) -> StateStore:
        """Open the store that the command names."""
        return self.invocation.store(spark, self.listeners)

    def show(self, write: Callable[[Page], None]) -> None:
        """Write progress to stderr, unless the output is JSON."""
        if self.invocation.settings.output == "text":
            write(page(sys.stderr))

    def say(self, text: str) -> None:
        """Write a line of progress to stderr, unless the output is JSON."""
        self.show(lambda page: page.line(text))


def job_options(function: F) -> F:
    """Add the argument FILE and the option ``--set``."""
    file = click.argument("file", metavar="FILE")
    changes = click.option(
        "--set",
        "changes",
        multiple=True,
        metavar="TOML",
        help=(
            "Change a setting by a line of TOML, such as parallelism=7. A number in a name is the "
            "index in a list: 'keyed.0.source.path=\"new.csv\"'. Repeatable."
        ),
    )
    return file(changes(function))


def run_attempts(
    invocation: Invocation,
    load: Callable[[], S],
    work: Callable[[Attempt[S]], dict[str, Any]],
) -> dict[str, Any]:
    """Return the report of the work, with the number of attempts.

    Raises the errors of ``load``, and the work's error if it is not recoverable or the strategy
    allows no restart.
    """
    read = [load()]
    with serve_metrics(read[0].metrics_port) as listeners:
        report = run_with_restarts(
            read[0].restart_strategy,
            lambda: work(Attempt(invocation, read[-1], listeners)),
            prepare=lambda: read.append(load()),
            on_restart=lambda text: click.echo(
                f"{text}: the job then reads the settings file again and reopens the store",
                err=True,
            ),
            clock=RestartClock(),
        )
    return report | {"attempts": len(read)}


@contextmanager
def serve_metrics(port: int | None) -> Iterator[Sequence[CheckpointListener]]:
    """Yield the listeners whose metrics a port serves until the block ends; none without a port.

    The address is printed, because port 0 stands for any free port. Raises MissingDependencyError
    without prometheus_client, and SettingsError if the port is not available.
    """
    if port is None:
        yield ()
        return
    from statestore.prometheus import serve  # the client is only needed with a port

    try:
        serving = serve(port)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on metrics_port {port}: {error.strerror}; choose another port, or "
            "0 for any free port"
        ) from error
    with serving:
        click.echo(f"metrics: http://localhost:{serving.port}/metrics", err=True)
        yield (serving.listener,)


def load_settings(file: str, changes: Sequence[str], settings_type: type[S]) -> S:
    """Return the settings in a file, with the changes of ``--set``; SettingsError when invalid."""
    table: Any = read_toml(file)
    for change in changes:
        try:
            table = _changed(table, parse_toml(change))
        except ValueError as error:
            raise SettingsError(
                f"--set {change!r} is not a line of TOML that fits {file}: {error}; a text needs "
                "quotes, as in --set 'graph=\"job.toml\"'"
            ) from error
    return from_table(table, settings_type, where=f"{file} with --set" if changes else file)


def refuse_repeated(states: Sequence[StateName]) -> None:
    """Raise InvalidArgumentError for a state that is listed twice, and if there is no state."""
    if not states:
        raise InvalidArgumentError(
            "the settings name no state; add a [[keyed]] or [[operator_state]] table"
        )
    seen: set[tuple[str, str]] = set()
    for state in states:
        if (state.operator, state.state) in seen:
            raise InvalidArgumentError(f"{state.label} is listed twice; remove one of the two")
        seen.add((state.operator, state.state))


def _changed(value: Any, change: Any) -> Any:
    """Return a TOML value with a change applied; the change of a list names elements by index."""
    if isinstance(value, list) and isinstance(change, dict):
        indexes = [str(index) for index in range(len(value))]
        if unknown := change.keys() - set(indexes):
            raise ValueError(f"the list has {len(value)} elements, and none is {min(unknown)}")
        return [
            _changed(value[int(i)], change[i]) if i in change else value[int(i)] for i in indexes
        ]
    if isinstance(value, dict) and isinstance(change, dict):
        return value | {name: _changed(value.get(name), part) for name, part in change.items()}
    return change


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield Flink's options, from nested tables or dotted names; a number becomes text."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(f"{name}.{key}", inner)
    else:
        yield name, str(value) if type(value) in (int, float) else value
