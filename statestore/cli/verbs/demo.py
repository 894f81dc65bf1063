"""``statestore demo``: a snapshot and a restore with Spark, to watch.

The demo is the only part of the command that needs Spark, so this is the one place that loads it,
and only when it is asked for: every other verb starts without pyspark.
"""

from __future__ import annotations

import importlib
import tempfile
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
        " its restore at another parallelism. The store is left in DIR; without DIR it is "
        "thrown away."
    ),
    examples=("statestore demo", "statestore demo ./demo-store"),
)
@click.argument("directory", required=False, metavar="[DIR]")
@pass_invocation
def run_demo(invocation: Invocation, directory: str | None) -> int:
    """Take a snapshot and restore it at another parallelism, to watch."""
    output = invocation.settings.output
    if directory is not None:
        return _run(Path(directory), output)
    with tempfile.TemporaryDirectory(prefix="statestore-", ignore_cleanup_errors=True) as folder:
        return _run(Path(folder) / "demo-store", output)


def _run(directory: Path, output: str) -> int:
    try:
        demo = importlib.import_module("statestore.demo")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "statestore":
            raise
        raise MissingDependencyError(
            f"the demo needs {error.name}, which is not installed: pip install 'statestore[demo]'"
        ) from error
    return int(demo.run(directory, output=output))
