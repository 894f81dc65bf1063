"""``statestore query``: run SQL over the states of a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from msgspec import field

from statestore.cli.arguments import limit_option, query_limit_options
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.completion import complete_checkpoint
from statestore.cli.documents import ColumnDocument, Document, LeftOutDocument
from statestore.cli.drawing import count
from statestore.cli.output import Page, Result, cell, table_of, value_text, write_rows
from statestore.durations import milliseconds_of
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry
from statestore.restore.sql_query import View
from statestore.rows.python_values import display_values

__all__ = ["Answered", "ListedViews", "query_states"]

T = TypeVar("T")


@click.command(
    "query",
    cls=Verb,
    prints=(
        "The rows of the result; the first 1,000 unless --limit says otherwise. Every state is "
        'a view named "operator uid"."state name", or just the state\'s name if no other state '
        "has it. A view has the column key_group and the stored columns; a view of operator "
        "state has subtask and position instead of key_group. The command needs DuckDB (the "
        "extra 'query') but no Spark. The statement must be a single SELECT over the views."
    ),
    examples=(
        "statestore query 'SELECT count(*) FROM per_country' --store ./fraud",
        "statestore query 'SELECT * FROM \"totals-by-user\".totals LIMIT 5' --store ./fraud",
        "statestore query --tables --store ./fraud",
    ),
)
@click.argument("sql", required=False)
@click.option(
    "--checkpoint",
    default="latest",
    metavar="ID",
    help="The checkpoint or savepoint to query. [latest]",
    shell_complete=complete_checkpoint,
)
@click.option("--tables", is_flag=True, help="List the views with their columns and rows instead.")
@limit_option
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
    limit: int,
    time_limit: str,
    memory_limit: int | None,
    verify: bool,
) -> Answered | ListedViews:
    """Query the states of a checkpoint with SQL."""
    if (sql is None) is not tables:
        raise click.UsageError("pass one SQL statement, or --tables")
    store = invocation.store()
    manifest = store.manifest(checkpoint)
    number, lacking = manifest.checkpoint_id, manifest.left_out
    if sql is None:
        views = store.views(checkpoint)
        return ListedViews(store=store.url, checkpoint_id=number, views=views, left_out=lacking)
    # A savepoint's name reaches a checkpoint that has expired; a number would not.
    asked = number if checkpoint == "latest" else checkpoint

    def answer_query(cancelled: threading.Event) -> Answered:
        with store.query(
            sql,
            asked,
            verify=verify,
            time_limit=time_limit if milliseconds_of(time_limit) else None,
            memory_limit=memory_limit,
            cancelled=cancelled,
        ) as answer:
            rows, is_cut = _first(answer, limit)
            return Answered(
                store=store.url,
                checkpoint_id=number,
                columns=tuple((field.name, str(field.type)) for field in answer.schema),
                rows=rows,
                is_cut=is_cut,
                left_out=lacking,
            )

    return _interruptible(answer_query)


def _interruptible(function: Callable[[threading.Event], T]) -> T:
    """Return the function's result; cancel it on Ctrl-C.

    It runs in another thread, because Python handles Ctrl-C only after DuckDB returns to the main
    thread.
    """
    cancelled = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(function, cancelled)
        try:
            return result.result()
        except KeyboardInterrupt:
            cancelled.set()
            raise


def _first(answer: Any, limit: int) -> tuple[tuple[tuple[Any, ...], ...], bool]:
    """Return the first rows, and whether there are more; do not read the rest."""
    rows: list[tuple[Any, ...]] = []
    for batch in answer:
        columns = [display_values(column, of_duckdb=True) for column in batch.columns]
        rows.extend(zip(*columns, strict=True))
        if limit and len(rows) > limit:
            return tuple(rows[:limit]), True
    return tuple(rows), False


class AnswerDocument(Document):
    """The answer to a query. ``cut`` is true if there are more rows."""

    store: str
    checkpoint_id: int = field(name="id")
    columns: list[ColumnDocument]
    rows: list[list[Any]]
    cut: bool
    left_out: list[LeftOutDocument]


@dataclass(frozen=True, kw_only=True)
class Answered(Result):
    """The result of a query: its columns and rows; ``is_cut`` is True if there are more rows.

    ``left_out`` lists the state that the checkpoint lacks of its source, and so does the result.
    """

    store: str
    checkpoint_id: int
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool
    left_out: tuple[LeftOutState, ...] = ()

    def document(self) -> AnswerDocument:
        """Return it for ``--output json``."""
        return AnswerDocument(
            store=self.store,
            checkpoint_id=self.checkpoint_id,
            columns=[ColumnDocument(name=name, type=kind) for name, kind in self.columns],
            rows=[list(row) for row in self.rows],
            cut=self.is_cut,
            left_out=LeftOutDocument.each(self.left_out),
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        names = [name for name, _ in self.columns]
        write_rows(page, names, [map(value_text, row) for row in self.rows], is_cut=self.is_cut)
        write_left_out(page, self.left_out)


class ViewDocument(Document):
    """A view. ``rows`` is null if the number is unknown, as for a state with changes."""

    view: str
    schema: str
    name: str
    operator: str
    state: str
    rows: int | None
    columns: list[ColumnDocument]


class ViewsDocument(Document):
    """With ``--tables``: the views that a query can use."""

    store: str
    checkpoint_id: int = field(name="id")
    views: list[ViewDocument]
    left_out: list[LeftOutDocument]


@dataclass(frozen=True, kw_only=True)
class ListedViews(Result):
    """The views that a query of a checkpoint can use."""

    store: str
    checkpoint_id: int
    views: tuple[View, ...]
    left_out: tuple[LeftOutState, ...] = ()

    def document(self) -> ViewsDocument:
        """Return it for ``--output json``."""
        return ViewsDocument(
            store=self.store,
            checkpoint_id=self.checkpoint_id,
            views=[
                ViewDocument(
                    view=view.sql,
                    schema=view.schema,
                    name=view.name,
                    operator=view.entry.state.uid,
                    state=view.entry.state.name,
                    rows=_known_rows(view),
                    columns=[ColumnDocument(name=f.name, type=str(f.type)) for f in view.columns],
                )
                for view in self.views
            ],
            left_out=LeftOutDocument.each(self.left_out),
        )

    def write(self, page: Page) -> None:
        """Write it as text."""
        table = table_of("view", "rows", "columns", right={"rows"})
        for view in self.views:
            columns = ", ".join(f"{field.name} {field.type}" for field in view.columns)
            known = _known_rows(view)
            rows = "?" if known is None else count(known)
            table.add_row(*(cell(text) for text in (view.sql, rows, columns)))
        page.table(table)
        write_left_out(page, self.left_out)


def _known_rows(view: View) -> int | None:
    """Return the rows of a state; None with changes, which must be read to count the rows."""
    entry = view.entry
    return None if isinstance(entry, KeyedEntry) and entry.layers else entry.rows
