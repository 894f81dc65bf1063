"""The page that finds a checkpoint, savepoint, operator or state by a part of its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlencode

from statestore.catalog.catalog import CheckpointRef
from statestore.errors import CheckpointNotFoundError, CorruptionError, FormatVersionError
from statestore.store import StateStore
from statestore.ui.pages import PageView

__all__ = ["search"]

_MOST: Final = 50


@dataclass(frozen=True)
class Match:
    """A found object: its kind, its name, and the URL of its page."""

    kind: str
    name: str
    url: str


def search(store: StateStore, text: str, which: CheckpointRef = "latest") -> PageView:
    """Return what contains a text: checkpoints and savepoints, and the states of a checkpoint.

    Upper and lower case are equal. Checkpoints match by the start of their id, newest first.
    """
    wanted = text.strip().casefold()
    found = [*_checkpoints(store, wanted), *_states(store, wanted, which)] if wanted else []
    facts = {"text": text, "found": found[:_MOST], "more": len(found) - _MOST}
    return PageView("Search", "search.html", facts, tab="search")


def _checkpoints(store: StateStore, wanted: str) -> list[Match]:
    ids = [str(number) for number in store.checkpoints()[::-1]]
    matching = sorted((i for i in ids if i.startswith(wanted)), key=lambda i: i != wanted)
    found = [Match("checkpoint", number, f"/checkpoint/{number}") for number in matching[:_MOST]]
    return found + [
        Match("savepoint", savepoint.name, f"/checkpoint/{quote(savepoint.name, safe='')}")
        for savepoint in store.maintenance.savepoints()
        if wanted in savepoint.name.casefold()
    ]


def _states(store: StateStore, wanted: str, which: CheckpointRef) -> list[Match]:
    """Return the operators and states that match; none if the checkpoint cannot be read."""
    try:
        manifest = store.checkpoint(which).manifest
    except (CheckpointNotFoundError, CorruptionError, FormatVersionError):
        return []
    base = f"/checkpoint/{manifest.checkpoint_id}"
    operators = [
        Match("operator", uid, f"{base}#operator-{quote(uid, safe='')}")
        for uid in manifest.uids
        if wanted in uid.casefold()
    ]
    states = []
    for entry in manifest.entries:
        own = entry.state
        if wanted in f"{own.uid}.{own.name}".casefold():
            url = f"{base}/state?{urlencode({'operator': own.uid, 'state': own.name})}"
            states.append(Match("state", f"{own.uid}.{own.name}", url))
    return operators + states
