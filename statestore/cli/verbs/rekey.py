"""``statestore rekey``: redistribute keyed states over other key groups, as a new checkpoint."""

from __future__ import annotations

from typing import Any

import click

from statestore.cli.checkpoints import write_derived
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, size
from statestore.cli.options import (
    checkpoint_argument,
    dry_run_option,
    from_older_option,
    hash_scheme_option,
    key_column_option,
    max_parallelism_option,
    state_option,
)
from statestore.cli.output import Output, Page, progress_bar, table_of
from statestore.format.digest import digest_text
from statestore.maintenance.rekey import RekeyedState, RekeyReport

__all__ = ["rekey_operator"]


@click.command(
    "rekey",
    cls=Verb,
    section="Change",
    prints=(
        "The new checkpoint, and for each state its key, max parallelism and hash scheme before "
        "and after, rows, files, bytes, and the digest of the rows, which does not change. Each "
        "row is read once and spilled to a local disk. A running job can no longer commit."
    ),
    examples=(
        ("statestore rekey --state totals-by-user --max-parallelism 720 --dry-run --store ./fraud"),
        "statestore rekey --state totals-by-shop --hash-scheme flink-sql --store ./fraud",
        (
            "statestore rekey --state totals-by-shop/totals --key-column shop "
            "--key-column country --work ./rekey-work --store ./fraud"
        ),
    ),
)
@checkpoint_argument
@state_option("The operator whose states change, or one state of it.", required=True)
@max_parallelism_option("The new number of key groups, 1 to 32768.")
@key_column_option(
    "A column of the new key of one state; repeat for several. Former key columns become values."
)
@hash_scheme_option("The new hash scheme of the keys.")
@click.option(
    "--work", metavar="DIR", help="A working folder from which an interrupted run continues."
)
@from_older_option
@dry_run_option
@pass_invocation
def rekey_operator(
    invocation: Invocation, /, operator: str, key: tuple[str, ...], **options: Any
) -> Output[RekeyReport]:
    """Distribute keyed states over other key groups, as a new checkpoint."""
    if options["max_parallelism"] is None and not key and options["hash_scheme"] is None:
        raise click.UsageError(
            "nothing to change: pass --max-parallelism, --key-column or --hash-scheme"
        )
    if key and options["state"] is None:
        raise click.UsageError("--key-column is of one state: pass --state OPERATOR/STATE")
    store = invocation.store()
    with progress_bar("rekeying") as progress:
        report = store.maintenance.rekey(operator, key=key or None, on_progress=progress, **options)
    return Output(report, write_report)


def write_report(page: Page, report: RekeyReport) -> None:
    """Write the rekeyed states as text."""
    where = f"operator {report.operator}, checkpoint {report.checkpoint_id} of {report.store}"
    if report.dry_run:
        page.line(f"would rekey {where}", "bold")
    else:
        page.line(f"rekeyed {where}: checkpoint {report.new_checkpoint_id}", "bold")
    page.line(f"  {'to read' if report.dry_run else 'read'}  {size(report.read_bytes)}")
    numbers = ("rows", "files", "size")
    columns = ("state", "key", "max parallelism", "hash scheme", *numbers, "digest")
    table = table_of(*columns, right={*numbers})
    for state in report.states:
        table.add_row(*_row(state))
    page.table(table)
    write_derived(page, report)


def _row(state: RekeyedState) -> tuple[str, ...]:
    return (
        state.state,
        _change(", ".join(state.key_before), ", ".join(state.key)),
        _change(str(state.max_parallelism_before), str(state.max_parallelism)),
        _change(state.hash_scheme_before, state.hash_scheme),
        count(state.rows),
        "" if state.files is None else count(state.files),
        "" if state.size_bytes is None else size(state.size_bytes),
        "" if state.digest is None else digest_text(state.digest),
    )


def _change(before: str, after: str) -> str:
    return after if before == after else f"{before} -> {after}"
