"""``statestore expire``: give up all but the last checkpoints."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.values import Expired

__all__ = ["expire_checkpoints"]


@click.command(
    "expire",
    cls=Verb,
    prints=(
        "The checkpoints that are given up and those that stay, and how many files and bytes no "
        "kept checkpoint uses any more. An expired checkpoint cannot be seen, listed or restored "
        "again, and its number is not used again. Its files stay where they are. With --dry-run: "
        "the same, and nothing is changed."
    ),
    examples=(
        "statestore expire --retain 1 --dry-run --store ./fraud",
        "statestore expire --retain 10 --store ./fraud",
    ),
)
@click.option(
    "--retain", type=int, required=True, metavar="N", help="How many of the newest to keep."
)
@click.option("--dry-run", is_flag=True, help="Say what would be expired and stop.")
@pass_invocation
def expire_checkpoints(invocation: Invocation, retain: int, dry_run: bool) -> Expired:
    """Give up all but the newest checkpoints."""
    return Expired(expired=invocation.store().expire(retain=retain, dry_run=dry_run))
