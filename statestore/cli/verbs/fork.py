"""``statestore fork``: a new store that shares the files of a checkpoint."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, checkpoint_argument, pass_invocation
from statestore.cli.output import progress_bar
from statestore.cli.remaking import Forked

__all__ = ["fork_checkpoint"]


@click.command(
    "fork",
    cls=Verb,
    prints=(
        "How many files and bytes the new store shares with this one, and how many had to be "
        "copied. On one file system none are: a file has a name in each store, and goes when both "
        "have let go of it, so whatever is expired, compacted, purged or collected in one, the "
        "other keeps what it has. From and to a bucket, and to another disk, files are copied. A "
        "file that is damaged in place is damaged in both. CHECKPOINT may be the name of a "
        "savepoint, which is then one there. With --dry-run: the same, and nothing is written."
    ),
    examples=(
        "statestore fork --to ./what-if --dry-run --store ./fraud",
        "statestore fork 1 --to ./what-if --store ./fraud",
    ),
)
@checkpoint_argument
@click.option("--to", "target", metavar="URL", required=True, help="Where the new store will be.")
@click.option("--dry-run", is_flag=True, help="Say what would be shared and stop.")
@pass_invocation
def fork_checkpoint(invocation: Invocation, checkpoint: str, target: str, dry_run: bool) -> Forked:
    """Begin a new store with a checkpoint of this one, without copying it."""
    store = invocation.store()
    with progress_bar("forking") as progress:
        forked = store.fork(target, checkpoint, dry_run=dry_run, on_progress=progress)
    return Forked(forked=forked)
