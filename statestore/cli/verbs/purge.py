"""``statestore purge``: remove a key from kept checkpoints, and verify that it is gone."""

from __future__ import annotations

from itertools import chain

import click

from statestore.cli.arguments import key_of
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, size
from statestore.cli.options import (
    dry_run_option,
    key_option,
    no_checkpoint_argument,
    operator_option,
    state_option,
)
from statestore.cli.output import Output, Page, cell, progress_bar, table_of
from statestore.maintenance.erase import ForgottenSubject, ReplacedCheckpoint
from statestore.maintenance.erase_search import (
    DATA_FILES,
    DOCUMENTS,
    LOG_FILES,
    NO_VALUES,
    OTHER_STATES,
    KeySearch,
)
from statestore.maintenance.erase_subject import OperatorKey

__all__ = [
    "purge_key",
    "write_purged",
    "write_search",
]


@click.command(
    "purge",
    cls=Verb,
    prints=(
        "Each checkpoint that is replaced, its replacement, and the removed rows. All "
        "checkpoints from the first one with the key are replaced, and their savepoints move. "
        "Old files stay until 'statestore gc'; --check decodes every file afterwards, and exits "
        "with status 1 if the key is still there."
    ),
    examples=(
        "statestore purge --operator totals-by-user --key u17 --all --dry-run --store ./fraud",
        ("statestore purge 2 --operator totals-by-user --state totals --key u17 --store ./fraud"),
        "statestore purge --operator totals-by-user --key nobody --check --store ./fraud",
    ),
)
@no_checkpoint_argument
@operator_option("The operator.", required=True)
@state_option("Only this state of the operator.")
@key_option("The key to remove.", required=True)
@click.option("--all", "every", is_flag=True, help="Remove the key from all kept checkpoints.")
@click.option("--check", is_flag=True, help="Only search the whole store for the key.")
@click.option("--ignore-pins", is_flag=True, help="Also replace checkpoints that are pinned.")
@dry_run_option
@pass_invocation
def purge_key(
    invocation: Invocation,
    operator: str,
    state: str | None,
    key: str,
    checkpoint: str | None,
    every: bool,
    check: bool,
    ignore_pins: bool,
    dry_run: bool,
) -> Output[ForgottenSubject] | Output[KeySearch]:
    """Remove a key of one operator from all kept checkpoints."""
    if sum((checkpoint is not None, every, check)) != 1:
        raise click.UsageError("pass exactly one of CHECKPOINT, --all and --check")
    maintenance, subject = invocation.store().maintenance, OperatorKey(operator, key_of(key), state)
    if check:
        with progress_bar("searching") as progress:
            search = maintenance.find_subject(subject, on_progress=progress)
        return Output(search, write_search, problem=search.problem)
    purged = maintenance.forget(
        subject, checkpoint=checkpoint, search=False, ignore_pins=ignore_pins, dry_run=dry_run
    )
    return Output(purged, write_purged_key)


def write_purged_key(page: Page, purged: ForgottenSubject) -> None:
    """Write the removed rows as text."""
    what = f"the key of operator {purged.operator}"
    write_purged(page, purged, what)
    if purged.replaced and not purged.dry_run:
        page.line("  the old files stay until 'statestore gc'; run --check after it")


def write_purged(page: Page, done: ForgottenSubject, what: str) -> None:
    """Write the removed rows; ``what`` names the subject."""
    held = [checkpoint for checkpoint in done.replaced if checkpoint.states]
    verb = "would remove" if done.dry_run else "removed"
    if held:
        from_where = f"from {counted(len(held), 'checkpoint')} of {done.store}"
        page.line(f"{verb} {what} {from_where}", "bold")
        _write_replaced(page, done.replaced)
    else:
        page.line(f"no kept checkpoint of {done.store} contains {what}")
    for checkpoint in done.finished:
        new_id = checkpoint.new_checkpoint_id
        page.line(f"  checkpoint {checkpoint.checkpoint_id} was already replaced by {new_id}")
    for table in done.logs:
        page.line(
            f"  deleted the Delta log of {table}, because its entries contain old values; the "
            "next snapshot begins a new log"
        )
    for table in done.cut_logs:
        cut = "would delete" if done.dry_run else "deleted"
        page.line(f"  {cut} old entries of the Delta log of {table}")
    for pin in done.pins:
        page.line(f"  replaced although pinned: {pin}")


def _write_replaced(page: Page, replaced: tuple[ReplacedCheckpoint, ...]) -> None:
    right = {"checkpoint", "replaced by", "key group", "rows"}
    columns = (
        "checkpoint",
        "replaced by",
        "savepoints",
        "operator",
        "state",
        "key group",
        "rows",
        "rewritten",
    )
    table = table_of(*columns, right=right)
    for checkpoint in replaced:
        new = "" if checkpoint.new_checkpoint_id is None else str(checkpoint.new_checkpoint_id)
        first = (str(checkpoint.checkpoint_id), new, ", ".join(checkpoint.savepoints))
        states = [
            (
                state.operator,
                state.state,
                "" if state.key_group is None else str(state.key_group),
                count(state.rows),
                size(state.size_bytes),
            )
            for state in checkpoint.states
        ] or [("key not present", "", "", "", "")]
        for number, state in enumerate(states):
            table.add_row(*map(cell, (*(first if number == 0 else ("", "", "")), *state)))
    page.table(table)
    several = (
        state for checkpoint in replaced for state in checkpoint.states if len(state.keys) > 1
    )
    for operator, name, keys in dict.fromkeys((s.operator, s.state, s.keys) for s in several):
        compared = " or ".join(", ".join(columns) for columns in keys)
        page.line(
            f"  {operator}/{name} had other key columns before: the key is compared with "
            f"{compared}; 'statestore forget' compares it with a column that you name"
        )
    write_left_out(
        page, dict.fromkeys(chain.from_iterable(checkpoint.left_out for checkpoint in replaced))
    )


_SORTS = {
    DATA_FILES: "data file",
    LOG_FILES: "Delta log file",
    DOCUMENTS: "document",
    NO_VALUES: "checksum or empty file",
    OTHER_STATES: "unrelated data file",
}


def write_search(page: Page, search: KeySearch) -> None:
    """Write the searched files and the findings."""
    looked = f"{counted(search.files, 'file')}, {size(search.size_bytes)}"
    if search.found:
        page.line(f"the key is still in {counted(len(search.found), 'file')} of {search.store}")
    elif search.unsearched:
        page.line(f"the key was not found in {search.store}, but not everything was searched")
    else:
        page.line(f"the key is gone from {search.store}: searched {looked}", "bold")
    for sort, number in search.searched.items():
        page.line(f"  {counted(number, _SORTS[sort])}")
    for trace in search.found:
        rows = "" if trace.rows is None else f"{counted(trace.rows, 'row')}: "
        page.line(f"  {trace.file}  {rows}{trace.what}")
    for file in search.unsearched:
        page.line(f"  not searched: {file.file}: {file.reason}")
