"""B11: a restore from an object store that is far away, all subtasks together.

The store is a folder behind simulated requests: each waits 20 ms, a stream brings 50 MB/s, and 16
are open at most. The floor is computed: no reader can be faster than all streams full.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.arrow_stores import NAME, UID, stored
from bench.measure import Figure, in_turn
from statestore import StateStore
from statestore.restore.restored import RestoredKeyedState
from tests.servers.slow import SlowStorage

__all__ = ["figures"]

PARALLELISM = 7
GOAL = 1.3


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return how long seven subtasks take, a thread each, against the time of the bytes alone."""
    entry = stored(folder / "ranged", rows, ranged=True)
    storage = SlowStorage(str(folder / "ranged"))
    keyed = StateStore.over(storage).restore(parallelism=PARALLELISM).keyed(UID, NAME)
    what = f"restore 4 -> {PARALLELISM}, simulated object store, ranged"
    seconds = sorted(in_turn({what: lambda: _restore(keyed)}, repeats)[what])
    floor = storage.floor_seconds(entry.size_bytes)
    median = seconds[len(seconds) // 2]
    return [
        Figure(
            "B11",
            what,
            median,
            "s",
            seconds[0],
            seconds[-1],
            f"bytes / (16 x 50 MB/s) + two round trips: {floor:.3f} s",
            median / floor,
            GOAL,
        )
    ]


def _restore(keyed: RestoredKeyedState) -> None:
    with ThreadPoolExecutor(PARALLELISM) as pool:
        list(pool.map(lambda subtask: _read(keyed, subtask), range(PARALLELISM)))


def _read(keyed: RestoredKeyedState, subtask: int) -> None:
    for _ in keyed.to_arrow(subtask):
        pass
