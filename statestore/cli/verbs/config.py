"""``statestore config``: the settings in effect."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.values import Configuration

__all__ = ["print_settings"]


@click.command(
    "config",
    cls=Verb,
    prints=(
        "Every setting with its value, unit, default, and where the value came from: the "
        "default, a file, the environment or an argument, of which the later wins."
    ),
    examples=(
        "statestore config",
        "STATESTORE_ZSTD_LEVEL=3 statestore config --output json",
    ),
)
@pass_invocation
def print_settings(invocation: Invocation) -> Configuration:
    """Print the settings and where each comes from."""
    return Configuration(settings=invocation.resolved.each())
