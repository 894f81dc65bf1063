"""``statestore edit``: change one keyed state of a checkpoint, as a new checkpoint."""

from __future__ import annotations

import click

from statestore.cli.arguments import key_of, parse_row
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, one_state_options, pass_invocation
from statestore.cli.completion import complete_checkpoint
from statestore.cli.drawing import amount, count, counted
from statestore.cli.output import Output, Page
from statestore.maintenance.edit import EditedState

__all__ = ["edit_state"]


@click.command(
    "edit",
    cls=Verb,
    prints=(
        "The new checkpoint, the rows before and after, and what was written. Only files of "
        "changed key groups are written; with --sql all files of the state are. The old "
        "checkpoint does not change. --delete removes all rows of a key, which has the same form "
        "as in 'statestore get'. --put takes a row as a JSON object and replaces the row with the "
        "same key, namespace and entry columns; missing columns become null. --sql takes a SELECT "
        "over the table 'state', whose result becomes the state; it needs DuckDB. Rows are "
        "checked like those of a snapshot. A job that runs at the same time can no longer commit. "
        "With --dry-run: the same output, and nothing is written."
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
@one_state_options
@click.option("--delete", multiple=True, metavar="KEY", help="Remove a key; can be repeated.")
@click.option("--put", multiple=True, metavar="JSON", help="Add or replace a row; can be repeated.")
@click.option("--sql", metavar="SELECT", help="Replace the state with the result of this query.")
@click.option(
    "--checkpoint",
    default="latest",
    metavar="N",
    help="The checkpoint to change. [latest]",
    shell_complete=complete_checkpoint,
)
@click.option("--dry-run", is_flag=True, help="Report what would change, and write nothing.")
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
) -> Output[EditedState]:
    """Change one keyed state offline, as a new checkpoint."""
    if not (delete or put or sql):
        raise click.UsageError("nothing to change: pass --delete KEY, --put JSON, or --sql SELECT")
    store = invocation.store()
    state = store.manifest(checkpoint).keyed_entry(uid, name).state
    edited = store.maintenance.edit(
        uid,
        name,
        delete=[key_of(text)(state) for text in delete],
        put=[parse_row(text, state) for text in put],
        sql=sql,
        checkpoint=checkpoint,
        dry_run=dry_run,
    )
    return Output(edited, write_edited)


def write_edited(page: Page, edited: EditedState) -> None:
    """Write it as text."""
    where = f"state {edited.state} of operator {edited.operator}, checkpoint {edited.checkpoint_id}"
    if edited.dry_run:
        page.line(f"would edit {where} of {edited.store}", "bold")
    elif edited.new_checkpoint_id is None:
        page.line(f"nothing to change in {where} of {edited.store}: no such key", "bold")
    else:
        page.line(
            f"edited {where} of {edited.store}: checkpoint {edited.new_checkpoint_id}", "bold"
        )
    before, after = count(edited.rows_before), count(edited.rows_after)
    page.line(f"  rows         {before} before, {after} after")
    if edited.how == "keys":
        page.line(f"  changed      {count(edited.deleted)} deleted, {count(edited.put)} put")
    verb = "to replace" if edited.dry_run else "written   "
    written = amount(edited.size_bytes, edited.files)
    page.line(f"  {verb}   {written}, {counted(len(edited.key_groups), 'key group')}")
    write_left_out(page, edited.left_out)
