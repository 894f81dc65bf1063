"""B4, B8, B13, B15: restores without Spark, of all subtasks, of one key, and with little memory.

The floor of a restore is pyarrow, which reads the same files in one thread. A counting folder
records the opened files and the bytes read, which are the same on every machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.arrow_stores import NAME, UID, store_rows, stored
from bench.measure import Figure, Runs, counted, in_turn, output_of, times
from bench.state import state_table
from statestore import StateStore
from statestore.format.manifest import KeyedEntry
from statestore.restore.restored import RestoredKeyedState
from statestore.testing.faults import CountingStorage

__all__ = ["figures"]

RESTORED_AT = (3, 16, 64)
LAYOUTS = ("partitioned", "ranged")
FLOOR = "pyarrow, the same files, one thread"
MEBIBYTE = 2**20
# Ten times the memory limit of the restore, which is 200 MB and a row group: 2.3 GB.
WIDE_ROWS, WIDE_NOTES = 1_800_000, 20
# The child process of B15: it dies if it needs more memory than the limit.
_CHILD = """
import resource, sys
import pyarrow
from statestore import StateStore
url, uid, name, most = *sys.argv[1:4], int(sys.argv[4])
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
def data():
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData"))
reader = StateStore.open(url, table_format="parquet").restore(parallelism=1).keyed(uid, name)
before = peak()
# Threads and allocators set room aside that they never touch.
resource.setrlimit(resource.RLIMIT_DATA, (data() + 2 * most, data() + 2 * most))
rows = 0
for batch in reader.to_batches(0):
    rows += batch.num_rows
print(rows, peak() - before)
"""


def figures(folder: Path, rows: int, repeats: int) -> list[Figure]:
    """Return all figures; each layout has its own store below ``folder``."""
    found: list[Figure] = []
    for layout in LAYOUTS:
        entry = stored(folder / layout, rows, ranged=layout == "ranged")
        found += _restores(folder / layout, entry, layout, repeats)
        found += _counts(folder / layout, entry, layout)
        found += _lookups(folder / layout, entry, layout, rows)
    wide = _wide(state_table(min(rows, WIDE_ROWS)))
    for layout in LAYOUTS:
        file_bytes = wide.nbytes // 8 if layout == "ranged" else None
        entry = store_rows(folder / f"wide-{layout}", wide, file_bytes=file_bytes)
        found.append(_memory(folder / f"wide-{layout}", entry, layout))
    return found


def _wide(rows: pa.Table) -> pa.Table:
    """Return rows with many notes: more bytes than fit into one text column."""
    for number in range(WIDE_NOTES):
        rows = rows.append_column(f"note{number}", rows.column("note"))
    return rows


def _restores(folder: Path, entry: KeyedEntry, layout: str, repeats: int) -> list[Figure]:
    files = [folder / entry.table.path / handle.path for handle in entry.handles]
    store = StateStore.open(str(folder), table_format="parquet")
    states = {
        f"restore 4 -> {parallelism}, Arrow, {layout}": store.restore(parallelism=parallelism)
        for parallelism in RESTORED_AT
    }
    keyed = {what: restored.keyed(UID, NAME) for what, restored in states.items()}
    runs: Runs = {
        FLOOR: partial(_plain, files),
        **{what: partial(_restore, state) for what, state in keyed.items()},
    }
    seconds = in_turn(runs, repeats)
    found = [times("B4", what, seconds, floor=FLOOR, goal=1.1) for what in keyed]
    waits = [_first_batch(state) for state in keyed.values() for _ in range(repeats)]
    what = f"first batch of a subtask, {layout}"
    low, high = min(waits), max(waits)
    return [*found, Figure("B4", what, statistics.median(waits), "s", low, high, goal=0.05)]


def _plain(files: list[Path]) -> None:
    for file in files:
        for _ in pq.ParquetFile(file).iter_batches(use_threads=False):
            pass


def _restore(keyed: RestoredKeyedState) -> None:
    for subtask in range(keyed.assignment.parallelism):
        for _ in keyed.to_batches(subtask):
            pass


def _first_batch(keyed: RestoredKeyedState) -> float:
    start = time.perf_counter()
    keyed.to_batches(keyed.assignment.parallelism - 1).read_next_batch()
    return time.perf_counter() - start


def _counts(folder: Path, entry: KeyedEntry, layout: str) -> list[Figure]:
    goal = 1.0 if layout == "partitioned" else 1.02
    found = []
    for parallelism in RESTORED_AT:
        storage = CountingStorage(str(folder))
        _restore(StateStore.open(storage).restore(parallelism=parallelism).keyed(UID, NAME))
        read = round(storage.bytes_read / entry.size_bytes, 2)
        opened = storage.opened.total() / len(entry.handles)
        what = f"4 -> {parallelism}, {layout}"
        once = 1.0 if layout == "partitioned" else None
        found.append(counted("B8", f"bytes read, {what}", read, "x", goal=goal))
        found.append(counted("B8", f"files opened, {what}", opened, "x", goal=once))
    return found


def _lookups(folder: Path, entry: KeyedEntry, layout: str, rows: int) -> list[Figure]:
    users = [f"user-{number:09d}" for number in range(0, rows, max(rows // 100, 1))]
    storage = CountingStorage(str(folder))
    counting = StateStore.open(storage).restore().keyed(UID, NAME)
    over = 0.0
    for user in users:
        storage.opened.clear()
        storage.bytes_read = 0
        assert len(counting.get(user)) == 1
        (name,) = storage.opened
        over = max(over, storage.bytes_read / _footer_and_row_group(folder / name))
    keyed = StateStore.open(str(folder), table_format="parquet").restore().keyed(UID, NAME)
    waits = []
    for user in users:
        start = time.perf_counter()
        keyed.get(user)
        waits.append(time.perf_counter() - start)
    what = f"get(key), {layout}"
    median, low, high = statistics.median(waits), min(waits), max(waits)
    return [
        counted("B13", f"most bytes of a footer and a row group, {what}", over, "x", goal=1.0),
        Figure("B13", what, median, "s", low, high, goal=0.05),
    ]


def _footer_and_row_group(file: Path) -> int:
    metadata = pq.read_metadata(file)
    return int(metadata.serialized_size) + 8 + max(_row_group_bytes(metadata, False))


def _row_group_bytes(metadata: pq.FileMetaData, uncompressed: bool) -> list[int]:
    name = "total_uncompressed_size" if uncompressed else "total_compressed_size"
    return [
        sum(getattr(metadata.row_group(group).column(i), name) for i in range(metadata.num_columns))
        for group in range(metadata.num_row_groups)
    ]


def _memory(folder: Path, entry: KeyedEntry, layout: str) -> Figure:
    """Restore all rows as one subtask, in a process with about a tenth of their size as memory."""
    metadata = [
        pq.read_metadata(folder / entry.table.path / handle.path) for handle in entry.handles
    ]
    groups = [size for one in metadata for size in _row_group_bytes(one, True)]
    allowed = max(groups) + 200 * MEBIBYTE
    arguments = [str(folder), UID, NAME, str(allowed)]
    said = output_of([sys.executable, "-c", _CHILD, *arguments])
    rows, grown = map(int, said.split())
    assert rows == sum(handle.rows for handle in entry.handles)
    share = f"{sum(groups) / max(grown, 1):.0f} times smaller than the subtask"
    what = f"peak memory of a restore, {layout}, {share}"
    return counted("B15", what, grown / MEBIBYTE, "MiB", goal=allowed / MEBIBYTE)
