"""One run of the command: the options that every verb has, the settings, and the store.

``--store``, ``--output`` and ``--config`` may stand before or after the verb; after it wins.
Nothing is opened before a verb asks for it.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, get_args, get_type_hints

import click

from statestore.settings import ResolvedSettings, Settings, resolve_settings
from statestore.store import StateStore

__all__ = [
    "Invocation",
    "checkpoint_argument",
    "common_options",
    "pass_invocation",
    "state_options",
]


class Invocation:
    """The arguments given so far, and what follows from them."""

    def __init__(self) -> None:
        """Start with no arguments."""
        self.arguments: dict[str, Any] = {}

    @cached_property
    def resolved(self) -> ResolvedSettings:
        """The settings in effect; SettingsError when one is wrong."""
        given = {name: value for name, value in self.arguments.items() if name != "config"}
        return resolve_settings(
            config=self.arguments.get("config"), environment=os.environ, arguments=given
        )

    @property
    def settings(self) -> Settings:
        """The values of the settings."""
        return self.resolved.settings

    def store(self) -> StateStore:
        """Open the store; a usage error when none is named."""
        url = self.settings.store
        if not url:
            raise click.UsageError("no store is named: give --store URL, or set STATESTORE_URI")
        settings = self.settings
        return StateStore.open(
            url,
            table_format=settings.table_format,
            local_cache=settings.local_cache,
            local_cache_bytes=settings.local_cache_bytes,
            parallel_streams=settings.parallel_streams,
        )


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def common_options() -> list[click.Parameter]:
    """Return the options of the command and of every verb."""
    outputs = get_args(get_type_hints(Settings)["output"])
    return [
        _option("--store", metavar="URL", help="Path or s3:// URL of the store. [STATESTORE_URI]"),
        _option(
            "--output",
            type=click.Choice(outputs),
            help="text for people, json for programs. [STATESTORE_OUTPUT]",
        ),
        _option("--config", metavar="FILE", help="Settings in TOML. [STATESTORE_CONFIG]"),
    ]


def checkpoint_argument(function: Any) -> Any:
    """Give a verb the argument CHECKPOINT: a number, the name of a savepoint, or ``latest``, which
    is the default.
    """
    decorate = click.argument("checkpoint", default="latest", metavar="[CHECKPOINT]")
    return decorate(function)


def state_options(function: Any) -> Any:
    """Give a verb ``--operator`` and ``--state``, which narrow what it is about."""
    uid = click.option("--operator", "uid", metavar="UID", help="Only this operator.")
    name = click.option("--state", "name", metavar="NAME", help="Only this state of the operator.")
    return uid(name(function))


def _option(name: str, **attributes: Any) -> click.Option:
    return click.Option([name], expose_value=False, callback=_remember, **attributes)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and parameter.name is not None:
        context.ensure_object(Invocation).arguments[parameter.name] = value
