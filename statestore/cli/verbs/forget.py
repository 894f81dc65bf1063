"""``statestore forget``: remove a key or a subject from all checkpoints, and prove it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import click

from statestore.cli.arguments import key_of, named_values, parse_value
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import count, counted, size
from statestore.cli.options import (
    dry_run_option,
    key_option,
    no_checkpoint_argument,
    state_option,
)
from statestore.cli.output import Output, Page, progress_bar, table_of
from statestore.format.schema import DataType
from statestore.maintenance.erase import ForgottenSubject, ReplacedCheckpoint
from statestore.maintenance.erase_search import (
    DATA_FILES,
    DOCUMENTS,
    LOG_FILES,
    NO_VALUES,
    OTHER_STATES,
    KeySearch,
)
from statestore.maintenance.erase_subject import OperatorKey, OtherState, ValueOf

__all__ = ["forget_subject"]


@click.command(
    "forget",
    cls=Verb,
    section="Change",
    prints=(
        "Each checkpoint that is replaced, its replacement, and the removed rows: those of a "
        "key of one operator, or those whose key, namespace or entry columns include all given "
        "columns. With --column, every file of the store is decoded then, and the exit status "
        "is 0 only if the subject was not found. Old files have it until --gc or 'statestore "
        "gc' deletes them."
    ),
    examples=(
        "statestore forget --column user_id=u17 --dry-run --store ./fraud",
        "statestore forget --column country=DE --column shop=17 --gc --store ./fraud",
        "statestore forget --column user_id=nobody --check --store ./fraud",
        "statestore forget --state totals-by-user --key u17 --dry-run --store ./fraud",
        "statestore forget 2 --state totals-by-user/totals --key u17 --store ./fraud",
        "statestore forget --state totals-by-user --key nobody --check --store ./fraud",
    ),
    modes={"--column": (), "--key": ("--state",)},
)
@no_checkpoint_argument
@click.option(
    "--column",
    "texts",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="A column of the subject and its value.",
)
@key_option("The key to remove from an operator.")
@state_option()
@click.option("--check", is_flag=True, help="Only search the whole store.")
@click.option("--gc", is_flag=True, help="Also delete all files that nothing needs.")
@click.option("--ignore-pins", is_flag=True, help="Also replace checkpoints that are pinned.")
@dry_run_option
@pass_invocation
def forget_subject(
    invocation: Invocation,
    /,
    texts: tuple[str, ...],
    key: str | None,
    operator: str | None,
    state: str | None,
    check: bool,
    **options: Any,
) -> Output[ForgottenSubject] | Output[KeySearch]:
    """Remove a key or a subject from all kept checkpoints."""
    if sum((check, options["gc"], options["dry_run"])) > 1:
        raise click.UsageError("pass at most one of --check, --gc and --dry-run")
    if check and options["checkpoint"] is not None:
        raise click.UsageError("--check searches the whole store: remove CHECKPOINT")
    subject: OperatorKey | dict[str, ValueOf] = _columns(texts)
    if key is not None:
        if operator is None:
            raise click.UsageError("--key is of one operator: pass --state OPERATOR")
        subject = OperatorKey(operator, key_of(key), state)
    elif not texts:
        raise click.UsageError("pass --column COLUMN=VALUE, or --key KEY and --state OPERATOR")
    maintenance = invocation.store().maintenance
    with progress_bar("searching") as progress:
        if check:
            search = maintenance.find_subject(subject, on_progress=progress)
            return Output(search, write_subject_search, search.problem)
        forgotten = maintenance.forget(
            subject, search=key is None or options["gc"], on_progress=progress, **options
        )
    return Output(forgotten, write_forgotten, problem=forgotten.problem)


def _columns(texts: Sequence[str]) -> dict[str, ValueOf]:
    """Return a parser for the value of each column; a column name must not contain ``=``."""
    values = named_values("--column", "COLUMN=VALUE", texts)
    return {name: partial(_parsed, text, name) for name, text in values.items()}


def _parsed(text: str, name: str, data_type: DataType) -> Any:
    return parse_value(text, data_type, name)


def write_forgotten(page: Page, forgotten: ForgottenSubject) -> None:
    """Write the removed rows as text."""
    what = f"the subject ({', '.join(forgotten.columns)})"
    if forgotten.operator is not None:
        what = f"the key of operator {forgotten.operator}"
    _write_forgotten(page, forgotten, what)
    _write_others(page, forgotten.others)
    if forgotten.collected is not None:
        page.line(f"  deleted {counted(forgotten.collected.removed.files, 'old file')}")
    if forgotten.search is not None:
        write_search(page, forgotten.search)
    elif forgotten.replaced and not forgotten.dry_run:
        page.line("  the old files stay until 'statestore gc'; run --check after it")


def write_subject_search(page: Page, search: KeySearch) -> None:
    """Write the result of the search as text."""
    write_search(page, search)
    _write_others(page, search.others)


def _write_others(page: Page, others: Sequence[OtherState]) -> None:
    for other in others:
        page.line(
            f"  not changed: state {other.state} of operator {other.operator}: {other.reason}"
        )


def _write_forgotten(page: Page, done: ForgottenSubject, what: str) -> None:
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
            table.add_row(*(first if number == 0 else ("", "", "")), *state)
    page.table(table)
    several = (
        state for checkpoint in replaced for state in checkpoint.states if len(state.keys) > 1
    )
    for operator, name, keys in dict.fromkeys((s.operator, s.state, s.keys) for s in several):
        compared = " or ".join(", ".join(columns) for columns in keys)
        page.line(
            f"  {operator}/{name} had other key columns before: the key is compared with "
            f"{compared}; --column compares it with a column that you name"
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
