"""Object stores: the time of a restore from a distant one, and the requests of a snapshot.

B11 restores from a folder with simulated requests: each has a latency of 20 ms, a stream has 50
MB/s, and at most 16 streams are open. Its floor is the larger of two times. The first is computed:
no reader can be faster than all streams at full speed. The second is measured in turn with the
restore: pyarrow decodes the same row groups from the page cache on all cores.

B24 counts the requests of all clients to a real server, and computes their price.
"""

from __future__ import annotations

import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from bench.arrow_stores import NAME, UID, stored
from bench.measure import Figure, in_turn, sample
from bench.small import small_tables, write_small
from statestore import StateStore
from statestore.restore.restored import RestoredKeyedState
from tests.servers.s3 import s3_server
from tests.servers.slow import SlowStorage

__all__ = ["figures", "requests"]

PARALLELISM = 7
GOAL = 1.15
# Amazon S3 Standard, us-east-1, in November 2026: dollars for a thousand requests.
PRICES = {"PUT": 0.005, "POST": 0.005, "LIST": 0.005, "GET": 0.0004, "DELETE": 0.0}


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the time of a restore by seven threads, and its ratio to the floor."""
    entry = stored(folder / "ranged", rows, ranged=True)
    files = [folder / "ranged" / entry.table.path / handle.path for handle in entry.handles]
    storage = SlowStorage(str(folder / "ranged"))
    keyed = StateStore.open(storage).restore(parallelism=PARALLELISM).keyed(UID, NAME)
    restore = f"restore 4 -> {PARALLELISM}, simulated object store, ranged"
    decode = "decode the same row groups, pyarrow, all cores"
    seconds = in_turn({decode: lambda: _decode(files), restore: lambda: _restore(keyed)}, repeats)
    decoding = statistics.median(seconds[decode])
    transfer = storage.floor_seconds(entry.size_bytes)
    floor = max(decoding, transfer)
    names = f"the larger of transfer {transfer:.3f} s and decoding {decoding:.3f} s"
    found = sample("B11", restore, seconds[restore], goal=GOAL)
    return [
        sample("B11", decode, seconds[decode]),
        replace(found, floor=names, ratio=found.value / floor),
    ]


def requests(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return the requests of a checkpoint with little state, in both layouts, and their price."""
    tables = small_tables(rows)
    found = []
    with s3_server(folder) as server:
        for layout in ("partitioned", "auto"):
            store = StateStore.open(server.url(layout), storage_options=server.options)
            for _ in range(2):  # the first checkpoint creates the store and its tables
                before = server.requests()
                with store.snapshot(parallelism=4) as checkpoint:
                    write_small(checkpoint, tables, layout)
            asked = server.requests() - before
            dollars = sum(number * PRICES[kind] / 1000 for kind, number in asked.items())
            kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(asked.items()))
            files = store.checkpoint().manifest.files
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
    for _ in keyed.to_batches(subtask):
        pass


def _decode(files: list[Path]) -> None:
    """Decode all row groups once, each in one thread, with one thread per core."""
    groups = [
        (file, group) for file in files for group in range(pq.read_metadata(file).num_row_groups)
    ]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda group: _decode_row_group(*group), groups))


def _decode_row_group(file: Path, group: int) -> None:
    pq.ParquetFile(file).read_row_group(group, use_threads=False)
