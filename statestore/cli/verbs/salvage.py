"""``statestore salvage``: what is readable of a damaged checkpoint as a new one."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.output import progress_bar
from statestore.cli.repairing import Salvaged
from statestore.maintenance.salvage import DEFAULT_KEYS

__all__ = ["salvage_checkpoint"]


@click.command(
    "salvage",
    cls=Verb,
    prints=(
        "The damaged files, and per state the key groups and rows that cannot be read any more, "
        "with the newest older checkpoint that has them whole, and keys that it has there. What "
        "can be read becomes a new checkpoint, which names whole files again; the damaged "
        "checkpoint stays as it is. With --from-older, rows of that older checkpoint take the "
        "place of the lost ones, and the new manifest says so. Every byte is read. When nothing is "
        "damaged nothing is written. With --dry-run: the same, and nothing is written."
    ),
    examples=(
        "statestore salvage 2 --dry-run --store ./fraud",
        "statestore salvage latest --from-older --store ./fraud",
    ),
)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option("--from-older", is_flag=True, help="Fill what is lost from older checkpoints.")
@click.option(
    "--keys",
    type=int,
    default=DEFAULT_KEYS,
    show_default=True,
    metavar="N",
    help="How many lost keys to show per state.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be salvaged and stop.")
@pass_invocation
def salvage_checkpoint(
    invocation: Invocation, checkpoint: str, from_older: bool, keys: int, dry_run: bool
) -> Salvaged:
    """Make a new checkpoint of what can be read of a damaged one."""
    store = invocation.store()
    with progress_bar("checking") as progress:
        report = store.salvage(checkpoint, from_older, dry_run, keys, progress)
    return Salvaged(report=report)
