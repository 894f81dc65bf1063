"""A small store with states of every kind, and ways to damage it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from statestore.format.state import StateKind
from statestore.store import StateStore

FLIPS = int(os.environ.get("STATESTORE_FLIPS", "100"))
"""The number of bytes that are damaged, one at a time; slower checks use a twelfth."""

USERS = [f"user-{i}" for i in range(12)]
SORTS = (*StateKind, "split", "union", "broadcast")


def fill(path: Path, max_parallelism: int = 2) -> StateStore:
    """Take a checkpoint with every kind of keyed state and every mode of operator state."""
    store = StateStore.open(str(path), table_format="parquet", layout="partitioned")
    rows, more, times = (
        [{"user": user, "n": first + n} for user in USERS for n in range(3)] for first in (0, 3, 6)
    )
    options: dict[str, Any] = {"key": "user", "max_parallelism": max_parallelism}
    with store.snapshot(parallelism=max_parallelism) as checkpoint:
        for part, kind in enumerate(("value", "reducing", "aggregating"), start=7):
            values = pa.table({"user": USERS, "x": [i / part for i in range(len(USERS))]})
            checkpoint.write_keyed("job", kind, values, **options, kind=kind)
        checkpoint.write_keyed("job", "map", rows, kind="map", entry="n", **options)
        checkpoint.write_keyed("job", "list", more, kind="list", entry="n", **options)
        checkpoint.write_keyed(
            "job", "timers", times, kind="timers", entry="n", time_domain="event", **options
        )
        lists: list[Any] = [[] for _ in range(max_parallelism - 1)]
        checkpoint.write_split("source", "split", [[{"s": "a"}, {"s": "b"}], *lists])
        checkpoint.write_union("source", "union", [[{"p": 0}, {"p": 1}], *lists])
        checkpoint.write_broadcast("source", "broadcast", [{"rule": "x > 1"}])
    return store


def copy_of(store: StateStore, path: Path) -> StateStore:
    """Return a copy of a store, which a test can damage."""
    return StateStore.open(str(shutil.copytree(store.url, path)), table_format="parquet")


def files_of(store: StateStore, name: str) -> list[Path]:
    """Return the data files of a state in the latest checkpoint."""
    (entry,) = (entry for entry in store.checkpoint().manifest.entries if entry.state.name == name)
    return [Path(store.url, entry.table.path, handle.path) for handle in entry.handles]


def change_unread_byte(file: Path) -> None:
    """Change a byte that readers ignore: in the magic number at the start of the file."""
    raw = file.read_bytes()
    assert raw.startswith(b"PAR1")
    file.write_bytes(b"parq" + raw[4:])
