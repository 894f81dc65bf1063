"""``statestore repair``: make damaged stores and checkpoints usable again."""

from __future__ import annotations

import click

from statestore.cli.checkpoints import write_derived
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted
from statestore.cli.options import dry_run_option, keys_option, no_checkpoint_argument
from statestore.cli.output import Output, Page, json_text, progress_bar, table_of
from statestore.errors import CorruptionError
from statestore.keys.groups import KeyGroupRange
from statestore.maintenance.repair import RepairedStore
from statestore.maintenance.salvage import DEFAULT_KEYS, LostPart, SalvagedState, SalvageReport

__all__ = ["repair_store"]

_KEYS_IN_TEXT = 10


@click.command(
    "repair",
    cls=Verb,
    section="Check and repair",
    prints=(
        "The documents that were rebuilt: statestore.json, the newest writer's claim, and "
        "missing entries of Delta logs. If damage stays, the exit status is 13. With "
        "CHECKPOINT: the key groups and rows that can no longer be read, and the older "
        "checkpoint that has them; the readable part becomes a new checkpoint."
    ),
    examples=(
        "statestore repair --dry-run --store ./fraud",
        "statestore repair --store ./fraud",
        "statestore repair 2 --dry-run --store ./fraud",
        "statestore repair latest --from-older --store ./fraud",
    ),
    modes={"checkpoint": ("--from-older", "--keys")},
)
@no_checkpoint_argument
@click.option(
    "--from-older",
    is_flag=True,
    help="Accept older state: rows of older checkpoints for lost rows, and an older CHECKPOINT.",
)
@keys_option(DEFAULT_KEYS)
@dry_run_option
@pass_invocation
def repair_store(
    invocation: Invocation, checkpoint: str | None, from_older: bool, keys: int, dry_run: bool
) -> Output[RepairedStore] | Output[SalvageReport]:
    """Rebuild damaged documents that block all writers, or a damaged checkpoint."""
    maintenance = invocation.store().maintenance
    if checkpoint is None:
        done = maintenance.repair(dry_run=dry_run)
        return Output(done, write_repaired, status=CorruptionError.exit_code if done.left else 0)
    with progress_bar("checking") as progress:
        report = maintenance.salvage(checkpoint, from_older, dry_run, keys, progress)
    return Output(report, write_report)


def write_report(page: Page, report: SalvageReport) -> None:
    """Write the lost and kept parts as text."""
    where = f"checkpoint {report.checkpoint_id} of {report.store}"
    if report.is_intact:
        files = counted(report.files, "file")
        page.line(f"{where}: no damage in {files}; nothing was written", "bold")
        write_derived(page, report)
        return
    done = (
        "dry run: nothing was written"
        if report.new_checkpoint_id is None
        else f"the readable part is checkpoint {report.new_checkpoint_id}"
    )
    damaged = counted(len(report.damaged), "file")
    page.line(f"{where}: {damaged} of {count(report.files)} damaged; {done}", "bold")
    table = table_of("operator", "state", "damaged file", "what is wrong")
    for file in report.damaged:
        row = (file.operator or "", file.state or "", file.file, "; ".join(file.what))
        table.add_row(*row)
    page.table(table)
    for state in report.states:
        _write_state(state, page)
    write_derived(page, report)


def _write_state(state: SalvagedState, page: Page) -> None:
    page.line()
    page.line(f"state {state.state} of operator {state.operator}: {_fate(state)}", "bold")
    if state.lost:
        columns = ["key groups", "rows lost", "intact in", "keys there", "filled from"]
        table = table_of(*columns, right={*columns[1:]})
        for part in state.lost:
            table.add_row(*_part(part))
        page.table(table)
    if state.keys:
        shown = ", ".join(json_text(dict(key)) for key in state.keys[:_KEYS_IN_TEXT])
        more = " …" if state.lost_keys > len(state.keys[:_KEYS_IN_TEXT]) else ""
        page.line(f"  the lost rows had {counted(state.lost_keys, 'key')}: {shown}{more}")
    for reason in state.why_not_filled:
        page.line(f"  not filled: {reason}")


def _fate(state: SalvagedState) -> str:
    rows = "rows" if state.sort == "keyed" else "elements"
    if not state.lost:
        return f"all {count(state.rows_after)} {rows} could be read and were written to new files"
    lost = f"{count(state.lost_rows)} of {count(state.rows_before)} {rows} lost"
    if not state.rows_after:
        return f"{lost}; the state is kept without {rows}"
    return f"{lost}; {count(state.rows_after)} {rows} are left"


def _part(part: LostPart) -> tuple[str, ...]:
    groups = "all"
    if part.first is not None:
        groups = str(KeyGroupRange(part.first, part.last or part.first))
    numbers = part.known_in, part.keys, part.filled_from
    return (
        groups,
        count(part.rows),
        *("" if number is None else count(number) for number in numbers),
    )


def write_repaired(page: Page, repaired: RepairedStore) -> None:
    """Write the repairs as text."""
    verb = "would repair" if repaired.dry_run else "repaired"
    page.line(f"{verb} {counted(len(repaired.repaired), 'file')} of {repaired.store}", "bold")
    for finding in repaired.repaired:
        page.line(f"  {finding.file}: {finding.what}")
    for finding in repaired.left:
        page.line(f"  cannot be repaired: {finding.file}: {finding.what}")
