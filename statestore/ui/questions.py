"""The pages for queries: look up a key, compare two checkpoints, and run SQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from statestore.cli.arguments import key_of
from statestore.durations import Duration
from statestore.errors import InvalidArgumentError
from statestore.rows.python_values import display_values
from statestore.store import StateStore
from statestore.ui.pages import PageView

__all__ = ["ROWS", "QueryLimits", "SqlAnswer", "compare", "history", "key", "sql", "sql_answer"]

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


_GROUPS: Final = 100


def key(store: StateStore, which: int | str, text: str = "") -> PageView:
    """Return the rows of a key in all states; without a key, the form to enter one."""
    manifest = store.manifest(which)
    facts: dict[str, Any] = {
        "text": text,
        "found": None,
        "problem": "",
        "left_out": manifest.left_out,
    }
    if text:
        try:
            facts["found"] = store.inspect.key(key_of(text), which)
        except InvalidArgumentError as error:
            facts["problem"] = str(error)
    return PageView("A key", "key.html", facts, "key", manifest.checkpoint_id)


def history(store: StateStore, which: int | str, text: str, uid: str, name: str) -> PageView:
    """Return the values of a key in a state at each kept checkpoint, newest first."""
    number = store.manifest(which).checkpoint_id
    values = store.inspect.history(key_of(text), uid, name)
    facts = {"text": text, "uid": uid, "name": name, "history": values[::-1]}
    return PageView("History of a key", "history.html", facts, "key", number)


def compare(store: StateStore, a: str = "", b: str = "") -> PageView:
    """Return the differences between two checkpoints; without two, the form to choose them."""
    ids = store.checkpoints()
    facts: dict[str, Any] = {"a": a, "b": b, "ids": ids[-200:][::-1], "found": None}
    if a and b:
        facts |= {"found": store.inspect.diff(a, b), "groups": _GROUPS}
    elif len(ids) > 1:
        facts |= {"a": str(ids[-2]), "b": str(ids[-1])}
    return PageView("Compare", "compare.html", facts, tab="compare")


@dataclass(frozen=True)
class SqlAnswer:
    """The first rows of an answer; ``is_cut`` is true if there are more."""

    names: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool


def sql(
    store: StateStore,
    which: int | str,
    text: str = "",
    *,
    form_token: str,
    answer: SqlAnswer | None = None,
    problem: str = "",
) -> PageView:
    """Return the form for SQL, with the views that a query can use.

    Args:
        store: The store.
        which: The checkpoint.
        text: The statement in the form.
        form_token: The token that the form sends with the statement.
        answer: The answer to show below the form.
        problem: Why the statement has no answer.
    """
    manifest = store.manifest(which)
    facts = {
        "text": text,
        "form_token": form_token,
        "left_out": manifest.left_out,
        "views": store.views(which),
        "answer": answer,
        "problem": problem,
    }
    return PageView("SQL", "sql.html", facts, "sql", manifest.checkpoint_id)


def sql_answer(
    store: StateStore,
    which: int | str,
    text: str,
    *,
    limits: QueryLimits,
    cancelled: threading.Event,
) -> SqlAnswer:
    """Run a statement and return its first rows; raise what ``StateStore.query`` raises."""
    with store.query(
        text,
        which,
        time_limit=limits.time_limit,
        memory_limit=limits.memory_bytes,
        cancelled=cancelled,
    ) as answer:
        rows = tuple(_first_rows(answer))
        names = tuple(answer.schema.names)
    return SqlAnswer(names, rows[:ROWS], is_cut=len(rows) > ROWS)


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
