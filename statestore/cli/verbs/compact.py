"""``statestore compact``: fold a checkpoint's changes into its base, as a new checkpoint."""

from __future__ import annotations

from typing import Any

import click

from statestore.cli.checkpoints import write_derived
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, size
from statestore.cli.options import (
    any_state_option,
    checkpoint_argument,
    dry_run_option,
    from_older_option,
)
from statestore.cli.output import Output, Page, progress_bar, table_of
from statestore.maintenance.compact import CompactedState, CompactReport

__all__ = ["compact_checkpoint"]


@click.command(
    "compact",
    cls=Verb,
    section="Keep and delete",
    prints=(
        "For each state with incremental changes: its layers, files and bytes before and after. "
        "The store's compaction policy decides what is folded and merged, unless --everything "
        "is passed. A job does not need this command, because it compacts in the background; a "
        "running job can no longer commit."
    ),
    examples=(
        "statestore compact --dry-run --store ./fraud",
        "statestore compact --everything --state totals-by-user/totals --store ./fraud",
        "statestore compact latest --everything --key-groups 0-31 --store ./fraud",
    ),
)
@checkpoint_argument
@any_state_option
@click.option(
    "--key-groups", metavar="FIRST-LAST", help="Only base files with some of these key groups."
)
@click.option(
    "--everything",
    is_flag=True,
    help="Fold all changes, regardless of the compaction policy.",
)
@from_older_option
@dry_run_option
@pass_invocation
def compact_checkpoint(invocation: Invocation, /, **options: Any) -> Output[CompactReport]:
    """Fold incremental changes into their base files, as a new checkpoint."""
    store = invocation.store()
    with progress_bar("compacting") as progress:
        report = store.maintenance.compact(on_progress=progress, **options)
    return Output(report, write_report)


def write_report(page: Page, report: CompactReport) -> None:
    """Write the compacted states as text."""
    where = f"checkpoint {report.checkpoint_id} of {report.store}"
    if not report.states:
        page.line(f"{where}: no state has layers of changes; nothing was written", "bold")
        write_derived(page, report)
        return
    if report.is_compact:
        why = "there" if report.everything else "according to the policy"
        page.line(f"{where}: nothing to compact {why}; nothing was written", "bold")
    elif report.dry_run:
        page.line(f"would compact {where}", "bold")
    else:
        page.line(f"compacted {where}: checkpoint {report.new_checkpoint_id}", "bold")
    columns = ("operator", "state", "layers", "files", "size", "spans folded", "rows read")
    table = table_of(*columns, right={*columns[2:]})
    for state in report.states:
        table.add_row(*_row(state))
    page.table(table)
    write_derived(page, report)


def _row(state: CompactedState) -> tuple[str, ...]:
    layers, files = count(state.layers_before), count(state.files_before)
    bytes_ = size(state.size_bytes_before)
    if state.files_after is not None and state.size_bytes_after is not None:
        files = f"{files} -> {count(state.files_after)}"
        bytes_ = f"{bytes_} -> {size(state.size_bytes_after)}"
    layers = f"{layers} -> {count(state.layers_after)}"
    spans = counted(len(state.spans), "span")
    return (state.operator, state.state, layers, files, bytes_, spans, count(state.rows_read))
