"""The rows of a query, and the views that a query can use, as JSON and text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from statestore.catalog.catalog import Checkpoint
from statestore.cli.checkpoints import rows_explanation, rows_text, write_left_out
from statestore.cli.documents import Column
from statestore.cli.drawing import count
from statestore.cli.options import MOST_ROWS
from statestore.cli.output import Page, value_text, write_rows
from statestore.format.left_out import LeftOutState
from statestore.format.manifest import KeyedEntry
from statestore.restore.sql_query import View
from statestore.rows.python_values import display_values
from statestore.store import StateStore

__all__ = [
    "Answered",
    "ListedViews",
    "answered",
    "listed_views",
    "write_answer",
    "write_views",
]


def answered(answer: Any, checkpoint: Checkpoint, url: str, limit: int | None) -> Answered:
    """Return the first rows of an answer; by default as many as a table shows."""
    rows, is_cut = _first(answer, MOST_ROWS if limit is None else limit)
    return Answered(
        store=url,
        checkpoint_id=checkpoint.checkpoint_id,
        columns=tuple(Column(column.name, str(column.type)) for column in answer.schema),
        rows=rows,
        is_cut=is_cut,
        left_out=checkpoint.manifest.left_out,
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


def listed_views(store: StateStore, checkpoint: Checkpoint) -> ListedViews:
    """Return the views of a checkpoint."""
    return ListedViews(
        store=store.url,
        checkpoint_id=checkpoint.checkpoint_id,
        views=tuple(map(_listed, store.views(checkpoint))),
        left_out=checkpoint.manifest.left_out,
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
