"""``statestore forget``: remove one subject from all operators, and prove that it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from statestore.cli.arguments import parse_value
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import counted
from statestore.cli.output import Output, Page, progress_bar
from statestore.cli.verbs.purge import (
    write_purged,
    write_search,
)
from statestore.format.schema import DataType
from statestore.maintenance.forget import ForgottenSubject
from statestore.maintenance.search import KeySearch
from statestore.maintenance.subject import OtherState, ValueOf

__all__ = ["forget_subject"]


@click.command(
    "forget",
    cls=Verb,
    prints=(
        "Each checkpoint that is replaced, its replacement, and the number of removed rows per "
        "state. Rows are removed from every keyed state of every operator whose key, namespace or "
        "entry columns (for example map keys) include all given columns, now or in the past. The "
        "order, times and savepoints of checkpoints are preserved, as with 'statestore purge'. "
        "Afterwards every file of the store is decoded and searched. The exit status is 0 only if "
        "everything was searched and the subject was not found. Old files contain the subject "
        "until they are deleted; --gc deletes them. A state that has one of the columns as a "
        "value column, or with a type that cannot hold the value, is not changed and is listed. "
        "VALUE has the same form as a KEY of one column in 'statestore get'. "
        "With --dry-run: what would be removed, and nothing is changed."
    ),
    examples=(
        "statestore forget --key user_id=u17 --dry-run --store ./fraud",
        "statestore forget --key country=DE --key shop=17 --gc --store ./fraud",
        "statestore forget --key user_id=nobody --check --store ./fraud",
    ),
)
@click.option(
    "--key",
    "keys",
    metavar="COLUMN=VALUE",
    required=True,
    multiple=True,
    help="A column and its value; repeat the option for each column of the subject.",
)
@click.option("--check", is_flag=True, help="Only search the whole store for the subject.")
@click.option("--gc", "collect", is_flag=True, help="Also delete all files that nothing needs.")
@click.option("--ignore-pins", is_flag=True, help="Also replace checkpoints that are pinned.")
@click.option("--dry-run", is_flag=True, help="Report what would be removed, and change nothing.")
@pass_invocation
def forget_subject(
    invocation: Invocation,
    keys: Sequence[str],
    check: bool,
    collect: bool,
    ignore_pins: bool,
    dry_run: bool,
) -> Output[ForgottenSubject] | Output[KeySearch]:
    """Remove one subject from all operators."""
    if sum((check, collect, dry_run)) > 1:
        raise click.UsageError("pass at most one of --check, --gc and --dry-run")
    columns = _columns(keys)
    store = invocation.store()
    with progress_bar("searching") as progress:
        if check:
            search = store.maintenance.find_subject(columns, on_progress=progress)
            return Output(search, write_subject_search, search.problem)
        forgotten = store.maintenance.forget(
            columns, ignore_pins=ignore_pins, dry_run=dry_run, gc=collect, on_progress=progress
        )
    return Output(forgotten, write_forgotten, problem=forgotten.problem)


def _columns(keys: Sequence[str]) -> dict[str, ValueOf]:
    """Return a parser for the value of each column; a column name must not contain ``=``."""
    columns: dict[str, ValueOf] = {}
    for key in keys:
        name, equals, text = key.partition("=")
        if not name or not equals:
            raise click.UsageError(
                f"--key {key!r:.80}: pass a column and its value, for example customer=312"
            )
        if name in columns:
            raise click.UsageError(
                f"--key {name!r:.80} is passed twice; pass each column only once"
            )
        columns[name] = partial(_parsed, text, name)
    return columns


def _parsed(text: str, name: str, data_type: DataType) -> Any:
    return parse_value(text, data_type, name)


def write_forgotten(page: Page, forgotten: ForgottenSubject) -> None:
    """Write the removed rows as text."""
    write_purged(page, forgotten.purged, f"the subject ({', '.join(forgotten.columns)})")
    _write_others(page, forgotten.purged.others)
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
