"""``statestore copy``: a checkpoint or savepoint to another store."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, checkpoint_argument, pass_invocation
from statestore.cli.moving import Copied
from statestore.cli.output import progress_bar

__all__ = ["copy_checkpoint"]


@click.command(
    "copy",
    cls=Verb,
    prints=(
        "The checkpoint's number in the target, and how many files and bytes the target lacked. "
        "Each file's SHA-256 is checked while it is copied, and the checkpoint is visible in the "
        "target once the last one is there. A copy that was killed goes on where it was; one that "
        "is made again finds the first. CHECKPOINT may be the name of a savepoint, which is then "
        "one of that name in the target. Both stores are reached with the same credentials. Delta "
        "tables are plain Parquet in the target. With --dry-run: what would be copied, and nothing "
        "is written."
    ),
    examples=(
        "statestore copy --to ./backup --dry-run --store ./fraud",
        "statestore copy 1 --to ./backup --as-savepoint end-of-january --store ./fraud",
    ),
)
@checkpoint_argument
@click.option("--to", "target", metavar="URL", required=True, help="Path or s3:// URL to copy to.")
@click.option("--as-savepoint", metavar="NAME", help="Keep the copy under this name there.")
@click.option("--dry-run", is_flag=True, help="Say what would be copied and stop.")
@pass_invocation
def copy_checkpoint(
    invocation: Invocation, checkpoint: str, target: str, as_savepoint: str | None, dry_run: bool
) -> Copied:
    """Copy a checkpoint or savepoint to another store."""
    store = invocation.store()
    with progress_bar("copying") as progress:
        copied = store.copy(
            checkpoint, target, as_savepoint=as_savepoint, dry_run=dry_run, on_progress=progress
        )
    return Copied(copied=copied)
