"""``statestore forget``: remove one subject from all operators, and prove that it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import click

from statestore.cli.arguments import parse_value
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.drawing import counted
from statestore.cli.output import Page, Result, progress_bar
from statestore.cli.verbs.purge import (
    purged_to_json,
    search_to_json,
    write_purged,
    write_search,
)
from statestore.format.schema import DataType
from statestore.maintenance.forget import ForgottenSubject
from statestore.maintenance.search import KeySearch
from statestore.maintenance.subject import OtherState, ValueOf

__all__ = ["Forgotten", "FoundSubject", "forget_subject"]


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
) -> Forgotten | FoundSubject:
    """Remove one subject from all operators."""
    if sum((check, collect, dry_run)) > 1:
        raise click.UsageError("pass at most one of --check, --gc and --dry-run")
    columns = _columns(keys)
    store = invocation.store()
    with progress_bar("searching") as progress:
        if check:
            search = store.maintenance.find_subject(columns, on_progress=progress)
            return FoundSubject(columns=tuple(columns), search=search, problem=search.problem)
        forgotten = store.maintenance.forget(
            columns, ignore_pins=ignore_pins, dry_run=dry_run, gc=collect, on_progress=progress
        )
    return Forgotten(forgotten=forgotten, problem=forgotten.problem)


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


def _parsed(text: str, name: str, kind: DataType) -> Any:
    return parse_value(text, kind, name)


@dataclass(frozen=True, kw_only=True)
class Forgotten(Result):
    """The removed rows, and the search afterwards."""

    forgotten: ForgottenSubject

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        done = self.forgotten
        return {
            "columns": list(done.columns),
            **purged_to_json(done.purged),
            "others": [asdict(other) for other in done.purged.others],
            "collected_files": None if done.collected is None else done.collected.removed.files,
            "search": None if done.search is None else search_to_json(done.search),
        }

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.forgotten
        write_purged(page, done.purged, f"the subject ({', '.join(done.columns)})")
        _write_others(page, done.purged.others)
        if done.collected is not None:
            page.line(f"  deleted {counted(done.collected.removed.files, 'old file')}")
        if done.search is not None:
            write_search(page, done.search)


@dataclass(frozen=True, kw_only=True)
class FoundSubject(Result):
    """The findings of a search for a subject; ``problem`` is set unless it is gone."""

    columns: tuple[str, ...]
    search: KeySearch

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        others = [asdict(other) for other in self.search.others]
        return {"columns": list(self.columns), **search_to_json(self.search), "others": others}

    def write(self, page: Page) -> None:
        """Write it as text."""
        write_search(page, self.search)
        _write_others(page, self.search.others)


def _write_others(page: Page, others: Sequence[OtherState]) -> None:
    for other in others:
        page.line(
            f"  not changed: state {other.state} of operator {other.operator}: {other.reason}"
        )
