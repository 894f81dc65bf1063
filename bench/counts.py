"""What does not depend on the machine: files opened and bytes read, by all subtasks together."""

from __future__ import annotations

import time
from typing import Any

from statestore import StateStore
from statestore.testing.counting import CountingStorage

__all__ = ["counts_of", "lookup_of"]


def counts_of(url: str, parallelism: int) -> dict[str, Any]:
    """Return files opened and bytes read by all subtasks, as ratios to what the state has."""
    storage = CountingStorage(url)
    restored = StateStore.over(storage).restore(parallelism=parallelism).keyed("bench", "state")
    for subtask in range(parallelism):
        for _ in restored.subtask(subtask):
            pass
    entry = restored.entry
    return {
        "parallelism": parallelism,
        "files opened, of all": round(storage.opened.total() / len(entry.handles), 3),
        "bytes read, of all": round(storage.bytes_read / entry.size_bytes, 3),
    }


def lookup_of(url: str, keys: list[str]) -> dict[str, Any]:
    """Return what looking keys up costs on average: bytes, files, and milliseconds."""
    storage = CountingStorage(url)
    keyed = StateStore.over(storage).restore().keyed("bench", "state")
    keyed.get(keys[0])
    storage.opened.clear()
    storage.bytes_read = 0
    start = time.perf_counter()
    for key in keys:
        assert len(keyed.get(key)) == 1
    seconds = time.perf_counter() - start
    return {
        "keys": len(keys),
        "milliseconds each": round(1000 * seconds / len(keys), 2),
        "bytes each": storage.bytes_read // len(keys),
        "files each": storage.opened.total() / len(keys),
    }
