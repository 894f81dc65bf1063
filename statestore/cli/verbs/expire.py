"""``statestore expire``: give up all but the last checkpoints, or old ones."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.spans import SPAN
from statestore.cli.values import Expired

__all__ = ["expire_checkpoints"]


@click.command(
    "expire",
    cls=Verb,
    prints=(
        "The checkpoints that are given up and those that stay, and how many files and bytes no "
        "kept checkpoint uses any more. With --retain and --older-than both, what is neither "
        "among the newest nor young is given up. The newest always stays, and what a savepoint or "
        "a pin holds is passed over, and named. An expired checkpoint cannot be seen, listed or "
        "restored again, and its number is not used again. Its files stay until gc. With "
        "--dry-run: the same, and nothing is changed."
    ),
    examples=(
        "statestore expire --retain 1 --dry-run --store ./fraud",
        "statestore expire --retain 10 --store ./fraud",
        "statestore expire --older-than 7d --retain 3 --store ./fraud",
    ),
)
@click.option("--retain", type=int, metavar="N", help="How many of the newest to keep.")
@click.option(
    "--older-than", type=SPAN, metavar="SPAN", help="Give up only what is older: 12h, 7d."
)
@click.option("--dry-run", is_flag=True, help="Say what would be expired and stop.")
@pass_invocation
def expire_checkpoints(
    invocation: Invocation, retain: int | None, older_than: float | None, dry_run: bool
) -> Expired:
    """Give up all but the newest checkpoints."""
    if retain is None and older_than is None:
        raise click.UsageError("give --retain N, or --older-than SPAN, or both")
    store = invocation.store()
    return Expired(expired=store.expire(retain=retain, older_than_s=older_than, dry_run=dry_run))
