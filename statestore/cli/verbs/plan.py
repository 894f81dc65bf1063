"""``statestore plan``: what a restore at another parallelism would read."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, checkpoint_argument, pass_invocation
from statestore.cli.values import PlannedRestore

__all__ = ["plan_restore"]


@click.command(
    "plan",
    cls=Verb,
    prints=(
        "The key groups cut for the old and the new parallelism, and for every operator and "
        "subtask its key groups, rows, bytes, files, requests and elements of operator state."
    ),
    examples=(
        "statestore plan --to 7 --store ./fraud",
        "statestore plan --to 2 1 --store ./fraud --output json",
    ),
)
@click.option(
    "--to", "parallelism", type=int, required=True, metavar="N", help="The new parallelism."
)
@checkpoint_argument
@pass_invocation
def plan_restore(invocation: Invocation, parallelism: int, checkpoint: str) -> PlannedRestore:
    """Say what a restore at another parallelism would read."""
    store = invocation.store()
    return PlannedRestore(
        store=store.url, plan=store.plan(parallelism=parallelism, checkpoint=checkpoint)
    )
