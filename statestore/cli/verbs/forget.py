"""``statestore forget``: remove one subject from all operators, and prove that it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from statestore.cli.arguments import named_values, parse_value
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import counted
from statestore.cli.options import dry_run_option
from statestore.cli.output import Output, Page, progress_bar
from statestore.cli.verbs.purge import (
    write_purged,
    write_search,
)
from statestore.format.schema import DataType
from statestore.maintenance.erase import ForgottenSubject
from statestore.maintenance.erase_search import KeySearch
from statestore.maintenance.erase_subject import OtherState, ValueOf

__all__ = ["forget_subject"]


@click.command(
    "forget",
    cls=Verb,
    prints=(
        "Each checkpoint that is replaced, its replacement, and the removed rows of each state "
        "whose key, namespace or entry columns include all given columns, now or in the past. "
        "Then every file of the store is decoded: the exit status is 0 only if the subject was "
        "not found. Old files have it until --gc or 'statestore gc' deletes them."
    ),
    examples=(
        "statestore forget --column user_id=u17 --dry-run --store ./fraud",
        "statestore forget --column country=DE --column shop=17 --gc --store ./fraud",
        "statestore forget --column user_id=nobody --check --store ./fraud",
    ),
)
@click.option(
    "--column",
    "texts",
    metavar="COLUMN=VALUE",
    required=True,
    multiple=True,
    help="A column of the subject and its value. Repeatable.",
)
@click.option("--check", is_flag=True, help="Only search the whole store for the subject.")
@click.option("--gc", "collect", is_flag=True, help="Also delete all files that nothing needs.")
@click.option("--ignore-pins", is_flag=True, help="Also replace checkpoints that are pinned.")
@dry_run_option
@pass_invocation
def forget_subject(
    invocation: Invocation,
    texts: Sequence[str],
    check: bool,
    collect: bool,
    ignore_pins: bool,
    dry_run: bool,
) -> Output[ForgottenSubject] | Output[KeySearch]:
    """Remove one subject from all operators."""
    if sum((check, collect, dry_run)) > 1:
        raise click.UsageError("pass at most one of --check, --gc and --dry-run")
    columns = _columns(texts)
    store = invocation.store()
    with progress_bar("searching") as progress:
        if check:
            search = store.maintenance.find_subject(columns, on_progress=progress)
            return Output(search, write_subject_search, search.problem)
        forgotten = store.maintenance.forget(
            columns, ignore_pins=ignore_pins, dry_run=dry_run, gc=collect, on_progress=progress
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
    write_purged(page, forgotten, f"the subject ({', '.join(forgotten.columns)})")
    _write_others(page, forgotten.others)
    if forgotten.collected is not None:
        page.line(f"  deleted {counted(forgotten.collected.removed.files, 'old file')}")
    if forgotten.search is not None:
        write_search(page, forgotten.search)


def write_subject_search(page: Page, search: KeySearch) -> None:
    """Write the result of the search as text."""
    write_search(page, search)
    _write_others(page, search.others)


def _write_others(page: Page, others: Sequence[OtherState]) -> None:
    for other in others:
        page.line(
            f"  not changed: state {other.state} of operator {other.operator}: {other.reason}"
        )
