"""The content of checkpoints, and what a recorded program promises about it.

A program writes its promises as marks into the log. After ``may`` a new checkpoint can have the
content. After ``has`` exactly the named checkpoints are visible, with their content. Between
``leaving`` and the next ``has`` checkpoints can disappear. After ``will`` the next new checkpoint
has the content that the next ``has`` names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statestore import StateStore
from statestore.format.names import KEY_GROUP
from tests.power.recording import Record, facts_of, mark

__all__ = [
    "Content",
    "Promises",
    "StorePromises",
    "complete",
    "content_of",
    "has",
    "held",
    "leaving",
    "location",
    "may",
    "purged",
    "rekeying",
    "restarts",
    "sorted_rows",
    "table",
    "will",
]

Content = dict[str, Any]
"""By operator and state: the rows in a fixed order, or the elements."""


def content_of(store: StateStore, checkpoint: int) -> Content:
    """Read all of a checkpoint, with its digests checked."""
    restored = store.restore(checkpoint=checkpoint, parallelism=1, verify=True)
    manifest, content = store.checkpoint(checkpoint).manifest, {}
    for keyed in manifest.keyed:
        state = keyed.state
        rows = restored.keyed(state.uid, state.name).to_arrow(0).drop_columns([KEY_GROUP])
        content[f"{state.uid}/{state.name}"] = sorted_rows(rows.to_pylist())
    for operator in manifest.operator:
        name = operator.state
        elements = restored.operator_state(name.uid, name.name).per_old_subtask()
        content[f"{name.uid}/{name.name}"] = sorted_rows([row for own in elements for row in own])
    return content


def sorted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as JSON has them, in an order that does not depend on key groups."""
    texts = sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)
    return [json.loads(text) for text in texts]


def may(store: str, content: Content) -> None:
    """Promise that the next new checkpoints of a store have this content, if they are visible."""
    mark("may", store=store, content=content)


def will(store: str) -> None:
    """Promise that the next new checkpoint of a store has the content that the next ``has`` says.

    It is for content that the program knows only afterwards, such as the id of a query.
    """
    mark("will", store=store)


def has(store: str, checkpoints: Mapping[int, Content]) -> None:
    """Promise that exactly these checkpoints of a store are visible."""
    mark("has", store=store, checkpoints=list(checkpoints.items()))


def leaving(store: str) -> None:
    """Say that visible checkpoints of a store may expire from now on."""
    mark("leaving", store=store)


def held(store: str, savepoints: Mapping[str, int] | None) -> None:
    """Promise that exactly these savepoints exist; None while one is being deleted."""
    mark("held", store=store, savepoints=savepoints)


def purged(store: str, operator: str, key: str) -> None:
    """Promise that no file of a store contains a key."""
    mark("purged", store=store, operator=operator, key=key)


def rekeying(store: str, work: str, content: Content, **options: Any) -> None:
    """Promise that an interrupted rekey can be run again in its working folder."""
    mark("rekeying", store=store, work=work, content=content, options=options)


def location(folder: str) -> None:
    """Promise that Spark refuses a checkpoint location, until it has the files of ``complete``."""
    mark("location", folder=folder)


def restarts(store: str, **facts: Any) -> None:
    """Promise that a streaming query can be started again; ``facts`` are for ``queries.py``."""
    mark("restarts", store=store, **facts)


def table(folder: str, number: int, rows: list[int]) -> None:
    """Promise that a Delta table has the rows of all numbers up to this one, each of them once.

    ``rows`` has the number of rows for each number, also for the later ones.
    """
    mark("table", folder=folder, number=number, rows=rows)


def complete(root: Path, folder: str) -> None:
    """Promise that a folder keeps the files that it has."""
    files = {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (root / folder).rglob("*")
        if path.is_file()
    }
    mark("complete", folder=folder, files=files)


@dataclass
class StorePromises:
    """The promises about one store; ``number`` changes with each of them."""

    visible: dict[int, Content] = field(default_factory=dict)
    possible: list[Content] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    stays: bool = True
    savepoints: Mapping[str, int] | None = None
    purged: list[tuple[str, str]] = field(default_factory=list)
    rekeying: Mapping[str, Any] | None = None
    restarts: Mapping[str, Any] | None = None
    number: int = 0


class Promises:
    """All promises of a program up to one place in its log."""

    def __init__(self, records: Sequence[Record]) -> None:
        """Begin without any promise; :meth:`read` will get these records."""
        self.stores: dict[str, StorePromises] = {}
        self.files: dict[str, str] = {}
        self.locations: dict[str, Mapping[str, str]] = {}
        """The checkpoint locations of Spark, with the files that they have when they are usable."""
        self.tables: dict[str, Mapping[str, Any]] = {}
        self.number = 0
        self._marks = [facts_of(record) for record in records if record.kind == "M"]

    def read(self, record: Record) -> None:
        """Add the promise of a mark."""
        self.number += 1
        facts = facts_of(record)
        if facts["what"] == "complete":
            self.files |= facts["files"]
        elif facts["what"] == "table":
            self.tables[facts["folder"]] = facts
        elif facts["what"] == "location":
            final = self._next("complete", "folder", facts["folder"])
            self.locations[facts["folder"]] = final["files"]
        else:
            promises = self.stores.setdefault(facts["store"], StorePromises())
            promises.number = self.number
            self._read_of_store(promises, facts)

    def _read_of_store(self, promises: StorePromises, facts: Mapping[str, Any]) -> None:
        if facts["what"] == "may":
            promises.possible.append(facts["content"])
        elif facts["what"] == "will":
            later = dict(self._next("has", "store", facts["store"])["checkpoints"])
            new = later.keys() - promises.visible.keys()
            promises.possible += [later[number] for number in new]
        elif facts["what"] == "leaving":
            promises.stays = False
        elif facts["what"] == "held":
            promises.savepoints = facts["savepoints"]
        elif facts["what"] == "purged":
            promises.purged.append((facts["operator"], facts["key"]))
        elif facts["what"] == "rekeying":
            promises.rekeying = facts
            promises.possible.append(facts["content"])
        elif facts["what"] == "restarts":
            promises.restarts = facts
        else:
            visible = dict(facts["checkpoints"])
            promises.gone |= promises.visible.keys() - visible.keys()
            promises.visible, promises.possible, promises.stays = visible, [], True
            promises.rekeying = None

    def _next(self, what: str, member: str, name: str) -> Mapping[str, Any]:
        """Return the next mark of a kind about a store or folder."""
        later = self._marks[self.number :]
        return next(one for one in later if one["what"] == what and one[member] == name)
