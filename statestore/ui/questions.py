"""The pages for queries: look up a key, and compare two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from statestore.catalog.catalog import Checkpoint
from statestore.cli.arguments import key_of
from statestore.errors import InvalidArgumentError, StateStoreError
from statestore.store import StateStore
from statestore.ui.pages import PageView

__all__ = ["compare", "history", "key"]

_GROUPS: Final = 100
_LISTED: Final = 1000


def key(store: StateStore, checkpoint: Checkpoint, text: str = "") -> PageView:
    """Return the rows of a key in all states; without a key, the form to enter one."""
    facts: dict[str, Any] = {
        "text": text,
        "found": None,
        "left_out": checkpoint.manifest.left_out,
    }
    problem = None
    if text:
        try:
            facts["found"] = store.inspect.key(key_of(text), checkpoint, times_as_text=True)
        except InvalidArgumentError as error:
            problem = error
    return PageView("A key", "key.html", facts, "key", checkpoint.checkpoint_id, problem)


def history(store: StateStore, number: int, text: str, uid: str, name: str) -> PageView:
    """Return the values of a key in a state at each kept checkpoint, newest first.

    ``number`` is the checkpoint to which the page's links lead.
    """
    values = store.inspect.history(key_of(text), uid, name, times_as_text=True)
    facts = {"text": text, "uid": uid, "name": name, "history": values[::-1]}
    return PageView("History of a key", "history.html", facts, "key", number)


def compare(store: StateStore, a: str = "", b: str = "") -> PageView:
    """Return the differences between two checkpoints; without two, the form to choose them.

    If they cannot be compared, the view has the form and the error.
    """
    ids = store.checkpoints()
    facts: dict[str, Any] = {"a": a, "b": b, "found": None}
    facts["choices"] = _choices(store, ids, a, b)
    problem = None
    if a and b:
        try:
            facts |= {"found": store.inspect.diff(a, b), "groups": _GROUPS}
        except StateStoreError as error:
            problem = error
    elif len(ids) > 1:
        facts |= {"a": a or str(ids[-2]), "b": b or str(ids[-1])}
    return PageView("Compare", "compare.html", facts, tab="compare", error=problem)


def _choices(
    store: StateStore, ids: Sequence[int], *chosen: str
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the values and texts of a list of checkpoints, in groups; it has the chosen ones."""
    listed = [str(number) for number in ids[-_LISTED:][::-1]]
    savepoints = store.maintenance.savepoints()
    names = {savepoint.name for savepoint in savepoints}
    others = [value for value in dict.fromkeys(chosen) if value and value not in {*listed, *names}]
    held: dict[str, list[str]] = {}
    for savepoint in savepoints:
        held.setdefault(str(savepoint.checkpoint_id), []).append(savepoint.name)
    groups = [
        ("others", [(value, value) for value in others]),
        ("checkpoints", [(value, _named(value, held.get(value, []))) for value in listed]),
        ("savepoints", [(one.name, f"{one.name} ({one.checkpoint_id})") for one in savepoints]),
    ]
    return [(title, options) for title, options in groups if options]


def _named(number: str, savepoints: Sequence[str]) -> str:
    return f"{number} ({', '.join(savepoints)})" if savepoints else number
