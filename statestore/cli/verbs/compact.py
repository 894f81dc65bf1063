"""``statestore compact``: fold a checkpoint's changes into its base, as a new checkpoint."""

from __future__ import annotations

import click

from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import (
    Invocation,
    Verb,
    checkpoint_argument,
    from_older_option,
    operator_option,
    pass_invocation,
    state_option,
)
from statestore.cli.drawing import count, counted, size
from statestore.cli.output import Output, Page, cell, progress_bar, table_of
from statestore.maintenance.compact import CompactedState, CompactReport

__all__ = ["compact_checkpoint"]


@click.command(
    "compact",
    cls=Verb,
    prints=(
        "For each state with incremental changes: its layers, files and bytes before and after, "
        "the number of folded spans, and the rows read. A span is the key groups of one base "
        "file; folding applies its changes to the base. The store's compaction policy decides "
        "what is folded and merged, usually a part at a time. With --all everything is folded, so "
        "that no layers are left. With --key-groups only base files with some of these key groups "
        "are folded, and no layers are merged. The old checkpoint does not change. If there is "
        "nothing to compact, nothing is written. A job does not need this command, because it "
        "compacts in the background. A job that runs at the same time can no longer commit. With "
        "--dry-run: the planned work, and nothing is written."
    ),
    examples=(
        "statestore compact --dry-run --store ./fraud",
        "statestore compact --all --operator totals-by-user --state totals --store ./fraud",
        "statestore compact latest --all --key-groups 0-31 --store ./fraud",
    ),
)
@checkpoint_argument
@operator_option("Only states of this operator.")
@state_option("Only states with this name.")
@click.option(
    "--key-groups", metavar="FIRST-LAST", help="Only base files with some of these key groups."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Fold all changes, regardless of the compaction policy.",
)
@from_older_option
@click.option("--dry-run", is_flag=True, help="Report what would be compacted, and write nothing.")
@pass_invocation
def compact_checkpoint(
    invocation: Invocation,
    checkpoint: str,
    uid: str | None,
    name: str | None,
    key_groups: str | None,
    everything: bool,
    from_older: bool,
    dry_run: bool,
) -> Output[CompactReport]:
    """Fold incremental changes into their base files, as a new checkpoint."""
    store = invocation.store()
    with progress_bar("compacting") as progress:
        report = store.maintenance.compact(
            checkpoint,
            operator=uid,
            state=name,
            key_groups=key_groups,
            everything=everything,
            from_older=from_older,
            dry_run=dry_run,
            on_progress=progress,
        )
    return Output(report, write_report)


def write_report(page: Page, report: CompactReport) -> None:
    """Write the compacted states as text."""
    where = f"checkpoint {report.checkpoint_id} of {report.store}"
    if not report.states:
        page.line(f"{where}: no state has layers of changes; nothing was written", "bold")
        write_left_out(page, report.left_out)
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
        table.add_row(*(cell(text) for text in _row(state)))
    page.table(table)
    write_left_out(page, report.left_out)


def _row(state: CompactedState) -> tuple[str, ...]:
    layers, files = count(state.layers_before), count(state.files_before)
    bytes_ = size(state.size_bytes_before)
    if state.files_after is not None and state.size_bytes_after is not None:
        files = f"{files} -> {count(state.files_after)}"
        bytes_ = f"{bytes_} -> {size(state.size_bytes_after)}"
    layers = f"{layers} -> {count(state.layers_after)}"
    spans = counted(len(state.spans), "span")
    return (state.operator, state.state, layers, files, bytes_, spans, count(state.rows_read))
