"""``statestore demo``: a snapshot and a restore with Spark, to watch.

The demo is the only part of the command that needs Spark, so this is the one place that loads it,
and only when it is asked for: every other verb starts without pyspark.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.errors import MissingDependencyError

__all__ = ["run_demo"]


@click.command(
    "demo",
    cls=Verb,
    prints=(
        "What it does as it does it, with Spark on this machine: a snapshot of real data, and"
        " its restore at another parallelism. The store stays in DIR (./statestore-demo)."
    ),
    examples=("statestore demo", "statestore demo ./demo-store"),
)
@click.argument("directory", default="statestore-demo", metavar="[DIR]")
@pass_invocation
def run_demo(invocation: Invocation, directory: str) -> int:
    """Take a snapshot and restore it at another parallelism, to watch."""
    try:
        demo = importlib.import_module("statestore.demo")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "statestore":
            raise
        raise MissingDependencyError(
            f"the demo needs {error.name}, which is not installed: pip install 'statestore[demo]'"
        ) from error
    return int(demo.run(Path(directory), output=invocation.settings.output))
