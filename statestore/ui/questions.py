"""What is asked of a store: a key, two checkpoints side by side, SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from statestore.cli.arguments import key_of
from statestore.errors import InvalidArgumentError
from statestore.files.values import shown_values
from statestore.store import StateStore
from statestore.ui.pages import View

__all__ = ["ROWS", "compare", "history", "key", "sql"]

ROWS: Final = 1000
"""The most rows of an answer to SQL."""

_GROUPS: Final = 100


def key(store: StateStore, which: int | str, text: str = "") -> View:
    """Return the rows of a key in all states; of no key the form to ask for one."""
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
    return View("A key", "key.html", facts, "key", manifest.checkpoint_id)


def history(store: StateStore, which: int | str, text: str, uid: str, name: str) -> View:
    """Return what a key had in a state at each kept checkpoint, newest first."""
    number = store.manifest(which).checkpoint_id
    found = store.inspect.history(key_of(text), uid, name)
    facts = {"text": text, "uid": uid, "name": name, "history": found[::-1]}
    return View("History of a key", "history.html", facts, "key", number)


def compare(store: StateStore, a: str = "", b: str = "") -> View:
    """Return what tells two checkpoints apart; of none the form to choose them."""
    ids = store.checkpoints()
    facts: dict[str, Any] = {"a": a, "b": b, "ids": ids[-200:][::-1], "found": None}
    if a and b:
        facts |= {"found": store.inspect.diff(a, b), "groups": _GROUPS}
    elif len(ids) > 1:
        facts |= {"a": str(ids[-2]), "b": str(ids[-1])}
    return View("Compare", "compare.html", facts, tab="compare")


def sql(store: StateStore, which: int | str, text: str = "") -> View:
    """Return the first rows of an answer, or why there is none, and what a query can name."""
    manifest = store.manifest(which)
    facts: dict[str, Any] = {
        "text": text,
        "left_out": manifest.left_out,
        "views": store.views(which),
        "names": (),
        "rows": (),
        "is_cut": False,
        "problem": "",
    }
    if text:
        try:
            with store.query(text, which) as answer:
                rows = list(_first(answer))
                facts |= {"names": answer.schema.names, "rows": rows[:ROWS]}
                facts["is_cut"] = len(rows) > ROWS
        except InvalidArgumentError as error:
            facts["problem"] = str(error)
    return View("SQL", "sql.html", facts, "sql", manifest.checkpoint_id)


def _first(answer: Any) -> Iterator[tuple[Any, ...]]:
    """Yield rows of an answer, one more than are shown; the rest is not read."""
    left = ROWS + 1
    for batch in answer:
        columns = [shown_values(column) for column in batch.slice(0, left).columns]
        yield from zip(*columns, strict=True)
        left -= batch.num_rows
        if left <= 0:
            return
