"""``statestore verify``: is a checkpoint still what was written?"""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, checkpoint_argument, pass_invocation
from statestore.cli.output import progress_bar
from statestore.cli.values import Verified
from statestore.maintenance.verify import ALL

__all__ = ["verify_checkpoint"]


@click.command(
    "verify",
    cls=Verb,
    prints=(
        "What was checked, every broken file with its operator, state and key groups and what is "
        "wrong with it, and stray files, which no manifest names and which are no damage. "
        "Without --deep: the manifest, and each file's length, rows, row groups and columns; no "
        "data is read. With --deep every byte and row is read: SHA-256, digest, the key group of "
        "every key, order, duplicates and null keys. The exit status is 13 when anything is "
        "broken."
    ),
    examples=(
        "statestore verify --store ./fraud",
        "statestore verify 1 --deep --store ./fraud",
        "statestore verify --all --deep --output json --store ./fraud",
    ),
)
@checkpoint_argument
@click.option("--deep", is_flag=True, help="Read every byte and every row.")
@click.option("--all", "every", is_flag=True, help="Verify all checkpoints of the store.")
@pass_invocation
def verify_checkpoint(invocation: Invocation, checkpoint: str, deep: bool, every: bool) -> Verified:
    """Check that a checkpoint is as it was written."""
    if every and checkpoint != "latest":
        raise click.UsageError(f"--all is every checkpoint: leave out {checkpoint!r}")
    store = invocation.store()
    with progress_bar("verifying") as progress:
        report = store.verify(ALL if every else checkpoint, deep, progress)
    return Verified(report=report, problem=report.problem)
