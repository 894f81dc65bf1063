"""The options that say what a checkpoint is restored for: a parallelism, or a job's graph."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from statestore.errors import InvalidArgumentError, SettingsError
from statestore.flink.graph import JobGraph
from statestore.restore.plan import Weight
from statestore.restore.target import AUTO, bytes_of
from statestore.settings import read_text

__all__ = ["Bytes", "Parallelism", "graph_of", "target_options"]


F = TypeVar("F", bound=Callable[..., Any])


def target_options(function: F) -> F:
    """Give a verb ``--parallelism``, ``--bytes-per-task``, ``--graph``, ``--max-parallelism`` and
    ``--balance``.
    """
    for option in reversed(_options()):
        function = option(function)
    return function


def graph_of(path: str | None) -> JobGraph | None:
    """Return the job graph in a TOML file; SettingsError or InvalidArgumentError name the place."""
    if path is None:
        return None
    if not Path(path).exists():
        raise SettingsError(f"no job graph {path}; check the path")
    try:
        return JobGraph.from_toml(read_text(Path(path)))
    except InvalidArgumentError as error:
        error.add_note(f"in {path}")
        raise


def _options() -> list[Any]:
    return [
        click.option(
            "--parallelism",
            type=Parallelism(),
            metavar="N|auto",
            help="Subtasks to restore for; auto chooses by bytes. Default: as it was taken.",
        ),
        click.option(
            "--bytes-per-task",
            type=Bytes(),
            metavar="SIZE",
            help="Keyed state that a subtask should get, for auto: 256MiB. [16MiB]",
        ),
        click.option(
            "--graph",
            metavar="FILE",
            help="The new job's graph, TOML: its operators find their state by operator id.",
        ),
        click.option(
            "--max-parallelism",
            type=int,
            metavar="N",
            help="Read the stored key groups as N: a multiple of them, or a divisor.",
        ),
        click.option(
            "--balance",
            type=click.Choice([one.value for one in Weight]),
            help="Cut key groups into ranges by this instead of by their number.",
        ),
    ]


class Parallelism(click.ParamType[Any]):
    """A number of subtasks, or ``auto``."""

    name = "parallelism"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | Literal["auto"]:
        """Return it; a usage error when it is neither."""
        if value == AUTO:
            return AUTO
        if not re.fullmatch(r"-?[0-9]+", str(value)):
            self.fail(f"{value!r} is neither a number nor 'auto'", param, ctx)
        return int(value)


class Bytes(click.ParamType[Any]):
    """A number of bytes, such as 256MiB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return the number; a usage error when it is none."""
        try:
            return bytes_of(value)
        except InvalidArgumentError as error:
            self.fail(str(error), param, ctx)
