"""``statestore edit``: change one keyed state of a checkpoint, as a new checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import click
from msgspec import field

from statestore.cli.arguments import key_of, parse_row
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, one_state_options, pass_invocation
from statestore.cli.completion import complete_checkpoint
from statestore.cli.documents import Document, LeftOutDocument
from statestore.cli.drawing import amount, count, counted
from statestore.cli.output import Page, Result
from statestore.maintenance.edit import EditedState

__all__ = ["Edited", "edit_state"]


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
) -> Edited:
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
    return Edited(edited=edited)


class EditedDocument(Document):
    """An edited state. ``new_id`` is null in a dry run. ``how`` is keys, rows or sql."""

    store: str
    checkpoint_id: int = field(name="id")
    uid: str = field(name="operator")
    dry_run: bool
    new_id: int | None
    state: str
    how: str
    rows_before: int
    rows_after: int
    deleted: int
    put: int
    key_groups: list[int]
    files: int
    size_bytes: int
    left_out: list[LeftOutDocument]


@dataclass(frozen=True, kw_only=True)
class Edited(Result):
    """The changed state."""

    edited: EditedState

    def document(self) -> EditedDocument:
        """Return it for ``--output json``."""
        return EditedDocument.of(self.edited)

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.edited
        where = f"state {done.state} of operator {done.uid}, checkpoint {done.checkpoint_id}"
        if done.dry_run:
            page.line(f"would edit {where} of {done.store}", "bold")
        elif done.new_id is None:
            page.line(f"nothing to change in {where} of {done.store}: no such key", "bold")
        else:
            page.line(f"edited {where} of {done.store}: checkpoint {done.new_id}", "bold")
        before, after = count(done.rows_before), count(done.rows_after)
        page.line(f"  rows         {before} before, {after} after")
        if done.how == "keys":
            page.line(f"  changed      {count(done.deleted)} deleted, {count(done.put)} put")
        verb = "to replace" if done.dry_run else "written   "
        written = amount(done.size_bytes, done.files)
        page.line(f"  {verb}   {written}, {counted(len(done.key_groups), 'key group')}")
        write_left_out(page, done.left_out)
