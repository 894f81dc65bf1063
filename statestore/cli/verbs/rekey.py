"""``statestore rekey``: keyed states over other key groups, as a new checkpoint."""

from __future__ import annotations

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.output import progress_bar
from statestore.cli.remaking import Rekeyed
from statestore.keys.hashing import HASH_SCHEMES

__all__ = ["rekey_operator"]


@click.command(
    "rekey",
    cls=Verb,
    prints=(
        "The new checkpoint, and per state its key, max parallelism and hash scheme before and "
        "after, rows, files, bytes, and the digest of its rows, which is the same before and "
        "after. All keyed states of the operator get what is asked for, or with --state one; "
        "another key is one state's, made of columns that it has, and what was key and is none is "
        "a value. Each row is read once and lies on a local disk meanwhile; little is in memory. "
        "With --work a run that was ended goes on where it was, and a second one beside it is "
        "refused; without, one that fails leaves nothing behind. The old checkpoint stays as it "
        "is. A job that runs meanwhile commits no more. With --dry-run: what "
        "would be done, and no row is read."
    ),
    examples=(
        (
            "statestore rekey --operator totals-by-user --max-parallelism 720 --dry-run "
            "--store ./fraud"
        ),
        "statestore rekey --operator totals-by-shop --hash-scheme flink-sql --store ./fraud",
        (
            "statestore rekey --operator totals-by-shop --state totals --key shop --key country "
            "--work ./rekey-work --store ./fraud"
        ),
    ),
)
@click.option("--operator", "--uid", "uid", metavar="UID", required=True, help="Whose states.")
@click.option("--state", "--name", "name", metavar="NAME", help="Only this state.")
@click.option("--max-parallelism", type=int, metavar="N", help="So many key groups, 1 to 32768.")
@click.option("--key", multiple=True, metavar="COLUMN", help="The new key; repeat for several.")
@click.option("--hash-scheme", type=click.Choice(HASH_SCHEMES), help="How keys are hashed.")
@click.option("--checkpoint", default="latest", metavar="N", help="Of this one; else the latest.")
@click.option("--work", metavar="DIR", help="A folder from which an ended run goes on.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and stop.")
@pass_invocation
def rekey_operator(
    invocation: Invocation,
    uid: str,
    name: str | None,
    max_parallelism: int | None,
    key: tuple[str, ...],
    hash_scheme: str | None,
    checkpoint: str,
    work: str | None,
    dry_run: bool,
) -> Rekeyed:
    """Put an operator's keyed states over other key groups, as a new checkpoint."""
    if max_parallelism is None and not key and hash_scheme is None:
        raise click.UsageError("nothing to change: give --max-parallelism, --key or --hash-scheme")
    store = invocation.store()
    with progress_bar("rekeying") as progress:
        report = store.rekey(
            uid,
            name,
            max_parallelism=max_parallelism,
            key=key or None,
            hash_scheme=hash_scheme,
            checkpoint=checkpoint,
            work=work,
            dry_run=dry_run,
            on_progress=progress,
        )
    return Rekeyed(report=report)
