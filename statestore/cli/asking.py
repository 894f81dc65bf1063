"""What ``query`` and ``get`` without a state return, as JSON and as text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from statestore.cli.documents import document_of
from statestore.cli.output import Page
from statestore.cli.tables import cell, table_of
from statestore.cli.text import write_text
from statestore.cli.units import count
from statestore.cli.values import Result
from statestore.format.manifest import KeyedEntry
from statestore.restore.export import json_value
from statestore.restore.history import KeyStates
from statestore.restore.query import View

__all__ = ["Answered", "KeyFound", "ListedViews"]


@dataclass(frozen=True, kw_only=True)
class Answered(Result):
    """The answer to a query: its columns, and its rows up to ``limit`` (None: all)."""

    store: str
    checkpoint_id: int
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]
    limit: int | None
    is_cut: bool


@dataclass(frozen=True, kw_only=True)
class ListedViews(Result):
    """What a query of a checkpoint can name."""

    store: str
    checkpoint_id: int
    views: tuple[View, ...]


@dataclass(frozen=True, kw_only=True)
class KeyFound(Result):
    """The rows of one key in all states; ``key`` as it was given."""

    store: str
    key: str
    found: KeyStates


@document_of.register
def _(result: Answered) -> dict[str, Any]:
    return {
        "store": result.store,
        "id": result.checkpoint_id,
        "columns": [{"name": name, "type": kind} for name, kind in result.columns],
        "rows": [[json_value(value) for value in row] for row in result.rows],
        "cut": result.is_cut,
    }


@document_of.register
def _(result: ListedViews) -> dict[str, Any]:
    views = [
        {
            "view": view.sql,
            "schema": view.schema,
            "name": view.name,
            "operator": view.entry.state.uid,
            "state": view.entry.state.name,
            "rows": _known_rows(view),
            "columns": [{"name": f.name, "type": str(f.type)} for f in view.columns],
        }
        for view in result.views
    ]
    return {"store": result.store, "id": result.checkpoint_id, "views": views}


@document_of.register
def _(result: KeyFound) -> dict[str, Any]:
    found = result.found
    states = [
        {
            "operator": one.entry.state.uid,
            "state": one.entry.state.name,
            "kind": one.entry.state.kind.value,
            "rows": [json_value(row) for row in one.rows],
        }
        for one in found.states
    ]
    skipped = [
        {"operator": one.entry.state.uid, "state": one.entry.state.name, "why": one.reason}
        for one in found.skipped
    ]
    document = {"store": result.store, "id": found.checkpoint_id, "key": result.key}
    return document | {"states": states, "skipped": skipped}


@write_text.register
def _(result: Answered, page: Page) -> None:
    table = table_of(*(name for name, _ in result.columns))
    for row in result.rows:
        table.add_row(*(cell(_value(value)) for value in row))
    page.table(table)
    if result.is_cut:
        page.line(
            f"these are the first {count(len(result.rows))} rows; there are more, and --limit 0 "
            "gives all"
        )


@write_text.register
def _(result: ListedViews, page: Page) -> None:
    table = table_of("view", "rows", "columns", right={"rows"})
    for view in result.views:
        columns = ", ".join(f"{field.name} {field.type}" for field in view.columns)
        known = _known_rows(view)
        rows = "?" if known is None else count(known)
        table.add_row(*(cell(text) for text in (view.sql, rows, columns)))
    page.table(table)


@write_text.register
def _(result: KeyFound, page: Page) -> None:
    found = result.found
    if not found.rows:
        page.line(f"no rows of key {result.key} in any state, checkpoint {found.checkpoint_id}")
    else:
        table = table_of("operator", "state", "row")
        for one in found.states:
            state = one.entry.state
            for row in one.rows:
                values = ", ".join(f"{name} {_value(value)}" for name, value in row.items())
                table.add_row(cell(state.uid), cell(state.name), cell(values))
        page.table(table)
    for skipped in found.skipped:
        page.line(f"skipped {skipped.entry.state}, whose key is ({skipped.key})")


def _known_rows(view: View) -> int | None:
    """Return the rows of a state, None with changes: what they leave is known after reading."""
    entry = view.entry
    return None if isinstance(entry, KeyedEntry) and entry.layers else entry.rows


def _value(value: Any) -> str:
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
