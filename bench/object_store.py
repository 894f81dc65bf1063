"""Object stores: how long a restore from a far one takes, and what a snapshot asks of one.

B11 restores from a folder behind simulated requests: each waits 20 ms, a stream brings 50 MB/s, and
16 are open at most. The floor is computed: no reader can be faster than all streams full. B24
counts what a real server was asked, by whoever asked it, and says what that costs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.arrow_stores import NAME, UID, stored
from bench.measure import Figure, in_turn
from bench.small import small_tables, write_small
from statestore import StateStore
from statestore.restore.restored import RestoredKeyedState
from tests.servers.s3 import s3_server
from tests.servers.slow import SlowStorage

__all__ = ["figures", "requests"]

PARALLELISM = 7
GOAL = 1.3
# Amazon S3 Standard, us-east-1, in November 2026: dollars for a thousand requests.
PRICES = {"PUT": 0.005, "POST": 0.005, "LIST": 0.005, "GET": 0.0004, "DELETE": 0.0}


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


def requests(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return what a checkpoint of little state asks of a bucket, in both layouts, and its price."""
    tables = small_tables(rows)
    found = []
    with s3_server(folder) as server:
        for layout in ("partitioned", "auto"):
            store = StateStore.open(server.url(layout), storage_options=server.options)
            for _ in range(2):  # the first one makes the store and its tables
                before = server.requests()
                with store.snapshot(parallelism=4) as checkpoint:
                    write_small(checkpoint, tables, layout)
            asked = server.requests() - before
            dollars = sum(number * PRICES[kind] / 1000 for kind, number in asked.items())
            kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(asked.items()))
            files = store.manifest().files
            what = f"a checkpoint of {files} files in a bucket, {layout}"
            found.append(_count(f"{what}: {kinds}", asked.total(), "requests"))
            found.append(_count(f"{what}: price of a thousand such", 1000 * dollars, "dollars"))
    return found


def _count(what: str, value: float, unit: str) -> Figure:
    return Figure("B24", what, value, unit, value, value)


def _restore(keyed: RestoredKeyedState) -> None:
    with ThreadPoolExecutor(PARALLELISM) as pool:
        list(pool.map(lambda subtask: _read(keyed, subtask), range(PARALLELISM)))


def _read(keyed: RestoredKeyedState, subtask: int) -> None:
    for _ in keyed.to_arrow(subtask):
        pass
