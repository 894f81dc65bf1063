"""``statestore rekey``: redistribute keyed states over other key groups, as a new checkpoint."""

from __future__ import annotations

import click

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import (
    CHECKPOINT_WAS_OPTION,
    Invocation,
    Verb,
    checkpoint_argument,
    from_older_option,
    operator_option,
    pass_invocation,
    state_option,
)
from statestore.cli.drawing import count, size
from statestore.cli.output import Output, Page, cell, progress_bar, table_of
from statestore.format.digest import digest_text
from statestore.keys.hashing import HASH_SCHEMES
from statestore.maintenance.rekey import RekeyedState, RekeyReport

__all__ = ["rekey_operator"]


@click.command(
    "rekey",
    cls=Verb,
    replaced=CHECKPOINT_WAS_OPTION,
    prints=(
        "The new checkpoint, and for each state its key, max parallelism and hash scheme before "
        "and after, rows, files and bytes. The output also has the digest of the rows, which does "
        "not change. The change applies to all keyed states of the operator, or with --state to "
        "one. --key applies to one state and names existing columns; former key columns become "
        "value columns. Each row is read once and spilled to a local disk, so little memory is "
        "used. With --work an interrupted run can be continued, and a second run at the same time "
        "is refused. Without --work a failed run leaves nothing behind. The old checkpoint does "
        "not change. A job that runs at the same time can no longer commit. With --dry-run: the "
        "planned work, and no row is read."
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
@checkpoint_argument
@operator_option("The operator whose states change.", required=True)
@state_option("Only this state.")
@click.option(
    "--max-parallelism", type=int, metavar="N", help="The new number of key groups, 1 to 32768."
)
@click.option(
    "--key", multiple=True, metavar="COLUMN", help="A column of the new key; repeat for several."
)
@click.option(
    "--hash-scheme", type=click.Choice(HASH_SCHEMES), help="The new hash scheme of the keys."
)
@click.option(
    "--work", metavar="DIR", help="A working folder from which an interrupted run continues."
)
@from_older_option
@click.option("--dry-run", is_flag=True, help="Report what would be done, and write nothing.")
@pass_invocation
def rekey_operator(
    invocation: Invocation,
    uid: str,
    name: str | None,
    max_parallelism: int | None,
    key: tuple[str, ...],
    hash_scheme: str | None,
    checkpoint: str,
    from_older: bool,
    work: str | None,
    dry_run: bool,
) -> Output[RekeyReport]:
    """Distribute keyed states over other key groups, as a new checkpoint."""
    if max_parallelism is None and not key and hash_scheme is None:
        raise click.UsageError("nothing to change: pass --max-parallelism, --key or --hash-scheme")
    store = invocation.store()
    with progress_bar("rekeying") as progress:
        report = store.maintenance.rekey(
            uid,
            name,
            max_parallelism=max_parallelism,
            key=key or None,
            hash_scheme=hash_scheme,
            checkpoint=checkpoint,
            from_older=from_older,
            work=work,
            dry_run=dry_run,
            on_progress=progress,
        )
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
        table.add_row(*map(cell, _row(state)))
    page.table(table)
    write_left_out(page, report.left_out)


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
