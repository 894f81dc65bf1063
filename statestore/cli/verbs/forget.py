"""``statestore forget``: remove one subject from all operators, and prove that it is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from msgspec import field
from msgspec.structs import asdict

from statestore.cli.arguments import parse_value
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.documents import Document, OtherStateDocument
from statestore.cli.drawing import counted
from statestore.cli.output import Page, Result, progress_bar
from statestore.cli.verbs.purge import (
    PurgedRows,
    ReplacedDocument,
    SearchedFiles,
    TraceDocument,
    UnsearchedDocument,
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


class ForgottenDocument(Document):
    """The removed rows of a subject; other members are those of ``purge``.

    ``others`` are the states that were left alone. ``collected_files`` is null without ``--gc``,
    and ``search`` is null in a dry run.
    """

    columns: list[str]
    store: str
    dry_run: bool
    replaced: list[ReplacedDocument]
    finished: list[ReplacedDocument]
    logs: list[str]
    cut_logs: list[str]
    pins: list[str]
    others: list[OtherStateDocument]
    collected_files: int | None
    search: SearchedFiles | None


@dataclass(frozen=True, kw_only=True)
class Forgotten(Result):
    """The removed rows, and the search afterwards."""

    forgotten: ForgottenSubject

    def document(self) -> ForgottenDocument:
        """Return it for ``--output json``."""
        done = self.forgotten
        return ForgottenDocument(
            columns=list(done.columns),
            **asdict(PurgedRows.of(done.purged)),
            others=OtherStateDocument.each(done.purged.others),
            collected_files=None if done.collected is None else done.collected.removed.files,
            search=None if done.search is None else SearchedFiles.of(done.search),
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        done = self.forgotten
        write_purged(page, done.purged, f"the subject ({', '.join(done.columns)})")
        _write_others(page, done.purged.others)
        if done.collected is not None:
            page.line(f"  deleted {counted(done.collected.removed.files, 'old file')}")
        if done.search is not None:
            write_search(page, done.search)


class FoundSubjectDocument(Document):
    """With ``--check``: a search for a subject; other members are those of ``purge --check``.

    ``others`` are the states that are left alone.
    """

    columns: list[str]
    store: str
    is_gone: bool = field(name="gone")
    files: int
    size_bytes: int
    searched: dict[str, int]
    found: list[TraceDocument]
    unsearched: list[UnsearchedDocument]
    others: list[OtherStateDocument]


@dataclass(frozen=True, kw_only=True)
class FoundSubject(Result):
    """The findings of a search for a subject; ``problem`` is set unless it is gone."""

    columns: tuple[str, ...]
    search: KeySearch

    def document(self) -> FoundSubjectDocument:
        """Return it for ``--output json``."""
        return FoundSubjectDocument(
            columns=list(self.columns),
            **asdict(SearchedFiles.of(self.search)),
            others=OtherStateDocument.each(self.search.others),
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        write_search(page, self.search)
        _write_others(page, self.search.others)


def _write_others(page: Page, others: Sequence[OtherState]) -> None:
    for other in others:
        page.line(
            f"  not changed: state {other.state} of operator {other.operator}: {other.reason}"
        )
