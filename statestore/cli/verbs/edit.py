"""``statestore edit``: change one keyed state of a checkpoint, as a new checkpoint."""

from __future__ import annotations

from typing import Any

import click

from statestore.cli.help import Verb
from statestore.cli.invocation import Invocation, pass_invocation
from statestore.cli.keys import parse_key, parse_row
from statestore.cli.moving import Edited

__all__ = ["edit_state"]


@click.command(
    "edit",
    cls=Verb,
    prints=(
        "The new checkpoint, rows before and after, and what was written: only the files of the "
        "key groups that change, with --sql all of the state's. The old checkpoint stays as it is. "
        "--delete removes all rows of a key, which is given as for 'statestore get'. --put is a "
        "row as a JSON object; it takes the place of the one with the same key, namespace and "
        "entry columns, and a column that it lacks is null. --sql is a SELECT over the table "
        "'state', whose answer becomes the state; it needs DuckDB. Rows are checked as those of a "
        "snapshot. A job that runs meanwhile commits no more. With --dry-run: the same, and "
        "nothing is written."
    ),
    examples=(
        (
            "statestore edit --operator totals-by-user --state totals --delete u17 --dry-run "
            "--store ./fraud"
        ),
        (
            "statestore edit --operator totals-by-user --state totals --put "
            '\'{"user_id": "u3", "total": 0}\' --store ./fraud'
        ),
        (
            "statestore edit --operator totals-by-user --state totals --sql "
            "'SELECT * FROM state WHERE total > 9' --store ./fraud"
        ),
    ),
)
@click.option("--operator", "--uid", "uid", metavar="UID", required=True, help="Its operator.")
@click.option("--state", "--name", "name", metavar="NAME", required=True, help="The keyed state.")
@click.option("--delete", multiple=True, metavar="KEY", help="Remove a key; may be repeated.")
@click.option("--put", multiple=True, metavar="JSON", help="Put a row; may be repeated.")
@click.option("--sql", metavar="SELECT", help="Replace the state by the answer.")
@click.option("--checkpoint", default="latest", metavar="N", help="Of this one; else the latest.")
@click.option("--dry-run", is_flag=True, help="Say what would be changed and stop.")
@pass_invocation
def edit_state(
    invocation: Invocation,
    uid: str,
    name: str,
    delete: tuple[str, ...],
    put: tuple[str, ...],
    sql: str | None,
    checkpoint: str,
    dry_run: bool,
) -> Edited:
    """Change one keyed state offline, as a new checkpoint."""
    if not (delete or put or sql):
        raise click.UsageError("nothing to change: give --delete KEY, --put JSON, or --sql SELECT")
    store = invocation.store()
    state = store.manifest(checkpoint).keyed_entry(uid, name).state
    keys: list[Any] = [parse_key(text, state) for text in delete]
    if len(state.key) == 1:
        keys = [value for (value,) in keys]
    edited = store.edit(
        uid,
        name,
        delete=keys,
        put=[parse_row(text, state) for text in put],
        sql=sql,
        checkpoint=checkpoint,
        dry_run=dry_run,
    )
    return Edited(edited=edited)
