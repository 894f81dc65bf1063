"""``statestore query``: run SQL over the states of a checkpoint."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from statestore.cli.arguments import MOST_ROWS, query_limit_options
from statestore.cli.checkpoints import rows_explanation, rows_text, write_left_out
from statestore.cli.command import Invocation, Verb, checkpoint_option, pass_invocation
from statestore.cli.documents import Column
from statestore.cli.drawing import count, counted
from statestore.cli.output import Output, Page, progress_bar, value_text, write_rows
from statestore.durations import milliseconds_of
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry, Manifest
from statestore.restore.duck import run_interruptibly
from statestore.restore.output_file import check_output_file
from statestore.restore.result_files import RESULT_FORMATS, write_result
from statestore.restore.sql_query import View
from statestore.rows.python_values import display_values
from statestore.store import StateStore

__all__ = [
    "Answered",
    "ListedViews",
    "WrittenResult",
    "answered",
    "listed_views",
    "query_states",
    "write_answer",
    "write_views",
]

_TABLE = "table"
_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}


@click.command(
    "query",
    cls=Verb,
    prints=(
        "The rows of the result. As a table, these are the first 1,000 unless --limit says "
        "otherwise, and rows that are wider than the terminal are written one column a line. In "
        "other formats, and in a file, all rows are written, with exact numbers. Every state is "
        'a view named "operator uid"."state name", or just the state\'s name if no other state '
        "has it. A view has the column key_group and the stored columns; a view of operator "
        "state has subtask and position instead of key_group. SHOW TABLES lists operators, "
        "states and views. The command needs DuckDB (the extra 'query') but no Spark. The "
        "statement must be a single SELECT over the views."
    ),
    examples=(
        "statestore query 'SELECT count(*) FROM per_country' --store ./fraud",
        "statestore query 'SELECT * FROM \"totals-by-user\".totals LIMIT 5' --store ./fraud",
        "statestore query 'SELECT * FROM per_country' --to per_country.parquet --store ./fraud",
        "statestore query --tables --store ./fraud",
    ),
)
@click.argument("sql", required=False)
@checkpoint_option("The checkpoint to query")
@click.option("--tables", is_flag=True, help="List the views with their columns and rows instead.")
@click.option(
    "--format",
    "form",
    type=click.Choice([_TABLE, *RESULT_FORMATS]),
    help="The form of the rows. [table, or as the suffix of --to says]",
)
@click.option("--to", metavar="FILE", help="Write the rows to this new file instead of stdout.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="ROWS",
    help="The maximum number of rows; 0 for all. [1000 in a table, else all]",
)
@query_limit_options(duration=None, memory=None)
@click.option(
    "--verify",
    is_flag=True,
    help="Check the SHA-256 of each file before its first row is read.",
)
@pass_invocation
def query_states(
    invocation: Invocation,
    sql: str | None,
    checkpoint: str,
    tables: bool,
    form: str | None,
    to: str | None,
    limit: int | None,
    time_limit: str,
    memory_limit: int | None,
    verify: bool,
) -> Output[Answered] | Output[ListedViews] | Output[WrittenResult] | None:
    """Query the states of a checkpoint with SQL."""
    if (sql is None) is not tables:
        raise click.UsageError("pass one SQL statement, or --tables")
    form = form or _format_of(to)
    if to is None and form in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.UsageError(f"{form} is not text: pass --to FILE, or redirect the output")
    if form == _TABLE and to is not None:
        raise click.UsageError(f"--to writes {', '.join(RESULT_FORMATS)}; redirect a table with >")
    if to is not None:
        check_output_file(Path(to), replace=False)
    store = invocation.store()
    manifest = store.manifest(checkpoint)
    number, lacking = manifest.checkpoint_id, manifest.left_out
    if sql is None:
        return Output(listed_views(store, manifest), write_views)

    cancelled = threading.Event()

    def answer_query() -> Output[Answered] | Output[WrittenResult] | None:
        with store.query(
            sql,
            manifest,
            verify=verify,
            time_limit=time_limit if milliseconds_of(time_limit) else None,
            memory_limit=memory_limit,
            cancelled=cancelled,
        ) as answer:
            if form == _TABLE:
                return Output(answered(answer, manifest, store.url, limit), write_answer)
            target = sys.stdout.buffer if to is None else Path(to)
            written = write_result(answer, form, target, limit or 0)
        if to is None:
            return None
        result = WrittenResult(
            store=store.url, checkpoint_id=number, file=to, rows_written=written, left_out=lacking
        )
        return Output(result, write_written)

    if to is None and form != _TABLE:  # its rows appear meanwhile, perhaps on the same terminal
        return run_interruptibly(answer_query, cancelled.set)
    with progress_bar("running the query"):
        return run_interruptibly(answer_query, cancelled.set)


def _format_of(to: str | None) -> str:
    """Return the format that a file's suffix names; a usage error for another suffix."""
    if to is None:
        return _TABLE
    suffix = Path(to).suffix.lower()
    if suffix not in _SUFFIXES:
        raise click.UsageError(
            f"--to {to}: the suffix does not name a format ({', '.join(_SUFFIXES)}); pass --format"
        )
    return _SUFFIXES[suffix]


