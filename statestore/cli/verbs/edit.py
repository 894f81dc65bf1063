"""``statestore edit``: change one keyed state of a checkpoint, as a new checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from statestore.cli.arguments import column_values, key_of, named_values, parse_row
from statestore.cli.checkpoints import write_derived, write_row_changes
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, size_and_files
from statestore.cli.options import (
    checkpoint_argument,
    dry_run_option,
    from_older_option,
    key_option,
    one_state_option,
    sql_option,
)
from statestore.cli.output import Output, Page, json_text
from statestore.format.state import KeyedState
from statestore.maintenance.edit import EditedState
from statestore.maintenance.edit_keys import RowUpdate

__all__ = ["edit_state"]


@click.command(
    "edit",
    cls=Verb,
    section="Change",
    prints=(
        "The new checkpoint, the changed rows before and after, and what was written. KEY and "
        "VALUE have the form of 'statestore get'; null is null. --put replaces the row with the "
        "same key, namespace and entry columns. --sql is a SELECT over the table 'state'. A "
        "running job can no longer commit."
    ),
    examples=(
        (
            "statestore edit --state totals-by-user/totals --key u3 --set total=0 "
            "--dry-run --store ./fraud"
        ),
        ("statestore edit --state totals-by-user/totals --delete u17 --store ./fraud"),
        (
            "statestore edit --state totals-by-user/totals --put "
            '\'{"user_id": "u3", "total": 0}\' --yes --store ./fraud'
        ),
        (
            "statestore edit --state totals-by-user/totals --sql "
            "'SELECT * FROM state WHERE total > 9' --store ./fraud"
        ),
    ),
)
@checkpoint_argument
@one_state_option
@key_option("A key whose rows --set changes.", multiple=True)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="A new value of a column in the rows of --key.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Change only rows of --key with this value in a column.",
)
@click.option("--delete", multiple=True, metavar="KEY", help="Remove a key.")
@click.option("--put", multiple=True, metavar="JSON", help="Add or replace a row.")
@sql_option
@from_older_option
@dry_run_option
@click.option(
    "--yes",
    "allow_empty",
    is_flag=True,
    help="Confirm columns that --put sets to null, and a --sql that removes all rows.",
)
@pass_invocation
def edit_state(
    invocation: Invocation,
    /,
    operator: str,
    state: str,
    key: tuple[str, ...],
    assignments: tuple[str, ...],
    where: tuple[str, ...],
    delete: tuple[str, ...],
    put: tuple[str, ...],
    **options: Any,
) -> Output[EditedState]:
    """Change one keyed state offline, as a new checkpoint."""
    if not (assignments or delete or put or options["sql"]):
        raise click.UsageError(
            "nothing to change: pass --key KEY --set COLUMN=VALUE, --delete KEY, --put JSON, or "
            "--sql SELECT"
        )
    if bool(key) != bool(assignments) or (where and not key):
        raise click.UsageError("--key selects rows and --set changes them: pass both")
    values = named_values("--set", "COLUMN=VALUE", assignments)
    conditions = named_values("--where", "COLUMN=VALUE", where)
    store = invocation.store()
    source = options["checkpoint"] = store.checkpoint(options["checkpoint"])
    stored = source.manifest.keyed_entry(operator, state).state
    rows = [parse_row(text, stored) for text in put]
    if rows and not options["dry_run"]:
        _confirm_nulls(rows, stored, yes=options["allow_empty"])
    update = None
    if assignments:
        update = RowUpdate(
            keys=[key_of(text)(stored) for text in key],
            values=column_values("--set", values, stored),
            where=column_values("--where", conditions, stored),
        )
    edited = store.maintenance.edit(
        operator,
        state,
        delete=[key_of(text)(stored) for text in delete],
        put=rows,
        update=update,
        **options,
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
    written = size_and_files(edited.size_bytes, edited.files)
    page.line(f"  {verb}   {written}, {counted(len(edited.key_groups), 'key group')}")
    write_row_changes(page, edited.examples, total=edited.deleted + edited.put)
    write_derived(page, edited)
