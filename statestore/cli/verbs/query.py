"""``statestore query``: run SQL over the states of a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from statestore.cli.arguments import limit_option, query_limit_options
from statestore.cli.checkpoints import write_left_out
from statestore.cli.command import Invocation, Verb, pass_invocation
from statestore.cli.completion import complete_checkpoint
from statestore.cli.documents import Column
from statestore.cli.drawing import count
from statestore.cli.output import Output, Page, cell, table_of, value_text, write_rows
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
) -> Output[Answered] | Output[ListedViews]:
    """Query the states of a checkpoint with SQL."""
    if (sql is None) is not tables:
        raise click.UsageError("pass one SQL statement, or --tables")
    store = invocation.store()
    manifest = store.manifest(checkpoint)
    number, lacking = manifest.checkpoint_id, manifest.left_out
    if sql is None:
        views = tuple(map(_listed, store.views(checkpoint)))
        return Output(
            ListedViews(store=store.url, checkpoint_id=number, views=views, left_out=lacking),
            write_views,
        )
    # A savepoint's name reaches a checkpoint that has expired; a number would not.
    asked = number if checkpoint == "latest" else checkpoint

    def answer_query(cancelled: threading.Event) -> Output[Answered]:
        with store.query(
            sql,
            asked,
            verify=verify,
            time_limit=time_limit if milliseconds_of(time_limit) else None,
            memory_limit=memory_limit,
            cancelled=cancelled,
        ) as answer:
            rows, is_cut = _first(answer, limit)
            return Output(
                Answered(
                    store=store.url,
                    checkpoint_id=number,
                    columns=tuple(Column(field.name, str(field.type)) for field in answer.schema),
                    rows=rows,
                    is_cut=is_cut,
                    left_out=lacking,
                ),
                write_answer,
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


@dataclass(frozen=True, kw_only=True)
class Answered:
    """The result of a query: its columns and rows; ``is_cut`` is True if there are more rows.

    ``left_out`` lists the state that the checkpoint lacks of its source, and so does the result.
    """

    store: str
    checkpoint_id: int
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool
    left_out: tuple[LeftOutState, ...] = ()


def write_answer(page: Page, answered: Answered) -> None:
    """Write it as text."""
    names = [column.name for column in answered.columns]
    write_rows(page, names, [map(value_text, row) for row in answered.rows], is_cut=answered.is_cut)
    write_left_out(page, answered.left_out)


@dataclass(frozen=True, kw_only=True)
class ListedView:
    """A view. ``rows`` is None if the number is unknown, as for a state with changes."""

    view: str
    schema: str
    name: str
    operator: str
    state: str
    rows: int | None
    columns: tuple[Column, ...]


@dataclass(frozen=True, kw_only=True)
class ListedViews:
    """The views that a query of a checkpoint can use."""

    store: str
    checkpoint_id: int
    views: tuple[ListedView, ...]
    left_out: tuple[LeftOutState, ...] = ()


def write_views(page: Page, listed: ListedViews) -> None:
    """Write it as text."""
    table = table_of("view", "rows", "columns", right={"rows"})
    for view in listed.views:
        columns = ", ".join(f"{column.name} {column.type}" for column in view.columns)
        rows = "?" if view.rows is None else count(view.rows)
        table.add_row(*(cell(text) for text in (view.view, rows, columns)))
    page.table(table)
    write_left_out(page, listed.left_out)


def _listed(view: View) -> ListedView:
    """Describe a view. Changes must be read to count the rows of their state."""
    entry = view.entry
    return ListedView(
        view=view.sql,
        schema=view.schema,
        name=view.name,
        operator=entry.state.uid,
        state=entry.state.name,
        rows=None if isinstance(entry, KeyedEntry) and entry.layers else entry.rows,
        columns=tuple(Column(field.name, str(field.type)) for field in view.columns),
    )
