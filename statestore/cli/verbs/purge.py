"""``statestore purge``: remove a key from kept checkpoints, and see that it is gone."""

from __future__ import annotations

from typing import Any

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.keys import parse_key
from statestore.cli.moving import Purged, Searched
from statestore.cli.output import progress_bar
from statestore.format.state import KeyedState

__all__ = ["purge_key"]


@click.command(
    "purge",
    cls=Verb,
    prints=(
        "Each checkpoint that is replaced, the one that takes its place, and per state how many "
        "rows of which key group are gone. Replaced are all checkpoints from the first that holds "
        "the key on, so that their order stays; the old ones expire, and their savepoints move to "
        "the new ones. A job that runs meanwhile commits no more, and still has the key. The old "
        "files stay until 'statestore gc'. Then --check searches every file of the store: it names "
        "those that still have the key, with exit status 1, or says that it is gone. KEY is as for "
        "'statestore get'. With --dry-run: what would be replaced, and nothing is changed."
    ),
    examples=(
        "statestore purge --operator totals-by-user --key u17 --all --dry-run --store ./fraud",
        (
            "statestore purge --operator totals-by-user --state totals --key u17 --checkpoint 2 "
            "--store ./fraud"
        ),
        "statestore purge --operator totals-by-user --key nobody --check --store ./fraud",
    ),
)
@click.option("--operator", "--uid", "uid", metavar="UID", required=True, help="Its operator.")
@click.option("--state", "--name", "name", metavar="NAME", help="Only this state of the operator.")
@click.option("--key", required=True, metavar="KEY", help="The key to remove.")
@click.option("--checkpoint", metavar="N", help="From this checkpoint alone.")
@click.option("--all", "every", is_flag=True, help="From all checkpoints that are kept.")
@click.option("--check", is_flag=True, help="Only search the whole store for the key.")
@click.option("--ignore-pins", is_flag=True, help="Also replace checkpoints that are pinned.")
@click.option("--dry-run", is_flag=True, help="Say what would be replaced and stop.")
@pass_invocation
def purge_key(
    invocation: Invocation,
    uid: str,
    name: str | None,
    key: str,
    checkpoint: str | None,
    every: bool,
    check: bool,
    ignore_pins: bool,
    dry_run: bool,
) -> Purged | Searched:
    """Remove a key from the checkpoints that are kept."""
    if sum((checkpoint is not None, every, check)) != 1:
        raise click.UsageError("give one of --checkpoint N, --all and --check")

    def key_of(state: KeyedState) -> Any:
        values = parse_key(key, state)
        return values[0] if len(values) == 1 else values

    store = invocation.store()
    if check:
        with progress_bar("searching") as progress:
            search = store.find_key(uid, key_of, name, on_progress=progress)
        return Searched(search=search, problem=search.problem)
    purged = store.purge(
        uid, key_of, name, checkpoint=checkpoint, ignore_pins=ignore_pins, dry_run=dry_run
    )
    return Purged(purged=purged)
