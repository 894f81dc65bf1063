"""``statestore edit``: change one keyed state of a checkpoint, as a new checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from statestore.cli.arguments import column_values, key_of, named_values, parse_row
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import (
    CHECKPOINT_WAS_OPTION,
    Invocation,
    Verb,
    checkpoint_argument,
    from_older_option,
    one_state_options,
    pass_invocation,
)
from statestore.cli.drawing import amount, count, counted
from statestore.cli.output import Output, Page, json_text
from statestore.cli.row_changes import write_row_changes
from statestore.format.state import KeyedState
from statestore.maintenance.edit import EditedState
from statestore.maintenance.row_update import RowUpdate

__all__ = ["edit_state"]


@click.command(
    "edit",
    cls=Verb,
    replaced=CHECKPOINT_WAS_OPTION,
    prints=(
        "The new checkpoint, the changed rows before and after, and what was written. Only files "
        "of changed key groups are written. The old checkpoint does not change. --key selects "
        "the rows of a key, in the same form as in 'statestore get'; --where selects some of "
        "them. --set changes one column of these rows, and the other columns keep their values. "
        "VALUE has the same form as KEY: a JSON string, or the text itself. null is null, and "
        "'\"null\"' is a text. --delete removes all rows of a key. Keys to delete without a row "
        "are counted, and the first five are named. They are not an error, so the exit status is "
        "0, also if nothing changes. --put takes a row as a JSON object and replaces the row with "
        "the same key, namespace and entry columns. Its missing columns become null, which must "
        "be confirmed. "
        "--sql takes a SELECT over the table 'state', whose result becomes the state; it needs "
        "DuckDB, and an empty result must be confirmed. Rows are checked like those of a "
        "snapshot. A job that runs at the same time can no longer commit. With --dry-run: the "
        "same output, and nothing is written."
    ),
    examples=(
        (
            "statestore edit --operator totals-by-user --state totals --key u3 --set total=0 "
            "--dry-run --store ./fraud"
        ),
        ("statestore edit --operator totals-by-user --state totals --delete u17 --store ./fraud"),
        (
            "statestore edit --operator totals-by-user --state totals --put "
            '\'{"user_id": "u3", "total": 0}\' --yes --store ./fraud'
        ),
        (
            "statestore edit --operator totals-by-user --state totals --sql "
            "'SELECT * FROM state WHERE total > 9' --store ./fraud"
        ),
    ),
)
@checkpoint_argument
@one_state_options
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="A key whose rows --set changes; repeatable.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="A new value of a column in the rows of --key; repeatable.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Change only rows of --key with this value in a column; repeatable.",
)
@click.option("--delete", multiple=True, metavar="KEY", help="Remove a key; can be repeated.")
@click.option("--put", multiple=True, metavar="JSON", help="Add or replace a row; can be repeated.")
@click.option("--sql", metavar="SELECT", help="Replace the state with the result of this query.")
@from_older_option
@click.option("--dry-run", is_flag=True, help="Report what would change, and write nothing.")
@click.option(
    "--yes",
    "allow_empty",
    is_flag=True,
    help="Confirm columns that --put sets to null, and a --sql that removes all rows.",
)
@pass_invocation
def edit_state(
    invocation: Invocation,
    uid: str,
    name: str,
    keys: tuple[str, ...],
    assignments: tuple[str, ...],
    where: tuple[str, ...],
    delete: tuple[str, ...],
    put: tuple[str, ...],
    sql: str | None,
    checkpoint: str,
    from_older: bool,
    dry_run: bool,
    allow_empty: bool,
) -> Output[EditedState]:
    """Change one keyed state offline, as a new checkpoint."""
    if not (assignments or delete or put or sql):
        raise click.UsageError(
            "nothing to change: pass --key KEY --set COLUMN=VALUE, --delete KEY, --put JSON, or "
            "--sql SELECT"
        )
    if bool(keys) != bool(assignments) or (where and not keys):
        raise click.UsageError("--key selects rows and --set changes them: pass both")
    values = named_values("--set", "COLUMN=VALUE", assignments)
    conditions = named_values("--where", "COLUMN=VALUE", where)
    store = invocation.store()
    state = store.manifest(checkpoint).keyed_entry(uid, name).state
    rows = [parse_row(text, state) for text in put]
    if rows and not dry_run:
        _confirm_nulls(rows, state, yes=allow_empty)
    update = None
    if assignments:
        update = RowUpdate(
            keys=[key_of(text)(state) for text in keys],
            values=column_values("--set", values, state),
            where=column_values("--where", conditions, state),
        )
    edited = store.maintenance.edit(
        uid,
        name,
        delete=[key_of(text)(state) for text in delete],
        put=rows,
        update=update,
        sql=sql,
        allow_empty=allow_empty,
        checkpoint=checkpoint,
        from_older=from_older,
        dry_run=dry_run,
    )
    return Output(edited, write_edited)


def _confirm_nulls(rows: Sequence[Mapping[str, Any]], state: KeyedState, *, yes: bool) -> None:
    """Ask whether the columns that a row lacks may become null. Raises a usage error or Abort.

    A row that lacks a column of its identity, or the TTL column, is refused later.
    """
    needed = {*state.identity, *([state.ttl.column] if state.ttl else [])}
    missing = {
        name: None
        for row in rows
        for name in state.schema.names
        if name not in row and name not in needed
    }
    if not missing or yes:
        return
    names = ", ".join(missing)
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"--put sets columns to null that it does not name: {names}. Pass --yes to confirm "
            "that, name them, or change single columns with --key KEY --set COLUMN=VALUE"
        )
    click.confirm(f"--put sets these columns to null: {names}. Continue?", abort=True, err=True)


def _missing_text(edited: EditedState) -> str:
    keys = [[*key.values()] for key in edited.missing_keys]
    texts = [json_text(key[0] if len(key) == 1 else key) for key in keys]
    more = ", …" if edited.missing > len(texts) else ""
    verb = "has" if edited.missing == 1 else "have"
    keys_text = f"{counted(edited.missing, 'key')} to delete {verb} no row"
    return f"{keys_text}: {', '.join(texts)}{more}"


def write_edited(page: Page, edited: EditedState) -> None:
    """Write the edited state as text."""
    where = f"state {edited.state} of operator {edited.operator}, checkpoint {edited.checkpoint_id}"
    if edited.dry_run:
        page.line(f"would edit {where} of {edited.store}", "bold")
    elif edited.new_checkpoint_id is None:
        page.line(f"nothing to change in {where} of {edited.store}", "bold")
    else:
        page.line(
            f"edited {where} of {edited.store}: checkpoint {edited.new_checkpoint_id}", "bold"
        )
    before, after = count(edited.rows_before), count(edited.rows_after)
    page.line(f"  rows         {before} before, {after} after")
    if edited.changed_rows_before:
        page.line(
            f"               {count(edited.changed_rows_before)} of the rows before were changes, "
            "which rewritten files have merged"
        )
    if edited.how != "rows":
        page.line(f"  changed      {count(edited.deleted)} deleted, {count(edited.put)} put")
    if edited.missing:
        page.line(f"  missing      {_missing_text(edited)}", "yellow")
    verb = "to replace" if edited.dry_run else "written   "
    written = amount(edited.size_bytes, edited.files)
    page.line(f"  {verb}   {written}, {counted(len(edited.key_groups), 'key group')}")
    write_row_changes(page, edited.examples, total=edited.deleted + edited.put)
    write_left_out(page, edited.left_out)
