"""The page for SQL: the form, the views that a query can use, and its answer.

The page shows the first rows of an answer. All rows can be downloaded as CSV.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from statestore.catalog.catalog import Checkpoint
from statestore.durations import Duration
from statestore.errors import StateStoreError
from statestore.restore.row_files import write_result
from statestore.rows.python_values import display_values
from statestore.store import StateStore
from statestore.ui.pages import PageView

__all__ = ["ROWS", "QueryLimits", "SqlAnswer", "sql", "sql_answer", "write_sql_csv"]

ROWS: Final = 1000
"""The maximum number of rows of an SQL answer."""


@dataclass(frozen=True)
class QueryLimits:
    """Limits for the SQL on the pages.

    Attributes:
        time_limit: The longest time of a query; None for no limit.
        memory_bytes: DuckDB's memory limit for a query, in bytes.
        concurrent: The maximum number of concurrent queries.
    """

    time_limit: Duration | None
    memory_bytes: int
    concurrent: int


@dataclass(frozen=True)
class SqlAnswer:
    """The first rows of an answer; ``is_cut`` is true if there are more."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool


def sql(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str = "",
    *,
    form_token: str,
    answer: SqlAnswer | None = None,
    problem: str = "",
    error: StateStoreError | None = None,
) -> PageView:
    """Return the form for SQL, with the views that a query can use.

    Args:
        store: The store.
        checkpoint: The checkpoint.
        text: The statement in the form.
        form_token: The token that the form sends with the statement.
        answer: The answer to show below the form.
        problem: Why the server did not run the statement.
        error: Why the statement has no answer.
    """
    facts = {
        "text": text,
        "form_token": form_token,
        "left_out": checkpoint.manifest.left_out,
        "views": store.views(checkpoint),
        "answer": answer,
        "problem": problem or (str(error) if error else ""),
        "most_rows": ROWS,
    }
    return PageView("SQL", "sql.html", facts, "sql", checkpoint.checkpoint_id, error)


def sql_answer(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str,
    *,
    limits: QueryLimits,
    cancelled: threading.Event,
) -> SqlAnswer:
    """Run a statement and return its first rows; raise what ``StateStore.query`` raises."""
    with store.query(
        text,
        checkpoint,
        time_limit=limits.time_limit,
        memory_limit=limits.memory_bytes,
        cancelled=cancelled,
    ) as answer:
        rows = tuple(_first_rows(answer))
        names = tuple(answer.schema.names)
    return SqlAnswer(names, rows[:ROWS], is_cut=len(rows) > ROWS)


def write_sql_csv(
    store: StateStore,
    checkpoint: Checkpoint,
    text: str,
    target: IO[bytes],
    *,
    limits: QueryLimits,
    cancelled: threading.Event,
) -> None:
    """Run a statement and write all rows as CSV; raise what ``StateStore.query`` raises."""
    with store.query(
        text,
        checkpoint,
        time_limit=limits.time_limit,
        memory_limit=limits.memory_bytes,
        cancelled=cancelled,
    ) as answer:
        write_result(answer, "csv", target, 0)


def _first_rows(answer: Any) -> Iterator[tuple[Any, ...]]:
    """Yield one row more than is shown, to detect whether there are more; read no others."""
    left = ROWS + 1
    for batch in answer:
        columns = [
            display_values(column, of_duckdb=True) for column in batch.slice(0, left).columns
        ]
        yield from zip(*columns, strict=True)
        left -= batch.num_rows
        if left <= 0:
            return
