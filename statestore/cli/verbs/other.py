"""``statestore config`` shows the effective settings; ``demo`` runs a snapshot and a restore.

The demo is the only part of the command that needs Spark. So Spark is loaded only here, when the
demo runs, and every other verb starts without pyspark.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import click

from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.output import Output, Page, table_of
from statestore.extras import needs_extra
from statestore.settings import Setting

__all__ = ["Configuration", "print_settings", "run_demo"]


@click.command(
    "config",
    cls=Verb,
    section="This command",
    prints=(
        "Every setting with its value, unit, default and source. Arguments override the "
        "environment, and the environment overrides a file."
    ),
    examples=(
        "statestore config",
        "STATESTORE_ZSTD_LEVEL=3 statestore config --output json",
    ),
)
@pass_invocation
def print_settings(invocation: Invocation) -> Output[Configuration]:
    """Print the settings and the source of each value."""
    return Output(Configuration(settings=invocation.resolved.each()), write_configuration)


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The effective settings."""

    settings: tuple[Setting, ...]


def write_configuration(page: Page, configuration: Configuration) -> None:
    """Write the effective settings as text."""
    table = table_of("setting", "value", "unit", "default", "source")
    for setting in configuration.settings:
        value = "none" if setting.value is None else str(setting.value)
        default = "none" if setting.default is None else str(setting.default)
        row = (setting.name, value, setting.unit, default, setting.source)
        table.add_row(*row)
    page.table(table)


@click.command(
    "demo",
    cls=Verb,
    section="This command",
    has_store=False,
    prints=(
        "Each step of a demonstration with Spark on this machine. The store stays in DIR "
        "(./statestore-demo), which can also be a URL."
    ),
    examples=("statestore demo", "statestore demo ./demo-store", "statestore demo s3://bucket/a"),
)
@click.argument("directory", default="statestore-demo", metavar="[DIR]")
@pass_invocation
def run_demo(invocation: Invocation, directory: str) -> int:
    """Take a snapshot and restore it at another parallelism, as a demonstration."""
    with needs_extra("demo", "the demo"):
        demo = importlib.import_module("statestore.demo")
    return int(demo.run(directory, output=invocation.settings.output))
