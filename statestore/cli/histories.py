"""What ``as-of`` and ``history`` return, as JSON and as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from statestore.cli.documents import document_of
from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.text import write_text
from statestore.cli.units import count, when
from statestore.cli.values import Result
from statestore.restore.export import json_value
from statestore.restore.history import KeyAt

__all__ = ["Joined", "KeyHistory"]


@dataclass(frozen=True, kw_only=True)
class Joined(Result):
    """Rows of a state at two checkpoints side by side; ``counts`` are of all, by change."""

    store: str
    ids: tuple[int, int]
    uid: str
    state: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    counts: dict[str, int]
    is_cut: bool


@dataclass(frozen=True, kw_only=True)
class KeyHistory(Result):
    """What a key had at each kept checkpoint; ``key`` has the key columns in order."""

    store: str
    uid: str
    state: str
    key: dict[str, Any]
    history: tuple[KeyAt, ...]


@document_of.register
def _(result: Joined) -> dict[str, Any]:
    return {
        "store": result.store,
        "a": result.ids[0],
        "b": result.ids[1],
        "operator": result.uid,
        "state": result.state,
        "columns": [{"name": name, "type": kind} for name, kind in result.columns],
        "rows": [[json_value(value) for value in row] for row in result.rows],
        "counts": result.counts,
        "cut": result.is_cut,
    }


@document_of.register
def _(result: KeyHistory) -> dict[str, Any]:
    return {
        "store": result.store,
        "operator": result.uid,
        "state": result.state,
        "key": json_value(result.key),
        "checkpoints": [
            {
                "id": one.checkpoint_id,
                "created_at_ms": one.created_at_ms,
                "changed": one.is_changed,
                "rows": None if one.rows is None else [json_value(row) for row in one.rows],
            }
            for one in result.history
        ],
    }


@write_text.register
def _(result: Joined, page: Page) -> None:
    a, b = result.ids
    page.line(f"state {result.state} of operator {result.uid} of {result.store}", "bold")
    told = ", ".join(f"{count(rows)} {change}" for change, rows in result.counts.items())
    page.line(f"  a is checkpoint {a}, b is checkpoint {b}: {told}")
    table = table_of(*(name for name, _ in result.columns))
    for row in result.rows:
        table.add_row(*(cell(_text(value)) for value in row))
    page.table(table)
    if result.is_cut:
        shown = count(len(result.rows))
        page.line(f"these are the first {shown} rows; there are more, and --limit 0 gives all")


@write_text.register
def _(result: KeyHistory, page: Page) -> None:
    key = ", ".join(f"{name} {_text(value)}" for name, value in result.key.items())
    page.line(f"state {result.state} of operator {result.uid} of {result.store}: {key}", "bold")
    table = table_of("", "id", "taken", "rows", "values", right={"id", "rows"})
    for one in result.history:
        mark = "*" if one.is_changed else ""
        first = (mark, str(one.checkpoint_id), when(one.created_at_ms))
        table.add_row(*map(cell, (*first, *_rows(one, result.key))))
    page.table(table)


def _rows(one: KeyAt, key: dict[str, Any]) -> tuple[str, str]:
    """Return the number of rows, and all of them on one line, without the key."""
    if one.rows is None:
        return "", "no such state, or another key"
    rows = [
        ", ".join(f"{name} {_text(value)}" for name, value in row.items() if name not in key)
        for row in one.rows
    ]
    return count(len(rows)), "; ".join(rows)


def _text(value: Any) -> str:
    if value is None:
        return ""
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
