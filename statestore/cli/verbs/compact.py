"""``statestore compact``: changes of a checkpoint folded into its base, as a new checkpoint."""

from __future__ import annotations

import click

from statestore.cli.compacting import Compacted
from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.output import progress_bar

__all__ = ["compact_checkpoint"]


@click.command(
    "compact",
    cls=Verb,
    prints=(
        "Per state with incremental changes its layers, files and bytes before and after, the "
        "spans (key groups of one base file) whose changes were folded into the base, and the "
        "rows read for it. Folded and merged is what the store's rule says, a share of it at a "
        "time; with --all everything, so that no layers are left. The old checkpoint stays as it "
        "is. With --key-groups only base files with some of them are folded, and no layers are "
        "merged. When there is nothing to do nothing is written. A job compacts in the background "
        "of its own snapshots; one that runs meanwhile commits no more. With --dry-run: what "
        "would be done, and nothing is written."
    ),
    examples=(
        "statestore compact --dry-run --store ./fraud",
        "statestore compact --all --operator totals-by-user --state totals --store ./fraud",
        "statestore compact latest --all --key-groups 0-31 --store ./fraud",
    ),
)
@click.argument("checkpoint", metavar="[CHECKPOINT]", default="latest")
@click.option("--operator", "--uid", "uid", metavar="UID", help="Only states of this operator.")
@click.option("--state", "--name", "name", metavar="NAME", help="Only states of this name.")
@click.option("--key-groups", metavar="FIRST-LAST", help="Only base files with some of these.")
@click.option("--all", "everything", is_flag=True, help="Fold all changes, whatever the rule says.")
@click.option("--dry-run", is_flag=True, help="Say what would be compacted and stop.")
@pass_invocation
def compact_checkpoint(
    invocation: Invocation,
    checkpoint: str,
    uid: str | None,
    name: str | None,
    key_groups: str | None,
    everything: bool,
    dry_run: bool,
) -> Compacted:
    """Fold changes of incremental checkpoints into their base, as a new checkpoint."""
    store = invocation.store()
    with progress_bar("compacting") as progress:
        report = store.compact(
            checkpoint,
            uid=uid,
            name=name,
            key_groups=key_groups,
            everything=everything,
            dry_run=dry_run,
            on_progress=progress,
        )
    return Compacted(report=report)
