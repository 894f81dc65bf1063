"""``statestore savepoint``: keep a checkpoint under a name, or let go of it."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.values import Saved

__all__ = ["keep_savepoint"]


@click.command(
    "savepoint",
    cls=Verb,
    prints=(
        "The savepoint and the checkpoint that it keeps. A savepoint's checkpoint is neither "
        "expired nor collected, and wherever a command takes a checkpoint it takes the name. NAME "
        "is no number, and neither 'latest' nor 'all'. With --delete the checkpoint is again one "
        "as any other."
    ),
    examples=(
        "statestore savepoint before-upgrade --store ./fraud",
        "statestore savepoint end-of-january --checkpoint 1 --store ./fraud",
        "statestore savepoint --delete before-upgrade --store ./fraud",
    ),
)
@click.argument("name")
@click.option(
    "--checkpoint", metavar="N", help="Its number, or the name of a savepoint; else the latest."
)
@click.option("--delete", is_flag=True, help="Delete the savepoint.")
@pass_invocation
def keep_savepoint(
    invocation: Invocation, name: str, checkpoint: str | None, delete: bool
) -> Saved:
    """Keep a checkpoint under a name."""
    if delete and checkpoint is not None:
        raise click.UsageError(
            "--delete goes by the savepoint's name alone: leave out --checkpoint"
        )
    store = invocation.store()
    if delete:
        gone = store.delete_savepoint(name)
        number = None if gone is None else gone.checkpoint_id
        return Saved(store=store.url, name=name, checkpoint_id=number, deleted=True)
    made = store.savepoint(name, "latest" if checkpoint is None else checkpoint)
    return Saved(store=store.url, name=made.name, checkpoint_id=made.checkpoint_id)
