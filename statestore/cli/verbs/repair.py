"""``statestore repair``: mend what blocks all writing."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.values import Repaired
from statestore.errors import CorruptionError

__all__ = ["repair_store"]


@click.command(
    "repair",
    cls=Verb,
    prints=(
        "What was made again: statestore.json, of its own checksum or of what the checkpoints say; "
        "a claim of the store above a damaged one, after which a job at work there commits no "
        "more; an entry that a Delta log lacks, where a checkpoint and Delta's checksum file prove "
        "what it held. Then what cannot be proved, and what to do: the exit status is that of "
        "damage. Checkpoints are not looked into: see verify and salvage. With --dry-run: the "
        "same, and nothing is changed."
    ),
    examples=(
        "statestore repair --dry-run --store ./fraud",
        "statestore repair --store ./fraud",
    ),
)
@click.option("--dry-run", is_flag=True, help="Say what would be repaired and stop.")
@pass_invocation
def repair_store(invocation: Invocation, dry_run: bool) -> Repaired:
    """Mend what blocks all writing though no checkpoint is damaged."""
    done = invocation.store().repair(dry_run=dry_run)
    return Repaired(repaired=done, status=CorruptionError.exit_code if done.left else 0)
