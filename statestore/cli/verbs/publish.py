"""``statestore publish``: show a state as a table of an Iceberg catalog, or remove the table."""

from __future__ import annotations

from typing import Any

import click

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, duration, size_and_files
from statestore.cli.options import (
    Parsed,
    checkpoint_argument,
    dry_run_option,
    state_option,
)
from statestore.cli.output import Output, Page, progress_bar
from statestore.publishing.iceberg_table import (
    DEFAULT_RETAIN,
    IcebergTable,
    PublishedState,
    UnpublishedTable,
)

__all__ = ["publish_state"]

_TOTALS = "--table lake.fraud.totals --state totals-by-user/totals"


def _table(text: str) -> tuple[str, str]:
    """Return the catalog and the table in it."""
    catalog, dot, table = text.partition(".")
    if not (catalog and dot and table):
        raise ValueError(text)
    return catalog, table


@click.command(
    "publish",
    cls=Verb,
    section="Move",
    prints=(
        "The table, the checkpoint that it showed before, and the number of files that its "
        "metadata gets and loses. The table names the checkpoint's own files, which a savepoint "
        "keeps for it, at the setting readers_url. A state with changes is refused; 'statestore "
        "compact' folds them. With --remove: the removed table, and the savepoints that are "
        "released."
    ),
    examples=(
        f"statestore publish {_TOTALS} --dry-run --store ./fraud",
        f"statestore publish {_TOTALS} --store ./fraud",
        "statestore publish --remove --table lake.fraud.totals --store ./fraud",
    ),
    modes={
        "": ("checkpoint", "--state", "--retain"),
        "--remove": (),
    },
)
@checkpoint_argument
@click.option(
    "--table",
    type=Parsed("table", _table, "{value!r} must have the form CATALOG.NAMESPACE.NAME"),
    required=True,
    metavar="CATALOG.NAMESPACE.NAME",
    help="The table, in a catalog of pyiceberg's configuration.",
)
@state_option("The state, keyed or operator.", is_whole=True)
@click.option(
    "--retain",
    type=int,
    default=DEFAULT_RETAIN,
    show_default=True,
    metavar="N",
    help="How many snapshots of the table stay readable.",
)
@click.option("--replace", is_flag=True, help="Remove what another program changed in the table.")
@click.option("--remove", is_flag=True, help="Remove the table, and release its checkpoints.")
@dry_run_option
@pass_invocation
def publish_state(
    invocation: Invocation,
    /,
    table: tuple[str, str],
    operator: str | None,
    state: str | None,
    retain: int,
    remove: bool,
    replace: bool,
    dry_run: bool,
    **source: Any,
) -> Output[PublishedState] | Output[UnpublishedTable]:
    """Show a state of a checkpoint as an Iceberg table, without a copy."""
    store = invocation.store()
    catalog, name = table
    named = IcebergTable(
        name,
        catalog=catalog,
        retain=retain,
        store_url=invocation.settings.readers_url,
    )
    if remove:
        removed = store.maintenance.unpublish_iceberg(named, replace=replace, dry_run=dry_run)
        return Output(removed, write_unpublished)
    if operator is None or state is None:
        raise click.UsageError("pass the --state OPERATOR/STATE to publish")
    with progress_bar("reading footers") as progress:
        published = store.maintenance.publish_iceberg(
            operator,
            state,
            named,
            replace=replace,
            dry_run=dry_run,
            on_progress=progress,
            **source,
        )
    return Output(published, write_published)


def write_published(page: Page, published: PublishedState) -> None:
    """Write the published table as text."""
    state = f"state {published.state!r} of operator {published.operator!r}"
    shown = f"checkpoint {published.checkpoint_id} of {published.store}"
    if published.is_current:
        page.line(f"the Iceberg table {published.table} already shows {shown}", "bold")
    elif published.dry_run:
        page.line(f"would show {shown} as the Iceberg table {published.table}", "bold")
    else:
        page.line(f"the Iceberg table {published.table} shows {shown}", "bold")
    data = size_and_files(published.size_bytes, published.files)
    page.line(f"  {state}: {counted(published.rows, 'row')}, {data}")
    if not published.is_current:
        before = published.replaced_checkpoint
        page.line(f"  before  {'no checkpoint' if before is None else f'checkpoint {before}'}")
        page.line(
            f"  files   {count(published.added_files)} added to the table, "
            f"{count(published.removed_files)} removed from it"
        )
    if published.hold is not None:
        page.line(f"  kept by savepoint {published.hold}")
    for savepoint in published.released:
        page.line(f"  released savepoint {savepoint}")
    for savepoint in published.other_holds:
        page.line(
            f"  savepoint {savepoint} keeps files for another table of this name; if that "
            "table was dropped, delete the savepoint"
        )
    if published.is_history_lost:
        page.line("  older snapshots of the table were removed, because its columns changed")
    if published.ttl_ms is not None:
        page.line(
            f"  the table also shows expired rows: the state has a TTL of "
            f"{duration(published.ttl_ms)}"
        )
    _write_leftovers(page, published.leftover_metadata)
    write_left_out(page, published.left_out)


def write_unpublished(page: Page, removed: UnpublishedTable) -> None:
    """Write the removed table as text."""
    if removed.is_missing:
        page.line(f"the catalog no longer has the Iceberg table {removed.table}", "bold")
    else:
        verb = "would remove" if removed.dry_run else "removed"
        page.line(f"{verb} the Iceberg table {removed.table} of {removed.store}", "bold")
    verb = "would release" if removed.dry_run else "released"
    for savepoint in removed.released:
        page.line(f"  {verb} savepoint {savepoint}")
    _write_leftovers(page, removed.leftover_metadata)


def _write_leftovers(page: Page, files: int) -> None:
    if files:
        page.line(
            f"  {counted(files, 'file')} of the table's old metadata could not be deleted; they "
            "only take space"
        )