def answered(answer: Any, manifest: Manifest, url: str, limit: int | None) -> Answered:
    """Return the first rows of an answer; by default as many as a table shows."""
    rows, is_cut = _first(answer, MOST_ROWS if limit is None else limit)
    return Answered(
        store=url,
        checkpoint_id=manifest.checkpoint_id,
        columns=tuple(Column(column.name, str(column.type)) for column in answer.schema),
        rows=rows,
        is_cut=is_cut,
        left_out=manifest.left_out,
    )


def _first(answer: Any, limit: int) -> tuple[tuple[tuple[Any, ...], ...], bool]:
    """Return the first rows, and whether there are more; do not read the rest."""
    rows: list[tuple[Any, ...]] = []
    for batch in answer:
        columns = [display_values(column, of_duckdb=True) for column in batch.columns]
        rows.extend(zip(*columns, strict=True))
        if limit and len(rows) > limit:
            return tuple(rows[:limit]), True
    return tuple(rows), False


@dataclass(frozen=True, kw_only=True)
class WrittenResult:
    """A result that was written to a file, and the number of its rows."""

    store: str
    checkpoint_id: int
    file: str
    rows_written: int
    left_out: tuple[LeftOutState, ...] = ()


def write_written(page: Page, written: WrittenResult) -> None:
    """Write the size of the written file as text."""
    page.line(f"wrote {counted(written.rows_written, 'row')} to {written.file}", "bold")
    write_left_out(page, written.left_out)


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The result of a query: its columns and rows; ``is_cut`` is True if there are more rows.

    ``left_out`` lists the source's state that the checkpoint omits; the result omits it too.
    """

    store: str
    checkpoint_id: int
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool
    left_out: tuple[LeftOutState, ...] = ()


def write_answer(page: Page, answered: Answered, hint: str = "--limit 0 shows all") -> None:
    """Write the first rows of an answer as text; ``hint`` says how to get the other rows."""
    names = [column.name for column in answered.columns]
    rows = [map(value_text, row) for row in answered.rows]
    write_rows(page, names, rows, is_cut=answered.is_cut, hint=hint)
    write_left_out(page, answered.left_out)


@dataclass(frozen=True, kw_only=True)
class ListedView:
    """A view. ``rows`` is None if the number is unknown until changes are read.

    ``file_rows`` is the number of rows in files, of which ``changed_rows`` are changes, as in
    ``list``.
    """

    view: str
    schema: str
    name: str
    operator: str
    state: str
    rows: int | None
    file_rows: int
    changed_rows: int
    columns: tuple[Column, ...]
    columns_text: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class ListedViews:
    """The views that a query of a checkpoint can use."""

    store: str
    checkpoint_id: int
    views: tuple[ListedView, ...]
    left_out: tuple[LeftOutState, ...] = ()


def write_views(page: Page, listed: ListedViews) -> None:
    """Write the views as text."""
    names = ("operator", "state", "view", "rows", "columns")
    write_rows(page, names, [_view_row(view) for view in listed.views], right={"rows"})
    unknown = next((view for view in listed.views if view.rows is None), None)
    if unknown is not None:
        page.line(rows_explanation(unknown.file_rows, unknown.changed_rows))
    write_left_out(page, listed.left_out)


def _view_row(view: ListedView) -> tuple[str, ...]:
    rows = rows_text(view.file_rows, view.changed_rows)
    rows = rows if view.rows is None else count(view.rows)
    return view.operator, view.state, view.view, rows, view.columns_text


def listed_views(store: StateStore, manifest: Manifest) -> ListedViews:
    """Return the views of a checkpoint."""
    return ListedViews(
        store=store.url,
        checkpoint_id=manifest.checkpoint_id,
        views=tuple(map(_listed, store.views(manifest))),
        left_out=manifest.left_out,
    )


def _listed(view: View) -> ListedView:
    """Describe a view. Unless they were recorded, the rows of a state with changes are unknown."""
    entry = view.entry
    rows: int | None = entry.rows
    if isinstance(entry, KeyedEntry):
        rows = None if entry.contents is None else entry.contents.rows
    return ListedView(
        view=view.sql,
        schema=view.schema,
        name=view.name,
        operator=entry.state.uid,
        state=entry.state.name,
        rows=rows,
        file_rows=entry.rows,
        changed_rows=entry.changed_rows if isinstance(entry, KeyedEntry) else 0,
        columns=tuple(Column(column.name, str(column.type)) for column in view.columns),
        columns_text=view.columns_text,
    )
