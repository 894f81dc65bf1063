"""``statestore gc``: delete the files that nothing needs any more."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.output import progress_bar
from statestore.cli.spans import SPAN
from statestore.cli.values import Collected

__all__ = ["collect"]


@click.command(
    "gc",
    cls=Verb,
    prints=(
        "The files and bytes that are removed, and those that stay: in use by a checkpoint, a "
        "savepoint or a pin, or too young. Removed are data files that none of these needs, "
        "whoever left them, the manifests of expired checkpoints whose files are gone, pins whose "
        "lease is over, and what broken-off writes left. When it cannot be known what is needed, "
        "nothing is removed, and the error says why. A snapshot that takes longer than the minimum "
        "age must not run at the same time, and none at all with --minimum-age 0. Versions of a "
        "Delta table whose files are removed cannot be read any more. With --dry-run: the same, "
        "and nothing is removed."
    ),
    examples=(
        "statestore gc --dry-run --store ./fraud",
        "statestore gc --minimum-age 7d --store ./fraud",
    ),
)
@click.option(
    "--minimum-age",
    type=SPAN,
    default="24h",
    show_default=True,
    metavar="SPAN",
    help="Leave what was written, or given up, less than this ago.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be removed and stop.")
@pass_invocation
def collect(invocation: Invocation, minimum_age: float, dry_run: bool) -> Collected:
    """Delete the files that nothing kept needs."""
    store = invocation.store()
    with progress_bar("deleting") as progress:
        done = store.gc(minimum_age_s=minimum_age, dry_run=dry_run, on_progress=progress)
    return Collected(collected=done)
